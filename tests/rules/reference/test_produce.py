"""DelayedProduce: Kafka's cases as timelines."""

from __future__ import annotations

import pytest

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from tests.rules.reference.timeline import Timeline


def test_produce_waits_for_all_high_watermarks() -> None:
    #   10 p appends a 0-4, b 0-6    20 hw(a)=4    30 hw(a)=5    31 hw(b)=7
    timeline = Timeline().produce(10, "p", 1000, a=5, b=7)
    timeline.high_watermark(20, "a", 4).high_watermark(30, "a", 5).high_watermark(31, "b", 7)
    assert timeline.ends() == ["p completed 31 high_watermark b-0 a-0:NONE,b-0:NONE"]


def test_outcome_of_produce() -> None:
    timeline = Timeline(broker=3)
    timeline.add(
        10.25, "produce", request_id="p", client_id="c", acks=-1, timeout_ms=1000,
        partitions=[{"topic": "t", "partition": 4, "base_offset": 0, "last_offset": 4, "bytes": 77, "error": None}],
    )  # fmt: skip
    timeline.high_watermark(20.75, "t-4", 9)
    assert timeline.replay().outcomes == [
        Outcome(
            operation_id=1,
            kind="produce",
            broker=3,
            request_id="p",
            client_id="c",
            key="t-4",
            started_us=10_250,
            ended_us=20_750,
            deadline_us=1_010_000,
            expired=False,
            watched=True,
            completed_by="high_watermark",
            trigger="t-4",
            bytes=None,
            partitions=(PartitionOutcome("t", 4, "NONE", 77),),
            fetcher=None,
        )
    ]


def test_satisfied_produce_completes_on_arrival() -> None:
    timeline = Timeline().high_watermark(11, "a", 5).produce(12, "p", 1000, a=5)
    (outcome,) = timeline.replay().outcomes
    assert timeline.ends() == ["p completed 12 high_watermark - a-0:NONE"]
    assert (outcome.watched, outcome.wait_ms) == (False, 0)


def test_first_try_sees_own_append() -> None:
    """A leader without followers: the append raises the high watermark by itself."""
    timeline = Timeline(broker=1).change(5, "a", "leader", leader_epoch=1, isr=[1]).produce(10, "p", 1000, a=5)
    assert timeline.ends() == ["p completed 10 high_watermark - a-0:NONE"]


def test_only_pending_partitions_time_out() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5, b=7).high_watermark(20, "a", 5).high_watermark(111, "b", 7)
    assert timeline.ends() == ["p expired 110 timeout - a-0:NONE,b-0:REQUEST_TIMED_OUT"]


@pytest.mark.parametrize(
    ("change", "rule", "error"),
    [
        ("not_leader", "not_leader", "NOT_LEADER_OR_FOLLOWER"),
        ("deleted", "unknown_partition", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("offline", "offline", "KAFKA_STORAGE_ERROR"),
    ],
)
def test_case_a_lost_partition_is_settled(change: str, rule: str, error: str) -> None:
    waiting = Timeline().produce(10, "p", 1000, a=5).change(20, "a", change)
    assert waiting.ends() == [f"p completed 20 {rule} a-0 a-0:{error}"]
    arriving = Timeline().change(5, "a", change).produce(10, "p", 1000, a=5)
    assert arriving.ends() == [f"p completed 10 {rule} - a-0:{error}"]


def test_case_a_precedes_case_b() -> None:
    timeline = Timeline().high_watermark(1, "a", 5).change(2, "a", "offline").produce(10, "p", 1000, a=5)
    assert timeline.ends() == ["p completed 10 offline - a-0:KAFKA_STORAGE_ERROR"]


def test_case_b_needs_required_offset() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).high_watermark(20, "a", 4)
    assert timeline.ends() == ["p expired 110 timeout - a-0:REQUEST_TIMED_OUT"]


def test_case_b_isr_below_minimum_is_error() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", leader_epoch=1, isr=[1, 2], min_isr=2)
    timeline.produce(10, "p", 1000, a=5).change(20, "a", "isr", isr=[1]).high_watermark(30, "a", 5)
    assert timeline.ends() == ["p completed 30 not_enough_replicas a-0 a-0:NOT_ENOUGH_REPLICAS_AFTER_APPEND"]


def test_produce_below_min_isr_times_out() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", leader_epoch=1, isr=[1], min_isr=2)
    timeline.produce(10, "p", 100, a=5)
    assert timeline.ends() == ["p expired 110 timeout - a-0:REQUEST_TIMED_OUT"]


def test_settled_error_is_final() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5, b=7)
    timeline.change(20, "a", "offline").change(30, "a", "online").high_watermark(40, "a", 5)
    timeline.high_watermark(50, "b", 7)
    assert timeline.ends() == ["p completed 50 high_watermark b-0 a-0:KAFKA_STORAGE_ERROR,b-0:NONE"]


def test_settled_success_is_final() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5, b=7).high_watermark(20, "a", 5).change(30, "a", "not_leader")
    assert timeline.ends() == ["p expired 110 timeout - a-0:NONE,b-0:REQUEST_TIMED_OUT"]


def test_partition_in_error_does_not_release_others() -> None:
    timeline = Timeline().produce(10, "p", 1000, a="MESSAGE_TOO_LARGE", b=7).high_watermark(20, "b", 7)
    assert timeline.ends() == ["p completed 20 high_watermark b-0 a-0:MESSAGE_TOO_LARGE,b-0:NONE"]


def test_produce_is_watched_on_all_partitions() -> None:
    timeline = Timeline().produce(10, "p", 1000, a="MESSAGE_TOO_LARGE", b=7).add(250, "clock")
    gauges = timeline.replay(drain=False).gauges
    assert [(gauge.at_ms, gauge.watched, gauge.delayed) for gauge in gauges] == [(200, 2, 1)]


def test_partition_settled_last_names_rule() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5, b=7)
    timeline.high_watermark(20, "b", 7).change(30, "a", "offline")
    assert timeline.ends() == ["p completed 30 offline a-0 a-0:KAFKA_STORAGE_ERROR,b-0:NONE"]


def test_last_partition_of_one_try_names_rule() -> None:
    timeline = Timeline().change(1, "a", "offline").high_watermark(2, "b", 7).produce(10, "p", 1000, a=5, b=7)
    assert timeline.ends() == ["p completed 10 high_watermark - a-0:KAFKA_STORAGE_ERROR,b-0:NONE"]


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1_are_answered_on_append(acks: int) -> None:
    timeline = Timeline().follower(5, "f", 1000, 50, {"a": 0}).produce(10, "p", 1000, acks, a=5)
    assert timeline.ends() == ["f completed 10 min_bytes a-0 a-0:50", "p completed 10 acks - a-0:NONE"]


def test_invalid_acks_append_nothing() -> None:
    timeline = Timeline().follower(5, "f", 30, 50, {"a": 0}).produce(10, "p", 1000, 2, a=5, b="SOME_ERROR")
    assert timeline.ends() == [
        "f expired 35 timeout - a-0:0",
        "p completed 10 invalid_acks - a-0:INVALID_REQUIRED_ACKS,b-0:INVALID_REQUIRED_ACKS",
    ]


def test_produce_without_successful_append_is_answered() -> None:
    timeline = Timeline().produce(10, "p", 1000, a="CORRUPT_MESSAGE", b="MESSAGE_TOO_LARGE").produce(11, "q", 1000)
    assert timeline.ends() == [
        "p completed 10 append_error - a-0:CORRUPT_MESSAGE,b-0:MESSAGE_TOO_LARGE",
        "q completed 11 empty - ",
    ]


def test_append_checks_fetches_of_its_partition() -> None:
    timeline = Timeline().follower(5, "f", 1000, 50, {"a": 0}).produce(10, "p", 100, a=5)
    assert timeline.ends() == [
        "f completed 10 min_bytes a-0 a-0:50",
        "p expired 110 timeout - a-0:REQUEST_TIMED_OUT",
    ]


def test_produce_of_old_offsets_checks_nothing() -> None:
    timeline = Timeline().log_end(1, "a", 9, 90).follower(5, "f", 30, 1, {"a": 9}).produce(10, "p", 20, a=5)
    assert timeline.ends() == ["f expired 35 timeout - a-0:0", "p expired 30 timeout - a-0:REQUEST_TIMED_OUT"]


def test_expiration_wins_tie() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).produce(10.5, "q", 101, a=5).high_watermark(110.9, "a", 5)
    assert timeline.ends() == [
        "p expired 110 timeout - a-0:REQUEST_TIMED_OUT",
        "q completed 110.9 high_watermark a-0 a-0:NONE",
    ]


def test_events_of_one_millisecond_apply_in_order() -> None:
    timeline = Timeline().produce(10, "p", 1, a=5).high_watermark(10, "a", 5)
    assert timeline.ends() == ["p completed 10 high_watermark a-0 a-0:NONE"]


def test_zero_timeout_expires_before_next_event() -> None:
    timeline = Timeline().produce(10.25, "p", 0, a=5).high_watermark(10.5, "a", 5).produce(10.75, "q", 0, a=5)
    outcomes = timeline.replay().outcomes
    assert timeline.ends() == [
        "p expired 10 timeout - a-0:REQUEST_TIMED_OUT",
        "q completed 10.75 high_watermark - a-0:NONE",
    ]
    assert [outcome.watched for outcome in outcomes] == [True, False]


def test_what_if_timeout_replaces_or_scales() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5)
    assert timeline.ends(produce={"timeout_ms": 30}) == ["p expired 40 timeout - a-0:REQUEST_TIMED_OUT"]
    assert timeline.ends(produce={"timeout_ms": "x0.5"}) == ["p expired 60 timeout - a-0:REQUEST_TIMED_OUT"]


def test_replicas_at_different_brokers_are_independent() -> None:
    timeline = Timeline(broker=1).produce(10, "p", 100, a=5)
    timeline.broker = 2
    timeline.high_watermark(20, "a", 5).change(21, "a", "deleted")
    assert timeline.ends() == ["p expired 110 timeout - a-0:REQUEST_TIMED_OUT"]


def test_change_without_a_check_of_fetches_completes_produces() -> None:
    timeline = Timeline().log_end(1, "a", 1).produce(10, "p", 500, a=5).fetch(20, "f", 500, 1, {"a": 5})
    timeline.change(50, "a", "offline", wake=False)
    assert timeline.ends() == [
        "p completed 50 offline a-0 a-0:KAFKA_STORAGE_ERROR",
        "f expired 520 timeout - a-0:KAFKA_STORAGE_ERROR",
    ]
