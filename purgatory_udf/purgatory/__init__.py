"""Kafka's purgatory itself, which knows no rule about what is waited for: the reference and the coordinator wait in it.

Read it in this order:

- deadlines: `timing_wheel`, `timer_task`, `timer`
- waiting: `delayed_operation`, `purgatory`; what a request has beside that: `request`
- who moves the clock: `reaper`, `clock`; what an operator sees: `gauges`
"""
