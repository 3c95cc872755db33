"""Share sessions and share partitions of a broker (SharePartitionManager); events that check waiting share fetches.

A waiting fetch is watched on two keys per partition: G, the group's share partition, and P, the partition itself.

| event | key |
|---|---|
| the high watermark rose | P |
| a share fetch was answered and released its partitions | G, then P, when the broker next finishes a request |
| acknowledgements, the end of a session | G at once, while the records are in transition |
| a state write was answered, and the start offset moved | G |
| records were written to the dead-letter queue | G, if the start offset moves when their new state is written |
| a state write failed | none, unless the error fences the share partition: then G |
| an acquisition lock ended | G, before the state is written |
| the persisted state was read, or could not be read | G |
| the broker has no session of the group any more | G; nothing can be acquired, as after the loss of the leadership |
| a read of remote storage ended | G |
| the leadership was lost | G, P; the fetch finds nothing and continues to wait, unless it reads remote storage |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from purgatory_udf.common.configuration import INT32_MAX, ShareSettings
from purgatory_udf.contract.outcome import ShareDelivery, TopicPartition
from purgatory_udf.rules.purgatory.clock import Clock
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer, Timer, TimerTask
from purgatory_udf.rules.reference.delayed_produce import NONE
from purgatory_udf.rules.reference.delayed_remote import RemoteReads
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch, ShareFetch
from purgatory_udf.rules.reference.partition import ReplicaStatus
from purgatory_udf.rules.reference.share_delivery import RemoteData, ReplicaHost, ShareLogReader
from purgatory_udf.rules.reference.share_partition import SharePartition, StateWrite
from purgatory_udf.rules.reference.share_records import (
    Acknowledgement,
    Acquirer,
    ShareGroupConfig,
)
from purgatory_udf.rules.reference.share_state import (
    FENCING_ERRORS,
    NO_READS,
    UNKNOWN_TOPIC_OR_PARTITION,
    DeadLetters,
    GroupKey,
    ShareAnswer,
    ShareGroups,
    StateRead,
    member_error,
)

SHARE_SESSION_NOT_FOUND = "SHARE_SESSION_NOT_FOUND"
INVALID_SHARE_SESSION_EPOCH = "INVALID_SHARE_SESSION_EPOCH"
SHARE_SESSION_LIMIT_REACHED = "SHARE_SESSION_LIMIT_REACHED"
# Epochs of the requests that start and end a session.
INITIAL_EPOCH, FINAL_EPOCH = 0, -1


@dataclass
class CachedShareSession:
    """The share session of a member at a broker: the partitions it has had, and the epoch of its next request.

    `epoch` is None while the trace does not show it.
    """

    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    epoch: int | None = None


class ShareSessionCache:
    """The share sessions of a broker's members (`ShareSessionCache`)."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._sessions: dict[tuple[str, str], CachedShareSession] = {}
        # Groups and members that have had a session, or have been refused one.
        self._members: set[tuple[str, str]] = set()

    def fetch_error(self, fetch: ShareFetch) -> str:
        """Create, continue or refuse the share session of a fetch (`SharePartitionManager.newContext`).

        Sessions are only checked if the settings limit their number. A session from before the trace may have any
        epoch. Returns the error, or NONE.
        """
        member, limit = (fetch.group, fetch.acquirer.member_id), self._settings.max_sessions
        if limit is not None and fetch.session_epoch == INITIAL_EPOCH:
            self._members.add(member)
            self._sessions.pop(member, None)
            if len(self._sessions) >= limit:
                return SHARE_SESSION_LIMIT_REACHED
            self._sessions[member] = CachedShareSession(epoch=INITIAL_EPOCH)
        elif member not in self._sessions and (limit is None or member not in self._members):
            self._members.add(member)
            self._sessions[member] = CachedShareSession()
        error = self._use(member, fetch.session_epoch)
        if error == NONE:
            self._sessions[member].partitions.update(dict.fromkeys(fetch.partitions))
        return error

    def acknowledge_error(self, group: str, member_id: str, epoch: int | None) -> str:
        """Return the error of the session epoch of a request that acknowledges records, or NONE."""
        member = group, member_id
        if member not in self._sessions and member not in self._members:
            return NONE
        return self._use(member, epoch)

    def _use(self, member: tuple[str, str], epoch: int | None) -> str:
        """Check the epoch of a request, and advance that of the session. An epoch of None matches any session."""
        if self._settings.max_sessions is None:
            return NONE
        session = self._sessions.get(member)
        if session is None:
            return SHARE_SESSION_NOT_FOUND
        if epoch is None:
            session.epoch = None
        elif epoch != FINAL_EPOCH:
            if session.epoch not in (None, epoch):
                return INVALID_SHARE_SESSION_EPOCH
            session.epoch = epoch + 1 if epoch < INT32_MAX else 1
        return NONE

    def close(self, group: str, member_id: str) -> tuple[TopicPartition, ...]:
        """End the session of a member. Return the partitions that it has had."""
        session = self._sessions.pop((group, member_id), None)
        return tuple(session.partitions) if session is not None else ()

    def has_group(self, group: str) -> bool:
        """Return whether a member of the group has a session."""
        return any(of == group for of, _ in self._sessions)

    def forget(self, key: TopicPartition) -> None:
        """Drop the sessions that have had the partition, because the broker stopped."""
        self._sessions = {member: each for member, each in self._sessions.items() if key not in each.partitions}


class _WriteAnswer(TimerTask):
    """Timer task: the share coordinator's answer to a write of a share partition's state, after its delay."""

    def __init__(self, deadline_ms: int, write: StateWrite, broker: ShareBroker) -> None:
        super().__init__(deadline_ms)
        self._write, self._broker = write, broker

    def run(self, now_ms: int) -> None:
        self._broker.apply_write(self._write, now_ms * 1000)


class _DeadLetterWrite(TimerTask):
    """Timer task: the end of a write to a dead-letter queue, after its delay."""

    def __init__(self, deadline_ms: int, partition: SharePartition, letters: DeadLetters) -> None:
        super().__init__(deadline_ms)
        self._partition, self._letters = partition, letters

    def run(self, now_ms: int) -> None:
        self._partition.archive_letters(self._letters, now_ms * 1000)


class _StateReadEnd(TimerTask):
    """Timer task: the share coordinator's answer to the read of a share partition's state, after its delay.

    `operation` is the share fetch that caused the read, and `error` that of the answer.
    """

    def __init__(
        self,
        deadline_ms: int,
        partition: SharePartition,
        operation: DelayedShareFetch,
        error: str,
        broker: ShareBroker,
    ) -> None:
        super().__init__(deadline_ms)
        self._partition, self._operation, self._error, self._broker = partition, operation, error, broker

    def run(self, now_ms: int) -> None:
        if self._error == NONE:
            self._broker.initialize(self._partition, now_ms * 1000)
        else:
            self._broker.fail_read(self._partition, self._operation, self._error, now_ms * 1000)


class _IdleShareFetch(TimerTask):
    """Timer task: answers a share fetch that got no session, after its maximum wait (`IdleShareFetchTimerTask`)."""

    def __init__(self, operation: DelayedShareFetch) -> None:
        super().__init__(operation.deadline_ms)
        self._operation = operation

    def run(self, now_ms: int) -> None:
        self._operation.complete_by("session_limit", now_ms * 1000)


class _PendingRemoteReads(TimerTask):
    """Timer task: answers a share fetch whose remote reads have not ended (`PendingRemoteFetchTimerTask`)."""

    def __init__(self, operation: DelayedShareFetch) -> None:
        super().__init__(operation.deadline_ms)
        self._operation = operation

    def run(self, now_ms: int) -> None:
        self._operation.expire_remote_reads(now_ms * 1000)


class ShareBroker(ShareLogReader):
    """The share partitions of a broker (`SharePartitionManager`), its ShareFetch purgatory and its timers.

    Of timers with the same deadline, answers to state writes come first, then fetches expire, then acquisition locks.
    """

    def __init__(
        self,
        broker_id: int,
        clock: Clock,
        groups: ShareGroups,
        host: ReplicaHost,
    ) -> None:
        super().__init__(host, groups.settings.reads == "bytes")
        self.broker_id = broker_id
        self.deliveries: list[ShareDelivery] = []
        self.answers: list[ShareAnswer] = []
        self.exhausted: set[SharePartition] = set()
        # Records of expired acquisition locks, by share partition (`AcquisitionLockTimeoutPerSec`).
        self.expired_locks: dict[tuple[str, TopicPartition], int] = {}
        self._writes = clock.new_purgatory(broker_id, "share-state-writes", 0, SystemTimer(clock.start_ms)).timer
        self.purgatory: DelayedOperationPurgatory[DelayedShareFetch]
        self.purgatory = clock.new_purgatory(broker_id, "ShareFetch", groups.settings.purge_interval)
        self.lock_timer: Timer = clock.new_purgatory(
            broker_id, "share-group-lock-timeout", 0, SystemTimer(clock.start_ms)
        ).timer
        self.partitions: dict[GroupKey, SharePartition] = {}
        self.sessions = ShareSessionCache(groups.settings)
        # Timers of share fetches that wait outside of the purgatory: without a session, or for remote reads.
        self._waiting: dict[DelayedShareFetch, TimerTask] = {}
        self._reads = RemoteReads()
        self._actions: list[tuple[str, tuple[TopicPartition, ...]] | TopicPartition] = []
        self._groups = groups

    @property
    def checks_only_with_data(self) -> bool:
        """See `ShareSettings.checks_only_with_data`."""
        return self._groups.settings.checks_only_with_data

    @property
    def limits_failing_deliveries(self) -> bool:
        """See `ShareSettings.limits_failing_deliveries`."""
        return self._groups.settings.limits_failing_deliveries

    def group_settings(self, group: str) -> ShareGroupConfig:
        return self._groups.group_settings(group)

    # Fetches that wait outside of the purgatory

    def refuse(self, operation: DelayedShareFetch, error: str, now_us: int) -> None:
        """Answer a share fetch with an error of its session: after its maximum wait if there are too many sessions."""
        operation.erroneous = dict.fromkeys(operation.fetch.partitions, error)
        if error != SHARE_SESSION_LIMIT_REACHED:
            operation.complete_by("session_error", now_us)
            return
        operation.watched = self.purgatory.used = True
        self._add_timer(operation, _IdleShareFetch(operation))

    def _add_timer(self, operation: DelayedShareFetch, task: TimerTask) -> None:
        """Add a task to the timer of the purgatory."""
        self._waiting = {each: of for each, of in self._waiting.items() if each.is_outside or not each.completed}
        self._waiting[operation] = task
        self.purgatory.timer.add(task)

    # Remote storage

    @property
    def remote_wait_ms(self) -> int | None:
        return self._groups.remote_wait_ms

    @property
    def reads_all_remote(self) -> bool:
        return self._host.remote_storage.reads_all

    def begin_remote_reads(self, operation: DelayedShareFetch, keys: Sequence[TopicPartition]) -> bool:
        if self._host.remote_storage.queue_full:
            return False
        self._reads.begin(operation, list(keys))
        return True

    def end_remote_read(self, key: TopicPartition, request_id: str, data: RemoteData, now_us: int) -> None:
        """Record the end of a share fetch's read of remote storage, and check the fetches of its group."""
        operation: DelayedShareFetch | None = self._reads.end(key, request_id, now_us)
        if operation is None:
            return
        operation.end_remote_read(key, data, now_us)
        if not operation.is_outside and (task := self._waiting.pop(operation, None)) is not None:
            task.cancel()
        self._check(GroupKey(operation.fetch.group, key), now_us)

    def await_remote_reads(self, operation: DelayedShareFetch, now_us: int) -> None:
        self._add_timer(operation, _PendingRemoteReads(operation))

    def lost_rule(self, key: TopicPartition) -> str | None:
        status = self._host.replica(key).status
        is_lost = status is not ReplicaStatus.ONLINE
        if status is ReplicaStatus.FOLLOWER:
            is_lost = self._groups.settings.limits_failing_deliveries  # since 4.2 (KAFKA-19567)
        return status.rule if is_lost else None

    # Requests

    def fetch_messages(
        self, operation: DelayedShareFetch, now_us: int, reads: Mapping[TopicPartition, StateRead] = NO_READS
    ) -> None:
        """Answer a share fetch or let it wait (`SharePartitionManager.processShareFetch`).

        Args:
            operation: The share fetch.
            now_us: The time.
            reads: The reads of the states of partitions that the group uses here for the first time.
        """
        fetch = operation.fetch
        if not fetch.partitions or fetch.max_records == 0 or fetch.max_bytes == 0:
            operation.complete_by("no_partitions" if not fetch.partitions else "no_records", now_us)
            return
        keys: list[object] = []
        for key in fetch.rotated:
            replica = self._host.replica(key)
            group_key = GroupKey(fetch.group, key)
            partition = self.partitions.get(group_key)
            if partition is None:
                if replica.status is not ReplicaStatus.ONLINE:
                    operation.erroneous[key] = replica.status.error
                    continue
                partition = self.partitions[group_key] = SharePartition(*group_key, self)
                delay_ms, error = reads.get(key, StateRead())
                if delay_ms:
                    self._writes.add(_StateReadEnd(now_us // 1000 + delay_ms, partition, operation, error, self))
                elif error != NONE:
                    self.fail_read(partition, operation, error, now_us)
                else:
                    self._initialize(partition)
                    partition.resume_letters(now_us)
            operation.share_partitions[key] = partition
            keys += [group_key, key]
        if len(operation.erroneous) == len(fetch.partitions):
            operation.complete_by("partition_errors", now_us)
            return
        self.purgatory.try_complete_else_watch(operation, keys, now_us)
        self.exhausted.clear()

    def initialize(self, partition: SharePartition, now_us: int) -> None:
        """Start a share partition with the state that was read, and check the fetches that wait for it."""
        if not partition.is_fenced:
            self._initialize(partition)
            self.check_group_key(partition, now_us)
            partition.resume_letters(now_us)

    def fail_read(self, partition: SharePartition, operation: DelayedShareFetch, error: str, now_us: int) -> None:
        """Drop a share partition of which the state could not be read (`handleInitializationException`).

        The fetch that caused the read is answered with the error, but only when it completes or expires; other waiting
        fetches are answered without an error.
        """
        self._drop(GroupKey(partition.group, partition.key), partition, now_us)
        operation.erroneous[partition.key] = member_error(error)

    def _drop(self, key: GroupKey, partition: SharePartition, now_us: int) -> None:
        """Fence a share partition, and forget it; the next fetch reads its state again."""
        if self.partitions.get(key) is partition:
            del self.partitions[key]
        partition.fence(now_us)
        self._check(key, now_us)

    def _initialize(self, partition: SharePartition) -> None:
        replica, key = self._host.replica(partition.key), GroupKey(partition.group, partition.key)
        end = replica.high_watermark or replica.log.end
        latest = end.offset if end is not None else 0
        is_earliest = partition.limits.auto_offset_reset == "earliest"
        start = replica.log.start or 0 if is_earliest else latest
        partition.initialize(self._groups.state(key), start)

    def acknowledge(
        self,
        answer: ShareAnswer,
        group: str,
        acquirer: Acquirer,
        acknowledgements: Mapping[TopicPartition, Sequence[Acknowledgement]],
        now_us: int,
    ) -> None:
        """Process acknowledgements, and check the fetches that wait for their partitions.

        Args:
            answer: Gets the error of each partition. It is complete when the share coordinator has written the states.
            group: The share group.
            acquirer: The request of the member, which must have acquired the records.
            acknowledgements: The ranges of each partition, in the order of the request.
            now_us: The time.
        """

        def apply(partition: SharePartition) -> str:
            return partition.acknowledge(acquirer, acknowledgements[partition.key], now_us, answer)

        self._end_deliveries(answer, group, acknowledgements, apply, now_us)

    def release_session(self, answer: ShareAnswer, group: str, member_id: str, now_us: int) -> None:
        """End a member's session: release its records, and check the fetches that wait for their partitions.

        `answer` is complete when the share coordinator has written the states.
        """

        def apply(partition: SharePartition) -> str:
            partition.release(member_id, now_us, answer)
            return NONE

        keys = self.sessions.close(group, member_id)
        self._end_deliveries(answer, group, keys, apply, now_us)

    def close_connection(self, group: str, now_us: int) -> None:
        """Drop the share partitions of a group if the broker has no session of it any more (`onGroupEmpty`)."""
        if not self.sessions.has_group(group):
            for key in [each for each in self.partitions if each.group == group]:
                self._drop(key, self.partitions[key], now_us)

    def _end_deliveries(
        self,
        answer: ShareAnswer,
        group: str,
        keys: Iterable[TopicPartition],
        apply: Callable[[SharePartition], str],
        now_us: int,
    ) -> None:
        self.answers.append(answer)
        answer.pending = 1
        for key in keys:
            partition = self.partitions.get(GroupKey(group, key))
            if partition is None:
                answer.errors[key] = UNKNOWN_TOPIC_OR_PARTITION
                continue
            error = apply(partition)
            # A write that fails at once has set its error.
            answer.errors.setdefault(key, error)
            self._check(GroupKey(group, key), now_us)
        answer.waited = answer.pending > 1
        answer.settle(now_us)

    # State writes

    def write_state(self, write: StateWrite, now_us: int) -> None:
        answer = write.request
        if isinstance(answer, ShareAnswer):
            answer.pending += 1
        delay_ms = self._groups.settings.state_write_ms
        if isinstance(answer, ShareAnswer) and answer.write_ms is not None:
            delay_ms = answer.write_ms
        if delay_ms <= 0:
            self.apply_write(write, now_us)
        else:
            self._writes.add(_WriteAnswer(now_us // 1000 + delay_ms, write, self))

    def apply_write(self, write: StateWrite, now_us: int) -> None:
        """Store a write at the share coordinator unless it fails, and pass its answer to the share partition."""
        partition = write.partition
        answer = write.request if isinstance(write.request, ShareAnswer) else None
        group_key = GroupKey(partition.group, partition.key)
        error = None if answer is None else answer.write_errors.get(partition.key)
        if answer is None or error is None:
            self._groups.state(group_key).write(write.start, write.batches)
            partition.on_written(write, now_us)
        else:
            partition.roll_back(write, now_us)
            answered = answer.errors[partition.key] = member_error(error)
            if answered in FENCING_ERRORS and (fenced := self.partitions.get(group_key)):
                self._drop(group_key, fenced, now_us)
        if answer is not None:
            answer.settle(now_us)

    # Dead-letter queues

    def write_dead_letters(self, partition: SharePartition, letters: DeadLetters, now_us: int) -> None:
        delay_ms = self._groups.dead_letter_write_ms(partition.group)
        if delay_ms == 0:
            partition.archive_letters(letters, now_us)
        elif delay_ms is not None:
            self._writes.add(_DeadLetterWrite(now_us // 1000 + delay_ms, partition, letters))

    def end_dead_letters(self, key: GroupKey, first: int, last: int, now_us: int) -> None:
        """Handle the trace's report that the write of these offsets to the dead-letter queue has ended."""
        partition = self.partitions.get(key)
        if partition is not None and self._groups.dead_letter_write_ms(key.group) is None:
            partition.report_letters(first, last, now_us)

    # Checks

    def check_group_key(self, partition: SharePartition, now_us: int) -> None:
        self._check(GroupKey(partition.group, partition.key), now_us)

    def check_partition(self, key: TopicPartition, now_us: int) -> None:
        """Check the fetches of every group that wait for the partition, because its high watermark rose."""
        self._check(key, now_us)

    def _check(self, key: Hashable, now_us: int) -> None:
        self.purgatory.check_and_complete(key, now_us)
        self.exhausted.clear()

    def add_release_action(self, group: str, keys: tuple[TopicPartition, ...]) -> None:
        """Schedule a check of the fetches that wait for these partitions, for the end of the broker's next request."""
        self._actions.append((group, keys))

    def add_append_action(self, key: TopicPartition) -> None:
        """Schedule a check of waiting fetches for the end of an append that raised the high watermark."""
        self._actions.append(key)

    def run_actions(self, now_us: int) -> None:
        """Run the scheduled actions at the end of a request. Actions that they add wait for the next request."""
        if not self._actions:
            return
        actions, self._actions = self._actions, []
        for action in actions:
            if isinstance(action, TopicPartition):
                self.check_partition(action, now_us)
                continue
            group, keys = action
            for key in keys:
                self._check(GroupKey(group, key), now_us)
                self._check(key, now_us)

    # Replicas

    def fence(self, key: TopicPartition, now_us: int) -> None:
        """Drop the share partitions of a partition, because the broker lost its leadership."""
        for group_key in [each for each in self.partitions if each.key == key]:
            self._drop(group_key, self.partitions[group_key], now_us)
        self._check(key, now_us)

    def stop(self, key: TopicPartition, now_us: int) -> None:
        """Abandon fetches that wait for the partition, and drop its share partitions, because the broker stopped."""
        self.purgatory.abandon(lambda watched: key in (watched, watched[1]), now_us)
        self._reads.forget(lambda of: of == key)
        for operation, task in self._waiting.items():
            if key in operation.fetch.partitions and (operation.is_outside or not operation.completed):
                task.cancel()
                operation.abandon(now_us)
                operation.trigger = str(key)
        self.sessions.forget(key)
        for group_key in [each for each in self.partitions if each.key == key]:
            self.partitions.pop(group_key).fence(now_us)
