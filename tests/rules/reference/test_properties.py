"""Properties of the replay of random traces."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.purgatory.clock import Pauses
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from tests.support import trace_strategies
from tests.support.examples import examples

Event = dict[str, Any]

REQUESTS = ("produce", "fetch", "delete_records", "create_topics")
PURGATORIES = {"produce": "Produce", "fetch": "Fetch", "delete_records": "DeleteRecords", "create_topics": "topic"}

# A multiple of the bucket sizes of the wheels that a small trace needs: 1, 20, 400, 8,000 and 160,000 ms.
BUCKETS_OF_ALL_WHEELS_MS = 160_000

some = examples(25)


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event["time_us"], event["seq"]))


@some
@given(events=trace_strategies.traces(), config=trace_strategies.configs())
def test_operation_ends_once_or_is_open(events: list[Event], config: Config) -> None:
    result = replay(events, config)
    started = [event["seq"] for event in in_order(events) if event["type"] in REQUESTS]
    ended = [outcome.operation_id for outcome in result.outcomes]
    assert sorted(ended + result.open) == sorted(started)
    assert ended == [seq for seq in started if seq in set(ended)], "in order of arrival"
    assert not (config.drain and result.open)


@some
@given(events=trace_strategies.traces(), config=trace_strategies.configs())
def test_operations_end_by_their_deadlines(events: list[Event], config: Config) -> None:
    """At the same instant, the expiration comes first. A broker that stands still expires nothing until it resumes."""
    pauses = Pauses.from_events(events)
    for outcome in replay(events, config).outcomes:
        fires_us = 1000 * pauses.fires_ms(outcome.broker, outcome.deadline_us // 1000)
        if outcome.expired:
            assert (outcome.ended_us, outcome.trigger, outcome.watched) == (fires_us, None, True)
        elif outcome.trigger is None:
            assert (outcome.ended_us, outcome.watched) == (outcome.started_us, False)
        else:
            assert outcome.started_us <= outcome.ended_us < fires_us
            assert outcome.watched


@some
@given(events=trace_strategies.traces(), config=trace_strategies.configs())
def test_num_delayed_counts_open_operations(events: list[Event], config: Config) -> None:
    result = replay(events, config)
    started = {event["seq"]: event for event in events}
    for gauge in result.gauges:
        step_us = gauge.at_ms * 1000
        waiting = [
            outcome
            for outcome in result.outcomes
            if _is_in(outcome, gauge.broker, gauge.purgatory) and outcome.started_us < step_us <= _last_us(outcome)
        ]
        still_open = [
            started[operation_id]
            for operation_id in result.open
            if started[operation_id]["broker"] == gauge.broker
            and PURGATORIES[started[operation_id]["type"]] == gauge.purgatory
            and started[operation_id]["time_us"] < step_us
        ]
        assert gauge.delayed == len(waiting) + len(still_open)
        assert gauge.watched >= gauge.delayed


def _is_in(outcome: Outcome, broker: int, purgatory: str) -> bool:
    return outcome.watched and outcome.broker == broker and PURGATORIES[outcome.kind] == purgatory


def _last_us(outcome: Outcome) -> int:
    """Return the last instant at which a gauge step counts it: steps follow expirations and precede events."""
    return outcome.ended_us - 1 if outcome.expired else outcome.ended_us


@some
@given(events=trace_strategies.traces())
def test_purging_changes_no_outcome(events: list[Event]) -> None:
    def with_interval(interval: int) -> Replay:
        purged = {"purge_interval": interval}
        return replay(
            events,
            Config.model_validate(dict.fromkeys(("produce", "fetch", "delete_records", "create_topics"), purged)),
        )

    always, never = with_interval(0), with_interval(10**6)
    assert always.outcomes == never.outcomes
    for eager, lazy in zip(always.gauges, never.gauges, strict=True):
        assert (eager.delayed, lazy.purged) == (lazy.delayed, 0)
        assert eager.watched <= lazy.watched


@some
@given(events=trace_strategies.traces(), data=st.data())
def test_input_order_changes_nothing(events: list[Event], data: st.DataObject) -> None:
    ordered = replay(events, Config())
    shuffled = replay(data.draw(st.permutations(events)), Config())
    assert (ordered.outcomes, ordered.gauges) == (shuffled.outcomes, shuffled.gauges)


@some
@given(events=trace_strategies.traces(), cut=st.integers(0, 60))
def test_later_events_change_no_ended_operation(events: list[Event], cut: int) -> None:
    ordered = in_order(events)
    beginning = replay(ordered[: cut + 1], Config(drain=False))
    whole = {outcome.operation_id: outcome for outcome in replay(ordered, Config()).outcomes}
    assert beginning.outcomes == [whole[outcome.operation_id] for outcome in beginning.outcomes]
    last_us = ordered[: cut + 1][-1]["time_us"]
    for operation_id in beginning.open:
        assert whole[operation_id].ended_us >= last_us


@some
@given(events=trace_strategies.traces())
def test_brokers_are_independent(events: list[Event]) -> None:
    """The leaders of topics are the only exception, and the end of the trace, which ends pauses."""
    assume(all(event["type"] != "paused" for event in events))
    together = [outcome for outcome in replay(events, Config()).outcomes if outcome.kind != "create_topics"]
    single_broker = [
        outcome
        for broker in (1, 2)
        for outcome in replay([event for event in events if event["broker"] == broker], Config()).outcomes
        if outcome.kind != "create_topics"
    ]
    assert sorted(single_broker, key=lambda outcome: outcome.operation_id) == sorted(
        together, key=lambda outcome: outcome.operation_id
    )


@some
@given(events=trace_strategies.traces())
def test_shift_by_whole_buckets_changes_nothing(events: list[Event]) -> None:
    """Deadlines and gauges are relative. Only the times of purges depend on where buckets start."""
    shift_us = BUCKETS_OF_ALL_WHEELS_MS * 1000
    shifted = replay([event | {"time_us": event["time_us"] + shift_us} for event in events], Config())
    unshifted = replay(events, Config())
    assert [
        (outcome.ended_us + shift_us, outcome.completed_by, outcome.partitions) for outcome in unshifted.outcomes
    ] == [(outcome.ended_us, outcome.completed_by, outcome.partitions) for outcome in shifted.outcomes]
    assert [(gauge.at_ms + BUCKETS_OF_ALL_WHEELS_MS, gauge.watched) for gauge in unshifted.gauges] == [
        (gauge.at_ms, gauge.watched) for gauge in shifted.gauges
    ]
