"""Conversion of requests: each becomes operations, which are events, and facts about partitions at a broker.

- `partition_facts`: the facts; `recorded_operation`: an operation with its recorded outcome, and times within handling
- `fetch_sessions`: fetch sessions rebuilt, and fetch attempts; `fetch_conversion`: fetches
- `produce_conversion`: produces and transaction markers; `group_conversion`: requests of groups
- `share_conversion`: requests of share groups
- `request_conversion`: all requests of a log
"""
