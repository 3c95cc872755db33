"""The compiled coordinator decides classic groups exactly as the coordinator of the reference does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config, GroupSettings
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.groups.column_frames import Frame
from purgatory_udf.rules.groups.compiled_groups import ClassicGroups
from purgatory_udf.rules.groups.group_machine import ANSWERS
from purgatory_udf.rules.groups.group_rows import FOREVER, ROWS, RequestBatch
from purgatory_udf.rules.groups.group_state_store import SESSIONS, GroupSnapshot, GroupStateStore, to_text
from purgatory_udf.rules.groups.group_step import DecidedGroups, StepResult, StepResults, step
from purgatory_udf.rules.groups.group_waits import open_operation_ids
from purgatory_udf.rules.groups.operation_timeline import ENDED, WALKS
from tests.support.examples import examples
from tests.support.group_strategies import GroupTraffic, group_traffic
from tests.support.group_timeline import GroupTimeline

Event = dict[str, Any]
_REQUESTS = ("join_group", "sync_group", "heartbeat", "offset_commit", "leave_group")
_NO_COLUMNAR_RUN = 1 << 62
CONFIG = Config.model_validate({"group": {"min_session_timeout_ms": 0}})
NEW_COORDINATOR = Config.model_validate({"group": {"min_session_timeout_ms": 0, "coordinator": "new"}})


class _Comparison:
    """Replays batches with both coordinators, and compares all that each call returns."""

    def __init__(self, config: GroupSettings) -> None:
        self._config = config
        self._state, self._expected_state = GroupStateStore(), GroupStateStore()
        self.compared = 0
        self.left = 0

    def take(self, events: Sequence[Event], horizon_ms: int) -> None:
        table = pa.Table.from_pylist([{"broker": 0} | event for event in events], schema=EVENTS)
        batch = RequestBatch.from_events(table)
        rows = dict(batch.by_group())
        keys = dict.fromkeys([*rows, *self._state.due(horizon_ms)])
        decided = ClassicGroups(batch, self._config).decide({key: self._state.get(key) for key in keys}, horizon_ms)
        for key in keys:
            before = open_operation_ids(self._expected_state.get(key))
            # The other coordinator decides heartbeats one by one, too.
            snapshot, result = step(
                key,
                self._expected_state.get(key),
                rows.get(key, ROWS.empty()),
                horizon_ms,
                self._config,
                min_columnar_run=_NO_COLUMNAR_RUN,
            )
            self._expected_state.put(key, snapshot)
            if key in decided.snapshots:
                self._compare(key, decided, snapshot, result)
                started = decided.started.take(decided.started.group == list(decided.snapshots).index(key))
                assert sorted(started.op.tolist()) == sorted(open_operation_ids(snapshot) - before)
                self._state.put(key, decided.snapshots[key])
            else:
                self._state.put(key, self._expected_state.get(key))
                self.left += 1
        self._state = GroupStateStore.from_bytes(self._state.to_bytes())
        self._expected_state = GroupStateStore.from_bytes(self._expected_state.to_bytes())

    def _compare(self, key: str, decided: DecidedGroups, snapshot: GroupSnapshot, result: StepResult) -> None:
        index, results = list(decided.snapshots).index(key), StepResults({key: result})
        for actual, expected, names in (
            (decided.ended, results.ended, ENDED.names),
            (decided.answers, results.answers, ANSWERS.names),
            (decided.walks, results.walks, WALKS.names),
        ):
            assert sorted(_rows(actual.take(actual.group == index), names)) == sorted(_rows(expected, names))
        assert [each for of_group, each in decided.transitions if of_group == index] == result.transitions
        after = decided.snapshots[key]
        assert to_text(after) == to_text(snapshot)
        assert _rows(after.sessions, SESSIONS.names) == _rows(snapshot.sessions, SESSIONS.names)
        self.compared += 1


def _rows(frame: Frame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(frame.columns[name].tolist() for name in names), strict=True))


def compare(events: Sequence[Event], config: Config, cuts: Sequence[int] = ()) -> _Comparison:
    """Replay the events in batches that start at the indices in `cuts`, then run all timers."""
    comparison = _Comparison(config.group)
    for begin, end in pairwise(sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})):
        comparison.take(events[begin:end], max(event["time_us"] for event in events[begin:end]) // 1000)
    comparison.take([], FOREVER)
    return comparison


def test_groups_start_rebalance_and_end() -> None:
    """Members join with and without assigned ids, leave, fail, do not rejoin or sync, and lead."""
    group = GroupTimeline()
    group.join(1000, "a", leader_member_id="b")
    group.join(1000, "b", leader_member_id="b")
    group.join(1500, "c", api_version=4)
    group.rejoin(1600, "c")
    group.sync(9000, "c")
    group.commit(9100, "c")
    group.commit(9200, "d")
    group.sync(9300, "b")
    group.heartbeat(9500, "a")
    group.sync(9600, "a")
    group.leave(10_000, "c")
    group.heartbeat(10_500, "b")
    group.rejoin(11_000, "b")
    comparison = compare(group.events, CONFIG, [2, 5, 9])
    assert comparison.compared == 5 and not comparison.left


def test_group_rebalances_again_while_syncs_wait() -> None:
    """The leader that joins again is answered at once, and the new member starts a rebalance."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6500, "b")
    group.rejoin(6600, "a")
    group.join(6700, "c")
    group.rejoin(6800, "b")
    assert compare(group.events, CONFIG, [3, 5]).compared == 4


def test_members_join_in_each_window_of_the_initial_delay() -> None:
    group = GroupTimeline()
    for number, ms in enumerate((0, 1000, 4000, 7000, 9500, 10_500)):
        group.join(ms, f"m{number}", rebalance_timeout_ms=10_000)
    assert compare(group.events, CONFIG, [3]).compared == 3


def test_session_that_is_due_before_its_start_expires_at_its_start() -> None:
    """Deadlines are whole milliseconds, but starts are microseconds."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    group.rejoin(7000.2, "a", session_timeout_ms=0)
    group.rejoin(7000.5, "b", session_timeout_ms=0)
    group.heartbeat(8000, "a", generation=2)
    assert compare(group.events, CONFIG).compared == 2


def test_new_coordinator_rebalances_if_a_pending_member_leaves() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.sync(4100, "a")
    group.join(4200, "b", api_version=4)
    group.leave(4300, "b")
    group.rejoin(4400, "a")
    assert compare(group.events, NEW_COORDINATOR, [3]).compared == 3


def test_failed_member_ends_initial_delay_of_new_coordinator() -> None:
    """At the old coordinator it lasts until its end."""
    group = GroupTimeline()
    group.join(1000, "a", rebalance_timeout_ms=60_000)
    group.join(1100, "b", api_version=4, session_timeout_ms=500)
    group.heartbeat(2000, "a", generation=0)
    for config in (CONFIG, NEW_COORDINATOR):
        assert compare(group.events, config).compared == 2


def test_new_coordinator_expires_equal_deadlines_by_bucket() -> None:
    """The session of a, which started first, waits in a coarser bucket, so that of b expires before it."""
    group = GroupTimeline()
    group.join(0, "a", session_timeout_ms=13_000)
    group.join(10, "b", session_timeout_ms=10_000)
    group.sync(3100, "a")
    group.heartbeat(3200, "a")
    group.heartbeat(6200, "b")
    assert compare(group.events, NEW_COORDINATOR).compared == 2


def test_new_coordinator_moves_a_session_to_a_finer_bucket_before_it_adds_another() -> None:
    """Both sessions end at 26,000 and enter a bucket of 400 ms at 24,000, a from a bucket of 8 s."""
    group = GroupTimeline()
    group.join(1000, "a", session_timeout_ms=14_000)
    group.join(1000, "b", session_timeout_ms=2000)
    group.sync(6100, "b")
    group.sync(6200, "a")
    for ms in range(7000, 13_000, 1000):
        group.heartbeat(ms, "b")
    group.heartbeat(12_000, "a")
    for ms in range(13_000, 25_000, 1000):
        group.heartbeat(ms, "b")
    assert compare(group.events, NEW_COORDINATOR).compared == 2


def test_sync_of_a_stable_group_renews_the_session_only_at_the_old_coordinator() -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.sync(4100, "a")
    group.sync(9000, "a")
    for config in (CONFIG, NEW_COORDINATOR):
        assert compare(group.events, config).compared == 2


def test_small_tables_are_replaced_by_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purgatory_udf.rules.groups.compiled_groups._ROWS_PER_INPUT", 0)
    group = GroupTimeline()
    for number in range(20):
        group.join(1000 + number, f"m{number}")
    assert compare(group.events, CONFIG).compared == 2


def test_id_that_is_assigned_twice_is_left_to_the_machine() -> None:
    """The session of the first assignment is still open, so the id has two sessions."""
    group = GroupTimeline()
    group.join(1000, "a", api_version=4)
    group.leave(1100, "a")
    group.join(1200, "a", api_version=4)
    comparison = compare(group.events, CONFIG)
    assert (comparison.compared, comparison.left) == (0, 2)


@pytest.mark.parametrize(
    "fields",
    [{"group_instance_id": "i"}, {"protocols": ["range", "sticky"]}, {"protocols": []}],
)
def test_other_groups_are_left_to_the_machine(fields: dict[str, Any]) -> None:
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b", **fields)
    assert compare(group.events, CONFIG).left


@examples(100)
@given(group_traffic(), st.lists(st.integers(1, 80), max_size=6), st.booleans(), st.sampled_from((None, "new")))
def test_random_traffic_has_equal_results(
    traffic: GroupTraffic, cuts: list[int], has_one_protocol: bool, coordinator: str | None
) -> None:
    events = [
        event for event in traffic.events if event["type"] in _REQUESTS and event.get("group_instance_id") is None
    ]
    if has_one_protocol:
        events = [event | {"protocols": ["range"]} if event["type"] == "join_group" else event for event in events]
    group = traffic.config.group.model_copy(update={"coordinator": coordinator})
    if events:
        compare(events, traffic.config.model_copy(update={"group": group}), cuts)
