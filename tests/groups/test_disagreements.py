"""Where a recorded trace and its replay disagree: counted by kind, by group, and never decisive."""

from __future__ import annotations

import pyarrow as pa
from group_timeline import GroupTimeline

from purgatory_udf.config import Config
from purgatory_udf.groups.kept import Kept
from purgatory_udf.groups.rows import rows_by_group
from purgatory_udf.groups.step import step
from purgatory_udf.groups.words import FOREVER
from purgatory_udf.tables import EVENTS

CONFIG = Config.model_validate({"group": {"min_session_timeout_ms": 0}}).group


def disagreements(group: GroupTimeline) -> dict[str, int]:
    events = pa.Table.from_pylist([{"broker": 0} | event for event in group.events], schema=EVENTS)
    ((key, rows),) = rows_by_group(events)
    _, found = step(key, Kept(), rows, FOREVER, CONFIG)
    return dict(found.disagreements)


def alone_and_stable(**recorded: str) -> GroupTimeline:
    group = GroupTimeline()
    group.join(1000, "a", **recorded)
    group.sync(4100, "a")
    return group


def test_a_trace_that_records_what_the_replay_answers_agrees_with_it() -> None:
    assert disagreements(alone_and_stable(leader_member_id="a")) == {}


def test_another_leader_and_a_join_that_is_refused() -> None:
    group = alone_and_stable(leader_member_id="b")
    group.rejoin(4200, "nobody", leader_member_id="nobody")
    assert disagreements(group) == {"leader": 1, "join_refused": 1, "unknown_member": 1}


def test_an_id_that_the_group_has_already() -> None:
    group = alone_and_stable()
    group.join(4200, "a")
    assert disagreements(group) == {"member_id": 1}


def test_signs_from_strangers_from_the_past_and_from_replaced_instances() -> None:
    group = alone_and_stable()
    group.heartbeat(4200, "nobody")
    group.heartbeat(4300, "a", generation=7)
    group.heartbeat(4400, "a", group_instance_id="i")
    group.heartbeat(4500, "a")
    assert disagreements(group) == {"unknown_member": 2, "illegal_generation": 1}
