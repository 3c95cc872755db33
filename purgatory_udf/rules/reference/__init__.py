"""Kafka's brokers, event by event: the specification that every faster implementation must equal.

- `partition`: a replica's log, high watermark, leader and in-sync set
- `delayed_fetch`, `delayed_produce`, `delayed_admin`: the delayed operations (produce, fetch, delete-records,
  create-topics)
- `broker`: a broker's replicas and purgatories, and the cluster of all brokers
- `event_handlers`: what each event does: a request becomes a delayed operation, a change wakes watchers
- `reference_replay`: a whole trace, with outcomes and gauges
"""
