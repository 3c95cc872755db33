"""The open loop: traces of any size, made by Spark in parallel. Clients do not react to answers.

Time is cut into slices. A slice depends only on the seed and its number, because every value is a function of (seed,
entity, index): `random_streams`.

- `workload`: the settings, and what follows from them
- `partition_requests`: produces, fetches and transactions of a slice
- `group_members`, `group_schedule`: consumer groups, their members and when they act
- `event_columns`, `event_rows`: rows of `events`, written as a table
"""
