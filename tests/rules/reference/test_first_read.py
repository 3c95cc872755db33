"""The first read of a fetch (`ReplicaManager.readFromLog`): byte limits, and at least one batch."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from tests.rules.reference.timeline import Timeline
from tests.support.outcome_rows import outcomes_of

MB = 1_000_000
Answer = tuple[str, str, int | None]


def appended(*sizes: int, partition: str = "a", timeline: Timeline | None = None) -> Timeline:
    """Append batches of one record each and make them readable."""
    timeline = timeline or Timeline()
    for end, size in enumerate(sizes, 1):
        timeline.change(1, partition, "log_end", offset=end, bytes=size, batches=1)
    return timeline.high_watermark(1, partition, len(sizes))


def answers(timeline: Timeline) -> list[Answer]:
    """Return time, rule and answered bytes of each outcome. The compiled loop has to agree with the reference."""
    outcomes = timeline.replay().outcomes
    tables = loop_replay([event_table(timeline.events)], Engine(Config()))
    looped = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [(outcome.ended_us, outcome.completed_by, outcome.bytes, outcome.answered_bytes) for outcome in looped] == [
        (outcome.ended_us, outcome.completed_by, outcome.bytes, outcome.answered_bytes) for outcome in outcomes
    ]
    return [(f"{outcome.ended_us / 1000:g}", outcome.completed_by, outcome.answered_bytes) for outcome in outcomes]


def part(offset: int = 0, max_bytes: int = MB) -> dict[str, Any]:
    return {"fetch_offset": offset, "max_bytes": max_bytes}


def test_batch_above_partition_maximum_is_answered_at_once() -> None:
    timeline = appended(2 * MB).fetch(10, "f", 100, 2 * MB, {"a": part()}, max_bytes=50 * MB)
    assert answers(timeline) == [("10", "min_bytes", 2 * MB)]


def test_batch_one_byte_short_waits() -> None:
    """The answer at the deadline still contains the batch."""
    timeline = appended(2 * MB).fetch(10, "f", 100, 2 * MB + 1, {"a": part()}, max_bytes=50 * MB)
    assert answers(timeline) == [("110", "timeout", 2 * MB)]


def test_hard_max_bytes_is_never_exceeded() -> None:
    """The limit is hard in requests up to version 2."""
    timeline = appended(2 * MB).fetch(10, "f", 100, 2 * MB, {"a": part()}, max_bytes=50 * MB, hard_max_bytes=True)
    assert answers(timeline) == [("110", "timeout", MB)]


def test_waiting_fetch_counts_up_to_partition_maximum() -> None:
    """`DelayedFetch.tryComplete` ignores batches, unlike the first read."""
    timeline = appended(0).fetch(10, "f", 100, 2 * MB, {"a": part(1)}, max_bytes=50 * MB)
    timeline.change(20, "a", "log_end", offset=2, bytes=2 * MB, batches=1).high_watermark(20, "a", 2)
    assert answers(timeline) == [("110", "timeout", 2 * MB)]


def test_append_of_unknown_batches_is_cut() -> None:
    timeline = Timeline().log_end(1, "a", 1, 2 * MB).high_watermark(1, "a", 1)
    timeline.fetch(10, "f", 100, 2 * MB, {"a": part()}, max_bytes=50 * MB)
    assert answers(timeline) == [("110", "timeout", MB)]


def test_produced_partition_is_one_batch() -> None:
    timeline = Timeline().produce(1, "p", 100, acks=1, a=200).high_watermark(2, "a", 200)
    timeline.fetch(10, "f", 100, 2_000, {"a": part(0, 1_000)})
    assert answers(timeline)[1:] == [("10", "min_bytes", 2_000)]


def test_later_partitions_get_remaining_limit() -> None:
    timeline = appended(300, 300, partition="b", timeline=appended(300, 300))
    timeline.fetch(10, "cut", 100, 1, {"a": part(), "b": part()}, max_bytes=950)
    timeline.fetch(10, "just one batch", 100, 1, {"a": part(), "b": part()}, max_bytes=900)
    timeline.fetch(10, "none", 100, 1, {"a": part(), "b": part()}, max_bytes=899)
    assert answers(timeline) == [("10", "min_bytes", 950), ("10", "min_bytes", 900), ("10", "min_bytes", 600)]


def test_case_d_counts_batch_that_does_not_fit() -> None:
    """The first read has 600 of 850 bytes, case D counts 1,200 and completes the fetch. The answer has 600 bytes."""
    timeline = appended(300, 300, partition="b", timeline=appended(300, 300))
    timeline.fetch(10, "f", 100, 850, {"a": part(), "b": part()}, max_bytes=850)
    assert answers(timeline) == [("10", "min_bytes", 600)]


def test_only_first_partition_exceeds_its_maximum() -> None:
    timeline = appended(500, partition="c", timeline=appended(500, partition="b", timeline=appended(500)))
    timeline.fetch(10, "f", 100, 1, {"a": part(1), "b": part(0, 10), "c": part(0, 10)})
    assert answers(timeline) == [("10", "min_bytes", 500)]


def test_read_stays_within_segment() -> None:
    timeline = appended(100, 100).change(2, "a", "segment_roll", offset=2)
    timeline.change(3, "a", "log_end", offset=3, bytes=100, batches=1).high_watermark(3, "a", 3)
    timeline.fetch(10, "f", 100, 1, {"a": part()})
    assert [(outcome.bytes, outcome.answered_bytes) for outcome in timeline.replay().outcomes] == [(300, 200)]
    assert answers(timeline) == [("10", "older_segment", 200)]


def test_throttled_follower_reads_nothing() -> None:
    timeline = appended(2 * MB).fetch(10, "f", 100, 1, {"a": {**part(), "throttled": True}}, replica_id=2)
    assert answers(timeline) == [("110", "timeout", 0)]


def test_tiered_offset_is_an_error_for_every_follower() -> None:
    timeline = appended(100, 100).change(2, "a", "local_log_start", offset=1)
    timeline.fetch(10, "f", 100, 1, {"a": part()}, replica_id=0)
    assert timeline.ends() == ["f completed 10 tiered_offset - a-0:OFFSET_MOVED_TO_TIERED_STORAGE"]


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_large_old_batch_is_returned_whole(batch: int) -> None:
    """The result does not depend on the size of the calls."""
    timeline = Timeline()
    sizes = [100, 100, 5_000, *[100] * 60]
    for end, size in enumerate(sizes, 1):
        timeline.change(end, "a", "log_end", offset=end, bytes=size, batches=1).high_watermark(end, "a", end)
    for offset in (0, 1, 2, 3, 40):
        timeline.fetch(100, str(offset), 100, 1, {"a": part(offset, 1_000)})
    table = event_table(timeline.events)
    engine = Engine(Config(), retain_bytes=1_000, smallest_limit=1_000)
    tables = loop_replay([table.slice(at, batch) for at in range(0, len(table), batch)], engine)
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [outcome.answered_bytes for outcome in outcomes] == [1_000, 1_000, 5_000, 1_000, 1_000]
    assert [outcome.answered_bytes for outcome in timeline.replay().outcomes] == [1_000, 1_000, 5_000, 1_000, 1_000]


@pytest.mark.parametrize(
    ("max_bytes", "ends"),
    [(1, ["f completed 50 remote_reads a-0 a-0:NONE"]), (0, ["f completed 10 min_bytes - a-0:0"])],
)
def test_remote_read_needs_a_byte(max_bytes: int, ends: list[str]) -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(1, "a", 5).change(2, "a", "local_log_start", offset=5)
    timeline.fetch(10, "f", 100, 0, {"a": {"fetch_offset": 2, "max_bytes": max_bytes}})
    timeline.add(50, "remote_read", request_id="f", topic="a", partition=0, bytes=1)
    assert timeline.ends() == ends


def test_remote_part_without_bytes_left_completes_no_fetch() -> None:
    """`a` uses up the limit, so that `b`, which is on an older segment than its end, is not read."""
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(1, "a", 5).log_end(1, "b", 5, 500)
    timeline.change(1, "b", "segment_roll", offset=5).log_end(1, "b", 9, 500).high_watermark(1, "b", 9)
    timeline.change(2, "b", "local_log_start", offset=5)
    timeline.fetch(10, "f", 100, 50, {"a": 0, "b": 2}, max_bytes=100)
    assert timeline.ends() == ["f completed 10 min_bytes - a-0:500,b-0:0"]
