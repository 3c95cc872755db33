"""The compiled engine: the reference's rules for partitions and topics, event by event, in machine code.

- `partition_engine`: the public interface, event tables in and outcome tables out
- `key_shards`: which keys are processed together, and operations that span several groups of keys
- `calls_from_events`, `parallel_pieces`, `event_records`: event tables become the records of a call, in several threads
- `what_if_columns`: the values that requests have with what-if settings
- `column_access`: reading Arrow columns in compiled code
- `outcome_tables`: decisions become Arrow tables
- `loop`: the rules and their state
- `jit`: numba; how functions over records are compiled and cached
"""
