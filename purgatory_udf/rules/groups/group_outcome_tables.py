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
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, Row, pack, unpack_columns
from purgatory_udf.rules.groups.group_machine import ANSWERS
from purgatory_udf.rules.groups.group_rows import ERRORS, FOREVER, KINDS, RULES, Api, split_group_key
from purgatory_udf.rules.groups.group_step import DecidedGroups, StepResults, rows_of_groups
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


def group_outputs(results: StepResults, together: Iterable[DecidedGroups] = ()) -> list[GroupOutput]:
    """Serialize the results of a call, by table. Tables without rows are left out.

    Args:
        results: The results of groups that took a step each.
        together: The results of the other groups, with their rows at the end.
    """
    keys = list(results.by_key)
    by_index = list(enumerate(results.by_key.values()))
    transitions = [(index, _transition_row(change)) for index, result in by_index for change in result.transitions]
    changes = [(index, _member_row(change)) for index, result in by_index for change in result.member_changes]
    ended, answers = [results.ended], [results.answers]
    for decided in together:
        first = len(keys)
        keys += decided.snapshots
        ended.append(decided.ended.with_columns(group=decided.ended.group + first))
        answers.append(decided.answers.with_columns(group=decided.answers.group + first))
        transitions += [(first + index, _transition_row(change)) for index, change in decided.transitions]
    names, all_ended = Frame({"key": np.array(keys, dtype=object)}), Frame.concat(ended)
    kinds = end_kinds(all_ended)
    tables = {
        **{table: all_ended.take(kinds == end) for table, end in _END_TABLES.items()},
        "group_transitions": rows_of_groups(TRANSITIONS, transitions),
        "member_transitions": rows_of_groups(MEMBER_CHANGES, changes),
        "group_answers": Frame.concat(answers),
    }
    return [
        GroupOutput(
            table, int(rows.columns[_TIME_COLUMN[table]].max()), len(rows), pack({"names": names, "rows": rows})
        )
        for table, rows in tables.items()
        if len(rows)
    ]


def _transition_row(change: Transition) -> Row:
    members = json.encode(change.members).decode()
    return change.at_us, change.generation, change.from_state, change.to_state, change.reason, members


def _member_row(change: MemberChange) -> Row:
    states = change.from_state or "", change.to_state
    partitions = [json.encode(sorted(each)).decode() for each in (change.assigned, change.revoking, change.held_by)]
    return change.at_us, change.epoch, int(change.is_classic), change.member_id, *states, change.reason, *partitions


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
        convert = {
            "group_transitions": self._transitions,
            "member_transitions": self._members,
            "group_answers": self._answers,
        }.get(table, self._outcomes)
        tables = [convert(_Rows(value), SCHEMAS[table]) for value in payloads]
        return pa.concat_tables([SCHEMAS[table].empty_table(), *tables]).combine_chunks()

    @property
    def _end_ms(self) -> int:
        return FOREVER if self.trace_end_us is None else self.trace_end_us // 1000

    def _outcomes(self, ended: _Rows, schema: pa.Schema) -> pa.Table:
        count, group, member_id = len(ended), ended.group(), ended.texts("member_id")
        keys = pc.if_else(pc.equal(member_id, ""), group, pc.binary_join_element_wise(group, member_id, "-"))
        t, end_t = ended.numbers("t"), ended.numbers("end_t")
        nothing = pa.nulls(count, pa.int64())
        columns = {
            "run_id": pa.repeat(self.run_id, count),
            "operation_id": pa.array(ended.numbers("op")),
            "kind": _KINDS.take(pa.array(ended.numbers("kind"))),
            "broker": ended.broker(),
            "request_id": _null_if_empty(ended.texts("request_id")),
            "client_id": _null_if_empty(ended.texts("client_id")),
            "key": keys,
            "started_at": _timestamps(t),
            **dict.fromkeys(("completed_at", "expired_at", "cancelled_at"), _timestamps(end_t)),
            "deadline": _timestamps(ended.numbers("deadline") * 1000),
            "wait_ms": pa.array(end_t // 1000 - t // 1000),
            "watched": pa.array(ended.numbers("watched") > 0),
            **dict.fromkeys(("completed_by", "reason"), _RULES.take(pa.array(ended.numbers("rule")))),
            "trigger": pc.if_else(pa.array(ended.numbers("triggered") > 0), keys, pa.scalar(None, pa.string())),
            **dict.fromkeys(("bytes", "answered_bytes"), nothing),
            "partitions": pa.array([[]], schema.field("partitions").type).take(pa.array(np.zeros(count, np.int64))),
            "fetcher": pa.nulls(count, pa.string()),
            "after_end": pa.array(end_t // 1000 > self._end_ms),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _transitions(self, changes: _Rows, schema: pa.Schema) -> pa.Table:
        members = changes.texts("members").to_pylist()
        columns = {
            "run_id": pa.repeat(self.run_id, len(changes)),
            "broker": changes.broker(),
            "group": changes.group(),
            "at": _timestamps(changes.numbers("t")),
            **{name: changes.texts(name) for name in ("from_state", "to_state", "reason")},
            "generation": pa.array(changes.numbers("generation").astype(np.int32)),
            "members": pa.array([json.decode(text) for text in members], pa.list_(pa.string())),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _members(self, changes: _Rows, schema: pa.Schema) -> pa.Table:
        columns = {
            "run_id": pa.repeat(self.run_id, len(changes)),
            "broker": changes.broker(),
            "group": changes.group(),
            "at": _timestamps(changes.numbers("t")),
            **{name: changes.texts(name) for name in ("member_id", "to_state", "reason")},
            "from_state": _null_if_empty(changes.texts("from_state")),
            "epoch": pa.array(changes.numbers("epoch").astype(np.int32)),
            **{name: _partitions(name, changes.texts(name)) for name in ("assigned", "revoking", "held_by")},
            "classic": pa.array(changes.numbers("classic") > 0),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _answers(self, answers: _Rows, schema: pa.Schema) -> pa.Table:
        generation, epoch = answers.numbers("generation"), answers.numbers("recorded_epoch")
        texts = {
            "request_id": "request_id",
            "given_member_id": "given",
            "leader": "leader",
            "assigned_member_id": "assigned",
            "leader_member_id": "named_leader",
            "assignment": "assignment",
            "recorded_assignment": "recorded_assignment",
        }
        columns = {
            "broker": answers.broker(),
            "group": answers.group(),
            "seq": pa.array(answers.numbers("seq")),
            "asked_at": _timestamps(answers.numbers("t")),
            "answered_at": _timestamps(answers.numbers("at")),
            "api": _APIS.take(pa.array(answers.numbers("api"))),
            "member_id": answers.texts("member_id"),
            "request_generation": pa.array(answers.numbers("request_generation")),
            "error": _ERRORS.take(pa.array(answers.numbers("error"))),
            "generation": pa.array(generation, mask=generation < 0),
            "assigned_epoch": pa.array(epoch, mask=epoch < 0),
            **{name: _null_if_empty(answers.texts(column)) for name, column in texts.items()},
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)


class _Rows:
    """The rows of one payload."""

    def __init__(self, payload: bytes) -> None:
        parts = unpack_columns(payload)
        self._columns, self._keys = parts["rows"], parts["names"]["key"].to_pylist()
        self._group = self.numbers("group")

    def __len__(self) -> int:
        return len(self._group)

    def numbers(self, name: str) -> Array:
        numbers: Array = self._columns[name]
        return numbers

    def texts(self, name: str) -> pa.Array:
        return self._columns[name].cast(pa.string())

    def broker(self) -> pa.Array:
        brokers = [split_group_key(key)[0] for key in self._keys]
        return pa.array(np.array(brokers, dtype=np.int32)[self._group])

    def group(self) -> pa.Array:
        """Return the name of each row's group."""
        return pa.array([split_group_key(key)[1] for key in self._keys], pa.string()).take(pa.array(self._group))


def _partitions(name: str, column: pa.Array) -> pa.Array:
    """Convert a text column of assignments to lists of partitions, for column `name` of `member_transitions`."""
    kind = MEMBER_TRANSITIONS.field(name).type
    names = [field.name for field in kind.value_type]
    texts = column.to_pylist()
    return pa.array([[dict(zip(names, each, strict=True)) for each in json.decode(text)] for text in texts], kind)


def _null_if_empty(texts: pa.Array) -> pa.Array:
    """Replace empty texts by null."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _timestamps(us: Array) -> pa.Array:
    return pa.array(us, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
