"""Kafka's purgatory: how operations wait, complete and expire, independent of their conditions.

In reading order:

- `timing_wheel`: hierarchical timing wheels, their tasks, and the timer of a purgatory
- `delayed_operation`: an operation that completes or expires, the request of a trace that it answers, and the purgatory
  with its watcher lists by key and the purge of completed operations
- `clock`: the expiration reapers, the clock that drives them, and the two gauges of every purgatory
"""
