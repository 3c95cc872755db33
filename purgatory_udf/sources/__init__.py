"""Imports traces from files, request logs and Kafka topics into the tables `events` and `rejected_events`.

- `trace_files`: JSON Lines and Parquet
- `request_log`: Kafka's request log
- `kafka_topic`: a topic as files for either import; `follow_topic`: a topic followed step by step
"""
