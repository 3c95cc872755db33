"""Dead-letter queues of share groups (Kafka 4.4): records that are rejected, or reach the delivery limit.

In most timelines, m1 holds offsets 0 to 9 from 10 ms on. State writes take 5 ms.
"""

from __future__ import annotations

import pytest

from purgatory_udf.common.configuration import load_config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.reference_replay import Replay, Replayer
from purgatory_udf.rules.reference.share_partition import SharePartition
from purgatory_udf.rules.reference.share_state import GroupKey
from purgatory_udf.streaming.share_rules import pending_reason
from tests.support.share_timeline import ShareTimeline

KEY = GroupKey("g", TopicPartition("t", 0))
GAP, ACCEPT, RELEASE, REJECT = range(4)


def _run(timeline: ShareTimeline, *settings: str, version: str = "4.4") -> tuple[Replayer, Replay]:
    options = ["share.record_lock_duration_ms=1000", f"share.version={version}", *settings]
    replayer = Replayer(load_config(None, options), 0)
    for event in timeline.events:
        replayer.apply(event)
    return replayer, replayer.finish()


def _partition(replayer: Replayer) -> SharePartition:
    return replayer.cluster.broker(0).shares.partitions[KEY]


def _states(replayer: Replayer) -> str:
    """Return start and end offset and the states of the records in flight as text."""
    partition = _partition(replayer)
    states = (
        f"{first}-{last} {state.state.name}" for batch in partition.batches for first, last, state in batch.states()
    )
    return f"{partition.start_offset}..{partition.end_offset}: {', '.join(states)}"


def _persisted(replayer: Replayer) -> list[tuple[int, int, str]]:
    return [(each.first, each.last, each.state.name) for each in replayer.cluster.share_groups.state(KEY).batches]


def _acquired(queue: bool = True, **settings: int) -> ShareTimeline:
    timeline = ShareTimeline().settings(dead_letter_queue=queue, **settings).append(1, 0, 10)
    return timeline.fetch(10, "f1", "m1", [0], max_wait_ms=0)


def _written(timeline: ShareTimeline, ms: float, first: int, last: int) -> ShareTimeline:
    return timeline.add(
        ms, "share_dead_letter", group="g", topic="t", partition=0, first_offset=first, last_offset=last
    )


def test_rejected_records_hold_the_start_offset() -> None:
    """They are ARCHIVED when the queue has them, and the start offset moves when this state is written."""
    timeline = _acquired().acknowledge(30, "a1", "m1", 0, (0, 9), REJECT)
    replayer, replay = _run(timeline.fetch(100, "f2", "m2", [0], max_wait_ms=0), "drain=false")
    assert _states(replayer) == "0..9: 0-9 ARCHIVING"
    assert _persisted(replayer) == [(0, 9, "ARCHIVING")]
    (delivery,) = (each for _, each in replay.deliveries)
    assert (delivery.ended_by, delivery.ended_us, delivery.state) == ("rejected", 30_000, "ARCHIVING")
    replayer, _ = _run(_written(timeline, 150, 0, 9).add(154, "clock"), "drain=false")
    assert _states(replayer) == "0..9: 0-9 ARCHIVED"
    replayer, _ = _run(timeline.add(155, "clock"), "drain=false")
    assert _states(replayer) == "10..10: "
    assert _persisted(replayer) == [(0, 9, "ARCHIVED")]


def test_only_undeliverable_records_go_to_the_queue() -> None:
    """Accepted records and gaps have their final states at once; released ones are available below the limit."""
    timeline = _acquired()
    for at, kind in enumerate((REJECT, ACCEPT, GAP, RELEASE)):
        timeline.acknowledge(30, f"a{kind}", "m1", 0, (at, at), kind)
    replayer, _ = _run(timeline.add(40, "clock"), "drain=false")
    states = "0-0 ARCHIVING, 1-1 ACKNOWLEDGED, 2-2 ARCHIVED, 3-3 AVAILABLE"
    assert _states(replayer).startswith(f"0..9: {states}, 4-4 ACQUIRED")


@pytest.mark.parametrize("end", ["release", "lock", "session"])
def test_records_at_the_limit_go_to_the_queue(end: str) -> None:
    timeline = _acquired(delivery_count_limit=1)
    if end == "release":
        timeline.acknowledge(30, "a1", "m1", 0, (0, 9), RELEASE)
    elif end == "session":
        timeline.release(30, "m1")
    timeline.fetch(1500, "f2", "m2", [0], max_wait_ms=0)
    replayer, replay = _run(timeline, "drain=false")
    assert _states(replayer) == "0..9: 0-9 ARCHIVING"
    ended_by = {"release": "released", "lock": "lock_expired", "session": "session_ended"}[end]
    assert [(each.ended_by, each.state) for _, each in replay.deliveries] == [(ended_by, "ARCHIVING")]
    assert _states(_run(_written(timeline, 1600, 0, 9))[0]) == "10..10: "


def test_waiting_fetch_gets_records_after_the_queue_has_them() -> None:
    """All records that may be in flight are ARCHIVING, so that f2 can acquire the next ones only after them.

    The state write of the rejection at 35 ms wakes no fetch; the write to the queue takes 100 ms, and that of the state
    5 ms.
    """
    timeline = _acquired().append(20, 0, 20, 10).fetch(25, "f2", "m2", [0])
    timeline.acknowledge(30, "a1", "m1", 0, (0, 9), REJECT)
    settings = ("share.partition_max_record_locks=10", "share.dead_letter_write_ms=100")
    _, replay = _run(timeline, *settings)
    ends = [(each.request_id, each.completed_by, each.ended_us // 1000) for each in replay.outcomes]
    assert ends == [("f1", "min_bytes", 10), ("f2", "min_bytes", 140)]
    replayer, replay = _run(timeline.add(100, "clock"), *settings, "drain=false")
    (waiting,) = (each for each in replayer.operations if each.operation_id in replay.open)
    assert isinstance(waiting, DelayedShareFetch)
    assert pending_reason(waiting) == "t-0: 10 of 10 records in flight, 10 on their way to the dead-letter queue"
    # Without a queue, f2 gets records when the rejection is written.
    _, replay = _run(timeline, *settings, version="4.3")
    assert [each.ended_us // 1000 for each in replay.outcomes] == [10, 35]


def test_queue_may_report_records_in_parts_and_early() -> None:
    """The report of 5 to 8 precedes the end of the state write in the replay."""
    timeline = _acquired().acknowledge(30, "a1", "m1", 0, (0, 9), REJECT, state_write_ms=20)
    _written(_written(timeline, 40, 5, 8), 60, 0, 3)
    assert _states(_run(timeline.add(90, "clock"), "drain=false")[0]) == "0..9: 0-9 ARCHIVING"
    _written(timeline, 100, 4, 4).add(108, "clock")
    assert _states(_run(timeline, "drain=false")[0]) == "0..9: 0-9 ARCHIVING"
    _written(timeline, 110, 9, 9).add(114, "clock")
    assert _states(_run(timeline, "drain=false")[0]) == "0..9: 0-9 ARCHIVED"


def test_early_report_of_all_records_archives_them_at_once() -> None:
    """The report precedes the end of the state write at 50 ms; the ARCHIVED state is written at 55 ms."""
    timeline = _acquired().acknowledge(30, "a1", "m1", 0, (0, 9), REJECT, state_write_ms=20)
    replayer, _ = _run(_written(timeline, 40, 0, 9).add(55, "clock"), "drain=false")
    assert _states(replayer) == "10..10: "


def test_failed_state_write_sends_nothing_to_the_queue() -> None:
    """m1 holds the records again until its lock expires; at the limit, they then go to the queue."""
    timeline = _acquired(delivery_count_limit=1)
    timeline.acknowledge(30, "a1", "m1", 0, (0, 9), REJECT, fails="COORDINATOR_NOT_AVAILABLE").add(50, "clock")
    assert _states(_run(timeline, "drain=false")[0]) == "0..9: 0-9 ACQUIRED"
    assert _states(_run(timeline.add(1050, "clock"), "drain=false")[0]) == "0..9: 0-9 ARCHIVING"


@pytest.mark.parametrize(
    ("version", "queue", "settings", "state"),
    [
        ("4.3", True, (), "10..10: "),
        ("4.4", False, (), "10..10: "),
        ("4.4", False, ("share.dead_letter_queue=true",), "10..10: "),
        ("4.4", False, ("share.dead_letter_queue=true", "share.dead_letter_write_ms=500"), "0..9: 0-9 ARCHIVING"),
        ("4.4", True, ("share.dead_letter_queue=false",), "10..10: "),
        ("4.4", True, (), "0..9: 0-9 ARCHIVING"),
    ],
)
def test_version_and_settings_select_the_queue(
    version: str, queue: bool, settings: tuple[str, ...], state: str
) -> None:
    """A queue that only a setting gives has no reports in the trace; a write to it takes no time by default."""
    timeline = _acquired(queue).acknowledge(30, "a1", "m1", 0, (0, 9), REJECT).add(100, "clock")
    replayer, replay = _run(timeline, *settings, "drain=false", version=version)
    assert _states(replayer) == state
    has_queue = settings[0].endswith("true") if settings else queue and version == "4.4"
    assert [each.state for _, each in replay.deliveries] == ["ARCHIVING" if has_queue else "ARCHIVED"]


def test_next_broker_writes_archiving_records_again() -> None:
    """The persisted state shows them, with and without a queue now; the end of the old broker's write is ignored."""
    states = [{"first_offset": 0, "last_offset": 4, "state": "ARCHIVING", "delivery_count": 1}]
    timeline = ShareTimeline().settings().append(1, 0, 10)
    timeline.add(2, "share_state", group="g", topic="t", partition=0, start_offset=0, states=states)
    timeline.fetch(10, "f1", "m1", [0]).add(12, "clock")
    replayer, _ = _run(timeline, "share.dead_letter_write_ms=0", "drain=false")
    assert _states(replayer) == "0..9: 0-4 ARCHIVED, 5-9 ACQUIRED"
    replayer, _ = _run(timeline, "share.dead_letter_write_ms=3", "drain=false")
    assert _states(replayer) == "0..9: 0-4 ARCHIVING, 5-9 ACQUIRED"
    timeline.change(13, 0, "not_leader")
    replayer, _ = _run(timeline.add(40, "clock"), "share.dead_letter_write_ms=20", "drain=false")
    assert _persisted(replayer) == [(0, 4, "ARCHIVING")]


def test_accepted_acknowledgement_leaves_archiving_records() -> None:
    """A recording shows that m2 held records that the replay has sent to the queue: they stay ARCHIVING."""
    timeline = _acquired().acknowledge(30, "a1", "m1", 0, (0, 9), REJECT)
    place = {"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 4, "types": [1], "accepted": True}
    timeline.add(60, "share_acknowledge", request_id="a2", group="g", member_id="m2", acknowledgements=[place])
    replayer, replay = _run(timeline.add(80, "clock"), "drain=false")
    assert _states(replayer) == "0..9: 0-9 ARCHIVING"
    assert len(replay.deliveries) == 1
