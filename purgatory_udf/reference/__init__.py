"""Kafka's brokers written plainly, event by event: the specification that everything faster has to equal.

How operations wait is `purgatory_udf.purgatory`, how groups do, `purgatory_udf.coordinator`; the rest in this order:

- what is waited on: `partition_log`, `partition`, and for simulated leaders `in_sync`, `quota`
- who waits, a file each: `produce`, `fetch`, `delete_records`, `create_topics`; what they share: `settling`
- the whole: `broker`, `cluster`; what happens to them: `requests`, `triggers`; a trace: `replay`
"""
