"""One call for one group: its state and events in, what ended and what changed out, up to a horizon.

    kept, events ──► machine ──► a run of signs ──► machine ──► … ──► timers up to the horizon ──► kept, found
                     (joins, syncs, leaves,         (columns)
                     rounds, and timers)

The state machine is the coordinator's. It is taken up only when it is needed: signs of life in a stable group, the bulk
of any trace, are decided on columns, and a call that brings nothing else never builds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, Removal, StateChange
from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.rules.groups.frames import Frame
from purgatory_udf.rules.groups.group_codes import ERRORS, LAST_LIVENESS_API, Api
from purgatory_udf.rules.groups.group_machine import ANSWERS, GroupMachine, answer_frame
from purgatory_udf.rules.groups.group_rows import GroupEvents, split_group_key
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot
from purgatory_udf.rules.groups.heartbeat_fast_path import apply_heartbeats
from purgatory_udf.rules.groups.operation_timeline import ENDED, WALKS, ended_frame

# From how many signs in a row on it pays to put the machine down, for which its sessions become columns.
MIN_COLUMNAR_RUN = 32

Entry = Answer | Removal | StateChange


@dataclass
class StepResult:
    """What a call found: operations that ended, answers worth keeping, walks that completed nothing, and the journal's
    entries; of the signs decided on columns the answers are kept as columns too. `stopped`: time and `seq` of events
    with which everything that was parked for the group has gone."""

    ended: list[Frame] = field(default_factory=list)
    answer_frames: list[Frame] = field(default_factory=list)
    walked: list[Frame] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    signs: list[Frame] = field(default_factory=list)
    stopped: list[tuple[int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.transitions) or any(map(len, (*self.ended, *self.answer_frames, *self.walked)))

    @property
    def operations(self) -> Frame:
        return Frame.concat([ENDED.empty(), *self.ended])

    @property
    def transitions(self) -> list[Transition]:
        return [entry.transition for entry in self.entries if isinstance(entry, StateChange)]

    def answers(self, key: str) -> Iterator[Answer]:
        """All of them, one by one: those of runs of signs after the others."""
        yield from (entry for entry in self.entries if isinstance(entry, Answer))
        for signs in self.signs:
            yield from _answers_of(signs, key)


def step(
    key: str,
    kept: GroupSnapshot,
    rows: Frame,
    horizon_ms: int,
    config: GroupConfig,
    worth_columns: int = MIN_COLUMNAR_RUN,
) -> tuple[GroupSnapshot, StepResult]:
    """Apply the events, then let every timer run that is due by the horizon. `kept` is used up."""
    return _GroupStep(key, kept, rows, config, worth_columns).run(horizon_ms)


class _GroupStep:
    """Either the machine holds the group, or the columns do."""

    def __init__(self, key: str, kept: GroupSnapshot, rows: Frame, config: GroupConfig, worth_columns: int) -> None:
        self._key, self._rows, self._config, self._worth = key, rows, config, max(1, worth_columns)
        self._kept = kept
        self._machine: GroupMachine | None = None
        self._runs_end = _heartbeat_run_ends(rows)
        self._events: GroupEvents | None = None
        self._findings = StepResult()

    def run(self, horizon_ms: int) -> tuple[GroupSnapshot, StepResult]:
        at = 0
        while at < len(self._rows):
            at += self._take_signs(at) or self._take_one(at)
        if self._machine is not None or self._kept.next_deadline_ms() <= horizon_ms:
            self._up().clock.advance_to(horizon_ms)
        self._down()
        return self._kept, self._findings

    def _take_signs(self, at: int) -> int:
        """How many rows a run from here on has decided; 0 where the machine has to go on."""
        end = self._runs_end[at]
        if end == at or not self._is_stable() or (self._machine is not None and end - at < self._worth):
            return 0
        if self._machine is not None:
            # What is due by now may change the group, and comes first.
            self._machine.clock.advance_to(int(self._rows.t[at]) // 1000)
            if not self._is_stable():
                return 0
        self._down()
        signs = self._rows.take(slice(at, end))
        run = apply_heartbeats(self._kept, signs)
        if run.length:
            self._findings.ended.append(run.ended)
            decided = signs.take(slice(0, run.length)).with_columns(answer=run.answers)
            self._findings.signs.append(decided)
            if run.answers.any():
                self._findings.answer_frames.append(_error_answers(decided.take(run.answers > 0)))
        return run.length

    def _take_one(self, at: int) -> int:
        if self._events is None:
            self._events = GroupEvents(self._rows, self._key)
        self._up().apply(self._events[at])
        if self._rows.api[at] == Api.GROUP_STOPPED:
            self._findings.stopped.append((int(self._rows.t[at]), int(self._rows.seq[at])))
        return 1

    def _is_stable(self) -> bool:
        if self._machine is None:
            return self._kept.is_stable
        group = self._machine.group
        return group is not None and group.state is GroupState.STABLE

    def _up(self) -> GroupMachine:
        if self._machine is None:
            self._machine = GroupMachine(self._key, self._config, self._kept)
        return self._machine

    def _down(self) -> None:
        if self._machine is None:
            return
        machine, self._kept, self._machine = self._machine, self._machine.put_down(), None
        self._findings.entries += machine.journal.entries
        self._findings.answer_frames.append(answer_frame(machine.journal.kept))
        self._findings.ended.append(ended_frame(machine.chronicle))
        self._findings.walked.append(WALKS.of(machine.chronicle.walks))


def _heartbeat_run_ends(rows: Frame) -> list[int]:
    """Row by row: the first one from there on that is more than a sign of life."""
    structural = np.where(rows.api > LAST_LIVENESS_API, np.arange(len(rows)), len(rows))
    ends: list[int] = np.minimum.accumulate(structural[::-1])[::-1].tolist()
    return ends


def _error_answers(signs: Frame) -> Frame:
    """The answers to signs that were not well."""
    nothing = np.full(len(signs), "", dtype=object)
    return Frame(
        {
            "seq": signs.seq,
            "t": signs.t,
            "at": signs.t,
            "api": signs.api,
            "error": signs.answer,
            "asked": signs.generation,
            "generation": np.full(len(signs), -1, dtype=np.int64),
            "request_id": signs.request_id,
            "member_id": signs.member_id,
            "given": signs.member_id,
            "leader": nothing,
            "assigned": nothing,
            "named_leader": nothing,
        }
    ).only(ANSWERS.names)


def _answers_of(signs: Frame, key: str) -> Iterator[Answer]:
    broker, group = split_group_key(key)
    for row in range(len(signs)):
        yield Answer(
            broker=broker,
            group=group,
            seq=int(signs.seq[row]),
            request_id=signs.request_id[row] or None,
            api=Api(int(signs.api[row])).word,
            asked_us=int(signs.t[row]),
            at_us=int(signs.t[row]),
            error=ERRORS[int(signs.answer[row])],
            member_id=signs.member_id[row],
            generation=None,
            leader=None,
        )
