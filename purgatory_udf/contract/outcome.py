"""How one operation ended: the row of `completions` or `expirations` as a plain value, shared by every engine."""

from __future__ import annotations

from dataclasses import dataclass

# Nobody changes them. They are made by the million, though, and what is frozen takes four times as long to make.


@dataclass(slots=True)
class PartitionOutcome:
    topic: str
    partition: int
    error: str | None
    bytes: int


@dataclass(slots=True)
class Outcome:
    """`ended_us` is the deciding event's own time for a completion, the deadline (whole ms) for an expiration.

    One that was `cancelled` was answered by nobody: its broker stopped. The errors of what was still pending are None.

    Of a fetch: `bytes` could be read at its end, partition by partition; `answered_bytes` is what its answer held.
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
        return self.ended_us // 1000 - self.started_us // 1000


@dataclass(frozen=True, slots=True)
class Transition:
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
    """What the two gauges of one purgatory read at one 200 ms step."""

    broker: int
    purgatory: str
    at_ms: int
    watched: int
    delayed: int
    purged: int
