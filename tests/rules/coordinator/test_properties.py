"""Properties of groups, on random traces."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.coordinator.coordinator_journal import Entry, StateChange
from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.rules.purgatory.clock import Pauses
from purgatory_udf.rules.reference.reference_replay import Replay, Replayer, replay
from tests.support.examples import examples
from tests.support.group_strategies import GroupTraffic, group_traffic

some = examples(20)


def run(traffic: GroupTraffic) -> Replay:
    return replay(traffic.events, traffic.config)


def with_setting(config: Config, **settings: object) -> Config:
    return config.model_copy(update={"group": config.group.model_copy(update=settings)})


def history_of(result: Replay) -> tuple[list[Outcome], list[Entry]]:
    """Return outcomes and journal entries of all groups."""
    return result.outcomes, result.groups.entries


def broker_and_group(entry: Entry) -> tuple[int, str]:
    of_group = entry.transition if isinstance(entry, StateChange) else entry
    return of_group.broker, of_group.group


@some
@given(group_traffic())
def test_operations_end_once_by_their_deadlines(traffic: GroupTraffic) -> None:
    result, pauses = run(traffic), Pauses.from_events(traffic.events)
    assert result.open == []
    ids = [outcome.operation_id for outcome in result.outcomes]
    assert len(set(ids)) == len(ids) == len(result.groups.operations)
    for outcome in result.outcomes:
        fires_us = 1000 * pauses.fires_ms(outcome.broker, outcome.deadline_us // 1000)
        assert outcome.ended_us // 1000 <= fires_us // 1000
        assert outcome.expired == (outcome.completed_by == "timeout")
        assert not outcome.expired or outcome.ended_us == fires_us
        assert outcome.watched or outcome.started_us == outcome.ended_us


@some
@given(group_traffic())
def test_timers_hold_exactly_open_operations(traffic: GroupTraffic) -> None:
    pauses = Pauses.from_events(traffic.events)
    replayer = Replayer(traffic.config, traffic.events[0]["time_us"] // 1000, pauses=pauses)
    for event in traffic.events:
        replayer.apply(event)
        # Operations that were due when added run now.
        replayer.cluster.clock.advance_to(event["time_us"] // 1000)
        still_open = [operation for operation in replayer.coordinators.journal.operations if not operation.completed]
        assert replayer.cluster.clock.num_delayed() == len(still_open)


@some
@given(group_traffic(), st.randoms(use_true_random=False))
def test_input_order_changes_nothing(traffic: GroupTraffic, order: random.Random) -> None:
    shuffled = list(traffic.events)
    order.shuffle(shuffled)
    assert history_of(replay(shuffled, traffic.config)) == history_of(run(traffic))


@some
@given(group_traffic())
def test_groups_are_independent(traffic: GroupTraffic) -> None:
    single_group = [event for event in traffic.events if event.get("group", "g") == "g" and event.get("broker") == 0]
    outcomes, entries = history_of(run(traffic))
    assert history_of(replay(single_group, traffic.config)) == (
        [outcome for outcome in outcomes if outcome.broker == 0 and str(outcome.key).split("-")[0] == "g"],
        [entry for entry in entries if broker_and_group(entry) == (0, "g")],
    )


@some
@given(group_traffic())
def test_clock_ticks_change_nothing(traffic: GroupTraffic) -> None:
    first_ms, last_ms = traffic.events[0]["time_us"] // 1000, traffic.events[-1]["time_us"] // 1000
    ticks = [{"type": "clock", "time_us": ms * 1000, "seq": -ms} for ms in range(first_ms, last_ms + 1)]
    assert history_of(replay([*ticks, *traffic.events], traffic.config)) == history_of(run(traffic))


@some
@given(group_traffic())
def test_purging_changes_no_outcome(traffic: GroupTraffic) -> None:
    eager, never = with_setting(traffic.config, purge_interval=0), with_setting(traffic.config, purge_interval=10**6)
    assert history_of(replay(traffic.events, eager)) == history_of(replay(traffic.events, never))


@some
@given(group_traffic())
def test_transitions_are_valid_and_generations_increase(traffic: GroupTraffic) -> None:
    state: dict[tuple[int, str], tuple[str, int]] = {}
    last_us = 0
    for change in run(traffic).groups.changes:
        at = change.transition
        before, generation = state.get(broker_and_group(change), ("Empty", 0))
        if at.from_state == "Dead":
            # A loaded group has the stored generation, and its first member.
            assert before in ("Empty", "Dead") and at.to_state in ("Stable", "Empty")
        else:
            assert at.from_state == before
            assert GroupState(before) in GroupState(at.to_state).valid_previous_states
            assert at.generation == generation + (before == "PreparingRebalance" and at.to_state != "Dead")
            assert change.leader is None or change.leader in at.members
        assert (change.leader is None) == (at.members == ())
        assert (at.to_state == "Empty") <= (at.members == ())
        assert at.at_us >= last_us
        state[broker_and_group(change)], last_us = (at.to_state, at.generation), at.at_us


@some
@given(group_traffic())
def test_requests_are_answered_at_most_once(traffic: GroupTraffic) -> None:
    answers = run(traffic).groups.answers
    assert len({answer.seq for answer in answers}) == len(answers)
    assert all(answer.at_us >= answer.requested_us for answer in answers)
    apis = {event["seq"]: event["type"] for event in traffic.events}
    assert all(apis[answer.seq] == answer.api for answer in answers)
