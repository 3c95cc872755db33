"""Plain records shared by all engines: partitions, ended operations, group transitions and gauge readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic and a partition number. Its text is `topic-partition`, as in Kafka."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# Outcomes are never changed, but not frozen either: there are millions, and a frozen dataclass takes four times as long
# to create.


@dataclass(slots=True)
class PartitionOutcome:
    """The result of one partition. `error` is None if it was still pending when its broker stopped."""

    topic: str
    partition: int
    error: str | None
    bytes: int


@dataclass(slots=True)
class Outcome:
    """How one operation ended: a row of `completions`, `expirations` or `cancellations`.

    `ended_us` is the time of the deciding event for a completion, and the deadline, in whole milliseconds, for an
    expiration. A `cancelled` operation got no response, because its broker stopped.

    For a fetch, `bytes` is the number of bytes that were readable when it ended, over all partitions, and
    `answered_bytes` the number in the response.
    """

    operation_id: int
    kind: str
    broker: int
    request_id: str | None
    client_id: str | None
    key: str | None
    started_us: int
    ended_us: int
    deadline_us: int
    expired: bool
    watched: bool
    completed_by: str
    trigger: str | None
    bytes: int | None
    partitions: tuple[PartitionOutcome, ...]
    fetcher: str | None = None
    answered_bytes: int | None = None
    cancelled: bool = False

    @property
    def wait_ms(self) -> int:
        """The wait in whole milliseconds, as Kafka's timer counts."""
        return self.ended_us // 1000 - self.started_us // 1000


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """A delivery of records to a member of a share group, and its end.

    `state` is the state of the records after the end: AVAILABLE, ACKNOWLEDGED, ARCHIVING or ARCHIVED.
    """

    group: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    delivery_count: int
    operation_id: int
    request_id: str | None
    client_id: str | None
    member_id: str
    acquired_us: int
    ended_us: int
    ended_by: str
    state: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a group's state; `members` and `generation` are those after it."""

    group: str
    broker: int
    at_us: int
    from_state: str
    to_state: str
    reason: str
    generation: int
    members: tuple[str, ...]


@dataclass(slots=True)
class Gauge:
    """The gauges of one purgatory at one 200 ms step: `PurgatorySize`, `NumDelayedOperations` and purged entries."""

    broker: int
    purgatory: str
    at_ms: int
    watched: int
    delayed: int
    purged: int
