"""Heartbeat runs: the sessions that they complete, and where they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.groups.column_frames import Frame
from purgatory_udf.rules.groups.group_machine import ANSWERS
from purgatory_udf.rules.groups.group_rows import ERRORS, RequestBatch
from purgatory_udf.rules.groups.group_state_store import SESSIONS, VERSION, GroupSnapshot, GroupStateStore, to_text
from purgatory_udf.rules.groups.group_step import step, step_stable_groups
from purgatory_udf.rules.groups.heartbeat_fast_path import HeartbeatRuns, apply_heartbeats
from purgatory_udf.rules.groups.operation_timeline import ENDED
from purgatory_udf.rules.purgatory.clock import Pause, Pauses
from tests.rules.groups.ended_rows import outcomes_of
from tests.support.examples import examples
from tests.support.group_timeline import GroupTimeline, operation_line

CONFIG = Config.model_validate({"group": {"min_session_timeout_ms": 0}}).group


def stable_pair_snapshot(key: str = "0/g", has_pending_id: bool = False) -> GroupSnapshot:
    """Return a stable group of a and b, both with a session of 10 s that started at 6200.

    With `has_pending_id`, the session of an assigned id lasts from 6250 to 9250.
    """
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    if has_pending_id:
        group.join(6250, "c", api_version=4, session_timeout_ms=3000)
    snapshot, _ = step(key, GroupSnapshot(), _rows(group), 6250, CONFIG)
    return snapshot


def _rows(group: GroupTimeline) -> Frame:
    events = pa.Table.from_pylist([{"broker": 0} | event for event in group.events], schema=EVENTS)
    return dict(RequestBatch.from_events(events).by_group())["0/g"]


def applied(snapshot: GroupSnapshot, group: GroupTimeline) -> HeartbeatRuns:
    rows = _rows(group)
    return apply_heartbeats([snapshot], rows, np.zeros(len(rows), dtype=np.int64), Pauses())


def run(*heartbeats: tuple[int, str]) -> tuple[int, list[str], list[tuple[str, int]]]:
    """Return the length of the run, the sessions that it completes, and the open sessions after it."""
    group = GroupTimeline()
    for ms, member in heartbeats:
        group.heartbeat(ms, member)
    snapshot = stable_pair_snapshot()
    decided = applied(snapshot, group)
    lines = sorted(map(operation_line, outcomes_of(decided.ended, 0, "g")))
    sessions = snapshot.sessions
    return (
        int(decided.lengths[0]),
        lines,
        sorted(zip(sessions.member_id.tolist(), sessions.deadline.tolist(), strict=True)),
    )


def test_heartbeat_completes_previous_session() -> None:
    assert run((7000, "a"), (8000, "b"), (9000, "a")) == (
        3,
        [
            "heartbeat g-a: 6200 to 7000 of 16200, completed by heartbeat",
            "heartbeat g-a: 7000 to 9000 of 17000, completed by heartbeat",
            "heartbeat g-b: 6200 to 8000 of 16200, completed by heartbeat",
        ],
        [("a", 19_000), ("b", 18_000)],
    )


def test_heartbeat_at_deadline_ends_run() -> None:
    assert run((16_199, "a"), (16_200, "b")) == (
        1,
        ["heartbeat g-a: 6200 to 16199 of 16200, completed by heartbeat"],
        [("a", 26_199), ("b", 16_200)],
    )


def test_run_ends_at_first_missed_deadline() -> None:
    """The second heartbeat of b is 10 s after its first. Heartbeats from that millisecond on are not in the run."""
    assert run((7000, "b"), (8000, "a"), (17_000, "a"), (17_000, "b"), (17_500, "a")) == (
        2,
        [
            "heartbeat g-a: 6200 to 8000 of 16200, completed by heartbeat",
            "heartbeat g-b: 6200 to 7000 of 16200, completed by heartbeat",
        ],
        [("a", 18_000), ("b", 17_000)],
    )


def test_sessions_are_in_order_of_start() -> None:
    group = GroupTimeline()
    group.heartbeat(7000, "b")
    group.heartbeat(7000.5, "a")
    snapshot = stable_pair_snapshot()
    applied(snapshot, group)
    assert snapshot.sessions.member_id.tolist() == ["b", "a"]


def test_heartbeat_of_unknown_member_changes_nothing() -> None:
    assert run((7000, "unknown")) == (1, [], [("a", 16_200), ("b", 16_200)])


def test_rejected_heartbeats_complete_no_session() -> None:
    group = GroupTimeline()
    group.heartbeat(7000, "a", generation=0)
    group.heartbeat(7100, "a", generation=2)
    group.commit(7200, "unknown")
    group.commit(7300, "a")
    snapshot = stable_pair_snapshot()
    decided = applied(snapshot, group)
    assert [ERRORS[answer] for answer in decided.answers] == [
        "ILLEGAL_GENERATION",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "NONE",
    ]
    assert [operation_line(outcome) for outcome in outcomes_of(decided.ended, 0, "g")] == [
        "heartbeat g-a: 6200 to 7300 of 16200, completed by offset_commit"
    ]


LIVENESS = st.tuples(
    st.integers(6300, 30_000),
    st.sampled_from(("a", "b", "unknown")),
    st.sampled_from(({}, {}, {}, {"generation": 0}, {"group_instance_id": "i"}, {"type": "offset_commit"})),
)


@examples(100)
@given(
    st.lists(st.tuples(st.lists(LIVENESS, max_size=12), st.booleans()), min_size=1, max_size=4),
    st.integers(6300, 31_000),
    st.sampled_from((Pauses(), Pauses([Pause(0, 15_000, 18_000)]))),
)
def test_groups_decided_together_as_alone(
    groups: list[tuple[list[tuple[int, str, dict[str, Any]]], bool]], horizon_ms: int, pauses: Pauses
) -> None:
    """Some groups have assigned an id, with a session that is not a member's."""
    store = GroupStateStore()
    events: list[dict[str, Any]] = []
    for number, (requests, has_pending_id) in enumerate(groups):
        store.put(f"0/{number}", stable_pair_snapshot(f"0/{number}", has_pending_id))
        for ms, member, fields in requests:
            sent = {"type": "heartbeat", "member_id": member, "generation": 1, "client_id": member} | fields
            events.append(sent | {"broker": 0, "group": str(number), "time_us": ms * 1000, "seq": len(events) + 10})
    batch = RequestBatch.from_events(pa.Table.from_pylist(events, schema=EVENTS))
    rows_of = dict(batch.by_group())
    alone = {key: step(key, store.get(key), rows, horizon_ms, CONFIG, pauses=pauses) for key, rows in rows_of.items()}
    together = step_stable_groups(store, batch, horizon_ms, pauses)
    assert set(together.snapshots) == {
        key
        for key, (snapshot, result) in alone.items()
        if sum(map(len, result.heartbeats)) == len(rows_of[key]) and snapshot.text is not None
    }
    for number, (key, snapshot) in enumerate(together.snapshots.items()):
        expected, result = alone[key]
        assert _parts(snapshot.sessions) == _parts(expected.sessions)
        assert to_text(snapshot) == to_text(expected)
        assert _parts(_of(together.ended, number), ENDED.names) == _parts(result.operations, ENDED.names)
        errors = result.answer_frame
        assert _parts(_of(together.answers, number), ANSWERS.names) == _parts(errors, ANSWERS.names)


def _of(rows: Frame, group: int) -> Frame:
    return rows.take(rows.group == group)


def _parts(rows: Frame, names: Sequence[str] = SESSIONS.names) -> dict[str, list[Any]]:
    return {name: rows.columns[name].tolist() for name in names}


def test_state_round_trips_and_other_format_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = GroupStateStore()
    store.put("0/g", stable_pair_snapshot())
    value, again = store.to_bytes(), GroupStateStore.from_bytes(store.to_bytes())
    snapshot = again.get("0/g")
    snapshot.text = None
    again.put("0/g", snapshot)
    assert again.to_bytes() == value
    monkeypatch.setattr("purgatory_udf.rules.groups.group_state_store.VERSION", VERSION + 1)
    with pytest.raises(
        UserError, match=f"state of group 0/g: written in format {VERSION}, this version reads format {VERSION + 1}"
    ):
        GroupStateStore.from_bytes(value)
