"""What an operation that waits on partitions or topics still lacks, in words, from the state of its group of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from purgatory_udf.compiling.records import Records
from purgatory_udf.loop.state import State
from purgatory_udf.loop.words import UNKNOWN, Code, Reader, parts_of
from purgatory_udf.loop.world import NONE, SETTLED


def name_of(key: str) -> str:
    _, partition, topic = parts_of(key)
    return topic if partition < 0 else f"{topic}-{partition}"


def lacks(state: State, operation: Records) -> str:
    """Of several partitions the one that is furthest behind, and how many more there are."""
    begin = int(operation["first"])
    parts = state.parts[begin : begin + int(operation["count"])]
    if operation["code"] == Code.FETCH:
        return _bytes(state, operation, parts)
    pending = parts[parts["heap"] != SETTLED]
    if not len(pending):
        return "nothing more"
    says = {Code.PRODUCE: _replicas, Code.DELETE_RECORDS: _low_watermark}.get(Code(int(operation["code"])), _leaders)
    behind = pending["offset"] - _reached(state, operation, pending)
    worst = pending[int(np.argmax(behind))]
    key = int(worst["key"])
    more = f" (and {len(pending) - 1:,} more)" if len(pending) > 1 else ""
    return f"{name_of(state.names[key])}: {says(state, state.keys[key], int(worst['offset']))}{more}"


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
        ends[int(follower["who"])], node = int(follower["value"]), int(follower["next"])
    return [ends.get(member) for member in members if member != key["broker"]]


def _short(reached: int, wanted: int) -> str:
    return f"unknown, {wanted:,} is needed" if reached == UNKNOWN else f"short by {wanted - reached:,}"


def _low_watermark(state: State, key: Records, wanted: int) -> str:
    return f"low watermark {_short(int(key['log_start']), wanted)}"


def _leaders(state: State, key: Records, wanted: int) -> str:
    return f"leaders of {max(0, int(key['log_start'])):,} of {wanted:,} partitions"


def _bytes(state: State, operation: Records, parts: Records) -> str:
    """As of now, without what lies on older segments: such a fetch is answered at its next check, whatever there is."""
    least, got = int(operation["least"]), 0
    for part in parts:
        key = state.keys[int(part["key"])]
        end, segment, position = _end(key, int(operation["mode"]))
        if end != UNKNOWN and not part["throttled"] and part["start_seg"] == segment:
            got += max(0, min(position - int(part["start_pos"]), int(part["size"])))
    first = name_of(state.names[int(parts[0]["key"])]) if len(parts) else "nothing"
    over = f"{first} and {len(parts) - 1:,} more" if len(parts) > 1 else first
    return f"{over}: {got:,} of {least:,} bytes"


def _end(key: Records, reader: int) -> tuple[int, int, int]:
    which = "hw"
    if reader == Reader.FOLLOWER:
        which = "end"
    elif reader == Reader.COMMITTED and key["lso_own"]:
        which = "lso"
    return int(key[which]), int(key[f"{which}_seg"]), int(key[f"{which}_pos"])
