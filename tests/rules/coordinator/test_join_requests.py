"""Joins: the initial rebalance delay of a group, and rejected joins."""

from __future__ import annotations

import pytest

from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, GroupTimeline, stable_pair

# The initial delay.


def test_initial_delay_is_extended_up_to_rebalance_timeout() -> None:
    """Windows of 3, 3, 3 and 1 s while members keep joining."""
    #   1000          4000          7000         10000  11000
    #   │ a, b        │ c           │            │ d    │
    group = GroupTimeline()
    for ms, member in ((1000, "a"), (2000, "b"), (5000, "c"), (9000, "d")):
        group.join(ms, member, rebalance_timeout_ms=10_000)
    group.until(20_000)
    assert group.log() == [
        "1000 Empty → PreparingRebalance 0 [a]: member a joined",
        "11000 PreparingRebalance → CompletingRebalance 1 [a b c d]: initial delay over",
        "11000 join_group a: NONE, generation 1 led by a",
        "11000 join_group b: NONE, generation 1 led by a",
        "11000 join_group c: NONE, generation 1 led by a",
        "11000 join_group d: NONE, generation 1 led by a",
    ]
    assert [line for line in group.operations() if line.startswith("initial_join")] == [
        "initial_join g: 1000 to 4000 of 4000, expired",
        "initial_join g: 4000 to 7000 of 7000, expired",
        "initial_join g: 7000 to 10000 of 10000, expired",
        "initial_join g: 10000 to 11000 of 11000, expired",
    ]


def test_initial_delay_is_not_extended_for_first_member() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=10_000)
    group.until(20_000)
    assert group.log()[1] == "4000 PreparingRebalance → CompletingRebalance 1 [a]: initial delay over"


def test_initial_delay_is_extended_by_last_millisecond() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3001)
    group.join(2000, "b")
    group.until(4001)
    assert group.log()[1] == "4001 PreparingRebalance → CompletingRebalance 1 [a b]: initial delay over"


def test_initial_delay_is_extended_once_per_window() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=60_000)
    group.join(2000, "b")
    group.join(3000, "c")
    group.until(20_000)
    assert group.log()[1] == "7000 PreparingRebalance → CompletingRebalance 1 [a b c]: initial delay over"


def test_initial_delay_is_not_extended_beyond_rebalance_timeout() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(2000, "b", rebalance_timeout_ms=60_000)
    group.until(20_000)
    assert group.log()[1] == "4000 PreparingRebalance → CompletingRebalance 1 [a b]: initial delay over"


def test_emptied_group_has_one_initial_window() -> None:
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=60_000)
    group.leave(4500, "a")
    group.join(5000, "b", rebalance_timeout_ms=60_000)
    group.join(6000, "c")
    group.until(20_000)
    assert group.log(since=5000)[:2] == [
        "5000 Empty → PreparingRebalance 2 [b]: member b joined",
        "8000 PreparingRebalance → CompletingRebalance 3 [b c]: initial delay over",
    ]


def test_zero_initial_delay_completes_in_same_millisecond() -> None:
    group = GroupTimeline(initial_rebalance_delay_ms=0)
    group.join(1000.5, "a")
    group.until(1000.5)
    assert group.log() == [
        "1000 Empty → PreparingRebalance 0 [a]: member a joined",
        "1000 PreparingRebalance → CompletingRebalance 1 [a]: initial delay over",
        "1000 join_group a: NONE, generation 1 led by a",
    ]
    assert [entry.at_us for entry in group.replay().transitions] == [1_000_500, 1_000_500], "time does not go back"


def test_initial_delay_outlasts_last_member() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.leave(2000, "a")
    group.until(5000)
    assert group.log(since=2000) == [
        "2000 join_group a: UNKNOWN_MEMBER_ID",
        "2000 a out: leave",
        "2000 leave_group a: NONE",
        "4000 PreparingRebalance → Empty 1 []: no members left",
    ]


def test_initial_delay_ignores_pending_members() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(2000, "p", api_version=WITH_MEMBER_ID_REQUIRED)
    group.until(4000)
    assert group.log(since=2001)[0] == "4000 PreparingRebalance → CompletingRebalance 1 [a]: initial delay over"


# Rejected joins, and ids.


@pytest.mark.parametrize(("session_ms", "answer"), [(5999, "INVALID_SESSION_TIMEOUT"), (6000, None), (7000, None)])
def test_session_timeout_out_of_bounds_is_rejected(session_ms: int, answer: str | None) -> None:
    group = GroupTimeline(min_session_timeout_ms=6000, max_session_timeout_ms=7000)
    group.join(1000, "a", session_timeout_ms=session_ms)
    group.join(1000, "b", session_timeout_ms=7001)
    refused = [f"1000 join_group a: {answer}"] if answer else []
    assert [line for line in group.log() if "join_group" in line] == [
        *refused,
        "1000 join_group b: INVALID_SESSION_TIMEOUT",
    ]


def test_what_if_settings_override_recorded_timeouts() -> None:
    group = stable_pair(session_timeout_ms=2000, rebalance_timeout_ms="x0.5")
    group.rejoin(4200, "a", rebalance_timeout_ms=3000)
    group.until(10_000)
    assert group.log(since=4201)[:2] == [
        "5700 b out: rejoin",
        "5700 PreparingRebalance → CompletingRebalance 2 [a]: b did not rejoin",
    ], "half of 3 s"
    assert "7700 a out: session" not in group.log()
    assert "7200 a out: sync" in group.log()


def test_full_group_rejects_new_members() -> None:
    """The size is checked before the protocols."""
    group = stable_pair(max_size=2)
    group.join(5000, "c", protocols=["other"])
    group.rejoin(5100, "b")
    assert group.log(since=5000) == [
        "5000 join_group c: GROUP_MAX_SIZE_REACHED",
        "5100 join_group b: NONE, generation 1 led by a",
    ]


def test_full_group_rejects_last_member_to_rejoin() -> None:
    group = stable_pair(max_size=2)
    group.leave(5000, "b")
    group.join(5100, "c")
    group.join(5200, "d")
    group.rejoin(5300, "a", request_id="last")
    assert group.log(since=5001) == [
        "5300 a out: size",
        "5300 join_group last: GROUP_MAX_SIZE_REACHED",
        "5300 PreparingRebalance → CompletingRebalance 2 [c d]: all members joined",
        "5300 join_group c: NONE, generation 2 led by c",
        "5300 join_group d: NONE, generation 2 led by c",
    ]
    assert "heartbeat g-a: 4100 to 14100 of 14100, completed by removed" in group.operations(drain=True)


@pytest.mark.parametrize("protocols", [["other"], []])
def test_join_without_common_protocol_is_rejected(protocols: list[str]) -> None:
    group = stable_pair()
    group.join(5000, "c", protocols=protocols)
    group.rejoin(5000, "b", protocols=protocols)
    assert group.log(since=5000) == [
        "5000 join_group c: INCONSISTENT_GROUP_PROTOCOL",
        "5000 join_group b: INCONSISTENT_GROUP_PROTOCOL",
    ]


def test_only_join_without_id_creates_group() -> None:
    group = GroupTimeline()
    group.rejoin(1000, "a")
    group.join(1000, "b", group="")
    assert group.log() == ["1000 join_group a: UNKNOWN_MEMBER_ID", "1000 join_group b: INVALID_GROUP_ID"]


def test_unrecorded_member_id_derives_from_client_and_seq() -> None:
    group = GroupTimeline()
    group.until(500)
    group.join(1000, "a", assigned_member_id=None)
    group.join(1000, "b", assigned_member_id=None, client_id=None)
    group.join(1000, "c", assigned_member_id="client-a-2")
    assert group.replay(drain=True).transitions[1].members == ("client-a-2", "client-c-4", "consumer-3")


def test_pending_id_with_instance_id_is_rejected() -> None:
    group = GroupTimeline()
    group.join(1000, "p", api_version=WITH_MEMBER_ID_REQUIRED)
    group.rejoin(1100, "p", group_instance_id="i")
    assert group.log(since=1001) == ["1100 join_group p: UNKNOWN_SERVER_ERROR"]


def test_groups_at_different_brokers_are_independent() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(2000, "b", broker=1)
    group.until(5000)
    assert group.log() == [
        "1000 Empty → PreparingRebalance 0 [a]: member a joined",
        "2000 Empty → PreparingRebalance 0 [b]: member b joined",
        "4000 PreparingRebalance → CompletingRebalance 1 [a]: initial delay over",
        "4000 join_group a: NONE, generation 1 led by a",
        "5000 PreparingRebalance → CompletingRebalance 1 [b]: initial delay over",
        "5000 join_group b: NONE, generation 1 led by b",
    ]
    assert [change.broker for change in group.replay().transitions] == [0, 1, 0, 1]
