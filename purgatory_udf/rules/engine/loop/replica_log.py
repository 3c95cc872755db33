"""One replica's log: offsets, the batches' positions, and the segments' bases (see `reference.partition_log`).

A batch says where it begins, and ends where the next one does. Behind a log's last batch lies one that never ends, and
begins where the log ends: so who looks for a position need not ask whether there is such a batch.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.loop.arena import NONE, World, batch_at, batch_soon, roll_at
from purgatory_udf.rules.engine.loop.codes import UNKNOWN

# Where the batch ends that never does.
NEVER = number(2**63 - 1)

# A log's batches lie side by side. So many batches ahead begins what no append has written to yet.
_AHEAD = 3


@inlined
def begins(batch: Any) -> int:
    """The position where it starts."""
    return batch.turned ^ (batch.turned >> 63)


@inlined
def turned(pos: int, whole: int) -> int:
    """How that is written of one batch, if it is `whole`, or of what may be several."""
    return pos ^ (whole - 1)


@inlined
def size_of(w: World, at: int) -> int:
    """The batch's bytes; 0, if it is not known to be one."""
    batch = batch_at(w, at)
    if batch.turned < 0:
        return 0
    return begins(batch_at(w, at + 1)) - batch.turned


@rule
def batch_of(w: World, key: Any, offset: int) -> int:
    """The first batch of the log that ends beyond the offset."""
    first = low = key.batch_begin
    high = first + key.end_batch
    # Nearly everybody reads near the end: from there backwards, in steps that double.
    back = 1
    while high - first >= back:
        if batch_at(w, high - back).end <= offset:
            low = high - back + 1
            break
        high -= back
        back *= 2
    while low < high:
        middle = (low + high) // 2
        if batch_at(w, middle).end <= offset:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def position(w: World, key: Any, offset: int) -> int:
    """Where the batch that holds the offset starts; at or beyond the log end, the end's position."""
    return begins(batch_at(w, batch_of(w, key, offset)))


@inlined
def further(w: World, key: Any, below: int, offset: int) -> int:
    """How many batches end at or before the offset, if `below` do or that is `NONE`: most often one more."""
    if below == NONE:
        return batch_of(w, key, offset) - key.batch_begin
    while batch_at(w, key.batch_begin + below).end <= offset and below < key.end_batch:
        below += 1
    return below


@inlined
def roll_of(w: World, key: Any, offset: int) -> int:
    """The last roll at or before the offset; the place before the log's rolls, if there is none."""
    at = key.roll_begin + key.roll_count - 1
    while at >= key.roll_begin and roll_at(w, at).base > offset:
        at -= 1
    return at


@inlined
def segment(w: World, key: Any, offset: int) -> int:
    """The base of the segment that the offset belongs to: 0 before the first roll that is known."""
    if key.roll_count == 0:
        return 0
    at = roll_of(w, key, offset)
    return roll_at(w, at).base if at >= key.roll_begin else 0


@inlined
def append(w: World, key: Any, end: int, size: int, whole: int) -> bool:
    """From the log end to `end`, one batch if `whole`. False, and nothing happens, if that moves the end nowhere."""
    if key.end == UNKNOWN:
        w.upheavals += 1
    elif end <= key.end:
        return False
    at = key.batch_begin + key.end_batch
    batch = batch_at(w, at)
    batch.end, batch.turned = end, turned(key.end_pos, whole)
    batch_soon(w, at + _AHEAD)
    w.appends += 1
    w.appended += size
    key.end_batch += 1
    key.end_pos += size
    never = batch_at(w, at + 1)
    never.end, never.turned = NEVER, turned(key.end_pos, 0)
    key.end = end
    key.end_seg = segment(w, key, end)
    return True


@rule
def roll(w: World, key: Any, base: int) -> bool:
    """A new segment begins; a roll at the log end takes the end along at once."""
    last = roll_at(w, key.roll_begin + key.roll_count - 1).base if key.roll_count > 0 else 0
    if base <= last:
        return False
    roll_at(w, key.roll_begin + key.roll_count).base = base
    key.roll_count += 1
    if key.end != UNKNOWN:
        key.end_seg = segment(w, key, key.end)
    return True


@rule
def truncate(w: World, key: Any, offset: int) -> bool:
    """Cut the log back to the offset; the batch that holds it goes whole. False if the log ends there or before."""
    if key.end == UNKNOWN or offset >= key.end:
        return False
    at = batch_of(w, key, offset)
    never = batch_at(w, at)
    key.end_pos = begins(never)
    never.end, never.turned = NEVER, turned(key.end_pos, 0)
    key.end_batch = at - key.batch_begin
    while key.roll_count > 0 and roll_at(w, key.roll_begin + key.roll_count - 1).base > offset:
        key.roll_count -= 1
    key.end = offset
    key.end_seg = segment(w, key, offset)
    return True
