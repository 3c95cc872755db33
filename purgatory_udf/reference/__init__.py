"""Kafka's purgatory written plainly, event by event: the specification that everything faster has to equal.

Read it in this order:

- deadlines: `timing_wheel`, `timer`
- waiting: `delayed_operation`, `purgatory`; who moves the clock: `reaper`, `clock`; what an operator sees: `gauges`
- what is waited on: `partition_log`, `partition`, and for simulated leaders `in_sync`, `quota`
- who waits, a file each: `produce`, `fetch`, `delete_records`, `create_topics`; what they share: `request`, `settling`
- the whole: `broker`, `cluster`; what happens to them: `requests`, `triggers`; a trace: `replay`
- groups: `coordinator`, `join`, `initial_join`, `sync`, `heartbeat`
"""
