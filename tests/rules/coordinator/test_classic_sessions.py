"""Sessions: which requests renew them, when they expire, and when they complete without effect."""

from __future__ import annotations

import pytest

from purgatory_udf.rules.coordinator.classic_sessions import SessionTimer
from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer, TimerTask
from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, GroupTimeline


def stable_alone(session_ms: int = 10_000) -> GroupTimeline:
    """Return a Stable group of member a, with its session started at 4100."""
    group = GroupTimeline()
    group.join(1000, "a", session_timeout_ms=session_ms)
    group.sync(4100, "a")
    return group


def test_session_expires_at_deadline() -> None:
    group = stable_alone()
    group.until(14_099)
    assert group.log(since=4101) == []
    group.until(14_100)
    assert group.log(since=4101) == [
        "14100 a out: session",
        "14100 Stable → PreparingRebalance 1 []: session of a expired",
        "14100 PreparingRebalance → Empty 2 []: no members left",
    ]


def test_heartbeat_before_deadline_is_in_time() -> None:
    group = stable_alone()
    group.heartbeat(14_099.999, "a")
    group.until(24_098)
    assert group.log(since=4101) == ["14099 heartbeat a: NONE"]


def test_heartbeat_at_deadline_is_too_late() -> None:
    group = stable_alone()
    group.heartbeat(14_100, "a")
    assert group.log(since=4101) == [
        "14100 a out: session",
        "14100 Stable → PreparingRebalance 1 []: session of a expired",
        "14100 PreparingRebalance → Empty 2 []: no members left",
        "14100 heartbeat a: UNKNOWN_MEMBER_ID",
    ]


def test_session_starts_at_millisecond_of_heartbeat() -> None:
    group = stable_alone()
    group.heartbeat(5000.999, "a")
    group.until(15_000)
    assert group.log(since=5001)[0] == "15000 a out: session"


@pytest.mark.parametrize(("coordinator", "first"), [("old", "a"), ("new", "b")])
def test_coordinator_decides_order_of_sessions(coordinator: str, first: str) -> None:
    """Sessions of one millisecond expire by their starts; at the new coordinator in the order of a timing wheel."""
    group = GroupTimeline(coordinator=coordinator)
    group.join(1000, "a")
    group.join(1000, "b", session_timeout_ms=5000)
    for member in "ab":
        group.sync(6000, member)
    for ms, member in ((7000, "a"), (10_000, "b"), (12_000, "b")):
        group.heartbeat(ms, member)
    group.until(17_000)
    removed = [line for line in group.log() if " out: " in line]
    assert removed[0] == f"17000 {first} out: session"


@pytest.mark.parametrize("request_name", ["heartbeat", "commit", "sync"])
def test_heartbeats_commits_and_syncs_renew_session(request_name: str) -> None:
    group = stable_alone()
    getattr(group, request_name)(9000, "a")
    group.until(20_000)
    assert group.log(since=9001)[0] == "19000 a out: session"


def test_join_answered_at_once_renews_nothing() -> None:
    """The join does not change the timeouts either."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b")
    group.sync(6000, "a")
    group.sync(6000, "b")
    group.heartbeat(10_000, "a")
    group.rejoin(12_000, "b", session_timeout_ms=60_000)
    group.until(16_000)
    assert group.log(since=12_000)[:2] == ["12000 join_group b: NONE, generation 1 led by a", "16000 b out: session"]


def test_rejected_requests_renew_nothing() -> None:
    group = GroupTimeline()
    group.join(1000, "a", group_instance_id="i")
    group.sync(4100, "a", group_instance_id="i")
    group.heartbeat(5000, "a", generation=2)
    group.commit(5000, "a", generation=0)
    group.sync(5000, "a", generation=0)
    group.heartbeat(5000, "z")
    group.heartbeat(5000, "z", group_instance_id="i")
    group.heartbeat(5000, "a", group_instance_id="j")
    group.commit(5000, "a", group="other")
    group.until(14_100)
    assert group.log(since=5000)[:8] == [
        "5000 heartbeat a: ILLEGAL_GENERATION",
        "5000 offset_commit a: ILLEGAL_GENERATION",
        "5000 sync_group a: ILLEGAL_GENERATION",
        "5000 heartbeat z: UNKNOWN_MEMBER_ID",
        "5000 heartbeat z: FENCED_INSTANCE_ID",
        "5000 heartbeat a: UNKNOWN_MEMBER_ID",
        "5000 offset_commit a: ILLEGAL_GENERATION",
        "14100 a out: session",
    ]


def test_session_completes_while_join_waits() -> None:
    group = GroupTimeline(initial_rebalance_delay_ms=5000)
    group.join(1000, "a", session_timeout_ms=2000)
    group.join(1000, "b", session_timeout_ms=10_000)
    group.sync(6050, "a")
    group.sync(6050, "b")
    group.rejoin(7000, "a", session_timeout_ms=2000)
    group.until(13_000)
    assert group.log(since=7000) == [
        "7000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "12000 b out: rejoin",
        "12000 PreparingRebalance → CompletingRebalance 2 [a]: b did not rejoin",
        "12000 join_group a: NONE, generation 2 led by a",
    ]
    assert [line for line in group.operations() if "g-a: 6050" in line] == [
        "heartbeat g-a: 6050 to 8050 of 8050, completed by awaiting_join"
    ]


def test_session_completes_while_sync_waits() -> None:
    """The answer to the sync starts the next session."""
    group = GroupTimeline(initial_rebalance_delay_ms=6000)
    group.join(1000, "a")
    group.join(1000, "b", session_timeout_ms=2000)
    group.sync(7100, "b")
    group.sync(10_500, "a")
    group.until(12_500)
    assert group.log(since=7001) == [
        "10500 sync_group a: NONE",
        "10500 sync_group b: NONE",
        "10500 CompletingRebalance → Stable 1 [a b]: leader's assignment",
        "12500 b out: session",
        "12500 Stable → PreparingRebalance 1 [a]: session of b expired",
    ]
    assert [line for line in group.operations() if "g-b: 7000" in line] == [
        "heartbeat g-b: 7000 to 9000 of 9000, completed by awaiting_sync"
    ]


def test_heartbeat_of_waiting_member_ends_its_session() -> None:
    """The member has no session until its sync is answered."""
    group = GroupTimeline(initial_rebalance_delay_ms=6000)
    group.join(1000, "a")
    group.join(1000, "b", session_timeout_ms=2000)
    group.sync(7100, "b")
    group.heartbeat(7200, "b")
    group.sync(11_000, "a")
    assert [line for line in group.operations() if "g-b: 7" in line] == [
        "heartbeat g-b: 7000 to 7200 of 9000, completed by heartbeat",
        "heartbeat g-b: 7200 to 7200 of 9200, completed by awaiting_sync on arrival",
    ]
    assert group.log(since=7101)[1:] == [
        "11000 sync_group a: NONE",
        "11000 sync_group b: NONE",
        "11000 CompletingRebalance → Stable 1 [a b]: leader's assignment",
    ]


def test_new_member_expires_after_five_minutes() -> None:
    group = GroupTimeline()
    group.join(1000, "a", session_timeout_ms=400_000, rebalance_timeout_ms=600_000)
    group.sync(4100, "a")
    group.join(5000, "b", session_timeout_ms=10_000)
    group.until(305_000)
    assert group.log(since=5000) == [
        "5000 Stable → PreparingRebalance 1 [a b]: member b joined",
        "305000 join_group b: UNKNOWN_MEMBER_ID",
        "305000 b out: session",
    ]


def test_heartbeat_of_new_member_starts_ordinary_session() -> None:
    """A client that was assigned its id before the first join can send heartbeats."""
    group = GroupTimeline()
    group.join(1000, "a", session_timeout_ms=400_000, rebalance_timeout_ms=600_000)
    group.sync(4100, "a")
    group.join(4200, "b", api_version=WITH_MEMBER_ID_REQUIRED)
    group.rejoin(5000, "b", session_timeout_ms=10_000)
    group.heartbeat(6000, "b")
    group.until(16_000)
    assert group.log(since=6000) == [
        "6000 heartbeat b: REBALANCE_IN_PROGRESS",
        "16000 join_group b: UNKNOWN_MEMBER_ID",
        "16000 b out: session",
    ]


def test_pending_id_expires_after_session_timeout() -> None:
    group = stable_alone()
    group.join(5000, "p", api_version=WITH_MEMBER_ID_REQUIRED, session_timeout_ms=2000)
    group.heartbeat(5500, "p")
    group.rejoin(7000, "p")
    assert group.log(since=5000) == [
        "5000 join_group p: MEMBER_ID_REQUIRED, id p",
        "5500 heartbeat p: UNKNOWN_MEMBER_ID",
        "7000 p out: pending",
        "7000 join_group p: UNKNOWN_MEMBER_ID",
    ]


def test_generation_restarts_session_of_absent_static_member() -> None:
    group = GroupTimeline()
    group.join(1000, "s", group_instance_id="i", session_timeout_ms=8000, rebalance_timeout_ms=6000)
    group.sync(7100, "s", group_instance_id="i")
    group.join(8000, "b", rebalance_timeout_ms=6000, session_timeout_ms=60_000)
    group.sync(14_100, "b", generation=2)
    group.until(20_000)
    lines = group.operations()
    assert "heartbeat g-s: 7100 to 14000 of 15100, completed by new_generation" in lines
    assert "heartbeat g-s: 14000 to 20000 of 22000, completed by removed" in lines


def test_session_of_replaced_id_has_no_effect() -> None:
    group = GroupTimeline()
    group.join(1000, "s", group_instance_id="i")
    group.sync(4100, "s", group_instance_id="i")
    group.join(5000, "s2", group_instance_id="i")
    group.heartbeat(14_000, "s2", group_instance_id="i")
    group.until(15_000)
    assert group.log(since=5001) == ["14000 heartbeat s2: NONE"]
    assert "heartbeat g-s: 4100 to 14100 of 14100, completed by replaced" in group.operations()


def test_session_expires_before_join_in_same_millisecond() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000, session_timeout_ms=4000)
    group.sync(4000, "a")
    group.sync(4000, "b")
    group.rejoin(5000, "a")
    group.until(8000)
    assert group.log(since=5000) == [
        "5000 Stable → PreparingRebalance 1 [a b]: leader a joined again",
        "8000 b out: session",
        "8000 PreparingRebalance → CompletingRebalance 2 [a]: all members joined",
        "8000 join_group a: NONE, generation 2 led by a",
    ]


def test_session_expires_before_sync_in_same_millisecond() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000, session_timeout_ms=3000)
    group.sync(4100, "a")
    group.until(7000)
    assert group.log(since=4101) == [
        "7000 b out: session",
        "7000 Stable → PreparingRebalance 1 [a]: session of b expired",
    ]


def test_sessions_expire_in_order_of_start() -> None:
    """The session of b is in a coarse wheel until 5020, when that of a is already in the bucket of 5025."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000, session_timeout_ms=10)
    group.join(1000, "b", rebalance_timeout_ms=3000, session_timeout_ms=1024)
    group.join(1000, "c", rebalance_timeout_ms=3000)
    for member in ("a", "b", "c"):
        group.sync(4001, member)
    for ms in range(4005, 5020, 5):
        group.heartbeat(ms, "a")
    group.until(5025)
    assert group.log(since=5016) == [
        "5025 b out: session",
        "5025 Stable → PreparingRebalance 1 [a c]: session of b expired",
        "5025 a out: session",
    ]


def test_group_of_vanished_members_becomes_empty() -> None:
    """Timers empty the group, without further events."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000, session_timeout_ms=6000)
    group.join(1000, "b", rebalance_timeout_ms=3000, session_timeout_ms=30_000)
    group.join(1000, "s", rebalance_timeout_ms=3000, session_timeout_ms=20_000, group_instance_id="i")
    for member in ("a", "b"):
        group.sync(4000, member)
    group.sync(4000, "s", group_instance_id="i")
    assert [(change.at_us, change.to_state, change.reason) for change in group.replay(drain=True).transitions[3:]] == [
        (10_000_000, "PreparingRebalance", "session of a expired"),
        (24_000_000, "Empty", "no members left"),
    ]
    assert group.operations(drain=True)[-5:] == [
        "join g: 10000 to 13000 of 13000, expired",
        "join g: 13000 to 16000 of 16000, expired",
        "join g: 16000 to 19000 of 19000, expired",
        "join g: 19000 to 22000 of 22000, expired",
        "join g: 22000 to 24000 of 25000, completed by no_members",
    ]


def test_session_expires_when_coordinator_resumes() -> None:
    """A heartbeat that waited in a queue is handled before the timers run again, or after."""
    for handled_ms, last in (
        (20_000, "20000 heartbeat a: NONE"),
        (20_003, "20003 heartbeat a: UNKNOWN_MEMBER_ID"),
    ):
        group = stable_alone()
        group.pause(12_000, 20_002)
        group.heartbeat(handled_ms, "a")
        log = group.log(since=4101)
        assert log[-1] == last
        assert ("20002 a out: session" in log) == (handled_ms == 20_003)


class _Session(TimerTask):
    """The part of a `DelayedHeartbeat` that a `SessionTimer` uses."""

    def __init__(self, deadline_ms: int, order: int, timer: SessionTimer, expired: list[tuple[int, int]]) -> None:
        super().__init__(deadline_ms)
        self.order, self._timer, self._expired = order, timer, expired

    def run(self, now_ms: int) -> None:
        self._timer.expire_in_order(self, now_ms)  # type: ignore[arg-type]

    def expire(self, now_ms: int) -> None:
        self._expired.append((self.order, now_ms))


def test_sessions_that_are_due_already_expire_in_order() -> None:
    """A broker that resumes after a pause runs the timers that became due meanwhile."""
    timer, expired = SessionTimer(SystemTimer(100)), list[tuple[int, int]]()
    for order in (2, 1):
        timer.add(_Session(50, order, timer, expired))
    assert timer.run_due() is True
    assert expired == [(1, 50), (2, 50)]
    assert timer.run_due() is False
