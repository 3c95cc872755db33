"""Goes through all that happened to a partition, in time order, and says it in events of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from purgatory_udf.requestlog.facts import Append, PartitionFacts, Position, Trim
from purgatory_udf.requestlog.replica import Replica
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.returning import State

# What comes first among simultaneous events of a broker: state before what it makes possible, requests last.
STATE, APPENDED, STABLE, REACHED, REQUEST = range(5)


class Timed(NamedTuple):
    """An event with its place among simultaneous ones."""

    at_us: int
    rank: int
    event: dict[str, Any]


class Sweep:
    """Follows the replica as the replay will, so that only what the replay cannot derive itself is said."""

    def __init__(self, facts: PartitionFacts, report: Report) -> None:
        self._facts = facts
        self._report = report
        self._replica = Replica(facts.broker)
        self._log_starts: dict[int, int] = {}
        self._low = 0
        self._transactional = False
        self._stable: int | None = None

    def run(self, leadership: Sequence[State], appends: Sequence[Append], start_us: int) -> Iterator[Timed]:
        """`start_us` is before everything: what the log held until then is said there."""
        self._transactional = any(one.transaction or one.ends_transaction for one in appends)
        positions, trims = self._facts.positions, self._facts.trims
        moments: list[tuple[int, int, int, Any]] = [
            *((one.at_us, STATE, number, one) for number, one in enumerate(leadership)),
            *((one.check_us, APPENDED, number, one) for number, one in enumerate(appends)),
            *((one.wake_us, REACHED, number, one) for number, one in enumerate(positions)),
            *((one.at_us, REACHED, len(positions) + number, one) for number, one in enumerate(trims)),
        ]
        moments.sort(key=lambda one: one[:3])
        yield from self._begin(appends, start_us)
        for at, _, _, what in moments:
            match what:
                case State():
                    yield from self._state(at, what.fields)
                case Append():
                    yield from self._append(at, what)
                case Position():
                    yield from self._position(at, what)
                case Trim():
                    yield from self._trim(at, what.offset)

    def _say(self, at: int, rank: int, **fields: Any) -> Timed:
        key = {"broker": self._facts.broker, "topic": self._facts.topic, "partition": self._facts.partition}
        return Timed(at, rank, {"time_us": at, "type": "partition", **key, **fields})

    def _begin(self, appends: Sequence[Append], start_us: int) -> Iterator[Timed]:
        """What the log held before: all below the first append; without one, all that any reader has asked for."""
        offsets = [one.offset for one in self._facts.positions]
        if not appends and not offsets:
            return
        end = appends[0].base if appends else max(offsets)
        self._replica.append(end)
        yield self._say(start_us, APPENDED, change="log_end", offset=end, bytes=0)

    def _state(self, at: int, fields: dict[str, Any]) -> Iterator[Timed]:
        if "isr" in fields:
            self._replica.isr = tuple(fields["isr"])
            self._replica.min_isr = fields.get("min_isr", self._replica.min_isr)
            self._replica.derive()
            yield from self._stabilised(at)
        yield self._say(at, STATE, **fields)

    def _append(self, at: int, append: Append) -> Iterator[Timed]:
        if not self._replica.append(append.end):
            return
        if append.transaction:
            self._replica.begin(append.transaction, append.base)
        if append.ends_transaction and not self._replica.finish(append.ends_transaction, append.end):
            self._report.count("transaction_unknown")
        yield from self._stabilised(at)
        # Where the produce's own event comes at that very moment, it is the append.
        if at != append.event_us:
            yield self._say(at, APPENDED, change="log_end", offset=append.end, bytes=append.bytes)

    def _position(self, at: int, position: Position) -> Iterator[Timed]:
        if position.replica < 0:
            if self._replica.state(position.offset):
                self._report.count("high_watermark_proven")
                yield from self._stabilised(at)
                yield self._say(at, REACHED, change="high_watermark", offset=position.offset)
            return
        if self._replica.progress(position.replica, position.offset):
            yield from self._stabilised(at)
            yield self._say(at, REACHED, change="replica_end", replica_id=position.replica, offset=position.offset)
        if position.log_start > self._log_starts.get(position.replica, 0):
            self._log_starts[position.replica] = position.log_start
            yield from self._lowered(at)

    def _trim(self, at: int, offset: int) -> Iterator[Timed]:
        asked = offset if offset >= 0 else (self._replica.high_watermark or 0)
        if asked > self._log_starts.get(self._facts.broker, 0):
            self._log_starts[self._facts.broker] = asked
            yield from self._lowered(at)

    def _lowered(self, at: int) -> Iterator[Timed]:
        """The low watermark: the least log start over all replicas; it moves when the last of them has followed."""
        members = {self._facts.broker, *(self._replica.isr or ()), *self._replica.ends}
        low = min(self._log_starts.get(member, 0) for member in members)
        if low > self._low:
            self._low = low
            yield self._say(at, REACHED, change="log_start", offset=low)

    def _stabilised(self, at: int) -> Iterator[Timed]:
        """The last stable offset, where transactions make it differ: said before the event that lets it be seen."""
        stable = self._replica.last_stable() if self._transactional else None
        if stable is not None and (self._stable is None or stable > self._stable):
            self._stable = stable
            yield self._say(at, STABLE, change="last_stable", offset=stable)
