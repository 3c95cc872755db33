"""Every cell of the table in `group_coordinator`: one request in each state, and its effects in that millisecond.

The group has members a (the leader) and b and is in the state by 9000. The request follows at 10000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, WITH_SKIP_ASSIGNMENT, GroupTimeline


def empty() -> GroupTimeline:
    group = GroupTimeline()
    group.join(1000, "a")
    group.leave(4500, "a")
    return group


def completing(**b: Any) -> GroupTimeline:
    """Return a group with generation 1 since 7000 and no sync. `b`: fields of b's join."""
    group = GroupTimeline(initial_rebalance_delay_ms=6000)
    group.join(1000, "a")
    group.join(1000, "b", **b)
    return group


def stable(**b: Any) -> GroupTimeline:
    group = completing(**b)
    group.sync(7100, "a")
    group.sync(7100, "b")
    return group


def preparing(**b: Any) -> GroupTimeline:
    """Return a group in which a has rejoined and b has not."""
    group = stable(**b)
    group.rejoin(9000, "a")
    return group


NOT_EMPTY: dict[str, Callable[..., GroupTimeline]] = {
    "PreparingRebalance": preparing,
    "CompletingRebalance": completing,
    "Stable": stable,
}


@pytest.mark.parametrize("state", [empty, preparing, completing, stable])
def test_join_without_id_gets_pending_id(state: Callable[[], GroupTimeline]) -> None:
    group = state()
    group.join(10_000, "c", api_version=WITH_MEMBER_ID_REQUIRED)
    assert group.log(since=10_000) == ["10000 join_group c: MEMBER_ID_REQUIRED, id c"]


def test_join_without_id_joins_up_to_version_3() -> None:
    """KIP-394 came with version 4."""
    group = empty()
    group.join(10_000, "c", api_version=3)
    group.join(10_100, "d", api_version=4)
    assert group.log(since=10_000) == [
        "10000 Empty → PreparingRebalance 2 [c]: member c joined",
        "10100 join_group d: MEMBER_ID_REQUIRED, id d",
    ]


# Join of a new member.


def test_new_member_in_empty_starts_initial_join() -> None:
    group = empty()
    group.join(10_000, "c")
    assert group.log(since=10_000) == ["10000 Empty → PreparingRebalance 2 [c]: member c joined"]
    group.until(13_000)
    assert group.log(since=10_001) == [
        "13000 PreparingRebalance → CompletingRebalance 3 [c]: initial delay over",
        "13000 join_group c: NONE, generation 3 led by c",
    ]


def test_new_member_in_preparing_waits() -> None:
    group = preparing()
    group.join(10_000, "c")
    assert group.log(since=10_000) == []
    group.rejoin(10_500, "b")
    assert group.log(since=10_000) == [
        "10500 PreparingRebalance → CompletingRebalance 2 [a b c]: all members joined",
        "10500 join_group a: NONE, generation 2 led by a",
        "10500 join_group b: NONE, generation 2 led by a",
        "10500 join_group c: NONE, generation 2 led by a",
    ]


def test_new_member_in_completing_rebalances_and_answers_syncs() -> None:
    group = completing()
    group.sync(9000, "b")
    group.join(10_000, "c")
    assert group.log(since=9000) == [
        "10000 sync_group b: REBALANCE_IN_PROGRESS",
        "10000 CompletingRebalance → PreparingRebalance 1 [a b c]: member c joined",
    ]


def test_new_member_in_stable_rebalances() -> None:
    group = stable()
    group.join(10_000, "c")
    assert group.log(since=10_000) == ["10000 Stable → PreparingRebalance 1 [a b c]: member c joined"]


@pytest.mark.parametrize("state", [empty, preparing, completing, stable])
def test_join_with_pending_id_equals_new_member(state: Callable[[], GroupTimeline]) -> None:
    at_once, in_two_steps = state(), state()
    at_once.join(10_000, "c")
    in_two_steps.join(9500, "c", api_version=WITH_MEMBER_ID_REQUIRED)
    in_two_steps.rejoin(10_000, "c", api_version=WITH_MEMBER_ID_REQUIRED)
    assert in_two_steps.log(since=10_000) == at_once.log(since=10_000)


# Join of a member.


def test_join_of_former_member_in_empty_is_unknown() -> None:
    group = empty()
    group.rejoin(10_000, "a")
    assert group.log(since=10_000) == ["10000 join_group a: UNKNOWN_MEMBER_ID"]


def test_join_of_member_in_preparing_completes_join() -> None:
    group = preparing()
    group.rejoin(10_000, "b")
    assert group.log(since=10_000) == [
        "10000 PreparingRebalance → CompletingRebalance 2 [a b]: all members joined",
        "10000 join_group a: NONE, generation 2 led by a",
        "10000 join_group b: NONE, generation 2 led by a",
    ]


@pytest.mark.parametrize("member", ["a", "b"])
def test_join_of_member_in_completing_repeats_generation(member: str) -> None:
    group = completing()
    group.rejoin(10_000, member)
    assert group.log(since=10_000) == [f"10000 join_group {member}: NONE, generation 1 led by a"]


@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_join_with_changed_protocols_rebalances(state: str) -> None:
    group = NOT_EMPTY[state]()
    group.rejoin(10_000, "b", protocols=["sticky", "range"])
    assert group.log(since=10_000) == [f"10000 {state} → PreparingRebalance 1 [a b]: member b changed its protocols"]


def test_join_of_follower_in_stable_repeats_generation() -> None:
    group = stable()
    group.rejoin(10_000, "b")
    assert group.log(since=10_000) == ["10000 join_group b: NONE, generation 1 led by a"]


def test_join_of_leader_in_stable_rebalances() -> None:
    group = stable()
    group.rejoin(10_000, "a")
    assert group.log(since=10_000) == ["10000 Stable → PreparingRebalance 1 [a b]: leader a joined again"]


# Leave of a static member.


def test_leave_with_former_id_is_fenced() -> None:
    group = with_static_leader("Stable")
    group.leave(10_000, "z", group_instance_id="i")
    assert group.log(since=10_000) == ["10000 leave_group z: FENCED_INSTANCE_ID"]


# Join of a static member that restarts.


def with_static_leader(state: str) -> GroupTimeline:
    """Return a group in the state, with a as instance i."""
    group = NOT_EMPTY[state]()
    for event in group.events:
        if event["request_id"] == "a":
            event["group_instance_id"] = "i"
    return group


def test_static_restart_in_preparing_fences_old_id() -> None:
    group = with_static_leader("PreparingRebalance")
    group.join(10_000, "a2", group_instance_id="i")
    assert group.log(since=10_000) == ["10000 join_group a: FENCED_INSTANCE_ID", "10000 a out: replaced"]
    group.rejoin(10_500, "b")
    assert group.log(since=10_001) == [
        "10500 PreparingRebalance → CompletingRebalance 2 [a2 b]: all members joined",
        "10500 join_group a2: NONE, generation 2 led by a2",
        "10500 join_group b: NONE, generation 2 led by a2",
    ]


def test_static_restart_in_completing_rebalances() -> None:
    group = with_static_leader("CompletingRebalance")
    group.join(10_000, "a2", group_instance_id="i")
    assert group.log(since=10_000) == [
        "10000 a out: replaced",
        "10000 CompletingRebalance → PreparingRebalance 1 [a2 b]: static member i restarted as a2",
    ]


@pytest.mark.parametrize(("version", "leader"), [(WITH_MEMBER_ID_REQUIRED, "a"), (WITH_SKIP_ASSIGNMENT, "a2")])
def test_static_leader_restart_in_stable_does_not_rebalance(version: int, leader: str) -> None:
    """From version 9 on the answer names the new id as the leader."""
    group = with_static_leader("Stable")
    group.join(10_000, "a2", group_instance_id="i", api_version=version)
    assert group.log(since=10_000) == [
        "10000 a out: replaced",
        f"10000 join_group a2: NONE, generation 1 led by {leader}",
    ]


def test_new_coordinator_stores_id_of_restarted_member() -> None:
    group = GroupTimeline(coordinator="new")
    group.join(1000, "a", group_instance_id="i")
    group.sync(4100, "a", group_instance_id="i")
    group.join(5000, "b", group_instance_id="i")
    assert "5000 Write(broker=0, group='g', at_us=5000000)" in group.log()


def test_static_restart_with_new_group_protocol_rebalances() -> None:
    group = GroupTimeline(initial_rebalance_delay_ms=6000)
    group.join(1000, "a", group_instance_id="i", protocols=["range", "sticky"])
    group.sync(7100, "a", group_instance_id="i")
    group.join(10_000, "a2", group_instance_id="i", protocols=["sticky", "range"])
    assert group.log(since=10_000) == [
        "10000 a out: replaced",
        "10000 Stable → PreparingRebalance 1 [a2]: static member i restarted as a2",
        "10000 PreparingRebalance → CompletingRebalance 2 [a2]: all members joined",
        "10000 join_group a2: NONE, generation 2 led by a2",
    ]


# Sync.


def test_sync_in_empty_is_unknown_member() -> None:
    group = empty()
    group.sync(10_000, "a", generation=2)
    assert group.log(since=10_000) == ["10000 sync_group a: UNKNOWN_MEMBER_ID"]


def test_sync_in_preparing_is_rebalance_in_progress() -> None:
    group = preparing()
    group.sync(10_000, "b")
    assert group.log(since=10_000) == ["10000 sync_group b: REBALANCE_IN_PROGRESS"]


def test_sync_in_completing_waits_for_leader() -> None:
    group = completing()
    group.sync(10_000, "b")
    assert group.log(since=10_000) == []
    group.sync(10_500, "a", leader=False)
    assert group.log(since=10_000) == [
        "10500 sync_group a: NONE",
        "10500 sync_group b: NONE",
        "10500 CompletingRebalance → Stable 1 [a b]: leader's assignment",
    ]


def test_sync_in_stable_gets_assignment() -> None:
    group = stable()
    group.sync(10_000, "b")
    assert group.log(since=10_000) == ["10000 sync_group b: NONE"]


# Heartbeat, offset commit.


def test_heartbeat_in_empty_is_unknown_member() -> None:
    group = empty()
    group.heartbeat(10_000, "a", generation=2)
    assert group.log(since=10_000) == ["10000 heartbeat a: UNKNOWN_MEMBER_ID"]


@pytest.mark.parametrize(
    ("state", "answer"),
    [("PreparingRebalance", "REBALANCE_IN_PROGRESS"), ("CompletingRebalance", "NONE"), ("Stable", "NONE")],
)
def test_heartbeat_renews_session_in_every_state(state: str, answer: str) -> None:
    group = NOT_EMPTY[state]()
    group.heartbeat(10_000, "b")
    assert group.log(since=10_000) == [f"10000 heartbeat b: {answer}"]
    assert "heartbeat g-b: 10000 to" in "\n".join(group.operations(drain=True))


def test_offset_commit_in_empty_needs_no_generation() -> None:
    group = empty()
    group.commit(10_000, "", generation=-1)
    group.commit(10_000, "a", generation=2)
    assert group.log(since=10_000) == ["10000 offset_commit : NONE", "10000 offset_commit a: UNKNOWN_MEMBER_ID"]


@pytest.mark.parametrize(
    ("state", "answer"),
    [("PreparingRebalance", "NONE"), ("CompletingRebalance", "REBALANCE_IN_PROGRESS"), ("Stable", "NONE")],
)
def test_stored_offset_commit_renews_session(state: str, answer: str) -> None:
    group = NOT_EMPTY[state]()
    group.commit(10_000, "b")
    assert group.log(since=10_000) == [f"10000 offset_commit b: {answer}"]
    renewed = "heartbeat g-b: 10000 to" in "\n".join(group.operations(drain=True))
    assert renewed == (answer == "NONE")
    (committed,) = (each for each in group.replay().groups.entries if getattr(each, "api", "") == "offset_commit")
    assert getattr(committed, "awaits_commits", None) == (answer == "NONE"), "stored offsets are records"


def test_offset_commit_without_member_is_rejected() -> None:
    group = stable()
    group.commit(10_000, "", generation=-1)
    assert group.log(since=10_000) == ["10000 offset_commit : UNKNOWN_MEMBER_ID"]


# Leave.


def test_leave_in_empty_is_unknown_member() -> None:
    group = empty()
    group.leave(10_000, "a")
    assert group.log(since=10_000) == ["10000 leave_group a: UNKNOWN_MEMBER_ID"]


def test_leave_in_preparing_can_complete_join() -> None:
    group = preparing()
    group.leave(10_000, "b")
    assert group.log(since=10_000) == [
        "10000 b out: leave",
        "10000 PreparingRebalance → CompletingRebalance 2 [a]: all members joined",
        "10000 join_group a: NONE, generation 2 led by a",
        "10000 leave_group b: NONE",
    ]


@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_leave_in_completing_or_stable_rebalances(state: str) -> None:
    group = NOT_EMPTY[state]()
    group.leave(10_000, "a")
    assert group.log(since=10_000) == [
        "10000 a out: leave",
        f"10000 {state} → PreparingRebalance 1 [b]: member a left",
        "10000 leave_group a: NONE",
    ]


# Session expiration.


def test_empty_group_has_no_session() -> None:
    group = empty()
    group.until(60_000)
    assert group.log(since=4501) == []
    assert group.replay().open == []


def test_session_expiration_in_preparing_can_complete_join() -> None:
    group = preparing(session_timeout_ms=2000)
    group.until(9100)
    assert group.log(since=9000) == [
        "9000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "9100 b out: session",
        "9100 PreparingRebalance → CompletingRebalance 2 [a]: all members joined",
        "9100 join_group a: NONE, generation 2 led by a",
    ]


@pytest.mark.parametrize(("state", "at"), [("CompletingRebalance", 9000), ("Stable", 9100)])
def test_session_expiration_in_completing_or_stable_rebalances(state: str, at: int) -> None:
    group = NOT_EMPTY[state](session_timeout_ms=2000)
    group.until(at - 1)
    before = group.log()
    group.until(at)
    assert group.log()[len(before) :] == [
        f"{at} b out: session",
        f"{at} {state} → PreparingRebalance 1 [a]: session of b expired",
    ]
