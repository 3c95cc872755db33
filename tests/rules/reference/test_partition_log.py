"""The log model: batches, positions, segments, truncation, and reading under limits."""

from __future__ import annotations

from purgatory_udf.rules.reference.partition import OffsetMetadata, PartitionLog


def worked_example() -> PartitionLog:
    log = PartitionLog()
    log.append(5, 500)
    log.append(9, 400)
    log.roll(9)
    log.append(12, 300)
    return log


def test_worked_example_of_log() -> None:
    log = worked_example()
    assert [log.position(offset) for offset in (0, 4, 5, 8, 9, 11, 12, 99)] == [0, 0, 500, 500, 900, 900, 1200, 1200]
    assert [log.segment(offset) for offset in (0, 8, 9, 12)] == [0, 0, 9, 9]
    assert log.end == OffsetMetadata(12, 9, 1200)


def test_log_before_first_event_is_one_batch() -> None:
    log = PartitionLog()
    assert (log.end, log.position(77)) == (None, 0)
    log.append(1000, 50)
    assert (log.position(3), log.position(999), log.position(1000)) == (0, 0, 50)


def test_append_below_end_changes_nothing() -> None:
    log = worked_example()
    assert [log.append(12, 10), log.append(3, 10)] == [False, False]
    assert log.end == OffsetMetadata(12, 9, 1200)


def test_roll_moves_log_end_but_no_earlier_metadata() -> None:
    log = PartitionLog()
    log.append(5, 500)
    before = log.offset_metadata(5)
    log.roll(5)
    assert (before, log.end) == (OffsetMetadata(5, 0, 500), OffsetMetadata(5, 5, 500))


def test_roll_below_newest_base_is_ignored() -> None:
    log = worked_example()
    log.roll(9)
    log.roll(4)
    assert [log.segment(offset) for offset in (4, 8, 9)] == [0, 0, 9]
    empty = PartitionLog()
    empty.append(0, 0)
    empty.roll(0)
    assert empty.end == OffsetMetadata(0, 0, 0), "a log starts with a segment at 0"


def test_truncation_drops_batches_segments_and_bytes() -> None:
    log = worked_example()
    assert log.truncate(9)
    assert log.end == OffsetMetadata(9, 9, 900)
    assert log.truncate(5)
    assert log.end == OffsetMetadata(5, 0, 500)
    log.append(7, 50)
    assert [log.position(offset) for offset in (4, 5, 6, 7)] == [0, 500, 500, 550]


def test_truncation_inside_batch_drops_whole_batch() -> None:
    log = worked_example()
    assert log.truncate(7)
    assert log.end == OffsetMetadata(7, 0, 500)
    assert [log.position(offset) for offset in (4, 5, 6, 7)] == [0, 500, 500, 500]
    log.append(8, 10)
    assert [log.position(offset) for offset in (5, 6, 7, 8)] == [500, 500, 500, 510]
    assert log.truncate(6), "into a batch that was already cut"
    assert log.end == OffsetMetadata(6, 0, 500)


def test_truncation_beyond_end_does_nothing() -> None:
    log = worked_example()
    assert [log.truncate(12), log.truncate(99), PartitionLog().truncate(0)] == [False, False, False]
    assert log.end == OffsetMetadata(12, 9, 1200)


def test_log_start_only_increases() -> None:
    log = PartitionLog()
    starts = []
    for offset in (4, 2, 7):
        log.advance_start(offset)
        starts.append(log.start)
    assert starts == [4, 4, 7]


def test_read_is_cut_at_limit() -> None:
    log = PartitionLog()
    for end in (2, 4, 6, 8):
        log.append(end, 100, one_batch=True)
    assert log.end is not None
    reads = [log.read(0, log.end, limit, False) for limit in (99, 100, 250, 1000)]
    assert reads == [(0, 0), (100, 2), (250, 4), (400, 8)]
    assert log.read(0, log.end, 99, False, hard_max_bytes=True) == (99, 0)


def test_read_inside_batch_starts_at_batch() -> None:
    log = worked_example()
    assert log.read(7, OffsetMetadata(9, 0, 900), 1000, False) == (400, 9)


def test_read_may_exceed_limit_by_first_batch() -> None:
    log = PartitionLog()
    log.append(5, 500, one_batch=True)
    assert log.end is not None
    assert [log.read(0, log.end, 10, min_one_message) for min_one_message in (False, True)] == [(0, 0), (500, 5)]


def test_read_stops_at_segment_end_and_upper_bound() -> None:
    log = worked_example()
    assert log.end is not None
    assert log.read(0, log.end, 10_000, True) == (900, 9)
    assert log.read(9, log.end, 10_000, True) == (300, 12)
    assert log.read(12, log.end, 10_000, True) == (0, 12)
    assert log.read(0, OffsetMetadata(7, 0, 500), 10_000, True) == (500, 5), "the last batch is only partly readable"


def test_read_beyond_the_readers_end_is_empty() -> None:
    log = worked_example()
    assert log.read(5, log.offset_metadata(4), 1_000, False) == (0, 5)
