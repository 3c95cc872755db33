"""Heartbeat runs: the sessions that they complete, and where they end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.groups.column_frames import Frame
from purgatory_udf.rules.groups.group_rows import ERRORS, RequestBatch
from purgatory_udf.rules.groups.group_state_store import VERSION, GroupSnapshot, GroupStateStore
from purgatory_udf.rules.groups.group_step import step
from purgatory_udf.rules.groups.heartbeat_fast_path import apply_heartbeats
from purgatory_udf.rules.purgatory.clock import Pauses
from tests.rules.groups.ended_rows import outcomes_of
from tests.support.group_timeline import GroupTimeline, operation_line

CONFIG = Config.model_validate({"group": {"min_session_timeout_ms": 0}}).group


def stable_pair_snapshot() -> GroupSnapshot:
    """Return a stable group of a and b, both with a session of 10 s that started at 6200."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    snapshot, _ = step("0/g", GroupSnapshot(), _rows(group), 6200, CONFIG)
    return snapshot


def _rows(group: GroupTimeline) -> Frame:
    events = pa.Table.from_pylist([{"broker": 0} | event for event in group.events], schema=EVENTS)
    return dict(RequestBatch.from_events(events).by_group())["0/g"]


def run(*heartbeats: tuple[int, str]) -> tuple[int, list[str], list[tuple[str, int]]]:
    """Return the length of the run, the sessions that it completes, and the open sessions after it."""
    group = GroupTimeline()
    for ms, member in heartbeats:
        group.heartbeat(ms, member)
    snapshot = stable_pair_snapshot()
    decided = apply_heartbeats(snapshot, _rows(group), Pauses())
    lines = sorted(map(operation_line, outcomes_of(decided.ended, 0, "g")))
    sessions = snapshot.sessions
    return decided.length, lines, sorted(zip(sessions.member_id.tolist(), sessions.deadline.tolist(), strict=True))


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


def test_heartbeat_of_unknown_member_changes_nothing() -> None:
    assert run((7000, "unknown")) == (1, [], [("a", 16_200), ("b", 16_200)])


def test_rejected_heartbeats_complete_no_session() -> None:
    group = GroupTimeline()
    group.heartbeat(7000, "a", generation=0)
    group.heartbeat(7100, "a", generation=2)
    group.commit(7200, "unknown")
    group.commit(7300, "a")
    snapshot = stable_pair_snapshot()
    decided = apply_heartbeats(snapshot, _rows(group), Pauses())
    assert [ERRORS[answer] for answer in decided.answers] == [
        "ILLEGAL_GENERATION",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "NONE",
    ]
    assert [operation_line(outcome) for outcome in outcomes_of(decided.ended, 0, "g")] == [
        "heartbeat g-a: 6200 to 7300 of 16200, completed by offset_commit"
    ]


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
