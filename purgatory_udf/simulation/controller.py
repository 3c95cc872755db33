"""The controller: which broker leads which partition, and what the brokers are told when that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.cluster_partitions import InSyncReplicas, PartitionState, ReplicaLog, high_watermark_after
from purgatory_udf.simulation.environment import ProcessGenerator, World
from purgatory_udf.simulation.messages import Metadata
from purgatory_udf.simulation.scenario import Brokers, Delay, Topic


class Controller:
    """Decides by itself, tells the brokers by `partition` events. `changed` happens at every change of leadership."""

    def __init__(self, world: World, settings: Brokers, is_up: Callable[[int], bool]) -> None:
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.changed = world.env.event()
        self._world = world
        self._settings = settings
        self._is_up = is_up
        self._brokers = list(range(1, settings.count + 1))
        self._chance = world.chance("controller")
        self._placed = 0

    def metadata(self) -> Metadata:
        leaders: dict[TopicPartition, tuple[int, int]] = {}
        topics: dict[str, int] = {}
        for key, state in self.partitions.items():
            topics[key.topic] = topics.get(key.topic, 0) + 1
            if state.leader is not None:
                leaders[key] = (state.leader, state.epoch)
        return Metadata(leaders, topics)

    # Topics.

    def create(self, topic: Topic) -> None:
        """There from the beginning: led at once."""
        for state in self._place(topic):
            self._begin(state)

    def create_later(self, topic: Topic, election: Delay) -> None:
        """Each partition is led when its election is over; the topic's replicas are placed now."""
        for state in self._place(topic):
            self._world.later(self._chance.delay_us(election), self._begin, state)

    def _place(self, topic: Topic) -> list[PartitionState]:
        """The first replica is the preferred leader; partitions go round the brokers."""
        states = []
        for partition in range(topic.partitions):
            first, count = self._placed, len(self._brokers)
            replicas = tuple(self._brokers[(first + at) % count] for at in range(topic.replication))
            self._placed += 1
            states.append(
                PartitionState(
                    key=TopicPartition(topic.name, partition),
                    replicas=replicas,
                    min_isr=min(topic.min_isr, topic.replication),
                    segment_bytes=topic.segment_bytes,
                    leader=None,
                    epoch=-1,
                    in_sync=self._in_sync(replicas[0], replicas, replicas),
                    copies={broker: ReplicaLog() for broker in replicas},
                )
            )
        return states

    def _begin(self, state: PartitionState) -> None:
        self.partitions[state.key] = state
        leader = next((broker for broker in state.replicas if self._is_up(broker)), None)
        if leader is None:
            return
        for broker in state.replicas:
            if broker != leader:
                self._tell(state, broker, "not_leader")
        self._lead(state, leader, state.replicas)

    # Leadership.

    def move(self, key: TopicPartition, to: int) -> ProcessGenerator[None]:
        """The leader resigns; after the election the next one leads, if it is in sync and up."""
        state = self.partitions[key]
        before = state.leader
        if before is None or before == to or to not in state.isr or not self._is_up(to):
            return
        self._resign(state)
        self._tell(state, before, "not_leader")
        yield self._world.sleep_us(self._chance.delay_us(self._settings.election))
        if state.leader is None and self._is_up(to):
            self._lead(state, to, state.isr)

    def hand_over(self, broker: int) -> ProcessGenerator[None]:
        """A broker that is to stop leads nothing any more that another one can lead, and is in no in-sync set."""
        for state in list(self.partitions.values()):
            others = tuple(replica for replica in state.isr if replica != broker)
            heir = next((replica for replica in state.replicas if replica in others and self._is_up(replica)), None)
            if state.leader == broker and heir is not None:
                yield from self.move(state.key, heir)
            if state.leader not in (None, broker) and broker in state.isr:
                state.in_sync.isr = tuple(replica for replica in state.isr if replica != broker)
                self.tell_isr(state.key)

    def fail(self, broker: int) -> None:
        """The broker is gone, with everything that waited there; nobody has noticed yet."""
        for state in self.partitions.values():
            if state.leader == broker:
                self._resign(state)
            if broker in state.replicas:
                self._tell(state, broker, "stopped")
        for topic in self._world.engine.cluster.broker(broker).topics.watched_keys():
            # Somebody waits there for a topic that is yet to be led, or is elsewhere.
            self._world.record("partition", broker, topic=topic, partition=0, change="stopped")

    def notice_failure(self, broker: int) -> ProcessGenerator[None]:
        """After a while its partitions get other leaders, and it is taken out of the in-sync sets."""
        yield self._world.sleep_ms(self._settings.failure_detection_ms)
        if self._is_up(broker):
            return
        for state in list(self.partitions.values()):
            others = tuple(replica for replica in state.isr if replica != broker)
            if state.leader is None:
                heir = next((replica for replica in state.replicas if replica in others and self._is_up(replica)), None)
                if heir is not None:
                    yield self._world.sleep_us(self._chance.delay_us(self._settings.election) // 4)
                    if state.leader is None and self._is_up(heir):
                        self._lead(state, heir, others)
            elif broker in state.isr and others:
                state.in_sync.isr = others
                self.tell_isr(state.key)

    def come_back(self, broker: int) -> None:
        """The broker follows from now on; partitions that were left without a leader have one again."""
        for state in self.partitions.values():
            if broker not in state.replicas:
                continue
            if state.leader is None and broker in state.isr:
                self._tell(state, broker, "online")
                self._lead(state, broker, state.isr)
            elif state.leader != broker:
                self._tell(state, broker, "not_leader")
                self._tell_truncation(state, broker)
        self._announce()

    def prefer_first_replicas(self) -> ProcessGenerator[None]:
        """The election of preferred leaders."""
        for state in list(self.partitions.values()):
            yield from self.move(state.key, state.replicas[0])

    def _resign(self, state: PartitionState) -> None:
        """From now on its log is one among the copies."""
        leader = state.leader
        assert leader is not None, f"{state.key} has no leader to resign"
        replica = self._world.engine.cluster.broker(leader).replica(state.key)
        copy = state.copies[leader]
        copy.end = copy.told_end = replica.log.end.offset if replica.log.end else 0
        copy.high_watermark = replica.high_watermark.offset if replica.high_watermark else 0
        state.leader = None

    def _lead(self, state: PartitionState, leader: int, isr: tuple[int, ...]) -> None:
        """The new leader's log is the log from now on: it is told, and whoever has more cuts that off."""
        copy = state.copies[leader]
        log = self._world.engine.cluster.broker(leader).replica(state.key).log
        self._tell_truncation(state, leader)
        if log.end is None:
            self._tell(state, leader, "log_end", offset=0)
        for end, size in copy.untold:
            self._tell(state, leader, "log_end", offset=end, bytes=size, batches=1 if size else None)
        copy.untold.clear()
        copy.told_end = copy.end
        self._tell(state, leader, "high_watermark", offset=copy.high_watermark)
        state.transactions.truncate(copy.end)
        state.transactions.announced = None
        state.leader, state.epoch = leader, state.epoch + 1
        state.in_sync = self._in_sync(leader, state.replicas, isr)
        state.segment_begins = log.end.position if log.end else 0
        for broker, other in state.copies.items():
            other.truncate(copy.end)
            if broker != leader and self._is_up(broker):
                self._tell_truncation(state, broker)
        self.stabilise(state, leader, isr=tuple(isr))
        self._tell(
            state,
            leader,
            "leader",
            leader_epoch=state.epoch,
            replicas=list(state.replicas),
            isr=list(isr),
            min_isr=state.min_isr,
        )
        self._announce()

    def _announce(self) -> None:
        self.changed.succeed()
        self.changed = self._world.env.event()

    def _tell_truncation(self, state: PartitionState, broker: int) -> None:
        """Where the broker's log was told further than it goes now."""
        copy = state.copies[broker]
        if copy.told_end > copy.end:
            copy.told_end = copy.end
            self._tell(state, broker, "truncate", offset=copy.end)

    # Transactions.

    def stabilise(
        self,
        state: PartitionState,
        leader: int,
        *,
        end: int | None = None,
        isr: tuple[int, ...] | None = None,
        follower: tuple[int, int] | None = None,
    ) -> None:
        """The last stable offset, where it will be when the high watermark moves by this: whoever is woken then looks
        at both. Of a partition without transactions nothing is said."""
        if not state.transactions.used:
            return
        replica = self._world.engine.cluster.broker(leader).replica(state.key)
        mark = high_watermark_after(replica, leader, end=end, isr=isr, follower=follower)
        stable = state.transactions.last_stable(mark or 0)
        if state.transactions.announced is None or stable > state.transactions.announced:
            state.transactions.announced = stable
            self._tell(state, leader, "last_stable", offset=stable)

    # In sync.

    def tell_isr(self, key: TopicPartition) -> None:
        state = self.partitions[key]
        assert state.leader is not None, f"{key} has no leader to tell of its in-sync set"
        self.stabilise(state, state.leader, isr=state.isr)
        self._tell(state, state.leader, "isr", isr=list(state.isr))

    def watch_in_sync(self) -> ProcessGenerator[None]:
        """Each leader looks, every half of the time that a follower may lag, whom to drop."""
        while True:
            yield self._world.sleep_ms(self._settings.replica_lag_time_max_ms / 2)
            for key, state in self.partitions.items():
                if state.leader is not None:
                    log = self._world.engine.cluster.broker(state.leader).replica(key).log
                    if state.in_sync.shrink(log.end.offset if log.end else 0, self._world.now_ms):
                        self.tell_isr(key)

    def _in_sync(self, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> InSyncReplicas:
        followers = [broker for broker in replicas if broker != leader]
        in_sync = InSyncReplicas(leader, followers, self._world.now_ms, self._settings.replica_lag_time_max_ms)
        in_sync.isr = isr
        return in_sync

    def _tell(self, state: PartitionState, broker: int, change: str, **fields: Any) -> None:
        key = state.key
        self._world.record("partition", broker, topic=key.topic, partition=key.partition, change=change, **fields)
