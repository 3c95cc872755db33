"""The controller: assigns leaders, keeps the in-sync sets, and records each change as a `partition` event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.cluster_partitions import InSyncReplicas, PartitionState, ReplicaLog, high_watermark_after
from purgatory_udf.simulation.messages import Metadata
from purgatory_udf.simulation.scenario import Brokers, Delay, Topic
from purgatory_udf.simulation.simpy_environment import Environment, ProcessGenerator


class Controller:
    """Decides which broker leads which partition. The event `leadership_changed` is triggered at every change."""

    def __init__(self, environment: Environment, settings: Brokers, is_up: Callable[[int], bool]) -> None:
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.leadership_changed = environment.env.event()
        self._environment = environment
        self._settings = settings
        self._is_up = is_up
        self._brokers = list(range(1, settings.count + 1))
        self._random = environment.random_stream("controller")
        self._next_preferred = 0

    def metadata(self) -> Metadata:
        """Return the metadata that brokers send to clients."""
        leaders: dict[TopicPartition, tuple[int, int]] = {}
        topics: dict[str, int] = {}
        for key, state in self.partitions.items():
            topics[key.topic] = topics.get(key.topic, 0) + 1
            if state.leader is not None:
                leaders[key] = (state.leader, state.epoch)
        return Metadata(leaders, topics)

    def create(self, topic: Topic) -> None:
        """Create a topic and elect the leaders of its partitions at once."""
        for state in self._place(topic):
            self._start_partition(state)

    def create_after_election(self, topic: Topic, election: Delay) -> None:
        """Create a topic and place its replicas; each partition gets its leader after a random election time."""
        for state in self._place(topic):
            self._environment.schedule(self._random.delay_us(election), self._start_partition, state)

    def _place(self, topic: Topic) -> list[PartitionState]:
        """Assign replicas round robin; the first replica is the preferred leader."""
        states = []
        for partition in range(topic.partitions):
            first, count = self._next_preferred, len(self._brokers)
            replicas = tuple(self._brokers[(first + at) % count] for at in range(topic.replication))
            self._next_preferred += 1
            states.append(
                PartitionState(
                    key=TopicPartition(topic.name, partition),
                    replicas=replicas,
                    min_isr=min(topic.min_isr, topic.replication),
                    segment_bytes=topic.segment_bytes,
                    local_retention_bytes=topic.local_retention_bytes,
                    leader=None,
                    epoch=-1,
                    in_sync=self._in_sync_replicas(replicas[0], replicas, replicas),
                    replica_logs={broker: ReplicaLog() for broker in replicas},
                )
            )
        return states

    def _start_partition(self, state: PartitionState) -> None:
        self.partitions[state.key] = state
        leader = next((broker for broker in state.replicas if self._is_up(broker)), None)
        if leader is None:
            return
        for broker in state.replicas:
            if broker != leader:
                self._record(state, broker, "not_leader")
        self._make_leader(state, leader, state.replicas)

    def move(self, key: TopicPartition, to: int) -> ProcessGenerator[None]:
        """Move the leadership to a broker that is up and in sync; the partition has no leader during the election."""
        state = self.partitions[key]
        before = state.leader
        if before is None or before == to or to not in state.isr or not self._is_up(to):
            return
        self._resign(state)
        self._record(state, before, "not_leader")
        yield self._environment.sleep_us(self._random.delay_us(self._settings.election))
        if state.leader is None and self._is_up(to):
            self._make_leader(state, to, state.isr)

    def controlled_shutdown(self, broker: int) -> ProcessGenerator[None]:
        """Move the broker's leaderships to other in-sync replicas and remove it from all in-sync sets."""
        for state in list(self.partitions.values()):
            others = tuple(replica for replica in state.isr if replica != broker)
            successor = next(
                (replica for replica in state.replicas if replica in others and self._is_up(replica)), None
            )
            if state.leader == broker and successor is not None:
                yield from self.move(state.key, successor)
            if state.leader not in (None, broker) and broker in state.isr:
                state.in_sync.isr = tuple(replica for replica in state.isr if replica != broker)
                self.record_isr(state.key)

    def stop_broker(self, broker: int) -> None:
        """Record that the broker has stopped, which cancels the requests that wait there.

        The controller and other brokers do not know of the stop yet (`detect_failure`).
        """
        for state in self.partitions.values():
            if state.leader == broker:
                self._resign(state)
            if broker in state.replicas:
                self._record(state, broker, "stopped")
        for topic in self._environment.engine.cluster.broker(broker).topic_purgatory.watched_keys():
            # Creations may wait for topics without a leader, or with leaders at other brokers only.
            self._environment.record("partition", broker, topic=topic, partition=0, change="stopped")

    def detect_failure(self, broker: int) -> ProcessGenerator[None]:
        """After the detection timeout, elect other leaders and remove the broker from the in-sync sets.

        Does nothing if the broker is up again by then.
        """
        yield self._environment.sleep_ms(self._settings.failure_detection_ms)
        if self._is_up(broker):
            return
        for state in list(self.partitions.values()):
            others = tuple(replica for replica in state.isr if replica != broker)
            if state.leader is None:
                successor = next(
                    (replica for replica in state.replicas if replica in others and self._is_up(replica)), None
                )
                if successor is not None:
                    yield self._environment.sleep_us(self._random.delay_us(self._settings.election) // 4)
                    if state.leader is None and self._is_up(successor):
                        self._make_leader(state, successor, others)
            elif broker in state.isr and others:
                state.in_sync.isr = others
                self.record_isr(state.key)

    def restart_broker(self, broker: int) -> None:
        """Let the broker follow again, and lead the partitions that only it can lead."""
        for state in self.partitions.values():
            if broker not in state.replicas:
                continue
            if state.leader is None and broker in state.isr:
                self._record(state, broker, "online")
                self._make_leader(state, broker, state.isr)
            elif state.leader != broker:
                self._record(state, broker, "not_leader")
                self._record_truncation(state, broker)
        self._notify_leadership_change()

    def elect_preferred_leaders(self) -> ProcessGenerator[None]:
        """Move every partition to its first replica (Kafka: preferred leader election)."""
        for state in list(self.partitions.values()):
            yield from self.move(state.key, state.replicas[0])

    def _resign(self, state: PartitionState) -> None:
        """Leave the partition without a leader; the former leader's log becomes a replica's log."""
        leader = state.leader
        assert leader is not None, f"{state.key}: no leader to resign"
        replica = self._environment.engine.cluster.broker(leader).replica(state.key)
        replica_log = state.replica_logs[leader]
        replica_log.end = replica_log.recorded_end = replica.log.end.offset if replica.log.end else 0
        replica_log.high_watermark = replica.high_watermark.offset if replica.high_watermark else 0
        state.leader = None

    def _make_leader(self, state: PartitionState, leader: int, isr: tuple[int, ...]) -> None:
        """Make a replica the leader: record its log, and truncate longer replica logs."""
        replica_log = state.replica_logs[leader]
        log = self._environment.engine.cluster.broker(leader).replica(state.key).log
        self._record_truncation(state, leader)
        if log.end is None:
            self._record(state, leader, "log_end", offset=0)
        for end, size in replica_log.unrecorded_batches:
            self._record(state, leader, "log_end", offset=end, bytes=size, batches=1 if size else None)
        replica_log.unrecorded_batches.clear()
        replica_log.recorded_end = replica_log.end
        self._record(state, leader, "high_watermark", offset=replica_log.high_watermark)
        state.transactions.truncate(replica_log.end)
        state.transactions.recorded_last_stable = None
        state.leader, state.epoch = leader, state.epoch + 1
        state.in_sync = self._in_sync_replicas(leader, state.replicas, isr)
        state.segment_start = log.end.position if log.end else 0
        if state.local_retention_bytes is not None:
            local_start = state.local_log_start
            state.local_segments = [(local_start, log.position(local_start)), (replica_log.end, state.segment_start)]
            self._record(state, leader, "local_log_start", offset=local_start)
        for broker, other in state.replica_logs.items():
            other.truncate(replica_log.end)
            if broker != leader and self._is_up(broker):
                self._record_truncation(state, broker)
        self.record_last_stable(state, leader, isr=tuple(isr))
        self._record(
            state,
            leader,
            "leader",
            leader_epoch=state.epoch,
            replicas=list(state.replicas),
            isr=list(isr),
            min_isr=state.min_isr,
        )
        self._notify_leadership_change()

    def _notify_leadership_change(self) -> None:
        self.leadership_changed.succeed()
        self.leadership_changed = self._environment.env.event()

    def _record_truncation(self, state: PartitionState, broker: int) -> None:
        """Record a truncation, if the broker's log end in the trace is beyond its current log end."""
        replica_log = state.replica_logs[broker]
        if replica_log.recorded_end > replica_log.end:
            replica_log.recorded_end = replica_log.end
            self._record(state, broker, "truncate", offset=replica_log.end)

    def record_last_stable(
        self,
        state: PartitionState,
        leader: int,
        *,
        end: int | None = None,
        isr: tuple[int, ...] | None = None,
        follower: tuple[int, int] | None = None,
    ) -> None:
        """Record the last stable offset that the partition will have after the given change.

        It is recorded before the event that moves the high watermark, because requests completed by that event read
        both. A partition without transactions has no such events.

        Args:
            state: The partition.
            leader: Broker id of its leader.
            end: New log end, if the change is an append.
            isr: New in-sync replicas, if the change is one of the in-sync set.
            follower: Broker id of a follower and the offset that it has reached, if the change is its progress.
        """
        if not state.transactions.used:
            return
        replica = self._environment.engine.cluster.broker(leader).replica(state.key)
        mark = high_watermark_after(replica, leader, end=end, isr=isr, follower=follower)
        stable = state.transactions.last_stable(mark or 0)
        if state.transactions.recorded_last_stable is None or stable > state.transactions.recorded_last_stable:
            aborted = [
                {"first_offset": first, "last_offset": last} for first, last in state.transactions.take_aborted(stable)
            ]
            state.transactions.recorded_last_stable = stable
            self._record(state, leader, "last_stable", offset=stable, aborted=aborted or None)

    def record_isr(self, key: TopicPartition) -> None:
        """Record the partition's in-sync set at its leader."""
        state = self.partitions[key]
        assert state.leader is not None, f"{key}: the in-sync set cannot change without a leader"
        self.record_last_stable(state, state.leader, isr=state.isr)
        self._record(state, state.leader, "isr", isr=list(state.isr))

    def run_isr_shrinking(self) -> ProcessGenerator[None]:
        """Remove lagging followers from in-sync sets, as in Kafka at intervals of half of `replica_lag_time_max_ms`."""
        while True:
            yield self._environment.sleep_ms(self._settings.replica_lag_time_max_ms / 2)
            for key, state in self.partitions.items():
                if state.leader is not None:
                    log = self._environment.engine.cluster.broker(state.leader).replica(key).log
                    if state.in_sync.shrink(log.end.offset if log.end else 0, self._environment.now_ms):
                        self.record_isr(key)

    def _in_sync_replicas(self, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> InSyncReplicas:
        followers = [broker for broker in replicas if broker != leader]
        in_sync = InSyncReplicas(leader, followers, self._environment.now_ms, self._settings.replica_lag_time_max_ms)
        in_sync.isr = isr
        return in_sync

    def _record(self, state: PartitionState, broker: int, change: str, **fields: Any) -> None:
        key = state.key
        self._environment.record("partition", broker, topic=key.topic, partition=key.partition, change=change, **fields)
