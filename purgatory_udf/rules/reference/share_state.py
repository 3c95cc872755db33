"""The persisted states of share partitions: reads and writes at the share coordinator, and dead-letter queues."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from purgatory_udf.common.configuration import ShareSettings
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.contract.overrides import apply_override
from purgatory_udf.rules.reference.delayed_produce import NONE
from purgatory_udf.rules.reference.delayed_remote import UNKNOWN_SERVER_ERROR
from purgatory_udf.rules.reference.share_records import (
    InFlightState,
    ShareGroupConfig,
    ShareGroupLimits,
    StateBatch,
)

UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
# The errors of the share coordinator as members get them (`fetchPersisterError`). Any other is UNKNOWN_SERVER_ERROR.
_PERSISTER_ERRORS = {
    **dict.fromkeys(
        ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"), "COORDINATOR_NOT_AVAILABLE"
    ),
    **dict.fromkeys(("FENCED_LEADER_EPOCH", "FENCED_STATE_EPOCH", NOT_LEADER_OR_FOLLOWER), NOT_LEADER_OR_FOLLOWER),
    "GROUP_ID_NOT_FOUND": "GROUP_ID_NOT_FOUND",
    UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_TOPIC_OR_PARTITION,
}
# Errors with which the broker drops the share partition (`fencedSharePartitionHandler`).
FENCING_ERRORS = {NOT_LEADER_OR_FOLLOWER, "GROUP_ID_NOT_FOUND", UNKNOWN_TOPIC_OR_PARTITION}


def member_error(error: str) -> str:
    """Return an error of the share coordinator as members get it."""
    return _PERSISTER_ERRORS.get(error, UNKNOWN_SERVER_ERROR)


class PersistedState:
    """The state of a share partition at the share coordinator; `start` is None until it is initialized."""

    def __init__(self, start: int | None = None, batches: Sequence[StateBatch] = ()) -> None:
        self.start = start
        self.batches = list(batches)

    def write(self, start: int, written: Sequence[StateBatch]) -> None:
        """Store batches in place of the offsets that they cover, and drop all states below the new start offset."""
        self.start = start
        for batch in written:
            low = bisect_left(self.batches, batch.first, key=lambda stored: stored.last)
            high = bisect_right(self.batches, batch.last, key=lambda stored: stored.first)
            covered = [_outside(each, batch) for each in self.batches[low:high]]
            self.batches[low:high] = [
                *(left for left, _ in covered if left is not None),
                batch,
                *(right for _, right in covered if right is not None),
            ]
        joined: list[StateBatch] = []
        for batch in self.batches:
            first, last, state, count = batch
            before = joined[-1] if joined else None
            is_adjacent = before is not None and before.last + 1 == first
            if before is not None and is_adjacent and before.state is state and before.delivery_count == count:
                joined[-1] = StateBatch(before.first, last, state, count)
            elif last >= start:
                joined.append(batch if first >= start else StateBatch(start, last, state, count))
        self.batches = joined


def _outside(stored: StateBatch, written: StateBatch) -> tuple[StateBatch | None, StateBatch | None]:
    """Return the parts of a stored batch before and after the offsets of a written one; None for an empty part."""
    first, last, state, count = stored
    left = StateBatch(first, written.first - 1, state, count) if first < written.first else None
    right = StateBatch(written.last + 1, last, state, count) if last > written.last else None
    return left, right


class StateRead(NamedTuple):
    """The read of a share partition's state: how long it takes, and its error."""

    delay_ms: int = 0
    error: str = NONE


NO_READS: Mapping[TopicPartition, StateRead] = {}


class GroupKey(NamedTuple):
    """Key G: a share partition, which is a partition and a share group. As text: `group/topic-partition`."""

    group: str
    key: TopicPartition

    def __str__(self) -> str:
        return f"{self.group}/{self.key}"


class ShareGroups:
    """State that all brokers of a cluster share: settings of share groups, and states persisted by the coordinator."""

    def __init__(self, settings: ShareSettings, remote_wait_ms: int | None = None) -> None:
        self.settings, self.remote_wait_ms = settings, remote_wait_ms
        self._group_settings: dict[str, ShareGroupConfig] = {}
        # Groups with a dead-letter queue in the trace, which reports the end of each write to it.
        self._reporting: set[str] = set()
        self._states: dict[GroupKey, PersistedState] = {}

    def limits(self, group: str) -> ShareGroupLimits:
        """Return the settings of a group."""
        return self.group_settings(group).limits

    def group_settings(self, group: str) -> ShareGroupConfig:
        """Return the object that always has the settings of a group."""
        settings = self._group_settings.get(group)
        if settings is None:
            limits = self._with_settings(group, ShareGroupLimits())
            settings = self._group_settings[group] = ShareGroupConfig(limits)
        return settings

    def configure(self, group: str, limits: ShareGroupLimits) -> None:
        """Set the settings of a group, as the trace reports them."""
        self.group_settings(group).limits = self._with_settings(group, limits)
        (self._reporting.add if limits.dead_letter_queue else self._reporting.discard)(group)

    def _with_settings(self, group: str, limits: ShareGroupLimits) -> ShareGroupLimits:
        numbers = {
            field: max(1, apply_override(getattr(limits, field), self.settings.of_group(field, group)))
            for field in ("record_lock_duration_ms", "delivery_count_limit", "partition_max_record_locks")
        }
        queue = self.settings.dead_letter_queue
        return limits._replace(
            **numbers,
            dead_letter_queue=self.settings.has_dead_letters and (limits.dead_letter_queue if queue is None else queue),
            auto_offset_reset=self.settings.auto_offset_reset or limits.auto_offset_reset,
            isolation=str(self.settings.of_group("isolation", group) or limits.isolation),
        )

    def dead_letter_write_ms(self, group: str) -> int | None:
        """Return how long a write to the dead-letter queue takes; None if the trace reports its end."""
        if self.settings.dead_letter_write_ms is None and group in self._reporting:
            return None
        return self.settings.dead_letter_write_ms or 0

    def state(self, key: GroupKey) -> PersistedState:
        """Return the persisted state of a share partition."""
        return self._states.setdefault(key, PersistedState())

    def start_offsets(self, key: TopicPartition) -> list[int]:
        """Return the persisted start offsets of a partition, those of every group."""
        states = (state for group_key, state in self._states.items() if group_key.key == key)
        return [state.start for state in states if state.start is not None]

    def load(self, key: GroupKey, state: PersistedState) -> None:
        """Set the persisted state of a share partition, as the trace reports it."""
        self._states[key] = state


class DeadLetters(NamedTuple):
    """ARCHIVING records with one state, offsets `first` to `last`, that are being written to a dead-letter queue."""

    state: InFlightState
    first: int
    last: int


@dataclass
class ShareAnswer:
    """The answer to a request that waits for the states of share partitions to be written.

    `pending` is the number of writes without an answer. `written_us` is the time of the last answer, None until then.
    `errors` has the error of each partition. `respond` is called at that time, unless it is None. `write_errors` has
    the errors with which the share coordinator answers the writes, by partition.
    """

    operation_id: int
    request_id: str | None
    type: str
    write_ms: int | None = None
    pending: int = 0
    written_us: int | None = None
    waited: bool = False
    errors: dict[TopicPartition, str] = field(default_factory=dict)
    write_errors: Mapping[TopicPartition, str] = field(default_factory=dict)
    respond: Callable[[], None] | None = None

    def settle(self, now_us: int) -> None:
        self.pending -= 1
        if not self.pending:
            self.written_us = now_us
            if self.respond is not None:
                self.respond()
