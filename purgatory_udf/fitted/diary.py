"""What a simulation leaves behind: a line for each answered request, and what the gauges read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

FETCH, PRODUCE = "FETCH", "PRODUCE"


class Answered(NamedTuple):
    """`at_ms`: when it was answered. `expired` of a produce: a partition of it timed out."""

    client: str
    api: str
    broker: int
    at_ms: float
    waited_ms: float
    expired: bool
    bytes: int
    follower: bool


@dataclass(slots=True)
class Diary:
    """Times from 0, which is when the warm-up is over. `reached_ms`: from a batch's append to each consumer's answer;
    `acknowledged_ms`: from a batch's first record to its producer's answer.

    `gauges` are (broker, purgatory, watched, delayed), read every 200 ms. `events` is a trace in the contract's form,
    where one is asked for.
    """

    answered: list[Answered] = field(default_factory=list)
    reached_ms: list[tuple[str, float]] = field(default_factory=list)
    acknowledged_ms: list[tuple[str, float]] = field(default_factory=list)
    gauges: list[tuple[int, str, int, int]] = field(default_factory=list)
    events: list[dict[str, Any]] | None = None

    def event(self, now_ms: float, type: str, broker: int, **fields: Any) -> int:
        """Its `seq`, -1 where no trace is kept."""
        if self.events is None:
            return -1
        seq = len(self.events)
        self.events.append({"time_us": round(now_ms * 1000), "seq": seq, "type": type, "broker": broker, **fields})
        return seq
