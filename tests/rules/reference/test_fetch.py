"""DelayedFetch: Kafka's cases A to F, on arrival and while waiting."""

from __future__ import annotations

import pytest

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from tests.rules.reference.timeline import Timeline

LOST = [
    ("not_leader", "not_leader", "NOT_LEADER_OR_FOLLOWER"),  # case A
    ("deleted", "unknown_partition", "UNKNOWN_TOPIC_OR_PARTITION"),  # case B
    ("offline", "offline", "KAFKA_STORAGE_ERROR"),  # case E
]


def test_outcome_of_fetch() -> None:
    timeline = Timeline(broker=4).log_end(1, "a-1", 5, 500)
    timeline.fetch(10.5, "f", 100, 600, {"a-1": 0}, client_id="c", replica_id=3).log_end(20.75, "a-1", 6, 100)
    assert timeline.replay().outcomes == [
        Outcome(
            operation_id=2,
            kind="fetch",
            broker=4,
            request_id="f",
            client_id="c",
            key="a-1",
            started_us=10_500,
            ended_us=20_750,
            deadline_us=110_000,
            expired=False,
            watched=True,
            completed_by="min_bytes",
            trigger="a-1",
            bytes=600,
            partitions=(PartitionOutcome("a", 1, "NONE", 600),),
            fetcher="follower",
            answered_bytes=600,
        )
    ]


def test_follower_reads_to_log_end() -> None:
    """A consumer reads to the high watermark."""
    timeline = Timeline().follower(10, "follower", 1000, 500, {"a": 0}).fetch(10, "consumer", 1000, 500, {"a": 0})
    timeline.log_end(20, "a", 4, 400).log_end(30, "a", 5, 100).high_watermark(40, "a", 4).high_watermark(50, "a", 5)
    assert timeline.ends() == [
        "follower completed 30 min_bytes a-0 a-0:500",
        "consumer completed 50 min_bytes a-0 a-0:500",
    ]


def test_last_stable_offset_triggers_no_check() -> None:
    timeline = Timeline().log_end(10, "a", 5, 500).change(10, "a", "last_stable", offset=0)
    for name, wait_ms in (("woken", 1000), ("expires", 14)):
        timeline.fetch(11, name, wait_ms, 500, {"a": 0}, isolation="read_committed")
    timeline.change(20, "a", "last_stable", offset=5).high_watermark(30, "a", 5)
    assert timeline.ends() == [
        "woken completed 30 min_bytes a-0 a-0:500",
        "expires expired 25 timeout - a-0:500",
    ]


def test_read_committed_falls_back_to_high_watermark() -> None:
    timeline = Timeline().fetch(10, "f", 1000, 500, {"a": 0}, isolation="read_committed")
    timeline.fetch(10, "g", 1000, 900, {"a": 0}, isolation="read_committed").log_end(20, "a", 5, 500)
    timeline.high_watermark(30, "a", 5).log_end(40, "a", 9, 400).change(45, "a", "last_stable", offset=5)
    timeline.high_watermark(50, "a", 9).change(60, "a", "last_stable", offset=9).high_watermark(70, "a", 9)
    assert timeline.ends() == ["f completed 30 min_bytes a-0 a-0:500", "g completed 70 min_bytes a-0 a-0:900"]


def test_first_last_stable_offset_may_be_lower() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(2, "a", 5).change(3, "a", "last_stable", offset=0)
    timeline.fetch(10, "f", 20, 500, {"a": 0}, isolation="read_committed")
    assert timeline.ends() == ["f expired 30 timeout - a-0:0"]


@pytest.mark.parametrize(("change", "rule", "error"), LOST)
def test_cases_a_b_e_complete_waiting_fetch(change: str, rule: str, error: str) -> None:
    timeline = Timeline().log_end(1, "b", 5, 50).follower(10, "f", 1000, 500, {"a": 0, "b": 0}).change(20, "a", change)
    assert timeline.ends() == [f"f completed 20 {rule} a-0 a-0:{error},b-0:50"]


@pytest.mark.parametrize(("change", "rule", "error"), LOST)
def test_cases_a_b_e_complete_fetch_on_arrival(change: str, rule: str, error: str) -> None:
    timeline = Timeline().log_end(1, "b", 5, 50).change(5, "a", change).follower(10, "f", 1000, 500, {"b": 0, "a": 0})
    assert timeline.ends() == [f"f completed 10 {rule} - b-0:50,a-0:{error}"]


def test_first_partition_that_holds_names_rule() -> None:
    timeline = Timeline().change(1, "a", "offline").change(2, "b", "not_leader")
    timeline.fetch(10, "f", 1000, 1, {"c": 0, "b": 0, "a": 0}).fetch(11, "g", 1000, 1, {"a": 0, "b": 0})
    assert [line.split()[3] for line in timeline.ends()] == ["not_leader", "offline"]


def test_case_f_newer_epoch_fences_waiting_fetch() -> None:
    timeline = Timeline().change(1, "a", "leader", leader_epoch=4)
    timeline.fetch(10, "f", 1000, 500, {"a": {"fetch_offset": 0, "current_leader_epoch": 4}})
    timeline.change(20, "a", "leader", leader_epoch=5)
    assert timeline.ends() == ["f completed 20 fenced_epoch a-0 a-0:FENCED_LEADER_EPOCH"]


def test_case_f_epochs_on_arrival() -> None:
    """An older epoch is fenced, a newer one is unknown."""
    timeline = Timeline().change(1, "a", "leader", leader_epoch=4).log_end(2, "a", 5, 50).high_watermark(3, "a", 5)
    for name, epoch in (("older", 3), ("same", 4), ("newer", 5), ("none", -1)):
        timeline.fetch(10, name, 20, 500, {"a": {"fetch_offset": 0, "current_leader_epoch": epoch}})
    assert timeline.ends() == [
        "older completed 10 fenced_epoch - a-0:FENCED_LEADER_EPOCH",
        "same expired 30 timeout - a-0:50",
        "newer completed 10 unknown_epoch - a-0:UNKNOWN_LEADER_EPOCH",
        "none expired 30 timeout - a-0:50",
    ]


def test_case_f_unknown_leader_epoch_fences_nothing() -> None:
    timeline = Timeline().fetch(10, "f", 20, 1, {"a": {"fetch_offset": 0, "current_leader_epoch": 0}})
    assert timeline.ends() == ["f expired 30 timeout - a-0:0"]


def test_case_c_truncated_leader_completes_at_next_check() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).log_end(2, "a", 9, 400).follower(10, "f", 1000, 999, {"a": 9})
    timeline.change(20, "a", "truncate", offset=5).log_end(30, "a", 7, 200)
    assert timeline.ends() == ["f completed 30 truncated a-0 a-0:OFFSET_OUT_OF_RANGE"]


def test_case_c_offset_beyond_high_watermark_on_arrival() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(2, "a", 3)
    timeline.fetch(10, "above", 1000, 1, {"a": 4}).fetch(11, "at", 20, 1, {"a": 3})
    assert timeline.ends() == ["above completed 10 truncated - a-0:0", "at expired 31 timeout - a-0:0"]


def test_case_c_older_segment_completes_at_next_check() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", 1000, 9999, {"a": 0})
    timeline.change(20, "a", "segment_roll", offset=5).log_end(30, "a", 6, 100)
    assert timeline.ends() == ["f completed 30 older_segment a-0 a-0:600"]


def test_case_c_older_segment_on_arrival() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).change(2, "a", "segment_roll", offset=5).log_end(3, "a", 6, 100)
    timeline.follower(10, "f", 1000, 9999, {"a": 4}).follower(11, "g", 20, 9999, {"a": 5})
    assert timeline.ends() == ["f completed 10 older_segment - a-0:600", "g expired 31 timeout - a-0:100"]


def test_case_c_excludes_fresh_roll_at_end() -> None:
    """The high watermark was taken on the old segment, before the roll; at equal offsets segments are ignored."""
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(2, "a", 5).change(3, "a", "segment_roll", offset=5)
    timeline.fetch(10, "consumer", 20, 1, {"a": 5}).follower(10, "follower", 20, 1, {"a": 5})
    assert timeline.ends() == ["consumer expired 30 timeout - a-0:0", "follower expired 30 timeout - a-0:0"]


def test_case_c_caught_up_before_roll() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", 1000, 9999, {"a": 5})
    timeline.change(20, "a", "segment_roll", offset=5).log_end(30, "a", 6, 100)
    assert timeline.ends() == ["f completed 30 older_segment a-0 a-0:100"]


def test_case_c_fetch_at_end_reuses_its_segment() -> None:
    """Both fetches start at 5 after the roll. The high watermark was taken before it, the log end moved with it."""
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(2, "a", 5).change(3, "a", "segment_roll", offset=5)
    timeline.fetch(10, "consumer", 1000, 9999, {"a": 5}).follower(10, "follower", 100, 9999, {"a": 5})
    timeline.log_end(30, "a", 6, 100).high_watermark(40, "a", 6)
    assert timeline.ends() == [
        "consumer completed 40 older_segment a-0 a-0:100",
        "follower expired 110 timeout - a-0:100",
    ]


def test_case_c_watermark_keeps_segment_until_refreshed() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(2, "a", 5).change(3, "a", "segment_roll", offset=5)
    timeline.fetch(10, "f", 1000, 9999, {"a": 0}).high_watermark(20, "a", 5)
    assert timeline.ends() == ["f completed 20 older_segment a-0 a-0:500"]


def test_case_c_excludes_roll_of_empty_log() -> None:
    timeline = Timeline().log_end(1, "a", 0).high_watermark(1, "a", 0).change(2, "a", "segment_roll", offset=0)
    timeline.fetch(10, "f", 1000, 500, {"a": 0}).log_end(20, "a", 5, 500).high_watermark(30, "a", 5)
    assert timeline.ends() == ["f completed 30 min_bytes a-0 a-0:500"]


def test_case_c_excludes_throttled_replica() -> None:
    """A throttled replica adds no bytes either."""
    timeline = Timeline().log_end(1, "a", 5, 500).change(2, "a", "segment_roll", offset=5).log_end(3, "a", 6, 100)
    held = {"a": {"fetch_offset": 0, "throttled": True}, "b": 0}
    timeline.follower(10, "f", 1000, 50, held).follower(10, "g", 20, 50, held).log_end(40, "b", 5, 50)
    assert timeline.ends() == ["f completed 40 min_bytes b-0 a-0:0,b-0:50", "g expired 30 timeout - a-0:0,b-0:0"]


def test_consumer_is_never_throttled() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(2, "a", 5)
    timeline.fetch(10, "f", 1000, 500, {"a": {"fetch_offset": 0, "throttled": True}})
    assert timeline.ends() == ["f completed 10 min_bytes - a-0:500"]


def test_case_c_truncation_includes_throttled_replica() -> None:
    timeline = (
        Timeline().log_end(1, "a", 9, 900).follower(10, "f", 1000, 50, {"a": {"fetch_offset": 9, "throttled": True}})
    )
    timeline.change(20, "a", "truncate", offset=5).high_watermark(30, "a", 5)
    assert timeline.ends() == ["f completed 30 truncated a-0 a-0:OFFSET_OUT_OF_RANGE"]


def test_case_d_adds_bytes_of_all_partitions() -> None:
    timeline = (
        Timeline().follower(10, "f", 1000, 500, {"a": 0, "b": 0}).log_end(20, "a", 2, 300).log_end(30, "b", 2, 199)
    )
    timeline.log_end(40, "b", 3, 1)
    assert timeline.ends() == ["f completed 40 min_bytes b-0 a-0:300,b-0:200"]


def test_case_d_limits_bytes_per_partition() -> None:
    capped = {"fetch_offset": 0, "max_bytes": 300}
    timeline = Timeline().follower(10, "alone", 90, 500, {"a": capped})
    timeline.follower(10, "both", 1000, 500, {"a": capped, "b": capped})
    timeline.log_end(20, "a", 5, 1000).log_end(30, "b", 5, 150).log_end(40, "b", 6, 50)
    assert timeline.ends() == [
        "alone expired 100 timeout - a-0:300",
        "both completed 40 min_bytes b-0 a-0:300,b-0:200",
    ]


def test_case_d_enough_bytes_on_arrival() -> None:
    timeline = (
        Timeline().log_end(1, "a", 5, 500).follower(10, "f", 1000, 500, {"a": 0}).follower(11, "g", 20, 501, {"a": 0})
    )
    assert timeline.ends() == ["f completed 10 min_bytes - a-0:500", "g expired 31 timeout - a-0:500"]


def test_case_d_minimum_of_zero_completes_at_once() -> None:
    assert Timeline().fetch(10, "f", 1000, 0, {"a": 7}).ends() == ["f completed 10 min_bytes - a-0:0"]


def test_unknown_end_has_no_readable_bytes() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).fetch(10, "f", 1000, 1, {"a": 0}).high_watermark(20, "a", 5)
    assert timeline.ends() == ["f completed 20 min_bytes a-0 a-0:500"]


def test_offset_inside_batch_counts_from_batch_start() -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).log_end(2, "a", 9, 400)
    timeline.follower(10, "f", 1000, 900, {"a": 3}).follower(11, "g", 20, 401, {"a": 6})
    assert timeline.ends() == ["f completed 10 min_bytes - a-0:900", "g expired 31 timeout - a-0:400"]


def test_start_beyond_regrown_end_counts_negative() -> None:
    """f starts at position 900. After truncation to 5 and new appends the end is at 600: 600 - 900 = -300 bytes."""
    timeline = Timeline().log_end(1, "a", 5, 500).log_end(2, "a", 9, 400)
    timeline.follower(10, "f", 100, 700, {"a": 9, "b": 0}).follower(10, "g", 100, 500, {"a": 9, "b": 0})
    timeline.change(20, "a", "truncate", offset=5).log_end(30, "a", 12, 100).log_end(40, "b", 3, 800)
    assert timeline.ends() == [
        "f expired 110 timeout - a-0:100,b-0:800",
        "g completed 40 min_bytes b-0 a-0:100,b-0:800",
    ]


def test_start_on_removed_segment_adds_nothing() -> None:
    timeline = Timeline().log_end(1, "a", 9, 900).change(2, "a", "segment_roll", offset=9)
    timeline.follower(10, "f", 100, 10, {"b": 0, "a": 9}).change(20, "a", "truncate", offset=5)
    timeline.log_end(30, "a", 9, 100).log_end(40, "a", 12, 100).log_end(50, "b", 1, 10)
    assert timeline.ends() == ["f completed 50 min_bytes b-0 b-0:10,a-0:100"]


def test_offset_outside_log_is_answered_at_once() -> None:
    timeline = Timeline().log_end(1, "a", 9, 900).high_watermark(2, "a", 9).change(3, "a", "log_start", offset=4)
    for name, offset in (("deleted", 3), ("first", 4), ("end", 9), ("beyond", 10)):
        timeline.fetch(10, name, 20, 9999, {"a": offset})
    assert timeline.ends() == [
        "deleted completed 10 offset_out_of_range - a-0:OFFSET_OUT_OF_RANGE",
        "first expired 30 timeout - a-0:900",
        "end expired 30 timeout - a-0:0",
        "beyond completed 10 offset_out_of_range - a-0:OFFSET_OUT_OF_RANGE",
    ]


def test_log_start_beyond_offset_is_reported_at_expiration() -> None:
    """The log start checks no fetches, but the answer at the deadline has the error."""
    timeline = (
        Timeline().log_end(1, "a", 9, 900).follower(10, "f", 20, 9999, {"a": 3}).change(15, "a", "log_start", offset=4)
    )
    outcome = timeline.replay().outcomes[0]
    assert timeline.ends() == ["f expired 30 timeout - a-0:OFFSET_OUT_OF_RANGE"]
    assert outcome.bytes == 900, "readable bytes are counted despite the error"


def test_fetch_without_partitions_is_answered_at_once() -> None:
    assert Timeline().fetch(10, "f", 1000, 1, {}).ends() == ["f completed 10 no_partitions - "]


@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_zero_wait_expires_on_arrival(max_wait_ms: int) -> None:
    timeline = Timeline().log_end(1, "a", 5, 500).follower(10, "f", max_wait_ms, 501, {"a": 0})
    timeline.follower(10, "g", max_wait_ms, 500, {"a": 0}).log_end(10, "a", 6, 100)
    assert timeline.ends() == ["f expired 10 timeout - a-0:500", "g completed 10 min_bytes - a-0:500"]


def test_expiration_wins_tie_without_another_try() -> None:
    timeline = Timeline().follower(10, "f", 20, 500, {"a": 0}).log_end(30, "a", 5, 500)
    assert timeline.ends() == ["f expired 30 timeout - a-0:0"]


def test_unchecked_change_is_seen_at_next_check() -> None:
    timeline = Timeline().log_end(1, "a", 9, 900).follower(10, "f", 1000, 9999, {"a": 9, "b": 0})
    timeline.change(20, "a", "truncate", offset=5).high_watermark(30, "b", 0)
    assert timeline.ends() == ["f completed 30 truncated b-0 a-0:OFFSET_OUT_OF_RANGE,b-0:0"]


def test_broker_limit_caps_minimum_and_maximum() -> None:
    timeline = Timeline().follower(10, "f", 1000, 5000, {"a": 0}).log_end(20, "a", 5, 300)
    assert timeline.ends(fetch={"max_bytes": 300}) == ["f completed 20 min_bytes a-0 a-0:300"]
    assert timeline.ends() == ["f expired 1010 timeout - a-0:300"]
    timeline = Timeline().fetch(10, "f", 1000, 5000, {"a": 0}, max_bytes=0)
    assert timeline.ends() == ["f completed 10 min_bytes - a-0:0"], "the minimum never exceeds the request's maximum"


def test_what_if_settings_replace_wait_and_minimum() -> None:
    timeline = Timeline().follower(10, "f", 1000, 5000, {"a": 0}).log_end(20, "a", 5, 300)
    assert timeline.ends(fetch={"follower": {"min_bytes": 300}}) == ["f completed 20 min_bytes a-0 a-0:300"]
    assert timeline.ends(fetch={"follower": {"max_wait_ms": 5}}) == ["f expired 15 timeout - a-0:0"]


def test_follower_fetch_updates_progress_first() -> None:
    """
    1 leads, 2 follows; p waits for 2.
    20  2 fetches from 4: the high watermark rises to 4, inside the batch, so its position is the start of the batch
    30  2 fetches from 5: the high watermark rises to 5, which completes p and the consumer's fetch
    """
    timeline = Timeline(broker=1).change(1, "a", "leader", leader_epoch=1, isr=[1, 2]).produce(10, "p", 1000, a=5)
    timeline.fetch(11, "consumer", 1000, 1, {"a": 0}).follower(20, "f", 5, 1, {"a": 4}).follower(
        30, "g", 5, 1, {"a": 5}
    )
    assert timeline.ends() == [
        "p completed 30 high_watermark a-0 a-0:NONE",
        "consumer completed 30 min_bytes a-0 a-0:50",
        "f completed 20 min_bytes - a-0:50",
        "g expired 35 timeout - a-0:0",
    ]


def test_offline_replica_ignores_follower_progress() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", leader_epoch=1, isr=[1, 2]).change(2, "a", "offline")
    timeline.follower(10, "f", 0, 1, {"a": 5}).change(11, "a", "online").produce(12, "p", 100, a=5)
    assert timeline.ends() == [
        "f completed 10 offline - a-0:KAFKA_STORAGE_ERROR",
        "p expired 112 timeout - a-0:REQUEST_TIMED_OUT",
    ]
