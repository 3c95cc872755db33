"""The group schedule of the open loop: independent of the slices, and accepted by the coordinator."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from purgatory_udf.simulation.open_loop.event_rows import PartitionNames, group_rows, to_event_table
from purgatory_udf.simulation.open_loop.group_schedule import (
    GroupPlan,
    MemberActions,
    count_actions_before,
    member_actions_between,
)
from purgatory_udf.simulation.open_loop.workload import Workload
from tests.support.examples import examples
from tests.support.oracle_groups import removals

LENGTH_US = 200_000_000
PLAN = GroupPlan(
    seed=3,
    groups=12,
    members=4,
    heartbeat_us=3_000_000,
    commit_us=5_000_000,
    session_us=10_000_000,
    period_us=30_000_000,
    crash_share=0.5,
)
WORKLOAD = Workload(30_000, partitions=60, rate=100, members=4, incident_s=30)

Event = dict[str, Any]


def _rows(acts: MemberActions) -> list[tuple[int, ...]]:
    return sorted(zip(*(getattr(acts, field.name).tolist() for field in fields(acts)), strict=True))


def _events(workload: Workload) -> list[Event]:
    table = to_event_table(group_rows(workload, 0, workload.length_us, PartitionNames(workload)))
    table = table.take(np.argsort(table["time_us"].to_numpy(), kind="stable"))
    named = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    return [
        {**row, "seq": seq, "time_us": row["time_us"] + 10**15, "request_id": f"{seq}"} for seq, row in enumerate(named)
    ]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return _events(WORKLOAD)


@pytest.fixture(scope="module")
def replayed(events: list[Event]) -> Replay:
    return replay(events, Config(drain=False))


@examples(15)
@given(cuts=st.lists(st.integers(0, LENGTH_US), max_size=5))
def test_schedule_does_not_depend_on_slices(cuts: list[int]) -> None:
    whole = _rows(member_actions_between(PLAN, 0, LENGTH_US))
    borders = sorted({0, *cuts, LENGTH_US})
    parts = (_rows(member_actions_between(PLAN, begin, end)) for begin, end in itertools.pairwise(borders))
    assert sorted(itertools.chain.from_iterable(parts)) == whole


@examples(15)
@given(st.integers(0, LENGTH_US))
def test_count_matches_generated_actions(end_us: int) -> None:
    assert count_actions_before(PLAN, end_us) == len(member_actions_between(PLAN, 0, end_us).t)


def test_group_does_not_depend_on_group_count() -> None:
    few, many = (_rows(member_actions_between(replace(PLAN, groups=count), 0, LENGTH_US)) for count in (3, 12))
    group = [field.name for field in fields(MemberActions)].index("group")
    assert few == [row for row in many if row[group] < 3]


def test_coordinator_accepts_scheduled_requests(replayed: Replay) -> None:
    """The only errors are MEMBER_ID_REQUIRED for first joins and REBALANCE_IN_PROGRESS for heartbeats."""
    answers = Counter((answer.api, answer.error) for answer in replayed.groups.answers)
    assert {*answers} == {
        ("join_group", "MEMBER_ID_REQUIRED"),
        ("join_group", "NONE"),
        ("sync_group", "NONE"),
        ("heartbeat", "NONE"),
        ("heartbeat", "REBALANCE_IN_PROGRESS"),
        ("offset_commit", "NONE"),
        ("leave_group", "NONE"),
    }
    assert answers["heartbeat", "NONE"] > 5 * answers["heartbeat", "REBALANCE_IN_PROGRESS"]


def test_notified_members_rejoin_next(events: list[Event], replayed: Replay) -> None:
    """A member rejoins if and only if its last heartbeat got REBALANCE_IN_PROGRESS."""
    notified = {answer.seq for answer in replayed.groups.answers if answer.error == "REBALANCE_IN_PROGRESS"}
    by_client = sorted(events, key=lambda event: event["client_id"])
    for _, of_member in itertools.groupby(by_client, key=lambda event: event["client_id"]):
        for now, after in itertools.pairwise(of_member):
            rejoins = after["type"] == "join_group" and now["type"] != "join_group" and after["member_id"] != ""
            assert rejoins == (now["seq"] in notified)


def test_replay_agrees_with_recorded_generations(events: list[Event], replayed: Replay) -> None:
    """Member ids and leaders agree as well."""
    by_seq = {event["seq"]: event for event in events}
    syncs: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event["type"] == "sync_group":
            syncs.setdefault((event["group"], event["member_id"]), []).append(event["generation"])
    for answer in replayed.groups.answers:
        event = by_seq[answer.seq]
        if answer.error == "MEMBER_ID_REQUIRED":
            assert answer.member_id == event["assigned_member_id"]
        elif answer.api == "join_group":
            assert (answer.member_id, answer.leader) == (event["member_id"], event["leader_member_id"])
            assert answer.generation in syncs[answer.group, answer.member_id]


def test_members_leave_crash_and_return(events: list[Event], replayed: Replay) -> None:
    out = Counter(removal.reason for removal in removals(replayed.groups))
    assert {*out} == {"session", "leave"}
    assert min(out.values()) > 10
    runs = {event["assigned_member_id"].rsplit("-", 1)[1] for event in events if "assigned_member_id" in event}
    assert {"0", "1", "2"} <= runs
    leaders: dict[str, set[str]] = {}
    for change in replayed.groups.changes:
        leaders.setdefault(change.transition.group, set()).add(change.leader or "")
    assert max(len(members) for members in leaders.values()) > 3
