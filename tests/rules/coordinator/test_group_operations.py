"""Operations of groups: ids, rules, deadlines, triggers, gauges, and the callback of a client."""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, answers_after_commits
from purgatory_udf.rules.coordinator.group_coordinator import Coordinators
from purgatory_udf.rules.purgatory.clock import Clock, gauge_changes
from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, GroupTimeline


def test_operations_of_group_lifetime() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1500, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    group.heartbeat(9000, "b")
    group.rejoin(9500, "a")
    group.leave(10_000, "b")
    assert group.operations(drain=True) == [
        "heartbeat g-a: 1000 to 6000 of 301000, completed by new_generation",
        "initial_join g: 1000 to 4000 of 4000, expired",
        "heartbeat g-b: 1500 to 6000 of 301500, completed by new_generation",
        "initial_join g: 4000 to 6000 of 6000, expired",
        "heartbeat g-a: 6000 to 6200 of 16000, completed by sync_group",
        "heartbeat g-b: 6000 to 6200 of 16000, completed by assignment",
        "sync g: 6000 to 6200 of 11000, completed by all_synced",
        "heartbeat g-a: 6200 to 10000 of 16200, completed by new_generation",
        "heartbeat g-b: 6200 to 9000 of 16200, completed by heartbeat",
        "heartbeat g-b: 9000 to 10000 of 19000, completed by leave_group",
        "join g: 9500 to 10000 of 14500, completed by all_joined",
        "heartbeat g-a: 10000 to 15000 of 20000, completed by removed",
        "sync g: 10000 to 15000 of 15000, expired",
        "join g: 15000 to 15000 of 15000, completed by no_members on arrival",
    ]


def test_rebalance_completes_sync_and_renews_waiting_members() -> None:
    group = GroupTimeline(initial_rebalance_delay_ms=6000)
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(7100, "b")
    group.leave(8000, "a")
    assert [line for line in group.operations() if "to 8000" in line] == [
        "heartbeat g-a: 7000 to 8000 of 17000, completed by leave_group",
        "heartbeat g-b: 7000 to 8000 of 17000, completed by rebalance",
        "sync g: 7000 to 8000 of 12000, completed by rebalance",
    ]


def test_joining_completes_session_of_pending_id() -> None:
    group = GroupTimeline()
    group.join(1000, "p", api_version=WITH_MEMBER_ID_REQUIRED, session_timeout_ms=7000)
    group.rejoin(2000, "p")
    group.until(2000)
    assert group.operations() == ["heartbeat g-p: 1000 to 2000 of 8000, completed by join_group"]


def test_operation_id_is_seq_or_negative() -> None:
    group = GroupTimeline()
    group.join(1000, "a")  # 1: the initial join; its session has a derived id
    group.join(1100, "p", api_version=WITH_MEMBER_ID_REQUIRED)  # 2: the session of the id p
    group.until(4000)  # 3
    group.sync(4100, "a")  # 4: a's next session
    group.heartbeat(4200, "a")  # 5
    group.commit(4300, "a")  # 6
    group.rejoin(4400, "p")  # 7: a rebalance
    group.rejoin(4500, "a")  # 8: completes it, and starts nothing
    group.leave(4600, "p", generation=2)  # 9: a rebalance
    outcomes = group.replay(drain=True).outcomes
    of_requests = {
        outcome.operation_id: (outcome.kind, outcome.key) for outcome in outcomes if outcome.operation_id > 0
    }
    assert of_requests == {
        1: ("initial_join", "g"),
        2: ("heartbeat", "g-p"),
        4: ("heartbeat", "g-a"),
        5: ("heartbeat", "g-a"),
        6: ("heartbeat", "g-a"),
        7: ("join", "g"),
        9: ("join", "g"),
    }
    assert len({outcome.operation_id for outcome in outcomes}) == len(outcomes), "no id twice"


def test_derived_ids_depend_on_own_group_only() -> None:
    def derived_ids(name: str, broker: int, *, with_others: bool) -> set[int]:
        timeline = GroupTimeline()
        timeline.join(1000, "a", group=name, broker=broker)
        timeline.leave(7000, "a", group=name, broker=broker)
        if with_others:
            timeline.join(900, "x", group="another")
            timeline.join(6999, "x", group=name, broker=broker + 1)
        outcomes = timeline.replay(drain=True).outcomes
        of_broker = [outcome for outcome in outcomes if outcome.broker == broker and outcome.key in (name, f"{name}-a")]
        return {outcome.operation_id for outcome in of_broker if outcome.operation_id < 0}

    without_others = derived_ids("g", 0, with_others=False)
    assert derived_ids("g", 0, with_others=True) == without_others
    assert without_others.isdisjoint(derived_ids("h", 0, with_others=False))
    assert without_others.isdisjoint(derived_ids("g", 1, with_others=False))


def test_outcomes_of_group_operations() -> None:
    group = GroupTimeline()
    group.join(1000.5, "a")
    group.leave(2000.25, "a")
    group.until(4000)
    assert group.replay().outcomes == [
        Outcome(
            operation_id=group.replay().outcomes[0].operation_id,
            kind="heartbeat",
            broker=0,
            request_id="a",
            client_id="client-a",
            key="g-a",
            started_us=1_000_500,
            ended_us=2_000_250,
            deadline_us=301_000_000,
            expired=False,
            watched=True,
            completed_by="leave_group",
            trigger="g-a",
            bytes=None,
            partitions=(),
        ),
        Outcome(
            operation_id=1,
            kind="initial_join",
            broker=0,
            request_id="a",
            client_id="client-a",
            key="g",
            started_us=1_000_500,
            ended_us=4_000_000,
            deadline_us=4_000_000,
            expired=True,
            watched=True,
            completed_by="timeout",
            trigger=None,
            bytes=None,
            partitions=(),
        ),
    ]


def test_session_carries_id_of_answered_request() -> None:
    group = GroupTimeline()
    group.join(1000, "a", request_id="join of a")
    group.sync(4100, "a", request_id="sync of a")
    group.until(15_000)
    assert [(o.request_id, o.started_us // 1000) for o in group.replay().outcomes if o.kind == "heartbeat"] == [
        ("join of a", 1000),
        ("join of a", 4000),
        ("sync of a", 4100),
    ]


def test_draining_ends_open_operations() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.until(3000)
    assert group.replay().outcomes == []
    assert len(group.replay().open) == 2
    assert group.replay(drain=True).open == []


def test_gauges_of_both_purgatories() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1100, "b")
    group.sync(6100, "a")
    group.sync(6200, "b")
    group.heartbeat(6500, "a")
    group.leave(6700, "a")
    group.leave(6900, "b")
    group.until(7400)
    readings = gauge_changes(group.replay().gauges)
    # 1000 initial join and sessions; 6000 sync and new sessions; 6200 all synced; 6700 rebalance; 6900 group empty.
    assert [(g.at_ms, g.watched, g.delayed) for g in readings if g.purgatory == "Heartbeat"] == [
        (1200, 2, 2),
        (6800, 1, 1),
        (7000, 0, 0),
    ]
    assert [(g.at_ms, g.watched, g.delayed) for g in readings if g.purgatory == "Rebalance"] == [
        (1200, 1, 1),
        (4000, 2, 1),
        (6000, 3, 1),
        (6400, 2, 0),
        (6800, 3, 1),
        (7000, 0, 0),
    ], "an expired operation stays on its list until the next check"


def test_answers_wait_for_committed_records() -> None:
    """A commit takes 5 ms from the millisecond of the append. The heartbeat at 4,105 ms has nothing to wait for."""
    group = GroupTimeline(coordinator="new", commit_delay_ms=5)
    group.join(1000, "a")
    group.sync(4100.4, "a")
    for ms in (4100.7, 4105.2):
        group.heartbeat(ms, "a")
    sent = [(answer.api, answer.at_us) for answer in answers_after_commits(group.replay().groups.entries, 5)]
    assert sorted(sent, key=lambda answer: answer[1]) == [
        ("join_group", 4_000_000),
        ("heartbeat", 4_105_000),
        ("sync_group", 4_105_000),
        ("heartbeat", 4_105_200),
    ]


def test_callback_receives_answer_to_its_request() -> None:
    clock = Clock(0)
    coordinators = Coordinators(clock, Config.model_validate({"group": {"min_session_timeout_ms": 0}}).group)
    group = GroupTimeline()
    group.join(1000, "a")
    group.sync(4100, "a")
    joined: list[Answer] = []
    synced: list[Answer] = []
    for event, respond in zip(group.events, (joined.append, synced.append), strict=True):
        clock.advance_to(event["time_us"] // 1000)
        coordinators.handle(event, respond)
    assert [(answer.api, answer.at_us, answer.wait_ms, answer.error) for answer in joined] == [
        ("join_group", 4_000_000, 3000, "NONE")
    ]
    assert [(answer.api, answer.at_us, answer.wait_ms, answer.error) for answer in synced] == [
        ("sync_group", 4_100_000, 0, "NONE")
    ]
