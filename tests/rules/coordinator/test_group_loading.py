"""A group that moves to another coordinator, and a coordinator that stops.

Kafka: GroupCoordinator.onGroupUnloaded and .onGroupLoaded; GroupCoordinator.shutdown, which shuts its purgatories down
without completing operations (DelayedOperationPurgatory.shutdown).
"""

from __future__ import annotations

from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, GroupTimeline


def stable() -> GroupTimeline:
    """Return a group of leader a and follower b, with generation 1 stable from 6,100 on."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6050, "b")
    group.sync(6100, "a", leader=True)
    return group


def test_unloading_answers_waiting_joins_not_coordinator() -> None:
    """onGroupUnloaded, PreparingRebalance. The join then expires without effect (onCompleteJoin: "is dead")."""
    group = stable()
    group.rejoin(7000, "a")
    group.unloaded(8000)
    group.rejoin(8500, "a")
    group.until(20_000)
    assert group.log(since=7000) == [
        "7000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "8000 PreparingRebalance → Dead 1 [a b]: unloaded",
        "8000 join_group a: NOT_COORDINATOR",
        "8500 join_group a: NOT_COORDINATOR",
    ]
    assert "join g: 7000 to 12000 of 12000, expired" in group.operations()


def test_unloading_drops_pending_id() -> None:
    group = stable()
    group.join(7000, "late", api_version=WITH_MEMBER_ID_REQUIRED)
    group.unloaded(8000)
    group.until(8000)
    assert group.operations()[-1] == "heartbeat g-late: 7000 to 8000 of 17000, completed by removed"


def test_static_member_of_loaded_group_restarts() -> None:
    """The loaded group has the protocol of its members, so no rebalance is needed."""
    group = GroupTimeline()
    group.loaded(1000, "s", generation=3, group_instance_id="i")
    group.join(2000, "s2", group_instance_id="i")
    assert group.log(since=2000) == ["2000 s out: replaced", "2000 join_group s2: NONE, generation 3 led by s"]


def test_unloading_answers_waiting_syncs_not_coordinator() -> None:
    """onGroupUnloaded, CompletingRebalance; removeSyncExpiration, tryCompletePendingSync."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6500, "b")
    group.unloaded(7000)
    group.sync(7100, "a", leader=True)
    group.until(7100)
    assert group.log(since=6500) == [
        "7000 CompletingRebalance → Dead 1 [a b]: unloaded",
        "7000 sync_group b: NOT_COORDINATOR",
        "7100 sync_group a: NOT_COORDINATOR",
    ]
    assert "sync g: 6000 to 7000 of 11000, completed by unloaded" in group.operations()


def test_sessions_of_unloaded_group_complete_at_deadline() -> None:
    """tryCompleteHeartbeat and onExpireHeartbeat: the group is Dead."""
    group = stable()
    group.heartbeat(7000, "a")
    group.unloaded(8000)
    group.heartbeat(9000, "a")
    group.until(30_000)
    assert group.log(since=8000) == ["8000 Stable → Dead 1 [a b]: unloaded", "9000 heartbeat a: NOT_COORDINATOR"]
    assert [line for line in group.operations() if "unloaded" in line] == [
        "heartbeat g-b: 6100 to 16100 of 16100, completed by unloaded",
        "heartbeat g-a: 7000 to 17000 of 17000, completed by unloaded",
    ]


def test_loaded_group_is_stable_with_new_sessions() -> None:
    """onGroupLoaded: completeAndScheduleNextHeartbeatExpiration for each member; loadGroup: Stable."""
    group = GroupTimeline()
    group.unloaded(500)
    group.heartbeat(1000, "a", generation=7)
    group.loaded(2000, "a", "b", generation=7)
    group.heartbeat(3000, "a", generation=7)
    group.heartbeat(3100, "a", generation=6)
    group.until(12_500)
    assert group.log() == [
        "1000 heartbeat a: NOT_COORDINATOR",
        "2000 Dead → Stable 7 [a b]: loaded",
        "3000 heartbeat a: NONE",
        "3100 heartbeat a: ILLEGAL_GENERATION",
        "12000 b out: session",
        "12000 Stable → PreparingRebalance 7 [a]: session of b expired",
    ]
    assert group.operations()[:2] == [
        "heartbeat g-a: 2000 to 3000 of 12000, completed by heartbeat",
        "heartbeat g-b: 2000 to 12000 of 12000, expired",
    ]


def test_group_loaded_empty_keeps_generation() -> None:
    """loadGroup: Empty without members. The next generation is the stored one + 1."""
    group = GroupTimeline(initial_rebalance_delay_ms=0)
    group.loaded(1000, generation=4)
    group.join(2000, "a")
    group.until(2000)
    assert group.log() == [
        "1000 Dead → Empty 4 []: loaded",
        "2000 Empty → PreparingRebalance 4 [a]: member a joined",
        "2000 PreparingRebalance → CompletingRebalance 5 [a]: initial delay over",
        "2000 join_group a: NONE, generation 5 led by a",
    ]


def test_loading_completes_sessions_of_unloaded_group() -> None:
    """The group of the old session is Dead, so any check of its key completes it: tryCompleteHeartbeat."""
    group = stable()
    group.unloaded(7000)
    group.loaded(8000, "a", generation=1)
    group.until(8000)
    assert [line for line in group.operations() if "unloaded" in line] == [
        "heartbeat g-a: 6100 to 8000 of 16100, completed by unloaded"
    ]


def test_loading_too_many_members_triggers_rebalance() -> None:
    """onGroupLoaded: groupIsOverCapacity → prepareRebalance."""
    group = GroupTimeline(max_size=1)
    group.loaded(1000, "a", "b", "c", generation=3)
    group.until(1000)
    assert group.log() == [
        "1000 Dead → Stable 3 [a b c]: loaded",
        "1000 Stable → PreparingRebalance 3 [a b c]: loaded with more members than it may have",
    ]


def test_loading_of_known_group_is_ignored() -> None:
    group = stable()
    group.loaded(7000, "x", generation=9)
    group.heartbeat(7100, "a")
    group.until(7100)
    assert group.log(since=7000) == ["7100 heartbeat a: NONE"]


def test_stop_cancels_operations_without_answers() -> None:
    group = stable()
    group.rejoin(7000, "a")
    group.stopped(8000)
    group.rejoin(8500, "a")
    group.until(30_000)
    assert group.log(since=7000) == [
        "7000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "8000 PreparingRebalance → Dead 1 [a b]: stopped",
        "8500 join_group a: NOT_COORDINATOR",
    ]
    assert [line for line in group.operations() if "cancelled" in line] == [
        "heartbeat g-a: 6100 to 8000 of 16100, cancelled by broker_stopped",
        "heartbeat g-b: 6100 to 8000 of 16100, cancelled by broker_stopped",
        "join g: 7000 to 8000 of 12000, cancelled by broker_stopped",
    ]


def test_stop_cancels_waiting_sync_and_pending_id() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.join(6200, "late", api_version=WITH_MEMBER_ID_REQUIRED)
    group.sync(6500, "b")
    group.stopped(7000)
    group.until(30_000)
    assert group.log(since=6500) == ["7000 CompletingRebalance → Dead 1 [a b]: stopped"]
    assert [line for line in group.operations() if "cancelled" in line] == [
        "heartbeat g-a: 6000 to 7000 of 16000, cancelled by broker_stopped",
        "heartbeat g-b: 6000 to 7000 of 16000, cancelled by broker_stopped",
        "sync g: 6000 to 7000 of 11000, cancelled by broker_stopped",
        "heartbeat g-late: 6200 to 7000 of 16200, cancelled by broker_stopped",
    ]


def test_stop_cancels_sessions_of_unloaded_group() -> None:
    """A broker in controlled shutdown unloads its groups first; their sessions stay in its purgatory until it stops."""
    group = stable()
    group.unloaded(7000)
    group.stopped(9000)
    group.loaded(12_000, "a", "b", generation=1)
    group.heartbeat(13_000, "a")
    group.until(13_000)
    assert group.log(since=7000) == [
        "7000 Stable → Dead 1 [a b]: unloaded",
        "12000 Dead → Stable 1 [a b]: loaded",
        "13000 heartbeat a: NONE",
    ]
    assert [line for line in group.operations() if "cancelled" in line] == [
        "heartbeat g-a: 6100 to 9000 of 16100, cancelled by broker_stopped",
        "heartbeat g-b: 6100 to 9000 of 16100, cancelled by broker_stopped",
    ]


def test_session_expires_before_stop_in_same_millisecond() -> None:
    group = stable()
    group.stopped(16_100)
    group.until(20_000)
    assert group.log(since=16_000) == [
        "16100 a out: session",
        "16100 Stable → PreparingRebalance 1 [b]: session of a expired",
        "16100 b out: session",
        "16100 PreparingRebalance → Empty 2 []: no members left",
        "16100 Empty → Dead 2 []: stopped",
    ]
