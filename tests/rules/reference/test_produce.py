"""DelayedProduce: each of Kafka's cases as a timeline."""

from __future__ import annotations

import pytest

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from tests.rules.reference.timeline import Timeline


def test_a_produce_waits_until_the_high_watermark_has_reached_every_partition() -> None:
    #   10 p appends a 0-4, b 0-6    20 hw(a)=4    30 hw(a)=5    31 hw(b)=7
    timeline = Timeline().produce(10, "p", 1000, a=5, b=7)
    timeline.high_watermark(20, "a", 4).high_watermark(30, "a", 5).high_watermark(31, "b", 7)
    assert timeline.ends() == ["p completed 31 high_watermark b-0 a-0:NONE,b-0:NONE"]


def test_the_whole_outcome_of_a_produce() -> None:
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


def test_a_satisfied_produce_completes_on_arrival_and_is_never_watched() -> None:
    timeline = Timeline().high_watermark(11, "a", 5).produce(12, "p", 1000, a=5)
    (outcome,) = timeline.replay().outcomes
    assert timeline.ends() == ["p completed 12 high_watermark - a-0:NONE"]
    assert (outcome.watched, outcome.wait_ms) == (False, 0)


def test_a_produce_sees_its_own_append_in_its_first_try() -> None:
    """A leader without followers: the append raises the high watermark by itself."""
    timeline = Timeline(broker=1).change(5, "a", "leader", leader_epoch=1, isr=[1]).produce(10, "p", 1000, a=5)
    assert timeline.ends() == ["p completed 10 high_watermark - a-0:NONE"]


def test_an_expired_produce_answers_for_each_partition_and_only_the_pending_ones_timed_out() -> None:
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
def test_case_a_losing_the_partition_settles_it_with_that_error(change: str, rule: str, error: str) -> None:
    waiting = Timeline().produce(10, "p", 1000, a=5).change(20, "a", change)
    assert waiting.ends() == [f"p completed 20 {rule} a-0 a-0:{error}"]
    arriving = Timeline().change(5, "a", change).produce(10, "p", 1000, a=5)
    assert arriving.ends() == [f"p completed 10 {rule} - a-0:{error}"]


def test_case_a_comes_before_case_b() -> None:
    timeline = Timeline().high_watermark(1, "a", 5).change(2, "a", "offline").produce(10, "p", 1000, a=5)
    assert timeline.ends() == ["p completed 10 offline - a-0:KAFKA_STORAGE_ERROR"]


def test_case_b_a_high_watermark_one_short_is_not_enough() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).high_watermark(20, "a", 4)
    assert timeline.ends() == ["p expired 110 timeout - a-0:REQUEST_TIMED_OUT"]


def test_case_b_an_in_sync_set_below_its_minimum_is_an_error_after_the_append() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", leader_epoch=1, isr=[1, 2], min_isr=2)
    timeline.produce(10, "p", 1000, a=5).change(20, "a", "isr", isr=[1]).high_watermark(30, "a", 5)
    assert timeline.ends() == ["p completed 30 not_enough_replicas a-0 a-0:NOT_ENOUGH_REPLICAS_AFTER_APPEND"]


def test_below_min_isr_the_high_watermark_stands_still_and_the_produce_times_out() -> None:
    timeline = Timeline(broker=1).change(1, "a", "leader", leader_epoch=1, isr=[1], min_isr=2)
    timeline.produce(10, "p", 100, a=5)
    assert timeline.ends() == ["p expired 110 timeout - a-0:REQUEST_TIMED_OUT"]


def test_an_error_sticks_even_when_the_partition_comes_back() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5, b=7)
    timeline.change(20, "a", "offline").change(30, "a", "online").high_watermark(40, "a", 5)
    timeline.high_watermark(50, "b", 7)
    assert timeline.ends() == ["p completed 50 high_watermark b-0 a-0:KAFKA_STORAGE_ERROR,b-0:NONE"]


def test_success_sticks_even_when_the_partition_is_lost() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5, b=7).high_watermark(20, "a", 5).change(30, "a", "not_leader")
    assert timeline.ends() == ["p expired 110 timeout - a-0:NONE,b-0:REQUEST_TIMED_OUT"]


def test_one_partition_in_error_does_not_release_the_others() -> None:
    timeline = Timeline().produce(10, "p", 1000, a="MESSAGE_TOO_LARGE", b=7).high_watermark(20, "b", 7)
    assert timeline.ends() == ["p completed 20 high_watermark b-0 a-0:MESSAGE_TOO_LARGE,b-0:NONE"]


def test_a_produce_is_watched_on_all_its_partitions_those_in_error_included() -> None:
    timeline = Timeline().produce(10, "p", 1000, a="MESSAGE_TOO_LARGE", b=7).add(250, "clock")
    gauges = timeline.replay(drain=False).gauges
    assert [(gauge.at_ms, gauge.watched, gauge.delayed) for gauge in gauges] == [(200, 2, 1)]


def test_the_rule_is_that_of_the_partition_settled_last() -> None:
    timeline = Timeline().produce(10, "p", 1000, a=5, b=7)
    timeline.high_watermark(20, "b", 7).change(30, "a", "offline")
    assert timeline.ends() == ["p completed 30 offline a-0 a-0:KAFKA_STORAGE_ERROR,b-0:NONE"]


def test_of_partitions_settled_in_one_try_the_last_in_the_request_names_the_rule() -> None:
    timeline = Timeline().change(1, "a", "offline").high_watermark(2, "b", 7).produce(10, "p", 1000, a=5, b=7)
    assert timeline.ends() == ["p completed 10 high_watermark - a-0:KAFKA_STORAGE_ERROR,b-0:NONE"]


@pytest.mark.parametrize("acks", [0, 1])
def test_without_waiting_for_replicas_a_produce_is_answered_on_append(acks: int) -> None:
    timeline = Timeline().follower(5, "f", 1000, 50, {"a": 0}).produce(10, "p", 1000, acks, a=5)
    assert timeline.ends() == ["f completed 10 min_bytes a-0 a-0:50", "p completed 10 acks - a-0:NONE"]


def test_acks_of_another_kind_are_refused_and_append_nothing() -> None:
    timeline = Timeline().follower(5, "f", 30, 50, {"a": 0}).produce(10, "p", 1000, 2, a=5, b="SOME_ERROR")
    assert timeline.ends() == [
        "f expired 35 timeout - a-0:0",
        "p completed 10 invalid_acks - a-0:INVALID_REQUIRED_ACKS,b-0:INVALID_REQUIRED_ACKS",
    ]


def test_a_produce_that_appended_nothing_well_is_answered_at_once() -> None:
    timeline = Timeline().produce(10, "p", 1000, a="CORRUPT_MESSAGE", b="MESSAGE_TOO_LARGE").produce(11, "q", 1000)
    assert timeline.ends() == [
        "p completed 10 append_error - a-0:CORRUPT_MESSAGE,b-0:MESSAGE_TOO_LARGE",
        "q completed 11 empty - ",
    ]


def test_an_append_wakes_the_fetches_of_its_partition() -> None:
    timeline = Timeline().follower(5, "f", 1000, 50, {"a": 0}).produce(10, "p", 100, a=5)
    assert timeline.ends() == [
        "f completed 10 min_bytes a-0 a-0:50",
        "p expired 110 timeout - a-0:REQUEST_TIMED_OUT",
    ]


def test_a_produce_of_old_offsets_appends_nothing_and_wakes_nobody() -> None:
    timeline = Timeline().log_end(1, "a", 9, 90).follower(5, "f", 30, 1, {"a": 9}).produce(10, "p", 20, a=5)
    assert timeline.ends() == ["f expired 35 timeout - a-0:0", "p expired 30 timeout - a-0:REQUEST_TIMED_OUT"]


def test_expiration_wins_a_tie_with_an_event_of_its_millisecond() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5).produce(10.5, "q", 101, a=5).high_watermark(110.9, "a", 5)
    assert timeline.ends() == [
        "p expired 110 timeout - a-0:REQUEST_TIMED_OUT",
        "q completed 110.9 high_watermark a-0 a-0:NONE",
    ]


def test_arrival_and_event_of_one_millisecond_follow_their_order() -> None:
    timeline = Timeline().produce(10, "p", 1, a=5).high_watermark(10, "a", 5)
    assert timeline.ends() == ["p completed 10 high_watermark a-0 a-0:NONE"]


def test_a_timeout_of_zero_tries_once_and_expires_before_the_next_event_of_its_millisecond() -> None:
    timeline = Timeline().produce(10.25, "p", 0, a=5).high_watermark(10.5, "a", 5).produce(10.75, "q", 0, a=5)
    outcomes = timeline.replay().outcomes
    assert timeline.ends() == [
        "p expired 10 timeout - a-0:REQUEST_TIMED_OUT",
        "q completed 10.75 high_watermark - a-0:NONE",
    ]
    assert [outcome.watched for outcome in outcomes] == [True, False]


def test_a_what_if_timeout_replaces_or_scales_the_recorded_one() -> None:
    timeline = Timeline().produce(10, "p", 100, a=5)
    assert timeline.ends(produce={"timeout_ms": 30}) == ["p expired 40 timeout - a-0:REQUEST_TIMED_OUT"]
    assert timeline.ends(produce={"timeout_ms": "x0.5"}) == ["p expired 60 timeout - a-0:REQUEST_TIMED_OUT"]


def test_at_another_broker_the_same_partition_is_another_replica() -> None:
    timeline = Timeline(broker=1).produce(10, "p", 100, a=5)
    timeline.broker = 2
    timeline.high_watermark(20, "a", 5).change(21, "a", "deleted")
    assert timeline.ends() == ["p expired 110 timeout - a-0:REQUEST_TIMED_OUT"]
