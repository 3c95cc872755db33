"""Kafka's purgatory written plainly, event by event: the specification that everything faster has to equal.

Read in this order: `timing_wheel` and `timer` (deadlines), `delayed_operation` and `purgatory` (waiting), `reaper` (who
moves the clock), `partition_log` and `partition` (what is waited on), then one file per operation: `produce`, `fetch`,
`delete_records`, `create_topics`; `broker` puts them together, and `replay` feeds it a trace.
"""
