"""The group coordinator over batches of events, with a group's state as bytes between them.

In reading order:

- `group_rows`, `column_frames`: events of groups as columns of numbers and texts
- `compiled_groups`, `compiled_coordinator`: classic groups of dynamic members, decided together in compiled code
- `group_step`: one call for one other group, or for all stable groups of a shard, which uses the next three modules
- `heartbeat_fast_path`: heartbeats and offset commits of stable groups, on columns
- `group_machine`: the coordinator for one group, restored from a snapshot
- `operation_timeline`: when operations start and end in the order of the whole trace
- `group_state_store`: snapshots of groups between calls
- `group_outcome_tables`: rows of the public tables
- `group_waits`, `group_gauges`: the gauges of the purgatories that a broker's groups share
"""
