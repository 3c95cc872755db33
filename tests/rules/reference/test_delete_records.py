"""DelayedDeleteRecords: waiting for the low watermark."""

from __future__ import annotations

import pytest

from tests.rules.reference.timeline import Timeline


def test_deletion_waits_for_all_low_watermarks() -> None:
    timeline = Timeline().delete_records(10, "d", 1000, a=5, b=7)
    timeline.change(20, "a", "log_start", offset=4).change(30, "b", "log_start", offset=9)
    timeline.change(40, "a", "log_start", offset=5)
    assert timeline.ends() == ["d completed 40 low_watermark a-0 a-0:NONE,b-0:NONE"]


def test_satisfied_deletion_completes_on_arrival() -> None:
    timeline = Timeline().change(5, "a", "log_start", offset=5).delete_records(10, "d", 1000, a=5)
    assert timeline.ends() == ["d completed 10 low_watermark - a-0:NONE"]


def test_deletion_expires_with_pending_partitions() -> None:
    timeline = Timeline().delete_records(10, "d", 100, a=5, b=7).change(20, "a", "log_start", offset=5)
    timeline.change(110, "b", "log_start", offset=7)
    assert timeline.ends() == ["d expired 110 timeout - a-0:NONE,b-0:REQUEST_TIMED_OUT"]


def test_offset_minus_one_means_high_watermark_on_arrival() -> None:
    timeline = Timeline().high_watermark(5, "a", 8).delete_records(10, "d", 1000, a=-1).high_watermark(15, "a", 20)
    timeline.change(20, "a", "log_start", offset=7).change(30, "a", "log_start", offset=8)
    assert timeline.ends() == ["d completed 30 low_watermark a-0 a-0:NONE"]


def test_offset_minus_one_without_high_watermark_means_zero() -> None:
    timeline = Timeline().delete_records(10, "d", 1000, a=-1).change(20, "a", "log_start", offset=0)
    assert timeline.ends() == ["d completed 20 low_watermark a-0 a-0:NONE"]


@pytest.mark.parametrize(
    ("change", "rule", "error"),
    [
        ("not_leader", "not_leader", "NOT_LEADER_OR_FOLLOWER"),
        ("deleted", "unknown_partition", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("offline", "offline", "KAFKA_STORAGE_ERROR"),
    ],
)
def test_lost_partition_is_settled_with_its_error(change: str, rule: str, error: str) -> None:
    timeline = Timeline().delete_records(10, "d", 1000, a=5).change(20, "a", change)
    assert timeline.ends() == [f"d completed 20 {rule} a-0 a-0:{error}"]


def test_rising_high_watermark_checks_deletions() -> None:
    """Only the log start settles deletions. The check shows in the gauges, as it removes an expired deletion."""
    timeline = (
        Timeline().delete_records(10, "d", 50, a=5, b=5).add(250, "clock").high_watermark(300, "a", 1).add(450, "clock")
    )
    readings = [gauge.watched for gauge in timeline.replay(drain=False).gauges]
    assert readings == [2, 1]


def test_deletion_without_partitions_is_answered_at_once() -> None:
    assert Timeline().delete_records(10, "d", 1000).ends() == ["d completed 10 empty - "]


def test_what_if_timeout_replaces_recorded_timeout() -> None:
    timeline = Timeline().delete_records(10, "d", 1000, a=5)
    assert timeline.ends(delete_records={"timeout_ms": 7}) == ["d expired 17 timeout - a-0:REQUEST_TIMED_OUT"]
