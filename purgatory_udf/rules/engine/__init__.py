"""The compiled engine: the reference's rules for partitions and topics, event by event, in machine code.

- `partition_engine`: the engine's public face: event tables in, outcome tables out
- `key_shards`: which keys are processed together, and combining operations that span several of them
- `columns`: Arrow tables to records and back
- `loop`: the rules and their state
- `jit`: how Python functions become machine code, and where that is cached
"""
