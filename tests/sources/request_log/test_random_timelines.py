"""Timelines of random facts, and settings that random requests show, as in `tests/data/imported/timelines`.

Times and offsets are from small ranges, so that many are equal. If an intended change of the import changes lines, read
the difference before you run `python -m tests.sources.request_log.test_random_timelines`.
"""

from __future__ import annotations

import json
import lzma
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest

from purgatory_udf.sources.request_log import high_watermark_events
from purgatory_udf.sources.request_log import inferred_settings as shown
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.cluster_facts import GroupHistory, GroupRecord
from purgatory_udf.sources.request_log.cluster_metadata import (
    GIVEN,
    GRANTED,
    NEVER,
    REPORTED,
    BrokerStop,
    BrokerUnfenced,
    ClusterMetadata,
    PartitionChange,
)
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    AttemptRun,
    ConsumerRead,
    CoordinatorAnswer,
    Fact,
    FetchAttempt,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    LocalStart,
    PartitionError,
    ReaderPosition,
    RecordDeletion,
    RemoteLookup,
)
from purgatory_udf.sources.request_log.high_watermark_events import EventSweep
from purgatory_udf.sources.request_log.importing.carried_state import facts_to_carry
from purgatory_udf.sources.request_log.importing.settings_evidence import FollowedSettings
from purgatory_udf.sources.request_log.internal_topics import StoredBatch, TransactionFacts
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import ALL_TIME, TimeRange
from purgatory_udf.sources.request_log.partition_timeline import (
    PartitionInput,
    PartitionTimeline,
    build_timelines,
)
from tests.sources.request_log.random_values import RandomValues
from tests.sources.request_log.translate import facts_by_moment, timed_events
from tests.support import recorded

TIMELINES = range(20)
# Partitions of a test, and heartbeats of a group.
PARTITIONS, HEARTBEATS = 15, 60
START_US = 1_700_000_000_000_000
TOPICS = ("t", "t", "t", "__consumer_offsets", "__transaction_state")
Lines = Iterator[str]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=msgspec.to_builtins)


class RandomFacts(RandomValues):
    """Random facts about one partition, and facts about its cluster."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._unit = self.of(1, 100, 400, 1_000, 1_000, 20_000, 50_000, 1_000_000)
        self.broker, self.topic = self.of(0, 1), self.of(*TOPICS)
        self._tiered = self.one_in(4)
        makers = (
            (self._append, 8), (self._writer, 0 if self.topic == "t" else 8), (self._position, 12), (self._reading, 4),
            (self._attempts, 6), (self._delivery, 3), (self._error, self.of(0, 1, 3)), (self._deletion, self.of(0, 1)),
            (self._copy, self.of(0, 0, 4)), (self._answer, 4 if self.topic == "__consumer_offsets" else 0),
            (self._read, 8 if self._tiered else 0), (self._lookup, 2 if self._tiered else 0),
            (self._local_start, 2 if self._tiered else 0),
        )  # fmt: skip
        self.facts: list[Fact] = [self.weighted(makers)() for _ in range(self.of(3, 12, 40))]

    def _us(self, most: int = 30) -> int:
        return START_US + self.below(most) * self._unit + self.of(0, 0, 0, 1, -1)

    def _offset(self) -> int:
        return self.of(-1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)

    def _append(self) -> Append:
        start = self._us()
        at = start + self.below(3) * self._unit
        check = at + self.below(3) * self._unit
        append = Append(start, at, check, self.of(check, check + self._unit), base=self._offset())
        append.event_us, append.answered_us = self.of(check, check, -1), self.of(-1, check + 2 * self._unit)
        append.bytes, append.file, append.slot = self.of(0, 10, 10, 30), 0, self.below(2)
        append.line = self.below(40)
        if append.base >= 0 and self.one_in(8):
            append.end = append.base + self.of(0, 1, 2)
        append.transaction = self.of(None, None, None, "x", "y")
        return append

    def _writer(self) -> Append:
        start = self._us()
        until = start + self.below(4) * self._unit
        append = Append(start, start + self.of(0, 1) * self._unit, until, until, records=self.of(0, 1, 1, 3))
        append.writer_file, append.writer_line = self.of((0, 0), (0, self.below(9)), (-1, -1))
        append.client, append.wait_ms, append.bytes = self.of(None, "c"), self.of(-1, -1, 0, 5_000), self.of(0, 78)
        append.ends_transaction, append.aborts = self.of(None, None, "x", "#7"), self.one_in(2)
        append.slot = self.of(-1, -1, 0, 1)
        return append

    def _position(self) -> ReaderPosition:
        at = self._us()
        wake = at + self.below(3) * self._unit
        replica, offset = self.of(-1, -1, 0, 2, 2, 3), max(0, self._offset())
        start = self.of(at, at - self._unit, -1)
        return ReaderPosition(
            at, wake, wake + self.of(0, self._unit), at - self.of(0, 1) * self._unit, replica, offset,
            self.of(-1, -1, 0, 1, offset), start, self.of(-1, 0, 1),
        )  # fmt: skip

    def _reading(self) -> HighWatermarkReading:
        since = self._us()
        return HighWatermarkReading(since, since + self.below(3) * self._unit, max(0, self._offset()))

    def _attempts(self) -> FetchAttempt | AttemptRun:
        replica, offset = self.of(-1, 0, 2, 3), max(0, self._offset())
        if self.one_in(3):
            return FetchAttempt(self._us(), replica, offset, self.one_in(2))
        times = [self._us() for _ in range(self.of(1, 2, 4))]
        return AttemptRun(
            replica, offset, self.one_in(2), array("q", times if self.one_in(9) else sorted(times)).tobytes()
        )

    def _delivery(self) -> FollowerDelivery:
        return FollowerDelivery(self._us(), self.of(0, 1, 50))

    def _error(self) -> PartitionError:
        return PartitionError(self._us(), self.of(3, 6, 7, 74, 75, 56, 1))

    def _deletion(self) -> RecordDeletion:
        return RecordDeletion(self._us(), self._offset())

    def _copy(self) -> FollowerCopy:
        base = max(0, self._offset())
        end = base + self.below(3)
        return FollowerCopy(self._us(), base, end, self.of(0, 10), max(0, end - self.below(2)))

    def _answer(self) -> CoordinatorAnswer:
        return CoordinatorAnswer(self._us(), self.of(0, 0, 14, 16))

    def _read(self) -> ConsumerRead:
        start = self._us()
        at = start + self.of(0, 1) * self._unit
        waited = self.of(0, 0, self._unit, 3 * self._unit)
        mark = self._offset()
        return ConsumerRead(
            at, start, at + waited, waited, max(0, self._offset()), self.of(0, 1, 1, 20, 40), self.of(10, 30, 1_000),
            self.of(0, 0, 10), self.of(0, 0, 0, 0, -1, 1), mark, self.of(-1, mark), self.one_in(3), 0, self.below(40),
            self.below(2),
        )  # fmt: skip

    def _lookup(self) -> RemoteLookup:
        return RemoteLookup(self._us(), self.of(0, -1), self._offset(), 0, self.below(40))

    def _local_start(self) -> LocalStart:
        return LocalStart(self._us(), max(0, self._offset()), self.one_in(2))

    def context(self) -> Context:
        key = (self.topic, 0)
        changes = []
        for at_us in sorted(self._us() for _ in range(self.of(0, 0, 1, 3, 6))):
            source = self.of(GIVEN, GIVEN, REPORTED, GRANTED) if self.one_in(2) else GIVEN
            change = PartitionChange(
                at_us, *key, source, self.of(self.broker, self.broker, 2, None), self.of(0, 1, 2, None),
                self.of((0, 1, 2), None), self.of((0, 1, 2), (0, 1), (1,), (), None),
                asked_us=at_us - self.below(2) * self._unit,
            )  # fmt: skip
            if self.one_in(9):
                change = PartitionChange(at_us, *key, source, deleted=True)
            changes.append(change)
        batches, base = [], 0
        for _ in range(8):
            last = base + self.of(0, 0, 1, 2)
            flags = self.of((False, False, -1), (False, False, -1), (True, False, 7), (True, True, 7), (True, False, 8))
            batches.append(StoredBatch(base, last, self.of(10, 10, 30), self._us(), *flags))
            base = last + self.of(1, 1, 1, 2)
        stops = [
            BrokerStop(self.of(0, 1), at, self.of(at, at + 5 * self._unit, NEVER))
            for at in [self._us()]
            if self.one_in(3)
        ]
        members = [{"member_id": "m", "session_timeout_ms": 1, "rebalance_timeout_ms": 1, "protocols": ["range"]}]
        stored = [GroupRecord(self._us(), 3, self.of("m", None), self.of(members, []))] if self.one_in(2) else []
        low, high = sorted((self._us(), self._us()))
        return Context(
            changes={key: changes} if changes else {},
            batches=self.of({}, {}, {key: batches}, {("other", 0): batches}),
            cluster=ClusterMetadata(
                unfenced=[BrokerUnfenced(self._us() - 60_000, self.of(0, 1, 2)) for _ in range(self.of(0, 2))],
                min_isr=self.of(None, 1, 2),
            ),
            transactions=TransactionFacts({7: "x"}),
            partition_counts={"__consumer_offsets": 1},
            groups=GroupHistory({"g": stored} if stored else {}),
            stops=stops,
            classic_brokers=frozenset({0} if self.one_in(2) else ()),
            classic=self.of(None, True),
            tiered=frozenset({self.topic} if self._tiered else ()),
            span_us=self.of((0, NEVER), (low, high)),
        )


def _timeline(random: RandomFacts, context: Context, span: TimeRange, before: dict[str, Any] | None) -> Iterator[Any]:
    """Yield the events and offsets in a time range, the counts, and the state for the next one."""
    facts = PartitionFacts.of(random.broker, (random.topic, 0), map(msgspec.structs.replace, random.facts))
    given = PartitionInput(facts, Report(), before)
    yield from _contents(given, *build_timelines([given], context, span))


def _contents(given: PartitionInput, timeline: PartitionTimeline) -> Iterator[Any]:
    facts, report, _ = given
    events = timed_events(timeline.events, facts)
    yield from sorted(([*timed[:2], timed.event, timed.cause] for timed in events), key=lambda each: each[:2])
    yield [
        list(row) for produced in timeline.produced for row in zip(*(each.tolist() for each in produced), strict=True)
    ]
    yield [*timeline.unlogged, *timeline.remote_reads]
    yield dict(sorted(report.counts.items()))
    yield timeline.sweep


def _together(partitions: Sequence[RandomFacts], context: Context) -> list[list[Any]]:
    """Return the timelines of partitions that are built together."""
    all_facts = PartitionFacts.of_each(
        (random.broker, (random.topic, 0), map(msgspec.structs.replace, random.facts)) for random in partitions
    )
    given = [PartitionInput(facts, Report()) for facts in all_facts]
    return [list(_contents(*each)) for each in zip(given, build_timelines(given, context), strict=True)]


def timelines(number: int) -> Lines:
    """Yield the timelines of random partitions, whole and in two steps, and the facts that the first step keeps."""
    for each in range(PARTITIONS):
        random = RandomFacts(1_000 * number + each)
        context = random.context()
        yield from map(_json, _timeline(random, context, ALL_TIME, None))
        until_us = random._us()
        *first, state = _timeline(random, context, TimeRange(-NEVER, until_us), None)
        yield from map(
            _json, [*first, state, *_timeline(random, context, TimeRange(until_us, NEVER), json.loads(_json(state)))]
        )
        yield from sorted(map(_json, facts_by_moment(facts_to_carry([random.facts], until_us + 15_000_000)[0])))


def settings(number: int) -> Lines:
    """Yield bounds of settings that random heartbeats, joins and waits show."""
    random = RandomValues(number)
    at_us, epoch, heartbeats = START_US, 0, []
    members = {f"u{member}": 0 for member in range(3)}
    for _ in range(HEARTBEATS):
        member = random.of(*members)
        at_us += random.of(0, 1, 500_000, 500_000, 1_000_000, 6_000_000)
        known = members[member]
        sent = random.of(known, known, known, known, known, 0, -1, -2)
        epoch += int(random.one_in(8))
        members[member] = epoch if sent >= 0 else 0
        code = random.of(25, 110, 16) if random.one_in(12) else 0
        changes = sent <= 0 or random.one_in(10)
        heartbeats.append(shown.HeartbeatLine(at_us, member, sent, epoch if sent >= 0 else sent, code, changes))
    bounds = list(shown._session_bounds(heartbeats, random.of(1_000_000, 2_000_000)))
    yield from map(_json, bounds)
    yield from _followed_settings(random, bounds)
    group, generation, at_us = shown._ClassicGroup(), random.of(0, 1), START_US
    is_new = random.one_in(2)
    for _ in range(12):
        delay, count = random.of(100_000, 3_000_000), random.of(1, 1, 2, 4)
        times = sorted(at_us + random.of(0, 1, 50_000, 100_000, 3_000_000) for _ in range(count))
        end = times[0] + delay * random.of(1, 1, 2, 3) + random.of(0, 0, 999, 1_000)
        for each, start in enumerate(times):
            join = shown._Join(
                start, end + random.of(0, 0, 200_000, 200_001), f"m{each}", random.of(150, 5_000, 60_000)
            )
            yield _json(list(shown._add_join(group, generation, join, is_new)))
        if group.members is not None and random.one_in(2):
            group.members -= random.of({"m0"}, {"m0", "m1"}, set(group.members))
        generation += random.of(0, 1, 1)
        at_us = end + random.of(1, 10_000_000)
    yield _json([*shown._initial_delay(group), sorted(group.members or ()), group.was_empty])
    limits = (0, 5_999, 6_000, 6_001, 1_799_999, 1_800_000, 1_800_001, 2**31 - 1)
    for _ in range(8):
        accepted, refused = (Counter(random.of(*limits) for _ in range(random.below(4))) for _ in range(2))
        yield _json(list(shown._session_limits(accepted, refused)))
    for _ in range(12):
        low = random.of(0.0, 1.0, 99.5, 985.0, 1_000.0, 4_985.0, 29_999.0, 31_234.5)
        yield _json(shown.roundest(low, low + random.of(-1.0, 0.0, 0.5, 16.0, 20.0, 1_000.0)))
        waits = [
            low + random.of(0.0, 1.0, 14.0, 15.0, 15.5, 100.0, 500.0, 3_000.0) for _ in range(random.of(0, 1, 2, 5))
        ]
        yield _json(shown.timeout_shown("waits", waits))
        yield _json(shown.session_timeout(low, random.of(None, low, low + 30, low - 1), 3))
        fetches = {(random.of(500, 700), random.of(1, 2)): random.of(1, 5) for _ in range(random.below(3))}
        yield _json(shown.follower_settings(fetches))


def _followed_settings(random: RandomValues, bounds: list[dict[str, Any]]) -> Lines:
    """Yield the settings that bounds and waits show in two steps, and the state between these."""
    known, own = FollowedSettings(), Context(group_sessions={"own": []})
    for step in range(2):
        for bound in bounds[step::2]:
            resized = [bound.get("until_us", 0) + random.of(0, 1, 1)]
            known._add_bound(bound, random.of("g", "g", "own"), own, resized)
        for _ in range(random.below(4)):
            known._add_wait(random.of(*known.waits), random.of(100.0, 700.0, 715.0, 1_200.5))
        known.intervals.update([random.of(500, 1_000)])
        known.fetches.update([(500, random.of(1, 2))])
        heartbeat = shown.HeartbeatLine(step, "u", 0, random.of(1, 2), 0, True)
        yield _json(list(known.sessions[step, "g"].read(heartbeat, {}, 0)))
        yield from map(_json, known.settings())
        state = json.loads(_json(known.snapshot()))
        yield _json(state)
        known = FollowedSettings.resumed(state)


def _lines(number: int) -> Lines:
    yield from timelines(number)
    yield from settings(number)


@cache
def _expected() -> dict[str, list[str]]:
    return recorded.sections(recorded.data_file("imported", "timelines.txt"))


@pytest.mark.parametrize("number", TIMELINES)
@pytest.mark.parametrize("entries", [1 << 16, 2, 0])
def test_random_facts_have_same_timelines(number: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`entries` are read at once as columns; 0: entry by entry."""
    if entries:
        monkeypatch.setattr(high_watermark_events, "_ENTRIES", entries)
    else:
        monkeypatch.setattr(EventSweep, "_only_moves_offsets", lambda *_: False)
    assert list(_lines(number)) == _expected()[str(number)]


if __name__ == "__main__":
    file = recorded.data_file("imported") / "timelines.txt.xz"
    text = "".join(f"# {number}\n" + "".join(f"{line}\n" for line in _lines(number)) for number in TIMELINES)
    file.write_bytes(lzma.compress(text.encode(), preset=9))


@pytest.mark.parametrize("number", TIMELINES)
@pytest.mark.parametrize(("count", "entries"), [(2, 1 << 16), (3, 1 << 16), (3, 2), (PARTITIONS, 1 << 16)])
def test_partitions_together_have_same_timelines(
    number: int, count: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`entries` of each partition are read at once as columns."""
    monkeypatch.setattr(high_watermark_events, "_ENTRIES", entries)
    partitions, context = _partitions(number)
    alone = _alone(number, entries)
    assert [_together(partitions[start : start + count], context) for start in range(0, PARTITIONS, count)] == [
        alone[start : start + count] for start in range(0, PARTITIONS, count)
    ]


@cache
def _partitions(number: int) -> tuple[list[RandomFacts], Context]:
    """Return partitions of a cluster, and facts about the cluster."""
    partitions = [RandomFacts(1_000 * number + each) for each in range(PARTITIONS)]
    return partitions, partitions[0].context()


@cache
def _alone(number: int, entries: int) -> list[list[Any]]:
    """Return the timeline of each partition, built alone; the caller has set the number of entries."""
    partitions, context = _partitions(number)
    return [timeline for partition in partitions for timeline in _together([partition], context)]
