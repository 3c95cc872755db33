"""What one call of a query says for `top`: a small JSON document, whatever the call was about."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop.arena import NONE, SETTLED
from purgatory_udf.rules.engine.loop.codes import KINDS, PURGATORIES, UNKNOWN, Code, Reader, key_parts
from purgatory_udf.rules.engine.loop.engine_state import Decisions, State
from purgatory_udf.rules.groups.group_codes import KIND_OF
from purgatory_udf.rules.groups.group_rows import split_group_key
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot
from purgatory_udf.rules.groups.group_step import StepResult
from purgatory_udf.streaming.status_file import EXPIRATION_SECONDS

# What an operation that waits on partitions or topics still lacks, in words, from the state of its group of keys.


def display_key(key: str) -> str:
    _, partition, topic = key_parts(key)
    return topic if partition < 0 else f"{topic}-{partition}"


def pending_reason(state: State, operation: Records) -> str:
    """Of several partitions the one that is furthest behind, and how many more there are."""
    begin = int(operation["first"])
    parts = state.parts[begin : begin + int(operation["count"])]
    if operation["code"] == Code.FETCH:
        return _bytes(state, operation, parts)
    pending = parts[parts["queue"] != SETTLED]
    if not len(pending):
        return "nothing more"
    says = {Code.PRODUCE: _replicas, Code.DELETE_RECORDS: _low_watermark}.get(Code(int(operation["code"])), _leaders)
    behind = pending["offset"] - _reached(state, operation, pending)
    worst = pending[int(np.argmax(behind))]
    key = int(worst["key"])
    more = f" (and {len(pending) - 1:,} more)" if len(pending) > 1 else ""
    return f"{display_key(state.names[key])}: {says(state, state.keys[key], int(worst['offset']))}{more}"


def _reached(state: State, operation: Records, parts: Records) -> Any:
    keys = state.keys[parts["key"]]
    return keys["hw"] if operation["code"] == Code.PRODUCE else keys["log_start"]


def _replicas(state: State, key: Records, wanted: int) -> str:
    count, least = int(key["isr_count"]), int(key["min_isr"])
    if 0 <= count < least:
        return f"{count} in-sync replicas, {least} are needed"
    ends = _ends(state, key)
    behind = [end for end in ends if end is None or end < wanted]
    if not behind:
        return f"high watermark {_short(int(key['hw']), wanted)}"
    known = [wanted - end for end in behind if end is not None]
    by = f"behind by {max(known):,}" if known else "have not been heard of"
    return f"{len(behind)} of {count} in-sync replicas {by}"


def _ends(state: State, key: Records) -> list[int | None]:
    """How far each follower in the in-sync set has come; None: nobody knows."""
    begin, count = int(key["isr_begin"]), max(0, int(key["isr_count"]))
    members = state.in_sync["replica"][begin : begin + count].tolist()
    ends, node = {}, int(key["nodes"])
    while node != NONE:
        follower = state.nodes[node]
        ends[int(follower["id"])], node = int(follower["value"]), int(follower["next"])
    return [ends.get(member) for member in members if member != key["broker"]]


def _short(reached: int, wanted: int) -> str:
    return f"unknown, {wanted:,} is needed" if reached == UNKNOWN else f"short by {wanted - reached:,}"


def _low_watermark(state: State, key: Records, wanted: int) -> str:
    return f"low watermark {_short(int(key['log_start']), wanted)}"


def _leaders(state: State, key: Records, wanted: int) -> str:
    return f"leaders of {max(0, int(key['log_start'])):,} of {wanted:,} partitions"


def _bytes(state: State, operation: Records, parts: Records) -> str:
    """As of now, without what lies on older segments: such a fetch is answered at its next check, whatever there is."""
    least, got = int(operation["min_bytes"]), 0
    for part in parts:
        key = state.keys[int(part["key"])]
        end, segment, position = _end(key, int(operation["mode"]))
        if end != UNKNOWN and not part["throttled"] and part["start_seg"] == segment:
            got += max(0, min(position - int(part["start_pos"]), int(part["size"])))
    first = display_key(state.names[int(parts[0]["key"])]) if len(parts) else "nothing"
    over = f"{first} and {len(parts) - 1:,} more" if len(parts) > 1 else first
    return f"{over}: {got:,} of {least:,} bytes"


def _end(key: Records, reader: int) -> tuple[int, int, int]:
    which = "hw"
    if reader == Reader.FOLLOWER:
        which = "end"
    elif reader == Reader.COMMITTED and key["lso_known"]:
        which = "lso"
    return int(key[which]), int(key[f"{which}_seg"]), int(key[f"{which}_pos"])


# Of each purgatory, so many of those that have waited longest.
LISTED_WAITS = 5


def partition_update(state: State, decided: Decisions, whole: bool) -> bytes:
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


def event_count_update(events: int) -> bytes:
    """How many events a batch had."""
    return json.dumps({"events": events}).encode()


def _by_second(operations: Records) -> list[list[Any]]:
    if not len(operations):
        return []
    second = operations["deadline"] // 1000
    recent = second > int(second.max()) - EXPIRATION_SECONDS
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
    return rows[place < LISTED_WAITS]


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
        "key": None if first is None else display_key(state.names[int(first["key"])]),
        "since_us": int(operation["t"]),
        "deadline_ms": int(operation["deadline"]),
        "lacks": pending_reason(state, operation),
    }


# Consumer groups in rebalance, as a call leaves them: whom a round waits for.


_IN_REBALANCE = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_LISTED_MEMBERS = 5
_HEARTBEAT = KIND_OF["heartbeat"]


class GroupStatusUpdate:
    """Of the groups of one call."""

    def __init__(self) -> None:
        self._rebalances: dict[str, dict[str, Any] | None] = {}
        self._expired: Counter[tuple[int, int, str]] = Counter()

    def note(self, key: str, was: bool, snapshot: GroupSnapshot, result: StepResult) -> None:
        """`was`: whether it was in rebalance before the call. Of others nothing is said."""
        now = is_rebalancing(snapshot)
        if now or was or result.transitions:
            self._rebalances[key] = _rebalance(key, snapshot) if now else None
        broker = split_group_key(key)[0]
        for ended in result.ended:
            expired = ended.take(ended.expired > 0)
            for deadline, kind in zip(expired.deadline.tolist(), expired.kind.tolist(), strict=True):
                code = Code.HEARTBEAT if kind == _HEARTBEAT else Code.REBALANCE
                self._expired[deadline // 1000, broker, PURGATORIES[code]] += 1

    def said(self) -> dict[str, Any]:
        if not self._rebalances and not self._expired:
            return {}
        recent = max((at for at, *_ in self._expired), default=0) - EXPIRATION_SECONDS
        expired = [[*mark, count] for mark, count in sorted(self._expired.items()) if mark[0] > recent]
        return {"rebalances": self._rebalances, "expired": expired}


def is_rebalancing(snapshot: GroupSnapshot) -> bool:
    return snapshot.group is not None and snapshot.group.state in _IN_REBALANCE


def _rebalance(key: str, snapshot: GroupSnapshot) -> dict[str, Any]:
    broker, name = split_group_key(key)
    group = snapshot.group
    assert group is not None
    joining = group.state is GroupState.PREPARING_REBALANCE
    if joining:
        missing = [member.member_id for member in group.members.values() if member.awaiting_join is None]
        missing += sorted(group.pending_members)
    else:
        missing = [member.member_id for member in group.members.values() if member.awaiting_sync is None]
    operation = next(iter(snapshot.rebalances), None)
    return {
        "broker": broker,
        "group": name,
        "state": group.state.value,
        "since_us": operation.started_us if operation is not None else None,
        "deadline_ms": operation.deadline_ms if operation is not None else None,
        "kind": operation.kind if operation is not None else None,
        "members": len(group.members),
        "missing": len(missing),
        "named": missing[:_LISTED_MEMBERS],
    }
