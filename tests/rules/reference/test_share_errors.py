"""Share groups: failed state writes, rejected sessions, limits, isolation, and reads of remote storage."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import load_config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.reference_replay import Replay, Replayer
from purgatory_udf.rules.reference.share_state import GroupKey
from tests.support.share_timeline import Event, ShareTimeline

PARTITION = GroupKey("g", TopicPartition("t", 0))


def _run(timeline: ShareTimeline, *settings: str) -> tuple[Replayer, Replay]:
    replayer = Replayer(load_config(None, ["share.record_lock_duration_ms=1000", *settings]), 0)
    for event in timeline.events:
        replayer.apply(event)
    return replayer, replayer.finish()


def _ends(replay: Replay) -> list[str]:
    """Return the deliveries as text: offsets, member, how and when they ended, and the state."""
    return [
        f"{each.first_offset}-{each.last_offset} {each.member_id} {each.ended_by} {each.ended_us // 1000} {each.state}"
        for _, each in replay.deliveries
    ]


def _fetches(replay: Replay) -> list[str]:
    """Return the share fetches as text: id, how and when they ended, and bytes or error of each partition."""
    return [
        f"{each.request_id} {'expired' if each.expired else each.completed_by} {each.ended_us // 1000} "
        + ",".join(f"{part.partition}:{part.bytes if part.error == 'NONE' else part.error}" for part in each.partitions)
        for each in replay.outcomes
    ]


def _acquired() -> ShareTimeline:
    """m1 holds offsets 0 to 9 from 10 ms on; a fetch of m2 waits from 20 ms to 520 ms."""
    timeline = ShareTimeline().settings().append(1, 0, 10)
    return timeline.fetch(10, "f1", "m1", [0]).fetch(20, "f2", "m2", [0])


def test_remainder_of_bytes_goes_to_the_first_partition() -> None:
    timeline = ShareTimeline().settings()
    for end in range(1, 11):
        timeline.append(1, 0, end, 1).append(1, 1, end, 1)
    _, replay = _run(timeline.fetch(10, "f", "m", [0, 1], max_bytes=1199))
    assert _fetches(replay) == ["f min_bytes 10 0:600,1:500"]


def test_group_that_starts_at_the_end_gets_later_records() -> None:
    timeline = ShareTimeline().add(0, "share_group", group="g", auto_offset_reset="latest").append(1, 0, 10)
    _, replay = _run(timeline.fetch(10, "f", "m", [0]).append(30, 0, 12, 2))
    assert _fetches(replay) == ["f min_bytes 30 0:200"]


def test_unknown_high_watermark_has_no_records() -> None:
    timeline = ShareTimeline().settings().change(1, 0, "log_end", offset=10, bytes=1000, batches=1)
    _, replay = _run(timeline.fetch(10, "f", "m", [0]))
    assert _fetches(replay) == ["f expired 510 0:0"]


def test_higher_start_offset_lets_a_fetch_acquire_more() -> None:
    """The limit of records in flight keeps f2 waiting until the first five are acknowledged."""
    timeline = ShareTimeline().settings().append(1, 0, 5).append(2, 0, 10, 5).append(3, 0, 15, 5)
    timeline.fetch(10, "f1", "m1", [0], max_records=10).fetch(20, "f2", "m2", [0])
    _, replay = _run(timeline.acknowledge(50, "a1", "m1", 0, (0, 4), 1), "share.partition_max_record_locks=10")
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 min_bytes 55 0:500"]


def test_failed_write_keeps_records_with_member() -> None:
    """The member can acknowledge the records again; the fetch gets none, because nothing becomes available."""
    timeline = _acquired()
    timeline.acknowledge(30, "a1", "m1", 0, (0, 9), 2, state_write_ms=50, fails="COORDINATOR_NOT_AVAILABLE")
    timeline.acknowledge(100, "a2", "m1", 0, (0, 9), 1, state_write_ms=5)
    replayer, replay = _run(timeline)
    answers = {each.request_id: each for each in replayer.cluster.broker(0).shares.answers}
    assert answers["a1"].errors == {PARTITION.key: "COORDINATOR_NOT_AVAILABLE"}
    assert answers["a1"].written_us == 80_000
    assert _ends(replay) == ["0-9 m1 accepted 100 ACKNOWLEDGED"]
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 expired 520 0:0"]
    state = replayer.cluster.share_groups.state(PARTITION)
    assert (state.start, [(each.first, each.last) for each in state.batches]) == (0, [(0, 9)])


def test_failed_write_after_lock_expiry_releases() -> None:
    """The lock expires during the write. The failure makes the records available, but wakes no waiting fetch."""
    timeline = _acquired()
    timeline.acknowledge(1000, "a1", "m1", 0, (0, 9), 1, state_write_ms=100, fails="UNKNOWN_SERVER_ERROR")
    timeline.fetch(1050, "f3", "m2", [0]).fetch(1200, "f4", "m3", [0])
    _, replay = _run(timeline)
    assert _ends(replay)[:1] == ["0-9 m1 lock_expired 1010 AVAILABLE"]
    # f3 is checked again when the broker finishes f4, which holds all records.
    assert _fetches(replay)[1:] == ["f2 expired 520 0:0", "f3 expired 1550 0:0", "f4 min_bytes 1200 0:1000"]


def test_failed_write_at_limit_archives() -> None:
    timeline = _acquired()
    timeline.acknowledge(1000, "a1", "m1", 0, (0, 9), 1, state_write_ms=100, fails="UNKNOWN_SERVER_ERROR")
    replayer, replay = _run(timeline, "share.delivery_count_limit=1")
    assert _ends(replay) == ["0-9 m1 lock_expired 1010 ARCHIVED"]
    (batch,) = replayer.cluster.broker(0).shares.partitions[PARTITION].batches
    assert batch.whole is not None and batch.whole.state.name == "ARCHIVED"


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        ("FENCED_STATE_EPOCH", "NOT_LEADER_OR_FOLLOWER"),
        ("GROUP_ID_NOT_FOUND", "GROUP_ID_NOT_FOUND"),
        ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_fencing_write_drops_share_partition(error: str, answered: str) -> None:
    """The next fetch reads the state again, from which the records are missing, and acquires them."""
    timeline = _acquired()
    timeline.acknowledge(30, "a1", "m1", 0, (0, 4), 1, state_write_ms=10, fails=error)
    timeline.fetch(100, "f3", "m3", [0])
    replayer, replay = _run(timeline)
    (answer,) = replayer.cluster.broker(0).shares.answers
    assert answer.errors == {PARTITION.key: answered}
    assert _ends(replay)[:1] == ["0-9 m1 fenced 40 ACQUIRED"]
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 expired 520 ", "f3 min_bytes 100 0:1000"]


def test_broker_drops_state_of_group_without_sessions() -> None:
    """The connections of both members close while the last fetch of m2 waits, which gets nothing from then on.

    The next session has the state read again, in which m1's records are missing: they count as never delivered.
    """
    timeline = _acquired().release(100, "m1", connection_closed=True).release(200, "m2", connection_closed=True)
    timeline.append(300, 0, 20, 10).fetch(400, "f3", "m1", [0], session_epoch=0)
    replayer, replay = _run(timeline.add(410, "clock"), "share.state_write_ms=0", "drain=false")
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 min_bytes 100 0:1000", "f3 min_bytes 400 0:2000"]
    assert [each[0] for each in replayer.cluster.broker(0).shares.partitions] == ["g"]
    timeline = _acquired().release(100, "m1").release(200, "m2", connection_closed=True).append(300, 0, 20, 10)
    _, replay = _run(timeline, "share.state_write_ms=300")
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 expired 520 "]


def test_group_with_a_session_keeps_its_state() -> None:
    timeline = _acquired().release(100, "m1", connection_closed=True).append(300, 0, 20, 10)
    _, replay = _run(timeline, "share.state_write_ms=300")
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 min_bytes 300 0:1000"]


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
        ("FENCED_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"),
        ("CORRUPT_MESSAGE", "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_failed_read_of_state_answers_at_the_deadline(error: str, answered: str) -> None:
    """f1 caused the read and gets its error, f2 only waited for it. The read that f3 causes succeeds."""
    timeline = ShareTimeline().settings().append(1, 0, 10)
    timeline.fetch(10, "f1", "m1", [0], reads={0: {"state_read_ms": 30, "error": error}})
    timeline.fetch(20, "f2", "m2", [0]).fetch(50, "f3", "m3", [0])
    _, replay = _run(timeline)
    assert _fetches(replay) == [f"f1 expired 510 0:{answered}", "f2 expired 520 ", "f3 min_bytes 50 0:1000"]


def test_fetch_answers_other_partitions_despite_a_failed_read() -> None:
    timeline = ShareTimeline().settings().append(1, 0, 10)
    failed = {0: {"error": "GROUP_ID_NOT_FOUND"}}
    timeline.fetch(10, "f1", "m1", [0, 1], reads=failed).append(40, 1, 5).fetch(60, "f2", "m1", [0], reads=failed)
    _, replay = _run(timeline)
    assert _fetches(replay) == [
        "f1 min_bytes 40 0:GROUP_ID_NOT_FOUND,1:500",
        "f2 partition_errors 60 0:GROUP_ID_NOT_FOUND",
    ]


def test_failed_write_of_session_end_keeps_records() -> None:
    timeline = _acquired()
    timeline.release(30, "m1", state_write_ms=20, fails={0: "COORDINATOR_LOAD_IN_PROGRESS"})
    _, replay = _run(timeline)
    assert _ends(replay) == ["0-9 m1 lock_expired 1010 AVAILABLE"]
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 expired 520 0:0"]


@pytest.mark.parametrize("error", ["SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH"])
def test_recorded_session_error_answers_at_once(error: str) -> None:
    """Neither the acknowledgements nor the fetch of the request take effect."""
    timeline = _acquired().append(30, 0, 20, 10)
    given = [{"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 9, "types": [1]}]
    timeline.fetch(40, "f3", "m1", [0], session_epoch=4, acknowledgements=given, error=error)
    replayer, replay = _run(timeline)
    assert _fetches(replay)[2] == f"f3 session_error 40 0:{error}"
    assert replayer.cluster.broker(0).shares.answers == []
    assert _ends(replay)[0] == "0-9 m1 lock_expired 1010 AVAILABLE"


def test_session_limit_is_answered_after_maximum_wait() -> None:
    """The timer of the purgatory has the request; no list of watchers has it, and no meter counts it."""
    timeline = ShareTimeline().settings().append(1, 0, 10)
    timeline.fetch(10, "f1", "m1", [0], error="SHARE_SESSION_LIMIT_REACHED").add(400, "clock")
    _, replay = _run(timeline)
    assert _fetches(replay) == ["f1 session_limit 510 0:SHARE_SESSION_LIMIT_REACHED"]
    (gauge,) = (each for each in replay.gauges if each.purgatory == "ShareFetch" and each.at_ms == 400)
    assert (gauge.watched, gauge.delayed) == (0, 1)
    assert not any(each.expired for each in replay.outcomes)


def test_sessions_are_checked_with_a_limit() -> None:
    """One session at most. Epochs rise by one with each request; a session from before the trace may have any."""
    timeline = ShareTimeline().settings().append(1, 0, 0)
    timeline.fetch(10, "old", "m0", [0], session_epoch=7, max_wait_ms=1)
    timeline.fetch(20, "full", "m1", [0], session_epoch=0, max_wait_ms=5)
    timeline.fetch(30, "unknown", "m1", [0], session_epoch=1, max_wait_ms=1)
    timeline.fetch(40, "repeated", "m0", [0], session_epoch=7, max_wait_ms=1)
    timeline.acknowledge(45, "a1", "m0", 0, (0, 0), 1, session_epoch=8)
    timeline.acknowledge(46, "a2", "m0", 0, (0, 0), 1, session_epoch=8)
    timeline.fetch(50, "next", "m0", [0], session_epoch=9, max_wait_ms=1)
    timeline.release(60, "m0").fetch(70, "ended", "m0", [0], session_epoch=10, max_wait_ms=1)
    timeline.acknowledge(75, "a3", "m0", 0, (0, 0), 1, session_epoch=10)
    timeline.fetch(80, "new", "m1", [0], session_epoch=0, max_wait_ms=1)
    timeline.fetch(90, "again", "m1", [0], session_epoch=0, max_wait_ms=1)
    timeline.acknowledge(95, "a4", "m1", 0, (0, 0), 1).fetch(96, "after", "m1", [0], session_epoch=5, max_wait_ms=1)
    replayer, replay = _run(timeline, "share.max_sessions=1")
    assert _fetches(replay) == [
        "old expired 11 0:0",
        "full session_limit 25 0:SHARE_SESSION_LIMIT_REACHED",
        "unknown session_error 30 0:SHARE_SESSION_NOT_FOUND",
        "repeated session_error 40 0:INVALID_SHARE_SESSION_EPOCH",
        "next expired 51 0:0",
        "ended session_error 70 0:SHARE_SESSION_NOT_FOUND",
        "new expired 81 0:0",
        "again expired 91 0:0",
        "after expired 97 0:0",
    ]
    answers = {each.request_id: each.errors[PARTITION.key] for each in replayer.cluster.broker(0).shares.answers
               if each.request_id}  # fmt: skip
    assert answers == {
        "a1": "INVALID_RECORD_STATE",
        "a2": "INVALID_SHARE_SESSION_EPOCH",
        "a3": "SHARE_SESSION_NOT_FOUND",
        "a4": "INVALID_RECORD_STATE",
    }


def test_fetch_without_epoch_starts_a_session() -> None:
    timeline = ShareTimeline().settings().append(1, 0, 0).fetch(10, "f1", "m1", [0], max_wait_ms=1)
    _, replay = _run(timeline.fetch(20, "f2", "m2", [0], max_wait_ms=1), "share.max_sessions=1")
    assert _fetches(replay) == ["f1 expired 11 0:0", "f2 session_limit 21 0:SHARE_SESSION_LIMIT_REACHED"]


def test_sessions_are_not_checked_by_default() -> None:
    timeline = ShareTimeline().settings().append(1, 0, 0)
    timeline.fetch(10, "f1", "m", [0], session_epoch=3, max_wait_ms=1).release(20, "m")
    timeline.fetch(30, "f2", "m", [0], session_epoch=9, max_wait_ms=1)
    _, replay = _run(timeline)
    assert _fetches(replay) == ["f1 expired 11 0:0", "f2 expired 31 0:0"]


def test_stopped_broker_abandons_rejected_session() -> None:
    timeline = ShareTimeline().settings().append(1, 0, 0)
    timeline.fetch(10, "f1", "m1", [0], error="SHARE_SESSION_LIMIT_REACHED").change(100, 0, "stopped")
    _, replay = _run(timeline)
    assert [(each.cancelled, each.ended_us) for each in replay.outcomes] == [(True, 100_000)]


def _transactions() -> ShareTimeline:
    """Offsets 0 to 9 are committed, 10 to 14 aborted and 15 to 19 committed; each transaction ends at its last offset.

    The last stable offset moves to 10 at 2 ms, and to 20 at 100 ms.
    """
    timeline = ShareTimeline().append(1, 0, 10).append(1, 0, 15, 5).append(1, 0, 20, 5)
    timeline.change(2, 0, "last_stable", offset=10)
    timeline.change(100, 0, "last_stable", offset=20, aborted=[{"first_offset": 10, "last_offset": 14}])
    return timeline.change(100, 0, "high_watermark", offset=20)


def _acquired_at(replayer: Replayer, name: str) -> list[tuple[int, ...]]:
    """Return the offsets and delivery counts in the response to a share fetch."""
    (fetch,) = (each for each in replayer.operations if isinstance(each, DelayedShareFetch)
                and each.request.request_id == name)  # fmt: skip
    return [tuple(each) for each in fetch.response[PARTITION.key].acquired]


@pytest.mark.parametrize(("setting", "override"), [("read_committed", None), (None, "read_committed")])
def test_read_committed_ends_at_last_stable_offset(setting: str | None, override: str | None) -> None:
    """Aborted records are archived and not delivered; they count as in flight until the next state is written."""
    timeline = ShareTimeline().settings(isolation=setting)
    timeline.events += _transactions().events
    timeline.fetch(10, "f1", "m1", [0], max_records=100).fetch(20, "f2", "m2", [0])
    timeline.acknowledge(200, "a1", "m1", 0, (0, 9), 1, state_write_ms=1)
    timeline.events = [event | {"seq": seq} for seq, event in enumerate(sorted(timeline.events, key=_time), 1)]
    replayer, replay = _run(timeline, *([f"share.isolation={override}"] if override else []))
    assert _acquired_at(replayer, "f1") == [(0, 9, 1)]
    assert _acquired_at(replayer, "f2") == [(15, 19, 1)]
    assert _fetches(replay) == ["f1 min_bytes 10 0:1000", "f2 min_bytes 100 0:500"]
    assert _ends(replay) == ["0-9 m1 accepted 200 ACKNOWLEDGED", "15-19 m2 lock_expired 1100 AVAILABLE"]
    assert replayer.cluster.broker(0).shares.partitions[PARTITION].start_offset == 15


def test_new_leader_knows_aborted_records() -> None:
    """The records were reported at broker 0, before broker 1 became the leader."""
    timeline = ShareTimeline().settings(isolation="read_committed")
    timeline.events += _transactions().events
    timeline.change(110, 0, "not_leader").change(120, 0, "log_end", offset=20, bytes=2000, broker=1)
    timeline.change(120, 0, "high_watermark", offset=20, broker=1).change(120, 0, "leader", broker=1)
    replayer, _ = _run(timeline.fetch(130, "f1", "m1", [0], broker=1))
    assert _acquired_at(replayer, "f1") == [(0, 9, 1), (15, 19, 1)]


def test_read_uncommitted_delivers_aborted_records() -> None:
    timeline = ShareTimeline().settings()
    timeline.events += _transactions().events
    timeline.fetch(10, "f1", "m1", [0]).events.sort(key=_time)
    replayer, _ = _run(timeline)
    assert _acquired_at(replayer, "f1") == [(0, 19, 1)]


def test_waiting_fetch_keeps_its_isolation() -> None:
    """A changed setting holds for later fetches; the end of the transaction wakes the waiting one."""
    timeline = ShareTimeline().settings(isolation="read_committed")
    timeline.change(1, 0, "last_stable", offset=0).append(2, 0, 10).fetch(10, "f1", "m1", [0])
    timeline.settings(20).change(30, 0, "high_watermark", offset=10)
    timeline.change(40, 0, "last_stable", offset=10).change(40, 0, "high_watermark", offset=10)
    _, replay = _run(timeline)
    assert _fetches(replay) == ["f1 min_bytes 40 0:1000"]


def _time(event: Event) -> int:
    return int(event["time_us"])


def _tiered(**fields: Any) -> ShareTimeline:
    """Offsets 0 to 9 of partition 0 are only in remote storage; a fetch of m1 reads them from 10 ms on."""
    timeline = ShareTimeline().settings().append(1, 0, 10).append(2, 0, 20, 10).append(3, 1, 5)
    timeline.change(4, 0, "local_log_start", offset=10)
    return timeline.fetch(10, "f1", "m1", [0], **fields)


def _read(timeline: ShareTimeline, ms: float, name: str = "f1", **fields: Any) -> ShareTimeline:
    return timeline.add(ms, "remote_read", request_id=name, topic="t", **{"partition": 0, "bytes": 1000, **fields})


@pytest.mark.parametrize(
    ("fields", "answer", "ends"),
    [
        ({}, "f1 remote_reads 100 0:1000", ["0-9 m1 lock_expired 1100 AVAILABLE"]),
        ({"last_offset": 5}, "f1 remote_reads 100 0:1000", ["0-5 m1 lock_expired 1100 AVAILABLE"]),
        ({"error": "UNKNOWN_SERVER_ERROR"}, "f1 remote_reads 100 0:UNKNOWN_SERVER_ERROR", []),
    ],
)
def test_remote_read_completes_fetch(fields: dict[str, Any], answer: str, ends: list[str]) -> None:
    _, replay = _run(_read(_tiered(), 100, **fields))
    assert _fetches(replay) == [answer]
    assert _ends(replay) == ends


def test_pending_remote_read_keeps_its_lock() -> None:
    """Another fetch gets partition 1 only; partition 0 stays locked until the read has ended, which wakes f3."""
    timeline = _tiered().fetch(20, "f2", "m2", [0, 1]).fetch(30, "f3", "m3", [0], max_wait_ms=400)
    _read(timeline, 100)
    replayer, replay = _run(timeline)
    assert _fetches(replay) == ["f1 remote_reads 100 0:1000", "f2 min_bytes 20 1:500", "f3 min_bytes 100 0:1000"]
    assert _acquired_at(replayer, "f3") == [(10, 19, 1)]


def test_remote_fetch_also_answers_local_partitions() -> None:
    """The bytes that remote storage returned reduce the limit of local reads. The locks of local ones are released."""
    timeline = ShareTimeline().settings().append(1, 0, 10).append(2, 1, 5).append(3, 1, 10, 5)
    timeline.change(4, 0, "local_log_start", offset=10).fetch(10, "f1", "m1", [0, 1], max_bytes=1500)
    _, replay = _run(_read(timeline, 100))
    assert _fetches(replay) == ["f1 remote_reads 100 0:1000,1:500"]


@pytest.mark.parametrize(
    ("read_ms", "max_wait_ms", "answer", "marks"),
    [
        # The purgatory's timer expires at 110 ms; the timer for the rest of 500 ms at 510 ms.
        (300, 100, "f1 expired 300 0:1000", 1),
        (600, 100, "f1 expired 510 ", 2),
        # The maximum wait of the fetch is not shorter than `remote.fetch.max.wait.ms`.
        (600, 500, "f1 expired 510 ", 1),
        (600, 550, "f1 expired 560 ", 1),
        (90, 100, "f1 remote_reads 90 0:1000", 0),
    ],
)
def test_fetch_outlives_its_maximum_wait(read_ms: int, max_wait_ms: int, answer: str, marks: int) -> None:
    _, replay = _run(_read(_tiered(max_wait_ms=max_wait_ms), read_ms))
    assert _fetches(replay) == [answer]
    (outcome,) = replay.outcomes
    assert outcome.expired + (outcome.fetcher == "remote_twice") == marks
    assert not outcome.expired or outcome.ended_us == outcome.deadline_us


def test_fetch_outside_purgatory_is_counted_by_timer_only() -> None:
    timeline = _tiered(max_wait_ms=100).add(700, "clock")
    _, replay = _run(timeline)
    gauges = {each.at_ms: (each.watched, each.delayed) for each in replay.gauges if each.purgatory == "ShareFetch"}
    assert [gauges[at] for at in (200, 400, 600)] == [(2, 1), (2, 1), (2, 0)]


@pytest.mark.parametrize(
    ("change", "version", "answer"),
    [
        ("follower", "4.3", "f1 not_leader 50 "),
        ("follower", "4.1", "f1 expired 1010 "),
        ("deleted", "4.1", "f1 unknown_partition 50 "),
    ],
)
def test_lost_partition_completes_remote_fetch(change: str, version: str, answer: str) -> None:
    timeline = _tiered(max_wait_ms=1000).change(50, 0, change)
    _, replay = _run(timeline, f"share.version={version}")
    assert _fetches(replay) == [answer]


def test_lost_partition_of_short_wait_is_answered_later() -> None:
    """The fetch leaves the purgatory at 50 ms, and the timer for 400 ms more is its only expiration."""
    _, replay = _run(_tiered(max_wait_ms=100).change(50, 0, "follower"))
    assert _fetches(replay) == ["f1 expired 450 "]
    assert replay.outcomes[0].fetcher == "remote"
    _, replay = _run(_read(_tiered(max_wait_ms=100).change(50, 0, "follower"), 200))
    assert _fetches(replay) == ["f1 remote_reads 200 0:0"]


def test_full_reader_queue_fails_fetch() -> None:
    timeline = ShareTimeline().settings().append(1, 0, 10).append(2, 1, 5)
    timeline.change(4, 0, "local_log_start", offset=10).add(5, "reader_queue", full=True)
    _, replay = _run(timeline.fetch(10, "f1", "m1", [0, 1]))
    assert _fetches(replay) == ["f1 reader_queue_full 10 0:UNKNOWN_SERVER_ERROR"]


def test_exhausted_quota_lets_fetch_wait() -> None:
    """The offset stays unknown until a fetch expires after the quota has recovered; the next fetch reads it."""
    timeline = ShareTimeline().settings().append(1, 0, 10).change(4, 0, "local_log_start", offset=10)
    timeline.add(5, "remote_quota", exhausted=True).fetch(10, "f1", "m1", [0], max_wait_ms=100)
    timeline.add(50, "remote_quota", exhausted=False).fetch(200, "f2", "m1", [0], max_wait_ms=600)
    _, replay = _run(_read(timeline, 300, "f2"))
    assert _fetches(replay) == ["f1 expired 110 ", "f2 remote_reads 300 0:1000"]


@pytest.mark.parametrize(
    ("reads", "answer"), [("first", "f1 remote_reads 50 0:1000"), ("all", "f1 remote_reads 60 0:1000,1:1000")]
)
def test_only_first_remote_partition_is_read_by_4_1(reads: str, answer: str) -> None:
    timeline = ShareTimeline().settings().append(1, 0, 10).append(2, 1, 10)
    for partition in (0, 1):
        timeline.change(4, partition, "local_log_start", offset=10)
    _read(_read(timeline.fetch(10, "f1", "m1", [0, 1]), 50), 60, partition=1)
    _, replay = _run(timeline, f"remote_fetch.reads={reads}")
    assert _fetches(replay) == [answer]


def test_stopped_broker_abandons_remote_fetch() -> None:
    timeline = _tiered(max_wait_ms=100).fetch(20, "f2", "m2", [1], session_epoch=1, min_bytes=1000)
    _, replay = _run(timeline.change(300, 0, "stopped"))
    assert [(each.request_id, each.cancelled, each.expired, each.ended_us) for each in replay.outcomes] == [
        ("f1", True, False, 300_000), ("f2", False, True, 520_000),
    ]  # fmt: skip


def test_lost_leadership_ends_remote_read_by_group_key() -> None:
    """A fetch that waits for remote storage is checked by its group's key first, and then by the partition's."""
    timeline = ShareTimeline().settings().append(1, 0, 20).change(2, 0, "local_log_start", offset=10)
    _, replay = _run(timeline.fetch(10, "f", "m", [0]).change(100, 0, "not_leader"))
    assert [(each.completed_by, each.trigger) for each in replay.outcomes] == [("not_leader", "g/t-0")]


def test_start_offset_stays_before_gap() -> None:
    """The persisted state lacks offsets 0 to 4, 10 and 11. A repeated delivery of 0 to 4 sets the gap back to 5."""
    states = [(5, 9, "ARCHIVED"), (12, 14, "AVAILABLE")]
    timeline = ShareTimeline().settings().append(1, 0, 10).append(1, 0, 20, 10)
    timeline.add(2, "share_state", group="g", topic="t", partition=0, start_offset=0, states=[
        {"first_offset": first, "last_offset": last, "state": state, "delivery_count": 1}
        for first, last, state in states
    ])  # fmt: skip
    for ms, member, limit in ((10, "m1", 5), (20, "m2", 2), (40, "m1", 5)):
        timeline.fetch(ms, f"f{ms}", member, [0], max_records=limit)
        if ms == 20:
            timeline.acknowledge(30, "a30", "m1", 0, (0, 4), 2)
    timeline.acknowledge(50, "a50", "m1", 0, (0, 4), 1).acknowledge(60, "a60", "m2", 0, (10, 11), 1)
    replayer, replay = _run(timeline)
    partition = replayer.cluster.broker(0).shares.partitions[PARTITION]
    assert _ends(replay) == [
        "0-4 m1 released 30 AVAILABLE",
        "0-4 m1 accepted 50 ACKNOWLEDGED",
        "10-11 m2 accepted 60 ACKNOWLEDGED",
    ]
    assert (partition.start_offset, partition.firsts) == (5, [5, 10, 12])


def test_segment_roll_at_end_wakes_no_fetch() -> None:
    """The fetch offset has the segment before the roll, the end the one after it, but both are the same offset."""
    timeline = ShareTimeline().settings().append(1, 0, 10).fetch(10, "f1", "m1", [0]).fetch(20, "f2", "m2", [0])
    timeline.change(30, 0, "segment_roll", offset=10).change(31, 0, "log_end", offset=11, bytes=0)
    timeline.change(32, 0, "high_watermark", offset=10).fetch(40, "f3", "m3", [0], max_wait_ms=0)
    _, replay = _run(timeline)
    assert _fetches(replay)[1:] == ["f2 expired 520 0:0", "f3 expired 40 0:0"]


@pytest.mark.parametrize("end", ["lock_expired", "session_ended"])
def test_records_below_log_start_are_not_released(end: str) -> None:
    """Offsets 5 to 9 are one batch that m2 holds when the log start moves to 7, because m1 has released 0 to 4."""
    timeline = ShareTimeline().settings().append(1, 0, 5).append(2, 0, 10, 5)
    timeline.fetch(10, "f1", "m1", [0], max_records=5).fetch(20, "f2", "m2", [0])
    timeline.acknowledge(30, "a1", "m1", 0, (0, 4), 2).change(40, 0, "log_start", offset=7)
    timeline.fetch(50, "f3", "m3", [0], max_wait_ms=0)
    if end == "session_ended":
        timeline.release(60, "m2")
    _, replay = _run(timeline, "share.record_lock_duration_ms=100")
    at = 60 if end == "session_ended" else 120
    assert _ends(replay)[1:] == [f"5-6 m2 {end} {at} ARCHIVED", f"7-9 m2 {end} {at} AVAILABLE"]


def test_lower_limit_ends_remote_fetch_without_records() -> None:
    """The limit of records in flight is lowered to those that m1 holds, while m2 reads remote storage."""
    timeline = (
        ShareTimeline().settings().append(1, 0, 10).append(2, 0, 20, 10).change(4, 0, "local_log_start", offset=20)
    )
    _read(timeline.fetch(10, "f1", "m1", [0]), 20).fetch(30, "f2", "m2", [0])
    _, replay = _run(_read(timeline.settings(40, partition_max_record_locks=10), 50, "f2"))
    assert _fetches(replay) == ["f1 remote_reads 20 0:1000", "f2 remote_reads 50 0:0"]
    assert _ends(replay) == ["0-9 m1 lock_expired 1020 AVAILABLE"]


def test_write_that_leaves_start_offset_wakes_no_fetch() -> None:
    """m1 still holds records below the log start, so that the start offset stays when 5 to 9 are done.

    A higher limit of records in flight would let f4 acquire 10 to 14, but no event checks it.
    """
    timeline = ShareTimeline().settings().append(1, 0, 5).append(2, 0, 10, 5)
    timeline.fetch(10, "f1", "m1", [0], max_records=5).fetch(20, "f2", "m2", [0])
    timeline.acknowledge(30, "a1", "m1", 0, (4, 4), 2).change(40, 0, "log_start", offset=5)
    timeline.fetch(45, "f3", "m3", [0], max_wait_ms=0).append(50, 0, 15, 5).settings(55, partition_max_record_locks=5)
    timeline.acknowledge(60, "a2", "m2", 0, (5, 9), 1, state_write_ms=50).fetch(65, "f4", "m3", [0])
    _, replay = _run(timeline.settings(70))
    assert _fetches(replay)[3] == "f4 expired 565 0:500"


def test_last_record_of_read_that_failed_is_delivered_alone() -> None:
    """Offset 9, the last one, has been delivered three times, so it does not follow the available 0 to 4."""
    states = [
        {"first_offset": first, "last_offset": first + 4, "state": "AVAILABLE", "delivery_count": count}
        for first, count in ((0, 1), (5, 2))
    ]
    timeline = ShareTimeline().settings().append(1, 0, 10)
    timeline.add(2, "share_state", group="g", topic="t", partition=0, start_offset=0, states=states)
    timeline.fetch(10, "f1", "m1", [0]).acknowledge(20, "a1", "m1", 0, (5, 8), 1)
    timeline.release(30, "m1").fetch(40, "f2", "m2", [0]).fetch(50, "f3", "m3", [0])
    replayer, _ = _run(timeline)
    assert _acquired_at(replayer, "f2") == [(0, 4, 3)]
    assert _acquired_at(replayer, "f3") == [(9, 9, 4)]


def test_batch_that_starts_at_log_start_stays_whole() -> None:
    timeline = ShareTimeline().settings().append(1, 0, 5).append(2, 0, 10, 5)
    timeline.fetch(10, "f1", "m1", [0], max_records=5).fetch(20, "f2", "m1", [0]).release(30, "m1")
    timeline.change(40, 0, "log_start", offset=5).fetch(50, "f3", "m2", [0], max_wait_ms=0).add(51, "clock")
    replayer, _ = _run(timeline, "drain=false")
    last = replayer.cluster.broker(0).shares.partitions[PARTITION].batches[-1]
    assert (last.first, last.last, last.whole is not None) == (5, 9, True)


def test_records_released_before_read_offset_are_not_acquired() -> None:
    """m1 holds 0 to 9 as one batch, and releases 0 to 4 while m2 reads from 5 on."""
    timeline = ShareTimeline().settings().append(1, 0, 5).append(2, 0, 10, 5).change(4, 0, "local_log_start", offset=10)
    _read(timeline.fetch(10, "f1", "m1", [0]), 20).acknowledge(30, "a1", "m1", 0, (5, 9), 2)
    timeline.fetch(40, "f2", "m2", [0]).acknowledge(50, "a2", "m1", 0, (0, 4), 2)
    replayer, _ = _run(_read(timeline, 60, "f2", bytes=500))
    assert _acquired_at(replayer, "f2") == [(5, 9, 2)]
