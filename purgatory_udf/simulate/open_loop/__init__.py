"""The open loop: traces of any size, made by Spark in parallel. Nobody reacts to anything.

Time is cut into slices, and a slice of the trace can be made by itself, out of the seed and its number, because each
value in it is a function of (seed, entity, index): `streams`.

- what is asked for, and what follows from it: `workload`
- clients: `arrivals` says how many requests come in which slice and before it, `requests` when and what they are;
  `administration`: deletions of records and creations of topics
- groups: `acts`, what members do; `crew`, who they are and whose turn it is; `groups`, the plan that they live by
- `columns`, `group_rows` and `rows` make events of all that, `write` a table
"""
