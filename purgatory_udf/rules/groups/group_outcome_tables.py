"""Rows of the public tables: serialized per call and table, and converted into the tables' columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import json

from purgatory_udf.contract.outcome import Transition
from purgatory_udf.contract.tables import (
    CANCELLATIONS,
    COMPLETIONS,
    EXPIRATIONS,
    GROUP_TRANSITIONS,
    MEMBER_TRANSITIONS,
    TIMESTAMP,
)
from purgatory_udf.rules.coordinator.coordinator_journal import MemberChange
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, Row, pack, unpack
from purgatory_udf.rules.groups.group_machine import ANSWERS
from purgatory_udf.rules.groups.group_rows import ERRORS, FOREVER, KINDS, RULES, Api, split_group_key
from purgatory_udf.rules.groups.group_step import StableGroups, StepResults, rows_of_groups
from purgatory_udf.rules.groups.operation_timeline import CANCELLED, COMPLETED, ENDED, EXPIRED, end_kinds

# `members` is a JSON list.
TRANSITIONS = FrameLayout(numbers=("t", "generation"), texts=("from_state", "to_state", "reason", "members"))

# Partitions are JSON lists.
MEMBER_CHANGES = FrameLayout(
    numbers=("t", "epoch", "classic"),
    texts=("member_id", "from_state", "to_state", "reason", "assigned", "revoking", "held_by"),
)

# The tables of ended operations share one layout.
_END_TABLES = {"completions": COMPLETED, "expirations": EXPIRED, "cancellations": CANCELLED}
_LAYOUTS = {
    **dict.fromkeys(_END_TABLES, ENDED),
    "group_transitions": TRANSITIONS,
    "member_transitions": MEMBER_CHANGES,
    "group_answers": ANSWERS,
}
# The column with the time of a row.
_TIME_COLUMN = {
    **dict.fromkeys(_END_TABLES, "end_t"),
    **dict.fromkeys(("group_transitions", "member_transitions"), "t"),
    "group_answers": "at",
}


class GroupOutput(NamedTuple):
    """The rows of one call for one table.

    Attributes:
        table: The table's name.
        latest_us: The time of the last row, in microseconds.
        rows: The number of rows.
        payload: The serialized rows, and the keys of the groups that they refer to by index.
    """

    table: str
    latest_us: int
    rows: int
    payload: bytes


def group_outputs(results: StepResults, stable: StableGroups | None = None) -> list[GroupOutput]:
    """Serialize the results of a call, by table. Tables without rows are left out.

    Args:
        results: The results of groups that took a step each.
        stable: The results of the other groups, with their rows at the end.
    """
    keys = list(results.by_key)
    ended, answers = results.ended, results.answers
    if stable is not None:
        ended, answers = (
            Frame.concat([rows, of_stable.with_columns(group=of_stable.group + len(keys))])
            for rows, of_stable in ((ended, stable.ended), (answers, stable.errors))
        )
        keys += stable.snapshots
    names = Frame({"key": np.array(keys, dtype=object)})
    kinds = end_kinds(ended)
    by_index = list(enumerate(results.by_key.values()))
    transitions = [(index, _transition_row(change)) for index, result in by_index for change in result.transitions]
    changes = [(index, _member_row(change)) for index, result in by_index for change in result.member_changes]
    tables = {
        **{table: ended.take(kinds == end) for table, end in _END_TABLES.items()},
        "group_transitions": rows_of_groups(TRANSITIONS, transitions),
        "member_transitions": rows_of_groups(MEMBER_CHANGES, changes),
        "group_answers": answers,
    }
    return [
        GroupOutput(
            table, int(rows.columns[_TIME_COLUMN[table]].max()), len(rows), pack({"names": names, "rows": rows})
        )
        for table, rows in tables.items()
        if len(rows)
    ]


def concat_payloads(table: str, payloads: Iterable[bytes]) -> Frame:
    """Deserialize and append the rows of one table, with columns for `broker` and `group` (its name)."""
    frames = []
    for value in payloads:
        parts = unpack(value)
        keys = [split_group_key(key) for key in parts["names"].key]
        brokers = np.array([broker for broker, _ in keys], dtype=np.int64)
        groups = np.array([group for _, group in keys], dtype=object)
        rows = parts["rows"]
        frames.append(rows.with_columns(broker=brokers[rows.group], group=groups[rows.group]))
    return Frame.concat(frames) if frames else _with_group_columns(_LAYOUTS[table]).empty()


def _transition_row(change: Transition) -> Row:
    members = json.encode(change.members).decode()
    return change.at_us, change.generation, change.from_state, change.to_state, change.reason, members


def _member_row(change: MemberChange) -> Row:
    states = change.from_state or "", change.to_state
    partitions = [json.encode(sorted(each)).decode() for each in (change.assigned, change.revoking, change.held_by)]
    return change.at_us, change.epoch, int(change.is_classic), change.member_id, *states, change.reason, *partitions


def _with_group_columns(layout: FrameLayout) -> FrameLayout:
    return FrameLayout((*layout.numbers, "broker"), (*layout.texts, "group"))


# The answers of the replay, without successful heartbeats and commits, and what the trace records of the same answers.
# A value is null if the answer has none, or if it is not recorded.
GROUP_ANSWERS = pa.schema(
    [
        ("broker", pa.int32()),
        ("group", pa.string()),
        ("seq", pa.int64()),
        ("asked_at", TIMESTAMP),
        ("answered_at", TIMESTAMP),
        ("api", pa.string()),
        ("request_id", pa.string()),
        ("member_id", pa.string()),
        ("request_generation", pa.int64()),
        ("error", pa.string()),
        ("generation", pa.int64()),
        ("given_member_id", pa.string()),
        ("leader", pa.string()),
        ("assigned_member_id", pa.string()),
        ("leader_member_id", pa.string()),
        ("assigned_epoch", pa.int64()),
        ("assignment", pa.string()),
        ("recorded_assignment", pa.string()),
    ]
)

SCHEMAS = {
    "completions": COMPLETIONS,
    "expirations": EXPIRATIONS,
    "cancellations": CANCELLATIONS,
    "group_transitions": GROUP_TRANSITIONS,
    "member_transitions": MEMBER_TRANSITIONS,
    "group_answers": GROUP_ANSWERS,
}

_KINDS, _RULES, _ERRORS = pa.array(KINDS), pa.array(RULES), pa.array(ERRORS)
_APIS = pa.array([api.label for api in Api])


@dataclass(frozen=True)
class GroupTables:
    """Converts outputs into the rows of a run's tables."""

    run_id: str
    trace_end_us: int | None

    def rows(self, table: str, payloads: Iterable[bytes]) -> pa.Table:
        """Return the rows of one of `SCHEMAS`, in the order of its payloads."""
        rows = concat_payloads(table, payloads)
        if table == "group_transitions":
            return self._transitions(rows)
        if table == "member_transitions":
            return self._members(rows)
        if table == "group_answers":
            return self._answers(rows)
        return self._outcomes(rows, SCHEMAS[table])

    @property
    def _end_ms(self) -> int:
        return FOREVER if self.trace_end_us is None else self.trace_end_us // 1000

    def _outcomes(self, ended: Frame, schema: pa.Schema) -> pa.Table:
        count, group = len(ended), _texts(ended.group)
        sessions = pc.binary_join_element_wise(group, _texts(ended.member_id), "-")
        keys = pc.if_else(pa.array(ended.member_id != ""), sessions, group)
        columns = {
            "run_id": pa.repeat(self.run_id, count),
            "operation_id": pa.array(ended.op),
            "kind": _KINDS.take(pa.array(ended.kind)),
            "broker": pa.array(ended.broker.astype(np.int32)),
            "request_id": _null_if_empty(ended.request_id),
            "client_id": _null_if_empty(ended.client_id),
            "key": keys,
            "started_at": _timestamps(ended.t),
            **dict.fromkeys(("completed_at", "expired_at", "cancelled_at"), _timestamps(ended.end_t)),
            "deadline": _timestamps(ended.deadline * 1000),
            "wait_ms": pa.array(ended.end_t // 1000 - ended.t // 1000),
            "watched": pa.array(ended.watched > 0),
            **dict.fromkeys(("completed_by", "reason"), _RULES.take(pa.array(ended.rule))),
            "trigger": pc.if_else(pa.array(ended.triggered > 0), keys, pa.scalar(None, pa.string())),
            **dict.fromkeys(("bytes", "answered_bytes"), pa.nulls(count, pa.int64())),
            "partitions": pa.array([[]] * count, schema.field("partitions").type),
            "fetcher": pa.nulls(count, pa.string()),
            "after_end": pa.array(ended.end_t // 1000 > self._end_ms),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _transitions(self, changes: Frame) -> pa.Table:
        columns = {
            "run_id": pa.repeat(self.run_id, len(changes)),
            "broker": pa.array(changes.broker.astype(np.int32)),
            "group": _texts(changes.group),
            "at": _timestamps(changes.t),
            **{name: _texts(changes.columns[name]) for name in ("from_state", "to_state", "reason")},
            "generation": pa.array(changes.generation.astype(np.int32)),
            "members": pa.array([json.decode(text) for text in changes.members], pa.list_(pa.string())),
        }
        return pa.table([columns[name] for name in GROUP_TRANSITIONS.names], schema=GROUP_TRANSITIONS)

    def _members(self, changes: Frame) -> pa.Table:
        columns = {
            "run_id": pa.repeat(self.run_id, len(changes)),
            "broker": pa.array(changes.broker.astype(np.int32)),
            "group": _texts(changes.group),
            "at": _timestamps(changes.t),
            **{name: _texts(changes.columns[name]) for name in ("member_id", "to_state", "reason")},
            "from_state": _null_if_empty(changes.from_state),
            "epoch": pa.array(changes.epoch.astype(np.int32)),
            **{name: _partitions(name, changes.columns[name]) for name in ("assigned", "revoking", "held_by")},
            "classic": pa.array(changes.classic > 0),
        }
        return pa.table([columns[name] for name in MEMBER_TRANSITIONS.names], schema=MEMBER_TRANSITIONS)

    def _answers(self, answers: Frame) -> pa.Table:
        columns = {
            "broker": pa.array(answers.broker.astype(np.int32)),
            "group": _texts(answers.group),
            "seq": pa.array(answers.seq),
            "asked_at": _timestamps(answers.t),
            "answered_at": _timestamps(answers.at),
            "api": _APIS.take(pa.array(answers.api)),
            "request_id": _null_if_empty(answers.request_id),
            "member_id": _texts(answers.member_id),
            "request_generation": pa.array(answers.request_generation),
            "error": _ERRORS.take(pa.array(answers.error)),
            "generation": pa.array(answers.generation, mask=answers.generation < 0),
            "given_member_id": _null_if_empty(answers.given),
            "leader": _null_if_empty(answers.leader),
            "assigned_member_id": _null_if_empty(answers.assigned),
            "leader_member_id": _null_if_empty(answers.named_leader),
            "assigned_epoch": pa.array(answers.recorded_epoch, mask=answers.recorded_epoch < 0),
            "assignment": _null_if_empty(answers.assignment),
            "recorded_assignment": _null_if_empty(answers.recorded_assignment),
        }
        return pa.table([columns[name] for name in GROUP_ANSWERS.names], schema=GROUP_ANSWERS)


def _partitions(name: str, column: Array) -> pa.Array:
    """Convert a text column of assignments to lists of partitions, for column `name` of `member_transitions`."""
    kind = MEMBER_TRANSITIONS.field(name).type
    names = [field.name for field in kind.value_type]
    return pa.array([[dict(zip(names, each, strict=True)) for each in json.decode(text)] for text in column], kind)


def _texts(column: Array) -> pa.Array:
    return pa.array(column, pa.string())


def _null_if_empty(column: Array) -> pa.Array:
    """Replace empty texts by null."""
    texts = _texts(column)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _timestamps(us: Array) -> pa.Array:
    return pa.array(us, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
