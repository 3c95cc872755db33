"""Kafka's purgatory and group rules. No module imports Spark.

- `purgatory`: delayed operations, watcher lists, timing wheel, expiration reaper
- `reference`: brokers event by event; the executable specification
- `coordinator`: the group coordinator, shared by the reference, the engine and the simulation
- `engine`: the compiled engine for partitions and topics
- `groups`: batches of group events around the coordinator
- `warm_up`: compiles the engine ahead of its first use
"""
