"""Kafka's purgatory, independent of what an operation waits for.

- `timing_wheel`: hierarchical timing wheels, their tasks, and the timer around them
- `delayed_operation`: one request that may have to wait, and how the tables name it
- `delayed_operation_purgatory`: watcher lists by key
- `clock`: the expiration reapers, the one clock that drives them, and the two gauges
"""
