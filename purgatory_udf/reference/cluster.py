"""All brokers of a trace, on one clock. Each is a world of its own; only who leads a topic is known to all."""

from __future__ import annotations

from purgatory_udf.config import Config
from purgatory_udf.purgatory.clock import Clock
from purgatory_udf.reference.broker import Broker
from purgatory_udf.reference.topic_partition import TopicPartition


class Cluster:
    def __init__(self, config: Config, start_ms: int) -> None:
        self.config = config
        self.clock = Clock(start_ms)
        self.brokers: dict[int, Broker] = {}
        self._led: dict[str, set[int]] = {}

    def broker(self, broker_id: int) -> Broker:
        broker = self.brokers.get(broker_id)
        if broker is None:
            broker = self.brokers[broker_id] = Broker(broker_id, self.config, self.clock)
        return broker

    def has_leaders(self, topic: str, partitions: int) -> bool:
        """Whether each of the topic's partitions 0 to n-1 has a leader, at whichever broker."""
        led = self._led.get(topic, set())
        return len(led) >= partitions and all(partition in led for partition in range(partitions))

    def leader_elected(self, key: TopicPartition, now_us: int) -> None:
        self._led.setdefault(key.topic, set()).add(key.partition)
        for broker in self.brokers.values():
            broker.topics.check_and_complete(key.topic, now_us)

    def deleted(self, key: TopicPartition) -> None:
        self._led.get(key.topic, set()).discard(key.partition)
