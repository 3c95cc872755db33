"""A trace of groups replayed in batches, with the state as bytes in between; and the reference's result for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.coordinator.coordinator_journal import (
    Answer,
    Conversion,
    GroupJournal,
    MemberChange,
    Removal,
    StateChange,
    Write,
)
from purgatory_udf.rules.groups.group_rows import FOREVER, ROWS, RequestBatch, group_key, split_group_key
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot, GroupStateStore
from purgatory_udf.rules.groups.group_step import MIN_COLUMNAR_RUN, StepResult, StepResults, step
from purgatory_udf.rules.groups.group_waits import GroupWaits, open_operation_ids
from purgatory_udf.rules.purgatory.clock import Pauses
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from tests.rules.groups.ended_rows import outcomes_of

Event = dict[str, Any]


@dataclass
class GroupRecord:
    """The result of a replay for one group."""

    outcomes: list[Outcome] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    journal: list[Removal | StateChange | MemberChange | Conversion] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def in_order(self) -> GroupRecord:
        """Return the record with operations and answers sorted by id, and the journal unchanged."""
        return GroupRecord(
            sorted(self.outcomes, key=lambda outcome: outcome.operation_id),
            sorted(self.answers, key=lambda answer: answer.seq),
            self.journal,
            sorted(self.open),
        )


class Batches:
    """Calls `step` as a stream does: for groups with events, and for groups with due timers."""

    def __init__(
        self,
        config: Config,
        min_columnar_run: int = MIN_COLUMNAR_RUN,
        topics: ClusterTopics | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self._topics, self._pauses = topics, pauses
        self.records: dict[str, GroupRecord] = {}
        self.waits: list[bytes] = []
        self._config, self._min_columnar_run = config.group, min_columnar_run
        self._state: dict[str, bytes] = {}
        self.deadlines: dict[str, int] = {}

    def take(self, events: Sequence[Event]) -> None:
        """Apply one batch, up to the millisecond of its last event."""
        table = pa.Table.from_pylist([{"broker": 0} | event for event in events], schema=EVENTS)
        rows = dict(RequestBatch.from_events(table).by_group())
        horizon_ms = max(event["time_us"] for event in events) // 1000
        due = [key for key, deadline_ms in self.deadlines.items() if deadline_ms <= horizon_ms]
        for key in dict.fromkeys([*rows, *due]):
            self._call(key, rows.get(key), horizon_ms)

    def drain(self) -> None:
        for key in self._state:
            self._call(key, None, FOREVER)

    def _call(self, key: str, rows: Any, horizon_ms: int) -> None:
        store = GroupStateStore.from_bytes(self._state[key]) if key in self._state else GroupStateStore()
        rows = rows if rows is not None else ROWS.empty()
        snapshot = store.get(key)
        before, waits = open_operation_ids(snapshot), GroupWaits()
        snapshot, result = step(
            key, snapshot, rows, horizon_ms, self._config, self._min_columnar_run, self._topics, self._pauses
        )
        waits.record_open(key, before, snapshot)
        waits.record_steps(StepResults({key: result}))
        store.put(key, snapshot)
        self._state[key], self.deadlines[key] = store.to_bytes(), store.next_deadline_ms
        self._note(key, result, snapshot)
        payload = waits.to_bytes()
        if payload is not None:
            self.waits.append(payload)

    def _note(self, key: str, result: StepResult, snapshot: GroupSnapshot) -> None:
        record = self.records.setdefault(key, GroupRecord())
        record.outcomes += outcomes_of(result.operations, *split_group_key(key))
        record.answers += result.answers(key)
        record.journal += [entry for entry in result.entries if not isinstance(entry, Answer | Write)]
        record.open = [*snapshot.sessions.op.tolist(), *(each.operation_id for each in snapshot.rebalances)]


def in_batches(
    events: Sequence[Event], config: Config, cuts: Iterable[int], min_columnar_run: int = MIN_COLUMNAR_RUN
) -> Batches:
    """Replay the events in batches that start at the indices in `cuts`, then drain."""
    bounds = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    batches = Batches(config, min_columnar_run, ClusterTopics.from_events(events), Pauses.from_events(events))
    for begin, end in pairwise(bounds):
        batches.take(events[begin:end])
    if config.drain:
        batches.drain()
    return batches


def by_group(result: Replay) -> dict[str, GroupRecord]:
    """Return the reference's result by group."""
    records: dict[str, GroupRecord] = {}
    for operation in result.groups.operations:
        record = records.setdefault(group_key(operation.request.broker, operation.key.group), GroupRecord())
        if operation.completed:
            record.outcomes.append(operation.outcome())
        else:
            record.open.append(operation.operation_id)
    for entry in result.groups.entries:
        of_group = entry.transition if isinstance(entry, StateChange) else entry
        record = records.setdefault(group_key(of_group.broker, of_group.group), GroupRecord())
        if isinstance(entry, Answer):
            record.answers.append(entry)
        elif not isinstance(entry, Write):
            record.journal.append(entry)
    return records


def journal_of(batches: Batches) -> GroupJournal:
    """Merge the groups' entries into one journal, for comparison with the oracle."""
    journal = GroupJournal()
    for record in batches.records.values():
        journal.entries += [*record.answers, *record.journal]
    return journal


def reference_of(events: Sequence[Event], config: Config) -> dict[str, GroupRecord]:
    return by_group(replay(events, config))
