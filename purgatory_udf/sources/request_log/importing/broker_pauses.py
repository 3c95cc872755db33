"""Recognition of pauses: periods in which a broker stood still, and none of its timers fired.

A period is a pause if no request of the broker has a timestamp in it, if several operations became overdue in it by
more than `OVERDUE_US`, and if these were answered at its end:

    last time of a request ─┬─ deadline 1 ── deadline 2 ──────────┬─ next one ── 1 and 2 are answered
                          paused                                  └─ resumed: when the first of them expires

A busy broker does not match, because it handles requests in such a period; nor does an idle one, because its operations
end at their deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.sources.request_log.logged_request import EXPIRED, ConvertedColumns, LoggedOperation
from purgatory_udf.sources.request_log.partition_status import TimeRange

# An operation is overdue if it was not answered this long after its deadline. Timers of busy brokers were up to tens of
# milliseconds late in recordings.
OVERDUE_US = 200_000
# Minimum number of requests with overdue operations in a pause. A single one may be late for another reason, such as a
# read from disk.
_FEWEST_OVERDUE = 2
# Longest time from the end of the silence to the answers of overdue operations.
_ANSWERS_US = 500_000
# How long before the silence an operation may have been due: a timer usually fires within this time.
_TIMER_LATE_US = 2_000

# Types of events that wait in a purgatory of the broker, at most for the time in this field.
_LIMITS = {"fetch": "max_wait_ms", "produce": "timeout_ms", "delete_records": "timeout_ms"}


class OverdueOperation(NamedTuple):
    """An operation answered more than `OVERDUE_US` after its deadline. `expired` is 1 if it expired, else 0."""

    broker: int
    file: int
    line: int
    tried_us: int
    deadline_us: int
    answered_us: int
    expired: int


class Silence(NamedTuple):
    """A period of more than `OVERDUE_US` in which no request of the broker has a time."""

    broker: int
    from_us: int
    until_us: int

    def delays(self, operation: OverdueOperation) -> bool:
        """Return whether the operation was due in this silence, and was answered at its end."""
        return (
            operation.broker == self.broker
            and operation.tried_us <= self.from_us <= operation.deadline_us + _TIMER_LATE_US
            and operation.deadline_us + OVERDUE_US < self.until_us
            and self.until_us <= operation.answered_us <= self.until_us + _ANSWERS_US
        )


class BrokerPause(NamedTuple):
    """A period in which a broker stood still; operations that were due in it expired at `resumed_us`."""

    broker: int
    paused_us: int
    resumed_us: int

    def sentence(self) -> str:
        """Return the pause as a sentence, with its time in UTC."""
        length_s = (self.resumed_us - self.paused_us) / 1_000_000
        since = datetime.fromtimestamp(self.paused_us / 1_000_000, UTC).isoformat(" ", "milliseconds")
        return f"Broker {self.broker} stood still for {length_s:.1f} s from {since.removesuffix('+00:00')}."


def overdue_operation(operation: LoggedOperation) -> OverdueOperation | None:
    """Return the operation, with its times, if it was answered more than `OVERDUE_US` after its deadline, else None."""
    event = operation.event
    if operation.recorded is None or event["type"] not in _LIMITS:
        return None
    waited_us = round(operation.recorded.remote_ms * 1000)
    if waited_us <= OVERDUE_US:
        return None
    limit_us = max(0, event[_LIMITS[event["type"]]]) * 1000
    if waited_us <= limit_us + OVERDUE_US:
        return None
    tried_us, expired = event["time_us"], int(operation.recorded.outcome == EXPIRED)
    times = (tried_us, tried_us + limit_us, tried_us + waited_us)
    return OverdueOperation(operation.broker, *operation.place, *times, expired)


def overdue_in_columns(converted: ConvertedColumns) -> Iterator[OverdueOperation]:
    """Yield the operations, with their times, that were answered more than `OVERDUE_US` after their deadline."""
    for number in np.flatnonzero(converted.waited_us > OVERDUE_US).tolist():
        limit_us, waited = max(0, int(converted.limit_ms[number])) * 1000, int(converted.waited_us[number])
        if waited > limit_us + OVERDUE_US:
            broker, file, line, tried_us = (
                converted.operations[name][number].as_py() for name in ("broker", "file", "line", "time_us")
            )
            times = tried_us, tried_us + limit_us, tried_us + waited
            yield OverdueOperation(broker, file, line, *times, int(converted.expired[number]))


def silences(requests: Dataset, overdue: Sequence[OverdueOperation]) -> list[Silence]:
    """Return the silences of brokers while the overdue operations waited; `requests` are rows of REQUESTS."""
    if not overdue:
        return []
    times = ("arrival_us", "start_us", "local_us", "answered_us", "written_us")
    signs = " UNION ALL ".join(f"SELECT broker, {time} AS at_us FROM {{rows}}" for time in times)
    first_us, last_us = min(each.tried_us for each in overdue), max(each.answered_us for each in overdue)
    of_brokers = requests.where_in("broker", {each.broker for each in overdue}).select("broker", *times)
    found = of_brokers.sql(
        f"""
        WITH signs AS ({signs}),
        gaps AS (
            SELECT broker, lag(at_us) OVER (PARTITION BY broker ORDER BY at_us) AS from_us, at_us AS until_us
            FROM signs WHERE at_us BETWEEN {first_us} AND {last_us}
        )
        SELECT broker, from_us, until_us FROM gaps WHERE until_us - from_us > {OVERDUE_US}
        """,
        pa.schema([("broker", pa.int32()), ("from_us", pa.int64()), ("until_us", pa.int64())]),
    )
    return sorted(Silence(**row) for row in found.collect().to_pylist())


def pauses_in(silent: Iterable[Silence], overdue: Iterable[OverdueOperation]) -> list[BrokerPause]:
    """Return a pause for each silence in which at least `_FEWEST_OVERDUE` requests became overdue, by broker and time.

    `overdue` may have several operations of one request, which count as one.
    """
    # A request may have several operations.
    by_request = {(each.file, each.line): each for each in overdue}
    pauses = []
    for silence in sorted(silent):
        late = [operation for operation in by_request.values() if silence.delays(operation)]
        if len(late) >= _FEWEST_OVERDUE:
            pauses.append(BrokerPause(silence.broker, _paused_us(silence, late), _resumed_us(late)))
    return pauses


def _paused_us(silence: Silence, late: Sequence[OverdueOperation]) -> int:
    """Return the start of the pause: that of the silence, moved back if needed before the first missed deadline."""
    first_ms = min(operation.deadline_us for operation in late) // 1000
    return min(silence.from_us, first_ms * 1000 - 1)


def _resumed_us(late: Sequence[OverdueOperation]) -> int:
    """Return the time at which timers fired again: that of the first expiration among the overdue operations.

    Overdue operations that completed earlier did not expire. The result is after the millisecond of the last of them.
    """
    expired_us = min((each.answered_us for each in late if each.expired), default=0)
    completed_us = [each.answered_us for each in late if not each.expired]
    before_us = max((at_us for at_us in completed_us if not expired_us or at_us < expired_us), default=-1)
    return max(expired_us, (before_us // 1000 + 1) * 1000)


@dataclass
class FollowedPauses:
    """Evidence of pauses in a followed log that may still continue.

    A step has only the requests that are not settled yet, which may not cover the whole pause. So each step adds its
    evidence to that of earlier steps.

    Attributes:
        overdue: Operations that were answered too late, by file and line.
        silences: Silences in which these operations were due.
        paused: Brokers with a written event `paused`, but no event `resumed` yet.
    """

    overdue: dict[tuple[int, int], OverdueOperation] = field(default_factory=dict)
    silences: list[Silence] = field(default_factory=list)
    paused: set[int] = field(default_factory=set)

    def due(self, overdue: Iterable[OverdueOperation], silent: Iterable[Silence], span: TimeRange) -> list[BrokerPause]:
        """Add the operations and silences of a step, and return the pauses that begin or end in its time range `span`.

        A pause is left out if it is recognized only after the time of its beginning has been settled.
        """
        self.overdue |= {(each.file, each.line): each for each in overdue}
        self.silences = list(_intersected(self.silences, silent))
        due = []
        for pause in pauses_in(self.silences, self.overdue.values()):
            if span.has(pause.paused_us):
                self.paused.add(pause.broker)
            if pause.broker in self.paused:
                due.append(pause)
                if span.has(pause.resumed_us):
                    self.paused.remove(pause.broker)
        self._forget(span.until_us)
        return due

    def _forget(self, until_us: int) -> None:
        recent = [each for each in self.silences if each.until_us + 2 * _ANSWERS_US >= until_us]
        self.silences = [each for each in recent if any(map(each.delays, self.overdue.values()))]
        self.overdue = {
            place: operation
            for place, operation in self.overdue.items()
            if operation.answered_us >= until_us or any(silence.delays(operation) for silence in self.silences)
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the evidence as a JSON object, from which `resumed` restores it."""
        return {
            "overdue": list(self.overdue.values()),
            "silences": self.silences,
            "paused": sorted(self.paused),
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> FollowedPauses:
        """Return the evidence of a `snapshot`."""
        overdue = [OverdueOperation(*each) for each in state["overdue"]]
        silent = [Silence(*each) for each in state["silences"]]
        return cls({(each.file, each.line): each for each in overdue}, silent, set(state["paused"]))


def _intersected(known: Sequence[Silence], found: Iterable[Silence]) -> Iterator[Silence]:
    """Yield the silences of both arguments, with overlapping silences of a broker replaced by their intersection.

    A step may lack some requests of the broker, so a silence may be shorter than the step shows.
    """
    rest = list(known)
    for silence in found:
        for other in [each for each in rest if each.broker == silence.broker]:
            from_us, until_us = max(other.from_us, silence.from_us), min(other.until_us, silence.until_us)
            if from_us < until_us:
                rest.remove(other)
                silence = Silence(silence.broker, from_us, until_us)
        yield silence
    yield from rest
