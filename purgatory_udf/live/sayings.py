"""What one call of a query says for `top`: a small JSON document, whatever the call was about."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from purgatory_udf.compiling.records import Records
from purgatory_udf.live.board import SECONDS
from purgatory_udf.live.lacks import lacks, name_of
from purgatory_udf.loop.state import Decisions, State
from purgatory_udf.loop.words import KINDS, PURGATORIES, Code

# Of each purgatory, so many of those that have waited longest.
OLDEST = 5


def of_keys(state: State, decided: Decisions, whole: bool) -> bytes:
    """Of a group of keys: what ended in the call and, if the group sees whole brokers, how it stands after it."""
    said: dict[str, Any] = {
        "completions": len(decided.completed),
        "expirations": len(decided.expired),
        "cancellations": len(decided.cancelled),
        "expired": _by_second(decided.all_operations[decided.expired]),
    }
    if whole:
        said["open"] = len(state.operations)
        said["purgatories"] = [
            [int(row["broker"]), PURGATORIES[Code(int(row["code"]))], int(row["watched"]), int(row["delayed"])]
            for row in state.purgatories
        ]
        said["oldest"] = [_waiting(state, operation) for operation in _oldest(state.operations)]
    return json.dumps(said, separators=(",", ":")).encode()


def of_time(events: int) -> bytes:
    """How many events a batch had."""
    return json.dumps({"events": events}).encode()


def _by_second(operations: Records) -> list[list[Any]]:
    if not len(operations):
        return []
    second = operations["deadline"] // 1000
    recent = second > int(second.max()) - SECONDS
    rows = np.stack([second[recent], operations["broker"][recent], operations["code"][recent]], axis=1)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    pairs = zip(distinct.tolist(), counts.tolist(), strict=True)
    return [[at, broker, PURGATORIES[Code(code)], count] for (at, broker, code), count in pairs]


def _oldest(operations: Records) -> Records:
    """Of each purgatory those that came first, in the order in which they came."""
    order = np.lexsort((operations["seq"], operations["t"], operations["code"], operations["broker"]))
    rows = operations[order]
    owner = rows["broker"].astype(np.int64) * 16 + rows["code"]
    begins = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])) if len(rows) else np.zeros(0, np.int64)
    place = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    return rows[place < OLDEST]


def _waiting(state: State, operation: Records) -> dict[str, Any]:
    code, text = Code(int(operation["code"])), int(operation["text"])
    first = state.parts[int(operation["first"])] if operation["count"] else None
    return {
        "broker": int(operation["broker"]),
        "purgatory": PURGATORIES[code],
        "kind": KINDS[code],
        "operation_id": int(operation["seq"]),
        "request_id": state.request_ids[text].as_py() or None,
        "client_id": state.client_ids[text].as_py() or None,
        "key": None if first is None else name_of(state.names[int(first["key"])]),
        "since_us": int(operation["t"]),
        "deadline_ms": int(operation["deadline"]),
        "lacks": lacks(state, operation),
    }
