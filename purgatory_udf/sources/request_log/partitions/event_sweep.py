"""Goes through all that happened to a partition, in time order, and says it in events of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.lines.logged_request import Place
from purgatory_udf.sources.request_log.partitions import partition_status
from purgatory_udf.sources.request_log.partitions.partition_status import ALL_TIME, LeadershipState, TimeRange
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Append,
    FollowerCopy,
    PartitionFacts,
    ReaderPosition,
    RecordDeletion,
)

# The log of one partition as its leader sees it, followed closely enough to know its high watermark at any moment.


@dataclass(slots=True)
class TrackedReplica:
    """The contract's derivation: the least log end over the in-sync replicas, or what an event states, if more."""

    broker: int
    end: int | None = None
    high_watermark: int | None = None
    isr: tuple[int, ...] | None = None
    min_isr: int | None = None
    ends: dict[int, int] = field(default_factory=dict)
    open_transactions: dict[str, int] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {**asdict(self), "ends": list(map(list, self.ends.items()))}

    @classmethod
    def resumed(cls, broker: int, state: dict[str, Any]) -> TrackedReplica:
        """From a `snapshot`."""
        isr = tuple(state["isr"]) if state["isr"] is not None else None
        ended = [(first, marker) for first, marker in state["ended"]]
        return cls(**{**state, "broker": broker, "isr": isr, "ends": dict(state["ends"]), "ended": ended})

    def append(self, end: int) -> bool:
        """True if the log grew."""
        if self.end is not None and end <= self.end:
            return False
        self.end = end
        self.derive_high_watermark()
        return True

    def advance_follower(self, replica: int, offset: int) -> bool:
        """True if that follower is further than before."""
        if offset <= self.ends.get(replica, -1):
            return False
        self.ends[replica] = offset
        self.derive_high_watermark()
        return True

    def derive_high_watermark(self) -> None:
        """The high watermark stays where it is while a member's end is unknown, or the set is too small."""
        if self.isr is None or self.end is None or (self.min_isr is not None and len(self.isr) < self.min_isr):
            return
        least = self.end
        for member in self.isr:
            if member == self.broker:
                continue
            if member not in self.ends:
                return
            least = min(least, self.ends[member])
        self.raise_high_watermark(least)

    def raise_high_watermark(self, offset: int) -> bool:
        """A high watermark from elsewhere: true if it is new."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def begin_transaction(self, transaction: str, offset: int) -> None:
        self.open_transactions.setdefault(transaction, offset)

    def end_transaction(self, transaction: str, marker_end: int) -> bool:
        """The transaction's marker has been appended; its records stay unstable until the marker is replicated.

        Falls back to the oldest open one and returns false when the transaction is not known here.
        """
        first = self.open_transactions.pop(transaction, None)
        known = first is not None
        if first is None:
            if not self.open_transactions:
                return False
            oldest = min(self.open_transactions, key=lambda name: self.open_transactions[name])
            first = self.open_transactions.pop(oldest)
        self.ended.append((first, marker_end))
        return known

    def last_stable(self) -> int | None:
        """Least of the high watermark and the first offset of any transaction that is open or not yet replicated."""
        if self.high_watermark is None:
            return None
        mark = self.high_watermark
        self.ended = [transaction for transaction in self.ended if transaction[1] > mark]
        return min([mark, *self.open_transactions.values(), *(first for first, _ in self.ended)])


# What comes first among simultaneous events of a broker: state before what it makes possible, requests last.
STATE_RANK, APPEND_RANK, STABLE_RANK, PROGRESS_RANK, REQUEST_RANK = range(5)


class TimedEvent(NamedTuple):
    """An event with its place among simultaneous ones, and the request (file, line) that caused it, if one did."""

    at_us: int
    rank: int
    event: dict[str, Any]
    cause: Place | None = None


class EventSweep:
    """Follows the replica as the replay will, so that only what the replay cannot derive itself is said.

    Of a log that is read stretch by stretch, each is swept by a Sweep that is `resumed` from the one before: nothing is
    said twice, and what is found out late is said as soon as it can be.
    """

    def __init__(self, facts: PartitionFacts, report: Report, stretch: TimeRange = ALL_TIME) -> None:
        self._facts = facts
        self._report = report
        self._stretch = stretch
        self._replica = TrackedReplica(facts.broker)
        self._standing = partition_status.UNKNOWN_STATUS
        # Consumers read here, and another broker leads.
        self._follows = False
        self._log_starts: dict[int, int] = {}
        self._low = 0
        self._transactional = False
        self._stable: int | None = None

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {
            "replica": self._replica.snapshot(),
            "standing": self._standing,
            "follows": self._follows,
            "log_starts": list(map(list, self._log_starts.items())),
            "low": self._low,
            "transactional": self._transactional,
            "stable": self._stable,
        }

    @classmethod
    def resumed(cls, facts: PartitionFacts, report: Report, stretch: TimeRange, state: dict[str, Any]) -> EventSweep:
        """From a `snapshot`."""
        sweep = cls(facts, report, stretch)
        sweep._replica = TrackedReplica.resumed(facts.broker, state["replica"])
        sweep._standing = state["standing"]
        sweep._follows = state["follows"]
        sweep._log_starts = dict(map(tuple, state["log_starts"]))
        sweep._low = state["low"]
        sweep._transactional = state["transactional"]
        sweep._stable = state["stable"]
        return sweep

    def run(
        self, leadership: Sequence[LeadershipState], appends: Sequence[Append], start_us: int
    ) -> Iterator[TimedEvent]:
        """`start_us` is before everything: what the log held until then is said there."""
        self._transactional |= any(append.transaction or append.ends_transaction for append in appends)
        positions, trims = self._facts.positions, self._facts.deletions
        moments: list[tuple[int, int, int, Any]] = [
            *((state.at_us, STATE_RANK, number, state) for number, state in enumerate(self._news(leadership))),
            *((append.check_us, APPEND_RANK, number, append) for number, append in enumerate(appends)),
            *((position.wake_us, PROGRESS_RANK, number, position) for number, position in enumerate(positions)),
            *((trim.at_us, PROGRESS_RANK, len(positions) + number, trim) for number, trim in enumerate(trims)),
            *((copied.at_us, PROGRESS_RANK, number, copied) for number, copied in enumerate(self._facts.copies)),
        ]
        moments.sort(key=lambda moment: moment[:3])
        if self._replica.end is None and start_us < self._stretch.until_us:
            yield from self._begin(appends, start_us)
        for dated, _, _, what in moments:
            if dated >= self._stretch.until_us:
                break
            at = self._stretch.clamp(dated)
            match what:
                case LeadershipState():
                    yield from self._state(at, what.fields)
                case Append():
                    yield from self._append(at, what)
                case ReaderPosition():
                    yield from self._position(at, what)
                case RecordDeletion():
                    yield from self._trim(at, what.offset)
                case FollowerCopy():
                    yield from self._copied(at, what)

    def _say(self, at: int, rank: int, **fields: Any) -> TimedEvent:
        at = self._stretch.clamp(at)
        key = {"broker": self._facts.broker, "topic": self._facts.topic, "partition": self._facts.partition}
        return TimedEvent(at, rank, {"time_us": at, "type": "partition", **key, **fields})

    def _news(self, leadership: Sequence[LeadershipState]) -> list[LeadershipState]:
        """What lies before the stretch is said at its beginning, in one, if it is not what has been said."""
        past = [state for state in leadership if state.at_us < self._stretch.from_us]
        coming = list(leadership[len(past) :])
        now = partition_status.UNKNOWN_STATUS
        for state in past:
            now = partition_status.status_after(now, state.fields)
        if (
            past
            and partition_status.status_after(self._standing, partition_status.status_fields(now)) != self._standing
        ):
            coming.insert(0, LeadershipState(self._stretch.from_us, partition_status.status_fields(now)))
        return coming

    def _begin(self, appends: Sequence[Append], start_us: int) -> Iterator[TimedEvent]:
        """What the log held before: all below the first append; without one, all that any reader has asked for, and
        what an answer first said that it could have read."""
        offsets = [position.offset for position in self._facts.positions]
        offsets += [sight.offset for sight in self._facts.high_watermarks[:1]]
        if not appends and not offsets:
            return
        end = appends[0].base if appends else max(offsets)
        self._replica.append(end)
        yield self._say(start_us, APPEND_RANK, change="log_end", offset=end, bytes=0)

    def _state(self, at: int, fields: dict[str, Any]) -> Iterator[TimedEvent]:
        if fields["change"] == "stopped":
            self._replica.ends.clear()
        if "isr" in fields:
            self._replica.isr = tuple(fields["isr"])
            self._replica.min_isr = fields.get("min_isr", self._replica.min_isr)
            self._replica.derive_high_watermark()
            yield from self._stabilised(at)
        self._standing = partition_status.status_after(self._standing, fields)
        self._follows = fields["change"] == "online" and bool(self._facts.copies)
        yield self._say(at, STATE_RANK, **fields)

    def _append(self, at: int, append: Append) -> Iterator[TimedEvent]:
        if not self._replica.append(append.end):
            return
        if append.transaction:
            self._replica.begin_transaction(append.transaction, append.base)
        if append.ends_transaction and not self._replica.end_transaction(append.ends_transaction, append.end):
            self._report.count("transaction_unknown")
        yield from self._stabilised(at)
        # Where the produce's own event comes at that very moment, it is the append.
        if append.wait_ms >= 0 and self._leads:
            yield self._write(at, append)
        elif at != append.event_us:
            # Of a produce a partition gets one batch, since Kafka 0.11.
            batches = 1 if append.file >= 0 else None
            yield self._say(at, APPEND_RANK, change="log_end", offset=append.end, bytes=append.bytes, batches=batches)

    @property
    def _leads(self) -> bool:
        """What is appended while another broker leads is copied."""
        return self._standing.get("status") == "online" and not self._follows

    def _write(self, at: int, append: Append) -> TimedEvent:
        """A coordinator's own produce is an append, and waits for replicas."""
        at, facts, caused = self._stretch.clamp(at), self._facts, append.writer_line >= 0
        written = {"topic": facts.topic, "partition": facts.partition, "bytes": append.bytes, "error": "NONE"}
        event = {
            "time_us": at,
            "type": "produce",
            "broker": facts.broker,
            "request_id": f"{facts.topic}-{facts.partition}@{append.base}",
            "acks": -1,
            "timeout_ms": append.wait_ms,
            "partitions": [{**written, "base_offset": append.base, "last_offset": append.end - 1}],
        }
        if caused and append.client is not None:
            event["client_id"] = append.client
        self._report.count("coordinator_writes")
        return TimedEvent(at, APPEND_RANK, event, Place(append.writer_file, append.writer_line) if caused else None)

    def _copied(self, at: int, copied: FollowerCopy) -> Iterator[TimedEvent]:
        """What a follower has learnt of the high watermark."""
        if self._follows and self._replica.raise_high_watermark(copied.high_watermark):
            yield from self._stabilised(at)
            yield self._say(at, PROGRESS_RANK, change="high_watermark", offset=copied.high_watermark)

    def _position(self, at: int, position: ReaderPosition) -> Iterator[TimedEvent]:
        if position.replica < 0:
            # What a consumer asks of a follower it may have read elsewhere before.
            if not self._follows and self._replica.raise_high_watermark(position.offset):
                self._report.count("high_watermark_proven")
                yield from self._stabilised(at)
                yield self._say(at, PROGRESS_RANK, change="high_watermark", offset=position.offset)
            return
        if self._replica.advance_follower(position.replica, position.offset):
            yield from self._stabilised(at)
            yield self._say(
                at, PROGRESS_RANK, change="replica_end", replica_id=position.replica, offset=position.offset
            )
        if position.log_start > self._log_starts.get(position.replica, 0):
            self._log_starts[position.replica] = position.log_start
            yield from self._lowered(at)

    def _trim(self, at: int, offset: int) -> Iterator[TimedEvent]:
        asked = offset if offset >= 0 else (self._replica.high_watermark or 0)
        if asked > self._log_starts.get(self._facts.broker, 0):
            self._log_starts[self._facts.broker] = asked
            yield from self._lowered(at)

    def _lowered(self, at: int) -> Iterator[TimedEvent]:
        """The low watermark: the least log start over all replicas; it moves when the last of them has followed."""
        members = {self._facts.broker, *(self._replica.isr or ()), *self._replica.ends}
        low = min(self._log_starts.get(member, 0) for member in members)
        if low > self._low:
            self._low = low
            yield self._say(at, PROGRESS_RANK, change="log_start", offset=low)

    def _stabilised(self, at: int) -> Iterator[TimedEvent]:
        """The last stable offset, where transactions make it differ: said before the event that lets it be seen."""
        stable = self._replica.last_stable() if self._transactional else None
        if stable is not None and (self._stable is None or stable > self._stable):
            self._stable = stable
            yield self._say(at, STABLE_RANK, change="last_stable", offset=stable)
