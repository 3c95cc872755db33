"""Status updates: JSON documents in which calls report to the status file of a followed replay.

An update counts the operations that ended in the call, and those that ended because their leader moved. If the call has
all keys of its brokers, the update also contains the gauges, the number of open operations, and the oldest operations
of each purgatory with the reason why they are pending. Calls for consumer groups count the rebalances that started, and
report the rebalances in progress with the members that have not joined or synced yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.group_metadata import GroupState
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop.arena import NONE, SETTLED, AnswerSource
from purgatory_udf.rules.engine.loop.codes import KINDS, PURGATORIES, UNKNOWN, Code, Reader, Rule, key_parts
from purgatory_udf.rules.engine.loop.engine_state import Decisions, State
from purgatory_udf.rules.groups.column_frames import Frame
from purgatory_udf.rules.groups.group_rows import KIND_OF, split_group_key
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot
from purgatory_udf.rules.groups.group_step import DecidedGroups
from purgatory_udf.streaming.status_file import EXPIRATION_SECONDS

# The number of oldest operations of each purgatory in an update.
LISTED_WAITS = 5
# The number of missing members of a rebalance that an update names.
_LISTED_MEMBERS = 5
_CODES = np.array(sorted(Code))
_IN_REBALANCE = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_HEARTBEAT = KIND_OF["heartbeat"]
# Rules that end a waiting operation because its broker is no longer the leader.
_LEADER_MOVED = (Rule.NOT_LEADER, Rule.BROKER_STOPPED)


def partition_update(state: State, decided: Decisions, has_gauges: bool) -> bytes:
    """Return the update of a call for partitions.

    Args:
        state: The state after the call.
        decided: The outcomes of the call.
        has_gauges: Whether the group has all keys of its brokers, so that its state shows their purgatories.
    """
    update: dict[str, Any] = {
        "completions": len(decided.completed),
        "expirations": len(decided.expired),
        "cancellations": len(decided.cancelled),
        "expired": _expired_by_second(decided.all_operations[decided.expired]),
        "moved": _moved_by_second(decided),
    }
    if has_gauges:
        update["open"] = len(state.open_operations)
        update["purgatories"] = [
            [int(row["broker"]), PURGATORIES[Code(int(row["code"]))], int(row["watched"]), int(row["delayed"])]
            for row in state.purgatories
        ]
        update["oldest"] = [_listed_wait(state, operation) for operation in _oldest(state.open_operations)]
    return json.dumps(update, separators=(",", ":")).encode()


def event_count_update(events: int) -> bytes:
    """Return the update of the clock group: the number of events of a batch."""
    return json.dumps({"events": events}).encode()


def _expired_by_second(operations: Records) -> list[list[Any]]:
    """Return second, broker, purgatory and number of expirations, for the last `EXPIRATION_SECONDS`."""
    if not len(operations):
        return []
    second = operations["deadline"] // 1000
    recent = second > int(second.max()) - EXPIRATION_SECONDS
    rows = np.stack([second[recent], operations["broker"][recent], operations["code"][recent]], axis=1)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    pairs = zip(distinct.tolist(), counts.tolist(), strict=True)
    return [[at, broker, PURGATORIES[Code(code)], count] for (at, broker, code), count in pairs]


def _moved_by_second(decided: Decisions) -> list[list[Any]]:
    """Return second, broker and number of waiting operations that ended because their leader moved or stopped."""
    operations = decided.all_operations[np.concatenate([decided.completed, decided.cancelled])]
    moved = operations[np.isin(operations["rule"], _LEADER_MOVED) & (operations["watched"] > 0)]
    counts = Counter(zip((moved["end_t"] // 1_000_000).tolist(), moved["broker"].tolist(), strict=True))
    return [[*key, count] for key, count in sorted(counts.items())]


def _oldest(operations: Records) -> Records:
    """Return the first `LISTED_WAITS` operations of each purgatory, in order of broker, purgatory and start."""
    order = np.lexsort((operations["seq"], operations["t"], operations["code"], operations["broker"]))
    rows = operations[order]
    purgatory = rows["broker"].astype(np.int64) * len(Code) + np.searchsorted(_CODES, rows["code"])
    starts = np.flatnonzero(np.append(True, purgatory[1:] != purgatory[:-1])) if len(rows) else np.zeros(0, np.int64)
    rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    return rows[rank < LISTED_WAITS]


def _listed_wait(state: State, operation: np.void) -> dict[str, Any]:
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
        # The column of `top`.
        "lacks": pending_reason(state, operation),
        "replicas": _missing(state, operation),
        "below_min_isr": _below_min_isr(state, operation),
    }


def display_key(key: str) -> str:
    """Return a key without its broker: `topic-partition`, or the topic."""
    _, partition, topic = key_parts(key)
    return topic if partition < 0 else f"{topic}-{partition}"


def pending_reason(state: State, operation: np.void) -> str:
    """Return why an open operation is pending, as text.

    A fetch waits for bytes, in the sum over its partitions. For other operations, the result describes the partition
    that is furthest behind, and counts the other pending ones.
    """
    begin = int(operation["first"])
    parts = state.parts[begin : begin + int(operation["count"])]
    if operation["code"] == Code.FETCH:
        return _missing_bytes(state, operation, parts)
    if operation["code"] in (Code.REMOTE_FETCH, Code.LIST_OFFSETS):
        return _pending_reads(state, operation, parts)
    pending = parts[parts["queue"] != SETTLED]
    if not len(pending):
        return "nothing more"
    reasons = {Code.PRODUCE: _missing_replicas, Code.DELETE_RECORDS: _low_watermark_gap}
    reason = reasons.get(Code(int(operation["code"])), _missing_leaders)
    behind = pending["offset"] - _reached(state, operation, pending)
    worst = pending[int(np.argmax(behind))]
    key = int(worst["key"])
    more = f" (and {len(pending) - 1:,} more)" if len(pending) > 1 else ""
    return f"{display_key(state.names[key])}: {reason(state, state.keys[key], int(worst['offset']))}{more}"


def _reached(state: State, operation: np.void, parts: Records) -> Any:
    keys = state.keys[parts["key"]]
    return keys["hw"] if operation["code"] == Code.PRODUCE else keys["log_start"]


def _missing_replicas(state: State, key: np.void, required: int) -> str:
    count, least = int(key["isr_count"]), int(key["min_isr"])
    if 0 <= count < least:
        return f"{count} in-sync replicas, {least} are needed"
    behind = _lagging(state, key, required)
    if not behind:
        return f"high watermark {_gap(int(key['hw']), required)}"
    known = [required - end for end in behind.values() if end is not None]
    ids = ", ".join(map(str, sorted(behind)))
    by = f"behind by {_offsets(max(known))}" if known else "without a fetch yet"
    return f"in-sync replica{'s' if len(behind) > 1 else ''} {ids} of {count} {by}"


def _lagging(state: State, key: np.void, required: int) -> dict[int, int | None]:
    """Return by broker id the log ends of the in-sync followers that have not reached the offset `required`.

    None is a log end that the trace has not reported.
    """
    ends = _follower_ends(state, key)
    return {replica: end for replica, end in ends.items() if end is None or end < required}


def _missing(state: State, operation: np.void) -> list[int]:
    """Return the followers that an open produce waits for, over all its partitions."""
    if operation["code"] != Code.PRODUCE:
        return []
    begin = int(operation["first"])
    parts = state.parts[begin : begin + int(operation["count"])]
    pending = parts[parts["queue"] != SETTLED]
    return sorted(
        {each for part in pending for each in _lagging(state, state.keys[int(part["key"])], int(part["offset"]))}
    )


def _below_min_isr(state: State, operation: np.void) -> list[str]:
    """Return the pending partitions of an open produce that have fewer in-sync replicas than their minimum."""
    if operation["code"] != Code.PRODUCE:
        return []
    begin = int(operation["first"])
    parts = state.parts[begin : begin + int(operation["count"])]
    pending = {int(part["key"]) for part in parts[parts["queue"] != SETTLED]}
    return sorted(
        display_key(state.names[key])
        for key in pending
        if 0 <= int(state.keys[key]["isr_count"]) < int(state.keys[key]["min_isr"])
    )


def _follower_ends(state: State, key: np.void) -> dict[int, int | None]:
    """Return the log end offset of each in-sync follower by broker id; None if the trace has not reported it."""
    begin, count = int(key["isr_begin"]), max(0, int(key["isr_count"]))
    members = state.in_sync["replica"][begin : begin + count].tolist()
    ends, node = {}, int(key["nodes"])
    while node != NONE:
        follower = state.nodes[node]
        ends[int(follower["id"])], node = int(follower["value"]), int(follower["next"])
    return {int(member): ends.get(member) for member in members if member != key["broker"]}


def _gap(reached: int, required: int) -> str:
    return (
        f"unknown, offset {required:,} is needed" if reached == UNKNOWN else f"short by {_offsets(required - reached)}"
    )


def _offsets(count: int) -> str:
    return "1 offset" if count == 1 else f"{count:,} offsets"


def _low_watermark_gap(state: State, key: np.void, required: int) -> str:
    return f"low watermark {_gap(int(key['log_start']), required)}"


def _missing_leaders(state: State, key: np.void, required: int) -> str:
    return f"leaders of {max(0, int(key['log_start'])):,} of {required:,} partitions"


def _missing_bytes(state: State, operation: np.void, parts: Records) -> str:
    """Return the number of bytes that a fetch can read now, and its `min_bytes`.

    Partitions with a fetch offset on an older segment are not counted, because they complete the fetch when it is
    next checked.
    """
    least, available = int(operation["min_bytes"]), 0
    for part in parts:
        key = state.keys[int(part["key"])]
        end, segment, position = _readable_end(key, int(operation["mode"]))
        if end != UNKNOWN and not part["throttled"] and part["start_seg"] == segment:
            available += max(0, min(position - int(part["start_pos"]), int(part["size"])))
    first = display_key(state.names[int(parts[0]["key"])]) if len(parts) else "nothing"
    over = f"{first} and {len(parts) - 1:,} more" if len(parts) > 1 else first
    return f"{over}: {available:,} of {least:,} bytes"


def _pending_reads(state: State, operation: np.void, parts: Records) -> str:
    """Return the first partition with an open read or lookup in remote storage, and the number of others, as text."""
    pending = parts[parts["read_state"] == AnswerSource.PENDING]
    if not len(pending):
        return "nothing more"
    what = "remote read" if operation["code"] == Code.REMOTE_FETCH else "remote lookup"
    more = f" (and {len(pending) - 1:,} more)" if len(pending) > 1 else ""
    return f"{display_key(state.names[int(pending[0]['key'])])}: {what}{more}"


def _readable_end(key: np.void, reader: int) -> tuple[int, int, int]:
    """Return the offset, segment and position of the end up to which a kind of reader (`Reader`) may read."""
    which = "hw"
    if reader == Reader.FOLLOWER:
        which = "end"
    elif reader == Reader.COMMITTED and key["lso_known"]:
        which = "lso"
    return int(key[which]), int(key[f"{which}_seg"]), int(key[f"{which}_pos"])


class GroupStatusUpdate:
    """Builds the status update of one call for consumer groups."""

    def __init__(self) -> None:
        self._rebalances: dict[str, dict[str, Any] | None] = {}
        self._expired: Counter[tuple[int, int, str]] = Counter()
        self._rebalanced: Counter[tuple[int, int, str]] = Counter()

    def add(
        self, key: str, was_rebalancing: bool, snapshot: GroupSnapshot, transitions: Sequence[Transition], ended: Frame
    ) -> None:
        """Add one consumer group after its step.

        A group that is no longer in rebalance, but was before or during the call, is reported as None, which removes it
        from the status file.

        Args:
            key: The group's key.
            was_rebalancing: Whether the group was in rebalance before the step.
            snapshot: The group after the step.
            transitions: Its transitions in the call.
            ended: Its operations that ended in the call.
        """
        rebalancing = is_rebalancing(snapshot)
        if rebalancing or was_rebalancing or transitions:
            self._rebalances[key] = _rebalance(key, snapshot) if rebalancing else None
        broker, name = split_group_key(key)
        for each in transitions:
            # The first rebalance forms the group.
            if each.to_state == GroupState.PREPARING_REBALANCE.value and each.from_state != GroupState.EMPTY.value:
                self._rebalanced[each.at_us // 1_000_000, broker, name] += 1
        # Kafka's new group coordinator has no purgatories, and so no meters.
        if not snapshot.is_new:
            expired = ended.take(ended.expired > 0)
            for deadline, kind in zip(expired.deadline.tolist(), expired.kind.tolist(), strict=True):
                code = Code.HEARTBEAT if kind == _HEARTBEAT else Code.REBALANCE
                self._expired[deadline // 1000, broker, PURGATORIES[code]] += 1

    def add_together(self, was_rebalancing: Mapping[str, bool], decided: DecidedGroups) -> None:
        """Add groups that were decided together. `was_rebalancing`: whether each was in rebalance before the call."""
        transitions: dict[int, list[Transition]] = {}
        for index, transition in decided.transitions:
            transitions.setdefault(index, []).append(transition)
        expired = decided.ended.take(decided.ended.expired > 0)
        bounds = np.searchsorted(expired.group, np.arange(len(decided.snapshots) + 1)).tolist()
        for index, (key, snapshot) in enumerate(decided.snapshots.items()):
            ended = expired.take(slice(bounds[index], bounds[index + 1]))
            self.add(key, was_rebalancing[key], snapshot, transitions.get(index, ()), ended)

    def to_dict(self) -> dict[str, Any]:
        """Return the update as a JSON object, empty if nothing changed."""
        if not self._rebalances and not self._expired:
            return {}
        return {
            "rebalances": self._rebalances,
            "expired": _recent(self._expired),
            "rebalanced": _recent(self._rebalanced),
        }


def _recent(counts: Counter[tuple[int, int, str]]) -> list[list[Any]]:
    """Return second, broker, name and count, for the last `EXPIRATION_SECONDS`."""
    first = max((second for second, *_ in counts), default=0) - EXPIRATION_SECONDS
    return [[*key, count] for key, count in sorted(counts.items()) if key[0] > first]


def is_rebalancing(snapshot: GroupSnapshot) -> bool:
    """Return whether a consumer group is in PreparingRebalance or CompletingRebalance."""
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
