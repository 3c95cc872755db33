"""Rebalances: members that do not rejoin or sync, static and pending members, and removed members."""

from __future__ import annotations

from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, GroupTimeline, stable_pair

# Members that do not rejoin.


def test_member_is_removed_at_rebalance_timeout() -> None:
    group = stable_pair()
    group.rejoin(5000, "a", rebalance_timeout_ms=3000)
    group.heartbeat(7000, "b")
    group.until(8000)
    assert group.log(since=5000) == [
        "5000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "7000 heartbeat b: REBALANCE_IN_PROGRESS",
        "8000 b out: rejoin",
        "8000 PreparingRebalance → CompletingRebalance 2 [a]: b did not rejoin",
        "8000 join_group a: NONE, generation 2 led by a",
    ]
    assert "join g: 5000 to 8000 of 8000, expired" in group.operations()


def test_join_lasts_greatest_rebalance_timeout() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=2000)
    group.join(1000, "b", rebalance_timeout_ms=4000)
    group.sync(5500, "a")
    group.sync(5500, "b")
    group.join(6000, "c", rebalance_timeout_ms=1000)
    group.rejoin(6500, "a", rebalance_timeout_ms=9000)
    group.until(20_000)
    assert "10000 b out: rejoin" in group.log(), "6000 + 4000: the new timeout of a counts from the next rebalance on"


def test_initial_delay_ends_at_rebalance_timeout() -> None:
    """3 s + 3 s + 3 s + 1 s: the last member of the fourth part extends the wait no more."""
    group = GroupTimeline(initial_rebalance_delay_ms=3000)
    for ms, member in ((1000, "a"), (2000, "b"), (5000, "c"), (8000, "d"), (10_500, "e")):
        group.join(ms, member, rebalance_timeout_ms=10_000)
    group.until(11_000)
    assert [line for line in group.operations() if line.startswith("initial_join")] == [
        "initial_join g: 1000 to 4000 of 4000, expired",
        "initial_join g: 4000 to 7000 of 7000, expired",
        "initial_join g: 7000 to 10000 of 10000, expired",
        "initial_join g: 10000 to 11000 of 11000, expired",
    ]


def test_older_rule_uses_session_timeouts() -> None:
    """Before Kafka 0.10.1 a rebalance lasted the greatest session timeout."""
    group = GroupTimeline(rebalance_timeout="session", initial_rebalance_delay_ms=10_000)
    for member in "ab":
        group.join(1000, member)
    for member in "ab":
        group.sync(11_000, member)
    group.rejoin(12_000, "a", session_timeout_ms=9000)
    group.heartbeat(14_000, "b")
    group.until(22_000)
    assert group.log(since=14_001)[:2] == [
        "22000 b out: rejoin",
        "22000 PreparingRebalance → CompletingRebalance 2 [a]: b did not rejoin",
    ]


def test_group_is_empty_if_no_member_rejoins() -> None:
    group = stable_pair()
    group.leave(5000, "a")
    group.heartbeat(7000, "b")
    group.until(8000)
    assert group.log(since=5000) == [
        "5000 a out: leave",
        "5000 Stable → PreparingRebalance 1 [b]: member a left",
        "5000 leave_group a: NONE",
        "7000 heartbeat b: REBALANCE_IN_PROGRESS",
        "8000 b out: rejoin",
        "8000 PreparingRebalance → Empty 2 []: b did not rejoin",
    ]


def test_join_restarts_while_static_members_remain() -> None:
    """No member rejoins, but a static member stays in the group."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "s", rebalance_timeout_ms=3000, group_instance_id="i")
    group.sync(4100, "a")
    group.sync(4100, "s", group_instance_id="i")
    group.leave(5000, "a")
    group.until(20_000)
    assert group.log(since=5000) == [
        "5000 a out: leave",
        "5000 Stable → PreparingRebalance 1 [s]: member a left",
        "5000 leave_group a: NONE",
        "14100 s out: session",
        "14100 PreparingRebalance → Empty 2 []: no members left",
    ]
    assert [line for line in group.operations() if line.startswith("join")] == [
        "join g: 5000 to 8000 of 8000, expired",
        "join g: 8000 to 11000 of 11000, expired",
        "join g: 11000 to 14000 of 14000, expired",
        "join g: 14000 to 14100 of 17000, completed by no_members",
    ]


def test_zero_rebalance_timeout_lets_time_pass() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "s", rebalance_timeout_ms=0, session_timeout_ms=1003, group_instance_id="i")
    group.leave(5000, "a")
    group.until(6000)
    assert group.log(since=5001) == ["5003 s out: session", "5003 PreparingRebalance → Empty 2 []: no members left"]
    assert group.operations()[-4:] == [
        "join g: 5000 to 5000 of 5000, expired",
        "join g: 5000 to 5001 of 5001, expired",
        "join g: 5001 to 5002 of 5002, expired",
        "join g: 5002 to 5003 of 5003, completed by no_members",
    ]


def test_static_member_stays_until_sync_timeout() -> None:
    group = GroupTimeline()
    group.join(1000, "s", group_instance_id="i", session_timeout_ms=60_000)
    group.sync(4100, "s", group_instance_id="i")
    group.join(10_000, "b", session_timeout_ms=60_000)
    group.sync(15_100, "b", generation=2)
    group.until(20_000)
    assert group.log(since=10_000) == [
        "10000 Stable → PreparingRebalance 1 [b s]: member b joined",
        "15000 PreparingRebalance → CompletingRebalance 2 [b s]: s did not rejoin",
        "15000 join_group b: NONE, generation 2 led by b",
        "15100 sync_group b: NONE",
        "15100 CompletingRebalance → Stable 2 [b s]: leader's assignment",
        "20000 s out: sync",
        "20000 Stable → PreparingRebalance 2 [b]: s did not sync",
    ]


def test_pending_member_delays_join_until_session_expires() -> None:
    group = stable_pair()
    group.join(4500, "p", api_version=WITH_MEMBER_ID_REQUIRED, session_timeout_ms=2000)
    group.rejoin(5000, "a", rebalance_timeout_ms=3000)
    group.rejoin(5000, "b", rebalance_timeout_ms=3000)
    group.until(6500)
    assert group.log(since=5000) == [
        "5000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "6500 p out: pending",
        "6500 PreparingRebalance → CompletingRebalance 2 [a b]: all members joined",
        "6500 join_group a: NONE, generation 2 led by a",
        "6500 join_group b: NONE, generation 2 led by a",
    ]


def test_pending_member_does_not_extend_rebalance_timeout() -> None:
    group = stable_pair()
    group.join(4500, "p", api_version=WITH_MEMBER_ID_REQUIRED)
    group.rejoin(5000, "a", rebalance_timeout_ms=3000)
    group.rejoin(5000, "b", rebalance_timeout_ms=3000)
    group.until(8000)
    assert group.log(since=5001)[0] == "8000 PreparingRebalance → CompletingRebalance 2 [a b]: p did not join", (
        "the id can still be used"
    )
    group.rejoin(9000, "p")
    assert group.log(since=9000) == ["9000 CompletingRebalance → PreparingRebalance 2 [a b p]: member p joined"]


def test_join_completes_when_pending_member_leaves() -> None:
    group = stable_pair()
    group.join(4500, "p", api_version=WITH_MEMBER_ID_REQUIRED)
    group.rejoin(5000, "a", rebalance_timeout_ms=3000)
    group.rejoin(5000, "b", rebalance_timeout_ms=3000)
    group.leave(6000, "p")
    assert group.log(since=5001)[:2] == [
        "6000 p out: leave",
        "6000 PreparingRebalance → CompletingRebalance 2 [a b]: all members joined",
    ]
    assert group.log()[-1] == "6000 leave_group p: NONE"
    assert "heartbeat g-p: 4500 to 14500 of 14500, completed by removed" in group.operations(drain=True)


# Missing syncs.


def test_leader_without_sync_is_removed() -> None:
    """The waiting syncs are answered REBALANCE_IN_PROGRESS."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000)
    group.sync(4100, "b")
    group.heartbeat(6000, "a")
    group.until(7000)
    assert group.log(since=4001) == [
        "6000 heartbeat a: NONE",
        "7000 a out: sync",
        "7000 sync_group b: REBALANCE_IN_PROGRESS",
        "7000 CompletingRebalance → PreparingRebalance 1 [b]: a did not sync",
    ]
    assert "sync g: 4000 to 7000 of 7000, expired" in group.operations()


def test_follower_without_sync_is_removed() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000)
    group.sync(4100, "a")
    group.heartbeat(6000, "b")
    group.until(7000)
    assert group.log(since=6000) == [
        "6000 heartbeat b: NONE",
        "7000 b out: sync",
        "7000 Stable → PreparingRebalance 1 [a]: b did not sync",
    ]


def test_repeated_sync_of_leader_keeps_commit() -> None:
    """The new coordinator has appended the record of the first sync, and does not append another one."""
    group = GroupTimeline(coordinator="new", commit_delay_ms=100)
    group.join(1000, "a")
    group.sync(4100, "a", request_id="first")
    group.sync(4150, "a", request_id="second")
    group.until(5000)
    assert group.log(since=4100)[-2:] == [
        "4200 sync_group second: NONE",
        "4200 CompletingRebalance → Stable 1 [a]: leader's assignment",
    ]


def test_next_generation_has_commit_of_its_own() -> None:
    group = GroupTimeline(coordinator="new", commit_delay_ms=100)
    group.join(1000, "a")
    group.sync(4100, "a")
    group.rejoin(4150, "a", protocols=["range", "other"])
    group.sync(4160, "a", generation=2)
    group.until(5000)
    assert group.log(since=4160)[-2:] == [
        "4260 sync_group a: NONE",
        "4260 CompletingRebalance → Stable 2 [a]: leader's assignment",
    ]


def test_static_restart_before_sync_triggers_rebalance() -> None:
    """Kafka does not rename the id among the pending syncs, so the old id misses the deadline."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "s", rebalance_timeout_ms=3000, group_instance_id="i")
    group.sync(4100, "a")
    group.join(4200, "s2", group_instance_id="i")
    group.sync(4300, "s2", group_instance_id="i")
    group.until(7000)
    assert group.log(since=4301) == ["7000 Stable → PreparingRebalance 1 [a s2]: s did not sync"]


# Removed members.


def test_last_leave_empties_group_at_once() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.sync(4100, "a")
    group.leave(5000, "a")
    assert group.log(since=5000) == [
        "5000 a out: leave",
        "5000 Stable → PreparingRebalance 1 []: member a left",
        "5000 PreparingRebalance → Empty 2 []: no members left",
        "5000 leave_group a: NONE",
    ]
    assert group.operations()[-1] == "join g: 5000 to 5000 of 5000, completed by no_members on arrival"


def test_last_leave_empties_group_despite_pending_id() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.sync(4100, "a")
    group.join(4500, "p", api_version=WITH_MEMBER_ID_REQUIRED)
    group.leave(5000, "a")
    group.until(5000)
    assert group.log(since=5000) == [
        "5000 a out: leave",
        "5000 Stable → PreparingRebalance 1 []: member a left",
        "5000 leave_group a: NONE",
        "5000 PreparingRebalance → Empty 2 []: no members left",
    ]


def test_oldest_member_replaces_expired_leader() -> None:
    group = GroupTimeline()
    group.join(1000, "a", session_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000)
    group.join(1000, "c")
    group.sync(6100, "a")
    group.sync(6200, "b")
    group.sync(6200, "c")
    group.rejoin(9500, "c")
    group.rejoin(9600, "b")
    assert group.log(since=6201) == [
        "9100 a out: session",
        "9100 Stable → PreparingRebalance 1 [b c]: session of a expired",
        "9600 PreparingRebalance → CompletingRebalance 2 [b c]: all members joined",
        "9600 join_group b: NONE, generation 2 led by b",
        "9600 join_group c: NONE, generation 2 led by b",
    ]


def test_recorded_answers_decide_next_leader() -> None:
    group = GroupTimeline()
    for member in "abc":
        group.join(1000, member, rebalance_timeout_ms=3000)
    group.leave(4100, "a")
    group.rejoin(4200, "b", leader_member_id="c")
    group.rejoin(4300, "c", leader_member_id="c")
    assert group.log(since=4300) == [
        "4300 PreparingRebalance → CompletingRebalance 2 [b c]: all members joined",
        "4300 join_group b: NONE, generation 2 led by c",
        "4300 join_group c: NONE, generation 2 led by c",
    ]


def test_rejoining_leader_stays_leader() -> None:
    group = stable_pair()
    group.rejoin(5000, "a", leader_member_id="b")
    group.rejoin(5000, "b", leader_member_id="b")
    assert group.log(since=5000)[1:] == [
        "5000 PreparingRebalance → CompletingRebalance 2 [a b]: all members joined",
        "5000 join_group a: NONE, generation 2 led by a",
        "5000 join_group b: NONE, generation 2 led by a",
    ]


def test_leave_answers_waiting_join_but_not_sync() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000)
    group.sync(4100, "b")
    group.leave(4200, "b")
    group.join(4300, "c")
    group.leave(4400, "c")
    assert group.log(since=4100) == [
        "4200 b out: leave",
        "4200 CompletingRebalance → PreparingRebalance 1 [a]: member b left",
        "4200 leave_group b: NONE",
        "4400 join_group c: UNKNOWN_MEMBER_ID",
        "4400 c out: leave",
        "4400 leave_group c: NONE",
    ]


def test_static_member_can_be_removed_by_instance_id() -> None:
    group = GroupTimeline()
    group.join(1000, "s", group_instance_id="i")
    group.leave(4100, "", group_instance_id="other")
    group.leave(4200, "", group_instance_id="i")
    assert group.log(since=4100) == [
        "4100 leave_group : UNKNOWN_MEMBER_ID",
        "4200 s out: leave",
        "4200 CompletingRebalance → PreparingRebalance 1 []: member s left",
        "4200 PreparingRebalance → Empty 2 []: no members left",
        "4200 leave_group : NONE",
    ]


def test_second_join_supersedes_first() -> None:
    """The first join is never answered."""
    group = stable_pair()
    group.rejoin(5000, "a")
    group.rejoin(5500, "a", request_id="again")
    group.rejoin(6000, "b")
    assert group.log(since=5001) == [
        "6000 PreparingRebalance → CompletingRebalance 2 [a b]: all members joined",
        "6000 join_group again: NONE, generation 2 led by a",
        "6000 join_group b: NONE, generation 2 led by a",
    ]
