"""Disagreements between recorded and replayed answers, by kind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.groups.group_outcome_tables import GroupTables, group_outputs
from purgatory_udf.rules.groups.group_rows import FOREVER, RequestBatch
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot
from purgatory_udf.rules.groups.group_step import StepResults, step
from purgatory_udf.streaming.group_disagreements import COMPARED, disagreements
from tests.support.group_timeline import GroupTimeline

CONFIG = Config.model_validate({"group": {"min_session_timeout_ms": 0}}).group

Recorded = dict[int, tuple[str, int | None]]


def answers_of(group: GroupTimeline) -> list[dict[str, Any]]:
    """Return the answers of the replay, in the order of the requests."""
    events = pa.Table.from_pylist([{"broker": 0} | event for event in group.events], schema=EVENTS)
    ((key, rows),) = RequestBatch.from_events(events).by_group()
    _, result = step(key, GroupSnapshot(), rows, FOREVER, CONFIG)
    payloads = [
        packet.payload for packet in group_outputs(StepResults({key: result})) if packet.table == "group_answers"
    ]
    answers: list[dict[str, Any]] = GroupTables("run", None).rows("group_answers", payloads).to_pylist()
    return sorted(answers, key=lambda row: row["seq"])


def disagreements_of(group: GroupTimeline, recorded: Recorded | None = None) -> list[str]:
    """Return the disagreements as text. `recorded`: recorded error and generation of answers, by `seq`."""
    compared = []
    for row in answers_of(group):
        error, generation = (recorded or {}).get(row["seq"], (None, None))
        compared.append(row | {"recorded_error": error, "recorded_generation": generation})
    rows = disagreements(pa.Table.from_pylist(compared, schema=COMPARED), "run").to_pylist()
    return [f"{row['seq']} {row['disagreement']}: {row['recorded']}, but {row['replayed']}" for row in rows]


def alone_and_stable(**recorded: Any) -> GroupTimeline:
    group = GroupTimeline()
    group.join(1000, "a", **recorded)
    group.sync(4100, "a")
    return group


def test_equal_answers_are_no_disagreement() -> None:
    assert disagreements_of(alone_and_stable(leader_member_id="a")) == []
    assert disagreements_of(alone_and_stable(leader_member_id="a"), {1: ("NONE", 1), 2: ("NONE", None)}) == []


def test_other_leader_and_rejected_join_are_reported() -> None:
    group = alone_and_stable(leader_member_id="b")
    group.rejoin(4200, "unknown", leader_member_id="unknown")
    assert disagreements_of(group) == [
        "1 leader: b, but a",
        "3 unknown_member: None, but UNKNOWN_MEMBER_ID",
        "3 join_refused: NONE, but UNKNOWN_MEMBER_ID",
    ]


def test_duplicate_recorded_id_is_reported() -> None:
    group = alone_and_stable()
    group.join(4200, "a")
    assert disagreements_of(group) == ["3 member_id: a, but client-a-3"]


def test_answers_of_consumer_protocol_are_compared() -> None:
    """A recorded epoch without `assigned` records that the answer had no assignment."""
    group = GroupTimeline()
    joins = {"rebalance_timeout_ms": 5000, "subscribed_topics": [], "subscribed_regex": "o.*", "owned": []}
    group.consumer_heartbeat(1000, "a", 0, **joins, assigned_epoch=2, assigned=[])
    group.consumer_heartbeat(2000, "a", 2, assigned_epoch=3)
    group.consumer_heartbeat(3000, "a", 2, assigned_epoch=2, assigned=[{"topic": "orders", "partitions": [0]}])
    group.consumer_heartbeat(4000, "b", 2, assigned_epoch=2)
    group.consumer_heartbeat(5000, "a", -1, assigned_epoch=-1)
    assert disagreements_of(group) == [
        "2 member_epoch: 3, but 2",
        "3 assignment: orders:0, but not sent",
        "4 error: NONE, but UNKNOWN_MEMBER_ID",
    ]


def test_rejected_heartbeats_are_reported() -> None:
    group = alone_and_stable()
    group.heartbeat(4200, "unknown")
    group.heartbeat(4300, "a", generation=7)
    group.heartbeat(4400, "a", group_instance_id="i")
    group.heartbeat(4500, "a")
    assert disagreements_of(group) == [
        "3 unknown_member: None, but UNKNOWN_MEMBER_ID",
        "4 illegal_generation: generation 7, but ILLEGAL_GENERATION",
        "5 unknown_member: None, but UNKNOWN_MEMBER_ID",
    ]


def test_recorded_errors_are_compared() -> None:
    group = alone_and_stable()
    group.heartbeat(4200, "unknown")
    group.heartbeat(4300, "a", generation=7)
    recorded: Recorded = {1: ("NONE", 4), 2: ("REBALANCE_IN_PROGRESS", None), 3: ("UNKNOWN_MEMBER_ID", None)}
    assert disagreements_of(group, recorded | {4: ("NONE", None)}) == [
        "1 generation: 4, but 1",
        "2 error: REBALANCE_IN_PROGRESS, but NONE",
        "4 error: NONE, but ILLEGAL_GENERATION",
    ]


def test_successful_heartbeats_and_commits_are_left_out() -> None:
    group = alone_and_stable()
    group.heartbeat(4200, "a")
    group.commit(4300, "a")
    assert [(row["seq"], row["api"], row["error"]) for row in answers_of(group)] == [
        (1, "join_group", "NONE"),
        (2, "sync_group", "NONE"),
    ]
