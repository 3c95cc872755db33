"""Timelines: facts of one partition at one broker become events of its log and leadership.

Times are milliseconds. Events are (time, change, offset, or replica and offset, or in-sync set).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from purgatory_udf.sources.request_log.append_offsets import SelectedAppends, unlogged_appends
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.cluster_metadata import (
    GIVEN,
    REPORTED,
    BrokerUnfenced,
    ClusterMetadata,
    PartitionChange,
)
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    Fact,
    FetchAttempt,
    HighWatermarkReading,
    PartitionError,
    ReaderPosition,
    RecordDeletion,
)
from purgatory_udf.sources.request_log.high_watermark_events import EventSweep
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import ALL_TIME, TrackedReplica
from purgatory_udf.sources.request_log.partition_timeline import build_timeline
from tests.sources.request_log.log_lines import START_US, us
from tests.sources.request_log.translate import timed_events

NOT_LEADER, UNKNOWN_TOPIC, TIMED_OUT = 6, 3, 7
NO_REPLICA, THIS, OTHER, THIRD = -1, 1, 2, 3

Facts = list[Fact]


def _append(at: float, base: int = -1, end: int = -1, line: int = -1, **more: Any) -> Append:
    """Return an append of a request handled from `at` on for 1 ms; with a line it is a produce."""
    return Append(us(at), us(at + 0.4), us(at + 1), us(at + 1), base=base, end=end, bytes=10, line=line, **more)


def _position(at: float, replica: int, offset: int, log_start: int = -1) -> ReaderPosition:
    return ReaderPosition(us(at), us(at), us(at + 1), us(at), replica, offset, log_start)


def _isr_change(at: float, isr: tuple[int, ...] = (THIS, OTHER), leader: int = THIS, epoch: int = 0) -> PartitionChange:
    return PartitionChange(us(at), "t", 0, GIVEN, leader, epoch, (THIS, OTHER, THIRD), isr)


def _events(
    facts: Facts, *changes: PartitionChange, unfenced: Iterable[BrokerUnfenced] = ()
) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    """Return the events in time order, and the counts of the report."""
    report = Report()
    context = Context(changes={("t", 0): [*changes]}, cluster=ClusterMetadata(unfenced=[*unfenced]))
    of_partition = PartitionFacts.of(THIS, ("t", 0), facts)
    timeline = build_timeline(of_partition, context, report)
    events = []
    for timed in sorted(timed_events(timeline.events, of_partition), key=lambda timed: (timed.at_us, timed.rank)):
        fields = [timed.event[name] for name in ("replica_id", "offset", "isr") if name in timed.event]
        events.append((round((timed.at_us - START_US) / 1000), timed.event["change"], *fields))
    return events, dict(report.counts)


def test_appends_and_follower_offsets_become_events() -> None:
    events, counts = _events(
        [_append(10, 0, 1, line=1), _position(12, OTHER, 0), _position(20, OTHER, 1)], _isr_change(0)
    )
    assert events == [
        (10, "leader", [THIS, OTHER]),
        (10, "log_end", 0),
        (11, "log_end", 1),
        (12, "replica_end", OTHER, 0),
        (20, "replica_end", OTHER, 1),
    ]
    assert counts == {"isr_given": 1}


def test_consumer_offset_proves_high_watermark() -> None:
    facts: Facts = [
        _append(10, 0, 1, line=1),
        _position(12, OTHER, 0),
        _position(20, NO_REPLICA, 1),
        _position(21, OTHER, 1),
    ]
    events, counts = _events(facts, _isr_change(0))
    assert events[3:] == [(12, "replica_end", OTHER, 0), (20, "high_watermark", 1), (21, "replica_end", OTHER, 1)]
    assert counts["high_watermark_proven"] == 1


@pytest.mark.parametrize(
    ("readings", "when"),
    [([], 26), ([(24, 1)], 24), ([(28, 0)], 28), ([(22, 0), (23, 1)], 23), ([(40, 1)], 26)],
    ids=["nothing", "reached", "not yet", "between", "later"],
)
def test_responses_date_follower_offset(readings: list[tuple[float, int]], when: int) -> None:
    position = ReaderPosition(us(22), us(26), us(30), us(19), OTHER, 1, start_us=us(20))
    seen: Facts = [HighWatermarkReading(us(at), us(at), offset) for at, offset in readings]
    events, _ = _events([_append(10, 0, 1, line=1), _position(12, OTHER, 0), position, *seen], _isr_change(0))
    assert events[-1] == (when, "replica_end", OTHER, 1)


def test_low_high_watermark_is_ambiguous_with_two_followers() -> None:
    position = ReaderPosition(us(22), us(26), us(30), us(19), OTHER, 1, start_us=us(20))
    others: Facts = [_position(12, OTHER, 0), _position(12, THIRD, 0)]
    events, _ = _events(
        [_append(10, 0, 1, line=1), *others, position, HighWatermarkReading(us(28), us(28), 0)], _isr_change(0)
    )
    assert events[-1] == (26, "replica_end", OTHER, 1)


def test_isr_shrink_applies_after_propagation() -> None:
    facts: Facts = [
        _append(10, 0, 1, line=1),
        _position(12, OTHER, 0),
        _position(12, THIRD, 0),
        _position(20, OTHER, 1),
    ]
    events, _ = _events(facts, _isr_change(0, (THIS, OTHER, THIRD)), _isr_change(30))
    assert events[-1] == (90, "isr", [THIS, OTHER])


def test_transaction_holds_last_stable_offset() -> None:
    produce = _append(10, 0, 2, line=1, transaction="x")
    marker = _append(20, ends_transaction="x", records=1)
    events, _ = _events(
        [produce, _position(12, OTHER, 0), _position(14, OTHER, 2), marker, _position(30, OTHER, 3)], _isr_change(0)
    )
    assert events[2:] == [
        (11, "log_end", 2),
        (12, "last_stable", 0),
        (12, "replica_end", OTHER, 0),
        (14, "replica_end", OTHER, 2),
        (21, "log_end", 3),
        (30, "last_stable", 3),
        (30, "replica_end", OTHER, 3),
    ]


@pytest.mark.parametrize("aborts", [True, False])
def test_last_stable_offset_passes_aborted_records(aborts: bool) -> None:
    """The records of x are readable once its marker is replicated; those of y are committed."""
    facts: Facts = [
        _append(10, 0, 2, line=1, transaction="x"),
        _append(11, 2, 3, line=2, transaction="y"),
        _append(12, 3, 5, line=3, transaction="x"),
        _append(20, ends_transaction="x", aborts=aborts, records=1),
        _append(22, ends_transaction="y", records=1),
        _position(30, OTHER, 7),
    ]
    changes = {("t", 0): [_isr_change(0)]}
    of_partition = PartitionFacts.of(THIS, ("t", 0), facts)
    timeline = build_timeline(of_partition, Context(changes=changes), Report())
    events = [
        timed.event for timed in timed_events(timeline.events, of_partition) if timed.event["change"] == "last_stable"
    ]
    ranges = [{"first_offset": 0, "last_offset": 1}, {"first_offset": 3, "last_offset": 4}]
    assert (events[-1]["offset"], events[-1].get("aborted")) == (7, ranges if aborts else None)


def test_unlogged_append_is_dated_by_its_request() -> None:
    events, counts = _events(
        [_position(5, OTHER, 0), _append(10, records=1), _position(14, OTHER, 1), _position(30, OTHER, 4)],
        _isr_change(0),
    )
    assert events[2:] == [
        (5, "replica_end", OTHER, 0),
        (11, "log_end", 1),
        (14, "replica_end", OTHER, 1),
        (30, "log_end", 4),
        (30, "replica_end", OTHER, 4),
    ]
    assert (counts["hidden_confirmed"], counts["hidden_inferred"]) == (1, 1)


def test_followers_offset_is_shared_by_requests() -> None:
    """A request appends its records, at least one, and the last request all further records."""
    writers = [_append(at, records=records) for at, records in ((10, 0), (12, 3), (14, 1))]
    events, _ = _events([_position(5, OTHER, 0), *writers, _position(16, OTHER, 7)], _isr_change(0))
    ends = [event for event in events if event[1] == "log_end"]
    assert ends == [(5, "log_end", 0), (11, "log_end", 1), (13, "log_end", 4), (15, "log_end", 7)]


def test_unlogged_append_has_size_of_its_request() -> None:
    writers = [_append(at, records=2, writer_file=0, writer_line=line) for at, line in ((10, 7), (12, 8))]
    writers[1].bytes = 0
    facts = PartitionFacts.of(THIS, ("t", 0), [*writers, _position(5, OTHER, 20), _position(16, OTHER, 24)])
    none = SelectedAppends(facts.appends, np.array([], np.int64))
    found = unlogged_appends(none, facts, True, Report())
    assert [(each.writer_line, each.base, each.end, each.bytes) for each in found] == [(7, 20, 22, 10), (8, 22, 24, 1)]


def test_unconfirmed_request_appends_nothing() -> None:
    events, _ = _events([_position(5, OTHER, 0), _append(10, records=1)], _isr_change(0))
    assert [event for event in events if event[1] == "log_end"] == [(5, "log_end", 0)]


def test_unanswered_appends_share_offsets() -> None:
    facts: Facts = [_append(10, 0, line=1), _append(20, line=2), _append(30, 6, line=3), _position(40, OTHER, 8)]
    events, counts = _events(facts)
    assert [event for event in events if event[1] == "log_end"] == [
        (10, "log_end", 0),
        (11, "log_end", 3),
        (21, "log_end", 6),
        (31, "log_end", 8),
    ]
    assert (counts["unanswered_offsets"], counts["isr_supposed"]) == (1, 1)


def test_new_leader_refuses_until_metadata_arrives() -> None:
    events, _ = _events(
        [PartitionError(us(5), NOT_LEADER), PartitionError(us(8), NOT_LEADER), _position(12, OTHER, 0)], _isr_change(0)
    )
    assert events == [(5, "not_leader"), (5, "log_end", 0), (8, "leader", [THIS, OTHER]), (12, "replica_end", OTHER, 0)]


def test_leader_without_appends_is_replaced() -> None:
    events, _ = _events(
        [_position(5, OTHER, 0), PartitionError(us(40), NOT_LEADER)],
        _isr_change(0),
        _isr_change(35, leader=OTHER, epoch=1),
    )
    assert events == [
        (5, "leader", [THIS, OTHER]),
        (5, "log_end", 0),
        (5, "replica_end", OTHER, 0),
        (40, "not_leader"),
    ]


def test_takeover_is_dated_by_requests() -> None:
    changes = [_isr_change(0, leader=OTHER), _isr_change(100, leader=THIS, epoch=1)]
    served, _ = _events([_position(130, OTHER, 5)], *changes)
    assert [event[:2] for event in served] == [
        (100, "not_leader"),
        (130, "leader"),
        (130, "log_end"),
        (130, "replica_end"),
    ]
    refused, _ = _events([PartitionError(us(190), NOT_LEADER), _position(250, OTHER, 5)], *changes)
    assert [event[:2] for event in refused if "leader" in event[1]] == [(100, "not_leader"), (190, "leader")]


def test_suspended_leader_learns_of_successor_late() -> None:
    facts: Facts = [_position(5, OTHER, 0), PartitionError(us(9_000), NOT_LEADER)]
    events, _ = _events(facts, _isr_change(0), _isr_change(1_000, leader=OTHER, epoch=1))
    assert events[-1] == (9_000, "not_leader")


def test_isr_shrink_is_dated_by_produces() -> None:
    both: Facts = [_position(12, OTHER, 0), _position(12, THIRD, 0)]
    late: Facts = [*both, _append(10, 0, 1, line=1), PartitionError(us(300), TIMED_OUT)]
    events, _ = _events(late, _isr_change(0, (THIS, OTHER, THIRD)), _isr_change(100))
    assert events[-1] == (300, "isr", [THIS, OTHER])
    for answered_at in (100, 340):
        released = _append(20, 1, 2, line=2)
        released.answered_us = us(answered_at)
        events, _ = _events([*late, released], _isr_change(0, (THIS, OTHER, THIRD)), _isr_change(100))
        assert events[-1] == (answered_at, "isr", [THIS, OTHER])


def test_later_change_applies_after_earlier_one() -> None:
    """A produce shows that the leader applied the shrunk in-sync set 240 ms late, after the set had grown again."""
    both: Facts = [_position(12, OTHER, 0), _position(12, THIRD, 0), PartitionError(us(300), TIMED_OUT)]
    facts = [*both, _append(20, 0, 1, line=1, answered_us=us(340))]
    all_in_sync = (THIS, OTHER, THIRD)
    events, _ = _events(facts, _isr_change(0, all_in_sync), _isr_change(100), _isr_change(150, all_in_sync))
    assert [event for event in events if event[1] == "isr"] == [
        (340, "isr", [THIS, OTHER]),
        (340, "isr", [THIS, OTHER, THIRD]),
    ]


def test_high_watermark_waits_for_rejoining_replica() -> None:
    attempt = FetchAttempt(us(20), THIRD, 0)
    changes = [_isr_change(0, (THIS, OTHER, THIRD)), _isr_change(9_000), _isr_change(20_500, (THIS, OTHER, THIRD))]
    events, _ = _events([_position(12, THIRD, 0), attempt], *changes, unfenced=[BrokerUnfenced(us(20_000), THIRD)])
    assert [(at, isr) for at, change, *isr in events if change == "isr"] == [
        (9_060, [[THIS, OTHER]]),
        (20_060, [[THIS, OTHER, THIRD]]),
        (20_500, [[THIS, OTHER, THIRD]]),
    ]
    # A replica that was away for too long has to catch up first.
    later, _ = _events([_position(12, THIRD, 0), attempt], *changes[:2], unfenced=[BrokerUnfenced(us(40_000), THIRD)])
    assert [event[0] for event in later if event[1] == "isr"] == [9_060]


def test_deletion_applies_at_first_error() -> None:
    gone = PartitionChange(us(35), "t", 0, GIVEN, deleted=True)
    events, _ = _events([_position(5, OTHER, 0), PartitionError(us(40), UNKNOWN_TOPIC)], _isr_change(0), gone)
    assert events[-1] == (40, "deleted")


def test_broker_led_before_first_report() -> None:
    later = PartitionChange(us(90), "t", 0, REPORTED, OTHER, 1, (THIS, OTHER), (THIS, OTHER))
    events, _ = _events([_position(5, OTHER, 0), PartitionError(us(95), NOT_LEADER)], later)
    assert events == [
        (5, "leader", [THIS, OTHER]),
        (5, "log_end", 0),
        (5, "replica_end", OTHER, 0),
        (95, "not_leader"),
    ]


def test_errors_show_leadership_without_metadata() -> None:
    facts: Facts = [
        _position(5, OTHER, 0),
        _append(10, 0, 1, line=1),
        PartitionError(us(40), NOT_LEADER),
        _append(60, 1, 2, line=2),
    ]
    events, counts = _events(facts)
    assert [event[:2] for event in events if event[1] in ("leader", "not_leader", "online")] == [
        (5, "leader"),
        (40, "not_leader"),
        (60, "online"),
    ]
    assert counts["status_reported"] == 2


def test_low_watermark_follows_slowest_replica() -> None:
    facts: Facts = [
        _append(1, 0, 9, line=1),
        _position(5, OTHER, 9),
        RecordDeletion(us(10), 4),
        _position(12, OTHER, 9, log_start=4),
    ]
    events, _ = _events(facts, _isr_change(0))
    assert events[-1] == (12, "log_start", 4)


def test_deletion_without_followers_moves_log_start() -> None:
    facts: Facts = [_append(1, 0, 9, line=1), RecordDeletion(us(10), 4), RecordDeletion(us(20), 4)]
    events, _ = _events(facts, _isr_change(0, (THIS,)))
    assert events[-1] == (10, "log_start", 4)


def test_low_watermark_is_written_once() -> None:
    """The follower still has the records from offset 4 on."""
    follower = _position(12, OTHER, 9, log_start=4)
    facts: Facts = [_append(1, 0, 9, line=1), RecordDeletion(us(10), 4), follower, RecordDeletion(us(20), 6)]
    events, _ = _events(facts, _isr_change(0))
    assert [event for event in events if event[1] == "log_start"] == [(12, "log_start", 4)]


def test_partition_named_only_by_response_has_its_time() -> None:
    """The log starts within a fetch session, of which no request lists the partition."""
    assert _events([HighWatermarkReading(us(20), us(21), 8)]) == ([(20, "log_end", 8)], {})


def test_consumer_proves_high_watermark_without_metadata() -> None:
    events, _ = _events([_append(10, 0, 1, line=1), _position(20, NO_REPLICA, 1)])
    assert events[-1] == (20, "high_watermark", 1)


def test_sweep_continues_from_its_snapshot() -> None:
    facts = PartitionFacts.of(THIS, ("t", 0), [])
    state = EventSweep(facts, Report()).snapshot()
    state["replica"] |= {"end": 9, "high_watermark": 7, "isr": [THIS, OTHER], "min_isr": 2, "ends": [[OTHER, 7]]}
    state["replica"] |= {"open_transactions": {"x": 3}, "ended": [[1, 8]]}
    state |= {"standing": {"status": "online"}, "follows": True, "log_starts": [[THIS, 4]], "low": 4}
    state |= {"transactional": True, "stable": 1}
    resumed = EventSweep.resumed(facts, Report(), ALL_TIME, json.loads(json.dumps(state)))
    assert json.loads(json.dumps(resumed.snapshot())) == json.loads(json.dumps(state))


def test_append_without_followers_ends_at_high_watermark() -> None:
    events, counts = _events([_append(10, 5, line=1), HighWatermarkReading(us(20), us(21), 8)], _isr_change(0, (THIS,)))
    assert [event for event in events if event[1] == "log_end"] == [(10, "log_end", 5), (11, "log_end", 8)]
    assert counts["end_from_offsets"] == 1


def test_reader_behind_others_proves_nothing() -> None:
    facts: Facts = [_append(10, 0, 1, line=1), _position(20, OTHER, 1), HighWatermarkReading(us(25), us(26), 1)]
    again = FetchAttempt(us(50), NO_REPLICA, 0, empty=True)
    assert _events([*facts, again], _isr_change(0)) == _events(facts, _isr_change(0))


def test_aborted_records_are_taken_when_readable() -> None:
    replica = TrackedReplica(THIS, aborted=[(5, 9), (0, 4)])
    assert [replica.take_aborted(stable) for stable in (4, 5, 9, 10)] == [[], [(0, 4)], [], [(5, 9)]]
