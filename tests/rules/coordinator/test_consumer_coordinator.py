"""Consumer groups: reconciliation, its timer, and what it blocks. The oracle's traces cover the other rules."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.rules.coordinator.coordinator_journal import Answer, MemberChange
from purgatory_udf.rules.coordinator.java_hash_order import TimelineOrder, map_order
from tests.support.group_timeline import GroupTimeline

TOPIC = {"type": "topic", "time_us": 1, "seq": 1, "topic": "orders", "partition_count": 2}
JOIN: dict[str, Any] = {"rebalance_timeout_ms": 3000, "subscribed_topics": ["orders"], "owned": []}
BOTH = [{"topic": "orders", "partitions": [0, 1]}]


def two_members() -> GroupTimeline:
    """Return a group in which `a` has to give up one of its two partitions to `b`, from 3,000 ms on."""
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    group.consumer_heartbeat(2500, "b", 0, **JOIN)
    group.consumer_heartbeat(3000, "a", 2, owned=BOTH)
    return group


def answers(group: GroupTimeline) -> list[str]:
    entries = [entry for entry in group.replay().groups.entries if isinstance(entry, Answer)]
    return [
        f"{each.at_us // 1000} {each.member_id} {each.error} {each.generation} {each.assignment}" for each in entries
    ]


def states(group: GroupTimeline) -> list[str]:
    entries = [entry for entry in group.replay().groups.entries if isinstance(entry, MemberChange)]
    held = [" ".join(f"{topic}-{number} of {owner}" for topic, number, owner in each.held_by) for each in entries]
    return [
        f"{each.at_us // 1000} {each.member_id} {each.to_state} {each.epoch} {held_by}"
        for each, held_by in zip(entries, held, strict=True)
    ]


def test_member_waits_until_partition_is_given_up() -> None:
    group = two_members()
    kept = answers(group)[-1].rpartition("orders:")[2]
    group.consumer_heartbeat(4000, "a", 2, owned=[{"topic": "orders", "partitions": [int(kept)]}])
    group.consumer_heartbeat(4500, "b", 3)
    given_up = 1 - int(kept)
    assert answers(group) == [
        "1000 a NONE 2 orders:0,1",
        "2500 b NONE 3 ",
        f"3000 a NONE 2 orders:{kept}",
        "4000 a NONE 3 None",
        f"4500 b NONE 3 orders:{given_up}",
    ]
    assert states(group) == [
        "1000 a STABLE 2 ",
        f"2500 b UNRELEASED_PARTITIONS 3 orders-{given_up} of a",
        "3000 a UNREVOKED_PARTITIONS 2 ",
        "4000 a STABLE 3 ",
        "4500 b STABLE 3 ",
    ]
    assert "reconciliation g-a: 3000 to 4000 of 6000, completed by revoked" in group.operations()


def test_member_that_keeps_partition_is_fenced() -> None:
    """Its rebalance timeout of 3,000 ms runs from the answer that took the partition away."""
    group = two_members()
    group.consumer_heartbeat(5000, "a", 2)
    group.consumer_heartbeat(6000, "a", 2)
    group.consumer_heartbeat(6500, "b", 3)
    assert answers(group)[-2:] == ["6000 a UNKNOWN_MEMBER_ID None None", "6500 b NONE 4 orders:0,1"]
    assert "reconciliation g-a: 3000 to 6000 of 6000, expired" in group.operations()


def test_silent_member_expires_after_session_timeout() -> None:
    group = two_members()
    group.consumer_heartbeat(3100, "a", -1)
    group.until(2500 + 45_000)
    assert states(group)[-2:] == ["3100 a REMOVED 2 ", "47500 b REMOVED 3 "]
    assert group.operations()[1] == "session g-b: 2500 to 47500 of 47500, expired"


def test_session_lasts_as_recorded_for_group() -> None:
    group = GroupTimeline(consumer={"session_timeout_ms": "x0.5"})
    group.consumer_heartbeat(1000, "a", 0, **JOIN, session_timeout_ms=7000)
    group.until(4500)
    assert group.operations() == ["session g-a: 1000 to 4500 of 4500, expired"]


@pytest.mark.parametrize(("joins_ms", "by_rule"), [(1500, 2), (2500, 3)])
def test_recorded_answer_shows_whether_target_was_computed(joins_ms: int, by_rule: int) -> None:
    """A target is computed at most once a second, which the times of a log do not show to the millisecond."""
    for recorded, answered in ((None, by_rule), (2, 2), (3, 3), (7, by_rule)):
        group = GroupTimeline()
        group.events.append(dict(TOPIC))
        group.consumer_heartbeat(1000, "a", 0, **JOIN)
        answer = {} if recorded is None else {"assigned_epoch": recorded, "assigned": []}
        group.consumer_heartbeat(joins_ms, "b", 0, **JOIN, **answer)
        assert answers(group)[-1] == f"{joins_ms} b NONE {answered} "


def test_deleted_topic_raises_group_epoch() -> None:
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    group.events.append({**TOPIC, "time_us": 2_000_000, "seq": len(group.events) + 1, "partition_count": 0})
    group.consumer_heartbeat(3000, "a", 2, owned=[])
    assert answers(group)[-1] == "3000 a NONE 3 "


def test_keys_of_one_slot_are_in_reverse_order() -> None:
    """Seen in a recording of Kafka 4.3.1: these two members are in one slot of both hash tables."""
    first, second = "g9VgFKh4QLaZ5V4sK0MbIA", "BwSBtcFSR4OQG2StG7MpZw"
    ids = TimelineOrder(["DUNRqu04RdOye_Iny6Vniw", first, second], 4).in_order()
    assert map_order(ids)[:2] == [second, first]
