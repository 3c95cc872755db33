"""Kafka's brokers, event by event: the specification that every faster implementation has to match.

In reading order:

- `partition`: a replica's log, high watermark, leadership and in-sync replicas
- `delayed_produce`, `delayed_fetch`: the delayed operations of produces, delete-records and create-topics requests, and
  of fetches
- `delayed_remote`: the delayed operations of fetches and list-offsets requests that wait for remote storage
- `share_records`, `share_partition`: the records of a partition in flight for a share group
- `share_state`: the persisted states of share partitions, settings of share groups, and dead-letter queues
- `share_delivery`: reads of logs for share fetches, and acquisition of the records
- `delayed_share_fetch`: the delayed operation of share fetches
- `share_broker`: the share partitions and share sessions of a broker, and the events that check waiting share fetches
- `broker`: a broker's replicas and purgatories, and the cluster
- `event_handlers`: turns each event of a trace into a delayed operation, or into a change that triggers checks
- `reference_replay`: the replay of a whole trace, with outcomes and gauges, and of share groups in steps
"""
