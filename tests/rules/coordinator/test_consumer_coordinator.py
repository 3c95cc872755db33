"""Consumer groups: reconciliation, its timer, and what it blocks. The oracle's traces cover the other rules."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.coordinator.assignors import UNIFORM, ClusterTopics, MemberSubscription, TopicSizes, assign
from purgatory_udf.rules.coordinator.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    assignor_counts,
    reconciled,
)
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, Conversion, MemberChange
from purgatory_udf.rules.coordinator.coordinator_timer import wheel_order
from purgatory_udf.rules.coordinator.group_coordinator import has_new_coordinator
from purgatory_udf.rules.coordinator.group_metadata import Group, derived_operation_id
from purgatory_udf.rules.coordinator.java_hash_order import (
    TimelineOrder,
    integer_order,
    map_order,
    string_hash,
    uuid_bits,
    uuid_hash,
)
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
    assert group.operations()[1:] == [
        "session g-b: 2500 to 47500 of 47500, expired",
        "reconciliation g-a: 3000 to 3100 of 6000, completed by left",
        "session g-a: 3000 to 3100 of 48000, completed by left",
    ]


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
    topics = ClusterTopics.from_events(group.events)
    assert [topics.before(time_us, 0).counts for time_us in (0, 1_500_000, 2_500_000)] == [{}, {"orders": 2}, {}]


def test_group_without_members_stores_offsets() -> None:
    """Clients that assign their partitions themselves may commit; the group then keeps its protocol."""
    group = GroupTimeline()
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    group.consumer_heartbeat(2000, "a", -1)
    group.commit(3000, "", -1)
    assert answers(group)[-1].split()[-3:] == ["NONE", "None", "None"]
    changes = [each.transition for each in group.replay().groups.changes]
    assert [(each.from_state, each.to_state) for each in changes] == [("Empty", "Stable"), ("Stable", "Empty")]


def test_full_heartbeat_gets_its_assignment() -> None:
    """A heartbeat with all fields is answered like a join, also if the assignment is unchanged."""
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    group.consumer_heartbeat(2000, "a", 2, **{**JOIN, "owned": BOTH})
    group.consumer_heartbeat(3000, "a", 2)
    assert [line.rpartition(" ")[2] for line in answers(group)] == ["orders:0,1", "orders:0,1", "None"]


def test_emptied_classic_group_is_converted() -> None:
    group = GroupTimeline(coordinator="new")
    group.join(1000, "a")
    group.leave(2000, "a")
    group.consumer_heartbeat(9000, "b", 0, **JOIN)
    entries = group.replay().groups.entries
    assert [(each.at_us, each.protocol) for each in entries if isinstance(each, Conversion)] == [
        (9_000_000, "consumer")
    ]


def test_replaced_static_member_starts_without_epoch() -> None:
    """The epochs before the first are those of no answer that the new process may have missed."""
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **JOIN, group_instance_id="i")
    group.consumer_heartbeat(2000, "a", -2, group_instance_id="i")
    group.consumer_heartbeat(3000, "b", 0, **JOIN, group_instance_id="i")
    group.consumer_heartbeat(4000, "b", 1, group_instance_id="i", owned=[])
    assert answers(group)[-2:] == ["3000 b NONE 2 orders:0,1", "4000 b FENCED_MEMBER_EPOCH None None"]


def test_unloaded_group_has_no_timers() -> None:
    group = GroupTimeline()
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    group.unloaded(2000)
    group.until(2000)
    assert group.operations() == ["session g-a: 1000 to 2000 of 46000, cancelled by unloaded"]


@pytest.mark.parametrize(
    ("configured", "recorded", "api", "is_new"),
    [
        (None, None, "heartbeat", False),
        (None, None, "consumer_group_heartbeat", True),
        (None, "new", "heartbeat", True),
        (None, "old", "consumer_group_heartbeat", False),
        ("old", "new", "heartbeat", False),
    ],
)
def test_coordinator_is_configured_or_recorded(
    configured: str | None, recorded: str | None, api: str, is_new: bool
) -> None:
    config = Config.model_validate({"group": {"coordinator": configured}}).group
    assert has_new_coordinator({"type": api, "coordinator": recorded}, config) is is_new


def test_hash_table_grows_with_its_thirteenth_key() -> None:
    """A `HashMap` has 16 slots at first, and doubles when more than three quarters of these many keys are in it."""
    keys = [f"k{number}" for number in range(9, 22)]
    assert " ".join(map_order(keys[:-1])) == "k17 k16 k19 k18 k20 k11 k10 k13 k12 k9 k15 k14"
    assert " ".join(map_order(keys)) == "k20 k11 k10 k21 k13 k12 k9 k15 k14 k17 k16 k19 k18"
    assert integer_order([17, 1, 16, 0]) == [0, 16, 1, 17]
    assert [integer_order([*range(most), 16])[1] for most in (10, 11)] == [16, 1]


def test_expired_member_leaves_its_partitions() -> None:
    """The group epoch rises, so that the next heartbeat computes a new target."""
    group = two_members()
    kept = int(answers(group)[-1].rpartition("orders:")[2])
    for ms, member, epoch in ((4000, "a", 2), (4500, "b", 3), (40_000, "a", 3), (50_000, "a", 3)):
        owned = [{"topic": "orders", "partitions": [kept if member == "a" else 1 - kept]}]
        group.consumer_heartbeat(ms, member, epoch, owned=owned)
    assert answers(group)[-1] == "50000 a NONE 4 orders:0,1"


@pytest.mark.parametrize("missing", JOIN)
def test_join_requires_every_field(missing: str) -> None:
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **{name: value for name, value in JOIN.items() if name != missing})
    assert answers(group) == ["1000 a INVALID_REQUEST None None"]


def test_static_classic_member_is_replaced() -> None:
    """Its next process joins a consumer group with the instance id and another member id."""
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    for ms, member in ((2000, "s"), (3000, "t")):
        group.join(ms, member, group_instance_id="i", subscribed_topics=["orders"], protocol_type="consumer")
    group.consumer_heartbeat(4000, "a", -1)
    changes = [each for each in group.replay().groups.entries if isinstance(each, MemberChange)]
    assert [(each.member_id, each.reason) for each in changes[1:3]] == [
        ("s", "join_group of s"),
        ("t", "join_group of t"),
    ]
    ids = [outcome.operation_id for outcome in group.replay(drain=True).outcomes]
    assert len(set(ids)) == len(ids), "no id twice"
    removed = [(each.member_id, each.is_classic, each.reason) for each in changes if each.to_state == "REMOVED"]
    assert removed[:2] == [
        ("s", True, "replaced by t, which has its instance id"),
        ("a", False, "a left: the group became a classic one"),
    ]


def test_replaced_classic_member_has_no_former_epoch() -> None:
    """A heartbeat of t with an epoch before its own is not a repeated one."""
    group = GroupTimeline()
    group.events.append(dict(TOPIC))
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    for ms, member in ((2000, "s"), (3000, "t")):
        group.join(ms, member, group_instance_id="i", subscribed_topics=["orders"], protocol_type="consumer")
    group.consumer_heartbeat(3500, "t", 1, group_instance_id="i", owned=[])
    assert answers(group)[-1] == "3500 t FENCED_MEMBER_EPOCH None None"


def test_removal_by_instance_id_is_reason() -> None:
    """An administrator removes a static member of the classic protocol."""
    group = GroupTimeline()
    group.consumer_heartbeat(1000, "", 0, **JOIN)
    group.join(2000, "s", group_instance_id="i", subscribed_topics=["orders"], protocol_type="consumer")
    group.leave(3000, "", group_instance_id="i")
    changes = [each for each in group.replay().groups.entries if isinstance(each, MemberChange)]
    assert [each.reason for each in changes] == ["client--1 joined", "join_group of s", "leave_group of instance i"]


def test_classic_member_leaves_with_its_own_ids() -> None:
    group = GroupTimeline()
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    group.join(2000, "s", group_instance_id="i", subscribed_topics=["orders"], protocol_type="consumer")
    group.leave(3000, "s", group_instance_id="other")
    group.leave(3100, "t", group_instance_id="i")
    group.leave(3200, "s", group_instance_id="i")
    group.leave(3300, "s", group="unknown")
    assert [line for line in group.log(since=3000) if "leave_group s:" in line or "Write" in line] == [
        "3000 leave_group s: UNKNOWN_MEMBER_ID",
        "3200 Write(broker=0, group='g', at_us=3200000)",
        "3200 leave_group s: NONE",
        "3300 leave_group s: UNKNOWN_MEMBER_ID",
    ]
    assert "3100 leave_group t: FENCED_INSTANCE_ID" in group.log()


def test_members_of_converted_group_owe_no_heartbeat_while_waiting() -> None:
    """The last member of the consumer protocol leaves, and one of the two others rejoins."""
    group = GroupTimeline()
    group.consumer_heartbeat(1000, "a", 0, **JOIN)
    for member in "st":
        group.join(2000, member, subscribed_topics=["orders"], protocol_type="consumer", rebalance_timeout_ms=60_000)
    group.consumer_heartbeat(3000, "a", -1)
    group.rejoin(4000, "s", rebalance_timeout_ms=60_000)
    group.until(30_000)
    assert "heartbeat g-s: 3000 to 13000 of 13000, completed by awaiting_join" in group.operations()


def test_conversion_answers_waiting_join() -> None:
    """The first member of the consumer protocol makes a consumer group of a classic one."""
    group = GroupTimeline(coordinator="new")
    group.events.append(dict(TOPIC))
    group.join(1000, "a", subscribed_topics=["orders"], protocol_type="consumer")
    group.consumer_heartbeat(2000, "b", 0, **JOIN)
    assert answers(group)[0].startswith("2000 a REBALANCE_IN_PROGRESS")


def test_converted_group_keeps_leaders_assignment() -> None:
    group = GroupTimeline(coordinator="new")
    group.events.append(dict(TOPIC))
    group.join(1000, "a", subscribed_topics=["orders"], protocol_type="consumer")
    group.sync(4100, "a", assignments=[{"member_id": "a", "assigned": BOTH}])
    group.consumer_heartbeat(5000, "b", 0, **JOIN)
    assert [line.rpartition(" of ")[2] for line in states(group) if " b " in line] == ["a"], "b waits for a's partition"


def test_converted_group_takes_surplus_from_leaders_target() -> None:
    """`c` waits for a partition of `b`, to which the leader assigned two. Without the target, it would wait for `a`."""
    group = GroupTimeline(coordinator="new")
    group.events.append(TOPIC | {"partition_count": 3})
    for member in "ab":
        group.join(1000, member, subscribed_topics=["orders"], protocol_type="consumer")
    assigned = {"a": [2], "b": [0, 1]}
    group.sync(
        7100,
        "a",
        assignments=[
            {"member_id": member, "assigned": [{"topic": "orders", "partitions": partitions}]}
            for member, partitions in assigned.items()
        ],
    )
    group.consumer_heartbeat(8000, "c", 0, **JOIN)
    assert states(group) == ["8000 b STABLE 1 ", "8000 a STABLE 1 ", "8000 c UNRELEASED_PARTITIONS 2 orders-1 of b"]


def test_reconciliation_of_former_epoch_has_no_effect() -> None:
    """`a` rejoins by the classic protocol before the deadline, and keeps its epoch when the timer runs."""
    group = two_members()
    owned = [{"topic": "orders", "partitions": [0]}]
    group.rejoin(4000, "a", subscribed_topics=["orders"], protocol_type="consumer", owned=owned)
    group.until(7000)
    group.unloaded(8000)
    assert "reconciliation g-a: 3000 to 6000 of 6000, completed by left_epoch" in group.operations()


def test_target_has_only_subscribed_topics() -> None:
    """The target may be older than the member's subscription."""
    member = ConsumerMember("a", epoch=2, topics=frozenset({"orders"}))
    after = reconciled(member, 3, frozenset({("orders", 0), ("old", 0)}), None, ())
    assert after.assigned == {("orders", 0)}
    assert reconciled(after, 3, frozenset({("orders", 0)}), None, (), subscription_changed=True) is after


def test_dropped_topic_joins_partitions_to_give_up() -> None:
    """The member owns x-0, which it has to give up, when it no longer subscribes to z."""
    x, y, z = (("x", 0), ("y", 0), ("z", 0))
    member = ConsumerMember("a", epoch=2, topics=frozenset("xy"), state=MemberState.UNREVOKED_PARTITIONS)
    member = replace(member, assigned=frozenset({y, z}), revoking=frozenset({x}))
    after = reconciled(member, 3, frozenset({y}), frozenset({x, y}), (), subscription_changed=True)
    assert after.state is MemberState.UNREVOKED_PARTITIONS
    assert (after.assigned, after.revoking) == (frozenset({y}), frozenset({x, z}))


def test_most_loaded_member_has_no_partition_of_topic() -> None:
    """`c` has the most partitions, but none of `x`; so `b` gives one up."""
    subscriptions = {"a": ("x", "y"), "b": ("x", "z"), "c": ("x", "y", "z")}
    owned = {"a": (), "b": (("x", 0), ("x", 1)), "c": (("y", 0), ("z", 0))}
    members = [MemberSubscription(name, None, frozenset(subscriptions[name]), frozenset(owned[name])) for name in "abc"]
    assigned = assign(UNIFORM, members, TopicSizes({"x": 2, "y": 1, "z": 1}, {}))
    assert [sorted(assigned[name]) for name in "abc"] == [[("x", 1)], [("x", 0)], [("y", 0), ("z", 0)]]


def test_next_most_loaded_member_gives_up_partition() -> None:
    """`m0` has four partitions, but none of `y`; `m2` has two, so `m1`, which has none, gets `y-0`."""
    subscriptions = {"m0": ("x", "y", "z"), "m1": ("y",), "m2": ("y", "z"), "m3": ("z",)}
    owned = {"m0": [("x", number) for number in range(4)], "m2": [("y", 0), ("z", 0)]}
    members = [
        MemberSubscription(name, None, frozenset(topics), frozenset(owned.get(name, ())))
        for name, topics in subscriptions.items()
    ]
    assigned = assign(UNIFORM, members, TopicSizes({"x": 4, "y": 1, "z": 1}, {}))
    assert [sorted(assigned[name]) for name in subscriptions] == [owned["m0"], [("y", 0)], [("z", 0)], []]


def test_last_members_get_extra_partitions() -> None:
    members = [MemberSubscription(name, None, frozenset({"x"}), frozenset()) for name in "abc"]
    assigned = assign(UNIFORM, members, TopicSizes({"x": 4}, {}))
    assert [len(assigned[name]) for name in "abc"] == [1, 1, 2]


def test_derived_operation_ids_are_stable() -> None:
    """Tables of earlier runs have these ids."""
    assert Group(1, "g").next_derived_operation_id() == derived_operation_id(1, "g", 1) == -6242447497732302658


def test_least_hash_code_is_negative() -> None:
    least = "polygenelubricants"
    assert string_hash(least) == 1 << 31
    assert TimelineOrder([least, "a"], 2).in_order() == [least, "a"]
    # The hash code of the first key is 1,922,924,640, which is below 2**31.
    assert TimelineOrder(["AAAAAA", "a", "b", "c"], 4).in_order() == ["c", "AAAAAA", "b", "a"]


def test_timeline_table_grows_at_three_quarters() -> None:
    table, sizes = TimelineOrder(), []
    for key in "abcdef":
        table.put(key)
        sizes.append(table.size)
    assert sizes == [2, 2, 4, 4, 4, 8]


def test_assignors_are_counted_by_members() -> None:
    uniform, ranges = ConsumerMember("a", assignor="uniform"), ConsumerMember("b", assignor="range")
    assert assignor_counts({"uniform": 2}, uniform, ranges) == {"range": 1, "uniform": 1}
    assert assignor_counts({"uniform": 2}, None, uniform) == {"uniform": 3}
    assert assignor_counts({"uniform": 1}, uniform, None) == {}


def test_wheels_order_tasks_of_one_millisecond() -> None:
    """The last wheel counts first: when the task was put into it, after or with the tasks started then."""
    assert [wheel_order(0, at) for at in (5, 25, 500)] == [(1,), (40, 1), (1000, 800, 1)]


def test_topic_id_has_two_signed_halves() -> None:
    assert uuid_bits("AAAAAAAAAAH__________w") == (1, -1)
    assert uuid_bits("gAAAAAAAAAAAAAAAAAACAA") == (-(1 << 63), 512)


def test_topic_id_hash_combines_its_halves() -> None:
    assert uuid_hash("AAAAAAAAAAH__________w") == 0xFFFFFFFF ^ 0xFFFFFFFE
    assert uuid_hash("gAAAAAAAAAAAAAAAAAACAA") == 0x80000000 ^ 0x200


def test_derived_ids_are_numbered_from_one() -> None:
    group = ConsumerGroup(3, "g")
    assert [group.next_derived_operation_id() for _ in range(2)] == [
        derived_operation_id(3, "g", 1),
        derived_operation_id(3, "g", 2),
    ]


def test_heartbeat_of_minus_one_keeps_rebalance_timeout() -> None:
    kept, given = two_members(), two_members()
    given.events[-1]["rebalance_timeout_ms"] = -1
    assert given.operations(drain=True) == kept.operations(drain=True)


def test_keys_of_one_slot_are_in_reverse_order() -> None:
    """Seen in a recording of Kafka 4.3.1: these two members are in one slot of both hash tables."""
    first, second = "g9VgFKh4QLaZ5V4sK0MbIA", "BwSBtcFSR4OQG2StG7MpZw"
    ids = TimelineOrder(["DUNRqu04RdOye_Iny6Vniw", first, second], 4).in_order()
    assert map_order(ids)[:2] == [second, first]
