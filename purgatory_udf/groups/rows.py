"""Events of groups as rows: numbers and texts in columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.frames.frame import Array, Frame, FrameLayout
from purgatory_udf.groups.words import API_OF, Api

ROWS = FrameLayout(
    numbers=("t", "seq", "api", "generation", "static", "api_version", "session_ms", "rebalance_ms"),
    texts=("request_id", "client_id", "member_id", "instance_id", "assigned", "named_leader", "protocols"),
)

# What is read of an event.
COLUMNS = (
    "time_us", "seq", "broker", "type", "request_id", "client_id", "group", "member_id", "assigned_member_id",
    "leader_member_id", "group_instance_id", "api_version", "session_timeout_ms", "rebalance_timeout_ms", "protocols",
    "generation",
)  # fmt: skip

_ABSENT = -1
_WORDS = [api.word for api in Api]


def key_of(broker: int, group: str) -> str:
    """A group is known by its name only to its own broker."""
    return f"{broker}/{group}"


def parts_of(key: str) -> tuple[int, str]:
    broker, _, group = key.partition("/")
    return int(broker), group


def _numbers(column: pa.ChunkedArray) -> Array:
    numbers: Array = pc.fill_null(column.cast(pa.int64()), _ABSENT).to_numpy()
    return numbers


def _texts(column: pa.ChunkedArray) -> Array:
    texts: Array = pc.fill_null(column.cast(pa.string()), "").to_numpy().astype(object)
    return texts


def rows_of(events: pa.Table) -> Frame:
    """Group events, in their order, as rows."""
    api = pc.index_in(events["type"], pa.array(API_OF)).to_numpy()
    instance = events["group_instance_id"]
    return Frame(
        {
            "t": _numbers(events["time_us"]),
            "seq": _numbers(events["seq"]),
            "api": np.array(list(API_OF.values()), dtype=np.int64)[api],
            "generation": _numbers(events["generation"]),
            "static": pc.is_valid(instance).to_numpy().astype(np.int64),
            "api_version": _numbers(events["api_version"]),
            "session_ms": _numbers(events["session_timeout_ms"]),
            "rebalance_ms": _numbers(events["rebalance_timeout_ms"]),
            "request_id": _texts(events["request_id"]),
            "client_id": _texts(events["client_id"]),
            "member_id": _texts(events["member_id"]),
            "instance_id": _texts(instance),
            "assigned": _texts(events["assigned_member_id"]),
            "named_leader": _texts(events["leader_member_id"]),
            "protocols": _protocols(events["protocols"]),
        }
    )


def _protocols(column: pa.ChunkedArray) -> Array:
    """Only joins have any, so that this is no loop over heartbeats."""
    texts = np.full(len(column), "", dtype=object)
    for row in np.flatnonzero(pc.is_valid(column).to_numpy()).tolist():
        texts[row] = json.dumps(column[row].as_py())
    return texts


class Events:
    """Rows of one group as the events that they were made of. An empty text stands for an absent one."""

    def __init__(self, rows: Frame, key: str) -> None:
        self._broker, self._group = parts_of(key)
        self._columns = {name: rows.columns[name].tolist() for name in ROWS.names}

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        columns = self._columns
        event = {
            "type": _WORDS[columns["api"][row]],
            "time_us": columns["t"][row],
            "seq": columns["seq"][row],
            "broker": self._broker,
            "group": self._group,
            "request_id": columns["request_id"][row] or None,
            "client_id": columns["client_id"][row] or None,
            "member_id": columns["member_id"][row],
            "group_instance_id": columns["instance_id"][row] if columns["static"][row] else None,
            "generation": columns["generation"][row],
        }
        if columns["api"][row] not in (Api.JOIN_GROUP, Api.GROUP_LOADED):
            return event
        version, rebalance_ms = columns["api_version"][row], columns["rebalance_ms"][row]
        return event | {
            "assigned_member_id": columns["assigned"][row] or None,
            "leader_member_id": columns["named_leader"][row] or None,
            "api_version": None if version == _ABSENT else version,
            "session_timeout_ms": columns["session_ms"][row],
            "rebalance_timeout_ms": None if rebalance_ms == _ABSENT else rebalance_ms,
            "protocols": json.loads(columns["protocols"][row] or "[]"),
        }
