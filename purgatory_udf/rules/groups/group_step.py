"""One call for one group, or for stable groups: snapshots and events in, results and new snapshots out.

    snapshot, events ──► machine ──► heartbeat run ──► machine ──► … ──► timers up to the horizon ──► snapshot, result
                         (joins, syncs,  (columns)
                         leaves, timers)

The machine is the coordinator for one group. Heartbeats and commits of a stable group, which are most of any trace, are
decided on columns without it. So it is restored only for other events and timers, and in many calls not at all. The
groups that stay stable up to the horizon are decided together (`step_stable_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap

import numpy as np

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, Entry, MemberChange, StateChange
from purgatory_udf.rules.coordinator.group_coordinator import has_new_coordinator
from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.rules.coordinator.group_requests import GroupStopped
from purgatory_udf.rules.groups.column_frames import Frame, FrameLayout, Row
from purgatory_udf.rules.groups.group_machine import ANSWERS, GroupMachine, answer_row
from purgatory_udf.rules.groups.group_rows import (
    ERRORS,
    FOREVER,
    KIND_OF,
    LAST_LIVENESS_API,
    Api,
    GroupEvents,
    RequestBatch,
    split_group_key,
)
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot, GroupStateStore
from purgatory_udf.rules.groups.heartbeat_fast_path import apply_heartbeats
from purgatory_udf.rules.groups.operation_timeline import ENDED, WALKS, ended_row
from purgatory_udf.rules.purgatory.clock import Pauses

# Runs of at least this many heartbeats are worth converting the machine's sessions into columns.
MIN_COLUMNAR_RUN = 32


@dataclass
class StepResult:
    """The result of a call.

    Attributes:
        ended_rows: Operations of the machine that have ended, as rows of `ENDED`.
        ended_frames: Sessions that ended in runs of heartbeats, as frames of `ENDED`.
        answer_rows: Answers of the machine, as rows of `ANSWERS`.
        answer_frames: Errors in runs of heartbeats, as frames of `ANSWERS`.
        walk_rows: Checks that completed no operation, as rows of `WALKS`.
        entries: The entries of the machine's journal.
        heartbeats: Rows decided on columns, with their answers.
        stopped: Time and `seq` of events that abandoned all operations of the group.
    """

    ended_rows: list[Row] = field(default_factory=list)
    ended_frames: list[Frame] = field(default_factory=list)
    answer_rows: list[Row] = field(default_factory=list)
    answer_frames: list[Frame] = field(default_factory=list)
    walk_rows: list[Row] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    heartbeats: list[Frame] = field(default_factory=list)
    stopped: list[tuple[int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return whether the call has any output."""
        if self.ended_rows or self.answer_rows or self.walk_rows or self.transitions or self.member_changes:
            return True
        return any(map(len, (*self.ended_frames, *self.answer_frames)))

    @property
    def operations(self) -> Frame:
        """All operations that have ended, as rows of `ENDED`."""
        return Frame.concat([ENDED.from_rows(self.ended_rows), *self.ended_frames])

    @property
    def answer_frame(self) -> Frame:
        """The answers, without successful heartbeats and commits, as rows of `ANSWERS`."""
        return Frame.concat([ANSWERS.from_rows(self.answer_rows), *self.answer_frames])

    # Both are read several times, but only after the call.
    @cached_property
    def transitions(self) -> list[Transition]:
        return [entry.transition for entry in self.entries if isinstance(entry, StateChange)]

    @cached_property
    def member_changes(self) -> list[MemberChange]:
        return [entry for entry in self.entries if isinstance(entry, MemberChange)]

    def answers(self, key: str) -> Iterator[Answer]:
        """Yield all answers to the group `key`: those of the machine, then those that were decided on columns."""
        yield from (entry for entry in self.entries if isinstance(entry, Answer))
        for heartbeats in self.heartbeats:
            yield from _answers_of(heartbeats, key)


@dataclass(frozen=True)
class StepResults:
    """The results of the groups that took a step each in one call, joined into one frame per layout.

    Attributes:
        by_key: The results by group. The column `group` of each frame is an index into them.
    """

    by_key: dict[str, StepResult]

    @cached_property
    def ended(self) -> Frame:
        """The operations that have ended, as rows of `ENDED`."""
        return self._joined(ENDED, lambda result: result.ended_rows, lambda result: result.ended_frames)

    @cached_property
    def answers(self) -> Frame:
        """The answers, as rows of `ANSWERS`."""
        return self._joined(ANSWERS, lambda result: result.answer_rows, lambda result: result.answer_frames)

    @cached_property
    def walks(self) -> Frame:
        """The checks that completed no operation, as rows of `WALKS`."""
        return self._joined(WALKS, lambda result: result.walk_rows, lambda result: [])

    def _joined(
        self,
        layout: FrameLayout,
        rows: Callable[[StepResult], list[Row]],
        frames: Callable[[StepResult], list[Frame]],
    ) -> Frame:
        parts = [
            rows_of_groups(
                layout, [(index, row) for index, result in enumerate(self.by_key.values()) for row in rows(result)]
            )
        ]
        for index, result in enumerate(self.by_key.values()):
            parts += [frame.with_columns(group=np.full(len(frame), index)) for frame in frames(result)]
        return Frame.concat(parts)


def rows_of_groups(layout: FrameLayout, rows: Sequence[tuple[int, Row]]) -> Frame:
    """Build a frame of rows, each with the index of its group, which becomes the column `group`."""
    groups = np.array([index for index, _ in rows], dtype=np.int64)
    return layout.from_rows([row for _, row in rows]).with_columns(group=groups)


@dataclass(frozen=True)
class DecidedGroups:
    """Groups of a call that were decided together. In each frame, `group` is an index into `snapshots`.

    Attributes:
        snapshots: The groups after the call.
        ended: The operations that ended, as rows of `ENDED`.
        started: The operations that started and are open: the columns of `SESSIONS`, and `kind`.
        answers: The answers, as rows of `ANSWERS`.
        walks: The checks that completed no operation, as rows of `WALKS`.
        transitions: The transitions, each with the index of its group.
    """

    snapshots: dict[str, GroupSnapshot]
    ended: Frame
    started: Frame
    answers: Frame
    walks: Frame
    transitions: list[tuple[int, Transition]]


def step_stable_groups(state: GroupStateStore, batch: RequestBatch, horizon_ms: int, pauses: Pauses) -> DecidedGroups:
    """Decide the groups of a batch that stay stable and have no timer due by the horizon.

    The other groups are not changed. They need a `step` each.
    """
    rows, group = batch.rows, batch.rows.group
    is_candidate = (np.bincount(group, minlength=len(batch.keys)) > 0) & (horizon_ms < FOREVER)
    is_candidate[group[rows.api > LAST_LIVENESS_API]] = False
    found = {
        number: state.get(batch.keys[number])
        for number in np.flatnonzero(is_candidate).tolist()
        if state.is_stable(batch.keys[number])
    }
    stable = {number: snapshot for number, snapshot in found.items() if snapshot.is_stable}
    index = np.full(len(batch.keys), -1)
    index[list(stable)] = np.arange(len(stable))
    rows = rows.take(index[group] >= 0)
    runs = apply_heartbeats(list(stable.values()), rows, index[rows.group], pauses, horizon_ms)
    is_error = runs.decided & (runs.answers > 0)
    errors = rows.with_columns(answer=runs.answers).take(is_error)
    decided = np.flatnonzero(runs.lengths)
    numbers = np.cumsum(runs.lengths > 0) - 1
    started = runs.started
    return DecidedGroups(
        {batch.keys[number]: stable[number] for number in np.array(list(stable), dtype=np.int64)[decided].tolist()},
        runs.ended.with_columns(group=numbers[runs.ended.group]),
        started.with_columns(group=numbers[started.group], kind=np.full(len(started), KIND_OF["heartbeat"])),
        error_answers(errors).with_columns(group=numbers[index[errors.group]]),
        WALKS.empty().with_columns(group=np.zeros(0, dtype=np.int64)),
        [],
    )


def step(
    key: str,
    snapshot: GroupSnapshot,
    rows: Frame,
    horizon_ms: int,
    config: GroupConfig,
    min_columnar_run: int = MIN_COLUMNAR_RUN,
    topics: ClusterTopics | None = None,
    pauses: Pauses | None = None,
) -> tuple[GroupSnapshot, StepResult]:
    """Apply the rows of one group, then run every timer up to the horizon.

    Args:
        key: The group's key.
        snapshot: The group before the call; it must not be used afterwards.
        rows: New events of the group, in order.
        horizon_ms: Time up to which the group's events are complete, in epoch milliseconds.
        config: The settings of groups.
        min_columnar_run: Length from which on a run of heartbeats is decided on columns.
        topics: Topics of the cluster, for consumer groups.
        pauses: The times at which brokers stood still.
    """
    return _GroupStep(key, snapshot, rows, config, min_columnar_run, topics, pauses or Pauses()).run(horizon_ms)


class _GroupStep:
    """The state of a call. Either the machine or the snapshot holds the group, never both."""

    def __init__(
        self,
        key: str,
        snapshot: GroupSnapshot,
        rows: Frame,
        config: GroupConfig,
        min_columnar_run: int,
        topics: ClusterTopics | None,
        pauses: Pauses,
    ) -> None:
        self._topics, self._pauses = topics, pauses
        self._key, self._rows, self._config, self._min_run = key, rows, config, max(1, min_columnar_run)
        self._snapshot = snapshot
        if snapshot.is_new is None and len(rows):
            snapshot.is_new = has_new_coordinator(GroupEvents(rows.take(slice(0, 1)), key)[0], config)
            snapshot.text = None
        self._machine: GroupMachine | None = None
        self._run_ends = _heartbeat_run_ends(rows)
        self._events: GroupEvents | None = None
        self._result = StepResult()

    def run(self, horizon_ms: int) -> tuple[GroupSnapshot, StepResult]:
        at = 0
        while at < len(self._rows):
            at += self._apply_heartbeats(at) or self._apply_event(at)
        if self._machine is not None or self._snapshot.next_deadline_ms() <= horizon_ms:
            self._restore_machine().clock.advance_to(horizon_ms)
        self._release_machine()
        return self._snapshot, self._result

    def _apply_heartbeats(self, at: int) -> int:
        """Apply the heartbeat run that starts at row `at`. Return its length, or 0 if the machine must decide it."""
        end = self._run_ends[at]
        if end == at or not self._is_stable() or (self._machine is not None and end - at < self._min_run):
            return 0
        if self._machine is not None:
            # Timers that are due by now come first and may change the group's state.
            self._machine.clock.advance_to(int(self._rows.t[at]) // 1000)
            if not self._is_stable():
                return 0
        self._release_machine()
        heartbeats = self._rows.take(slice(at, end))
        only_group = np.zeros(len(heartbeats), dtype=np.int64)
        runs = apply_heartbeats([self._snapshot], heartbeats, only_group, self._pauses)
        length = int(runs.lengths[0])
        if length:
            self._result.ended_frames.append(runs.ended.select(ENDED.names))
            decided = heartbeats.with_columns(answer=runs.answers).take(slice(0, length))
            self._result.heartbeats.append(decided)
            if decided.answer.any():
                self._result.answer_frames.append(error_answers(decided.take(decided.answer > 0)))
        return length

    def _apply_event(self, at: int) -> int:
        if self._events is None:
            self._events = GroupEvents(self._rows, self._key)
        request = self._events.request(at, self._config)
        self._restore_machine().apply(request)
        if isinstance(request, GroupStopped):
            self._result.stopped.append((request.time_us, request.seq))
        return 1

    def _is_stable(self) -> bool:
        if self._machine is None:
            return self._snapshot.is_stable
        group = self._machine.group
        return group is not None and group.state is GroupState.STABLE

    def _restore_machine(self) -> GroupMachine:
        if self._machine is None:
            self._machine = GroupMachine(self._key, self._config, self._snapshot, self._topics, self._pauses)
        return self._machine

    def _release_machine(self) -> None:
        """Take the results of the machine and replace it by a snapshot."""
        if self._machine is None:
            return
        machine, self._snapshot, self._machine = self._machine, self._machine.snapshot(), None
        self._result.entries += machine.journal.entries
        self._result.answer_rows += starmap(answer_row, machine.journal.answered)
        self._result.ended_rows += map(ended_row, machine.timeline.ended)
        self._result.walk_rows += machine.timeline.walks
        machine.release()


def _heartbeat_run_ends(rows: Frame) -> list[int]:
    """Return, for each row, the index of the next row that is neither a heartbeat nor a commit."""
    structural = np.where(rows.api > LAST_LIVENESS_API, np.arange(len(rows)), len(rows))
    ends: list[int] = np.minimum.accumulate(structural[::-1])[::-1].tolist()
    return ends


def error_answers(heartbeats: Frame) -> Frame:
    """Return heartbeats that were answered with an error as rows of `ANSWERS`."""
    nothing = np.full(len(heartbeats), "", dtype=object)
    return Frame(
        {
            "seq": heartbeats.seq,
            "t": heartbeats.t,
            "at": heartbeats.t,
            "api": heartbeats.api,
            "error": heartbeats.answer,
            "request_generation": heartbeats.generation,
            "generation": np.full(len(heartbeats), -1, dtype=np.int64),
            "request_id": heartbeats.request_id,
            "member_id": heartbeats.member_id,
            "given": heartbeats.member_id,
            "leader": nothing,
            "assigned": nothing,
            "named_leader": nothing,
            "recorded_epoch": np.full(len(heartbeats), -1, dtype=np.int64),
            "assignment": nothing,
            "recorded_assignment": nothing,
        }
    ).select(ANSWERS.names)


def _answers_of(heartbeats: Frame, key: str) -> Iterator[Answer]:
    broker, group = split_group_key(key)
    for row in range(len(heartbeats)):
        yield Answer(
            broker=broker,
            group=group,
            seq=int(heartbeats.seq[row]),
            request_id=heartbeats.request_id[row] or None,
            api=Api(int(heartbeats.api[row])).label,
            requested_us=int(heartbeats.t[row]),
            at_us=int(heartbeats.t[row]),
            error=ERRORS[int(heartbeats.answer[row])],
            member_id=heartbeats.member_id[row],
            generation=None,
            leader=None,
            awaits_commits=not heartbeats.answer[row],
        )
