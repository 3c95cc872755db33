"""Batches of any size give the operations, answers and transitions of the reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.groups.group_step import MIN_COLUMNAR_RUN
from tests.rules.groups.batches import Batches, GroupRecord, in_batches, reference_of
from tests.support.examples import examples
from tests.support.group_strategies import GroupTraffic, group_traffic
from tests.support.group_timeline import GroupTimeline


@examples(20)
@given(group_traffic(), st.lists(st.integers(1, 80), max_size=8), st.sampled_from((1, 3, MIN_COLUMNAR_RUN)))
def test_random_batches_match_reference(traffic: GroupTraffic, cuts: list[int], min_columnar_run: int) -> None:
    events = traffic.events
    # A batch that ends within the load of a group records the members loaded so far.
    cuts = [cut for cut in cuts if cut >= len(events) or events[cut]["type"] != "group_loaded"]
    batches = in_batches(events, traffic.config, cuts, min_columnar_run)
    expected = reference_of(events, traffic.config)
    # An unknown group that is unloaded has no output.
    assert {key: record.in_order() for key, record in batches.records.items() if record != GroupRecord()} == {
        key: record.in_order() for key, record in expected.items()
    }


def test_timer_ends_stable_state_before_heartbeat_run() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    group.heartbeat(6500, "b")
    group.rejoin(7000, "b")
    #   16,200: the session of a expires, and the rebalance that follows waits for b
    group.heartbeat(16_400, "b")
    group.heartbeat(16_450, "a")
    config = Config.model_validate({"group": {"min_session_timeout_ms": 0}})
    record = in_batches(group.events, config, [4], min_columnar_run=1).records["0/g"].in_order()
    assert [answer.error for answer in record.answers[-2:]] == ["REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"]
    assert record == reference_of(group.events, config)["0/g"].in_order()


def test_group_wakes_when_assignment_is_committed() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.sync(4100, "a")
    group_settings = {"min_session_timeout_ms": 0, "coordinator": "new", "commit_delay_ms": 100}
    batches = Batches(Config.model_validate({"group": group_settings}))
    batches.take(group.events)
    assert batches.deadlines == {"0/g": 4200}
