"""What a fetch reads: errors, what could be read, and what an answer carries of that (see `reference.fetch`).

The answer is filled partition by partition (Kafka: `ReplicaManager.readFromLog`): what one carries, the request's limit
loses for those behind it, and the first partition with data gives one batch at least, however large. A read stays
within the segment where it begins.

Of the log far behind its watermarks only batches larger than any fetch's maximum are remembered one by one (see
`state`), so a read that begins there is taken to find a segment's worth of smaller ones.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, rule
from purgatory_udf.rules.engine.loop import replica_log
from purgatory_udf.rules.engine.loop.arena import World, batch_at, end_of, key_at, operation_at, part_at, roll_at
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Error


@inlined
def reader_end(key: Any, reader: int) -> tuple[int, int, int]:
    """Up to where a reader may read: offset, segment, position."""
    end = end_of(key, reader)
    return end.offset, end.seg, end.pos


@inlined
def error_of(key: Any, part: Any) -> int:
    """What reading the partition now would be answered with."""
    if key.standing != Error.NONE:
        return key.standing
    if part.epoch >= 0 and key.epoch != UNKNOWN:
        if part.epoch < key.epoch:
            return Error.FENCED_LEADER_EPOCH
        if part.epoch > key.epoch:
            return Error.UNKNOWN_LEADER_EPOCH
    if part.offset > key.end and key.end != UNKNOWN:
        return Error.OFFSET_OUT_OF_RANGE
    # No offset is less than one that is unknown.
    return Error.OFFSET_OUT_OF_RANGE if part.offset < key.log_start else Error.NONE


@inlined
def _has_data(key: Any, part: Any, reader: int) -> bool:
    return part.offset < end_of(key, reader).offset and not part.throttled and key.standing == Error.NONE


@inlined
def _readable_to(w: World, key: Any, offset: int, begin: int, reader: int) -> int:
    """The position where the offset's segment ends, or the reader's end if that lies on it; of a later one, nothing."""
    _, end_seg, end_pos = reader_end(key, reader)
    if key.roll_count == 0:
        return end_pos
    at = replica_log.roll_of(w, key, offset)
    segment = roll_at(w, at).base if at >= key.roll_begin else 0
    if segment == end_seg:
        return end_pos
    if segment > end_seg:
        return begin
    return replica_log.position(w, key, roll_at(w, at + 1).base)


@inlined
def _is_far(w: World, key: Any, begin: int, size: int) -> bool:
    """Whether batches there may have been merged: a rule of positions, so that it is the same however calls are cut."""
    if key.hw == UNKNOWN or size > w.retain_bytes:
        return False
    return begin <= min(key.hw_pos, key.lso_pos) - w.retain_bytes


@inlined
def _with_bytes(w: World, key: Any, at: int) -> int:
    """The first batch from there on that has any, or the log's last."""
    last = key.batch_begin + key.end_batch - 1
    while at < last and replica_log.begins(batch_at(w, at + 1)) == replica_log.begins(batch_at(w, at)):
        at += 1
    return at


@inlined
def is_large(w: World, key: Any, at: int, size: int) -> bool:
    """Whether a read that begins there may give more than so many bytes, for the sake of one batch. (Behind the log's
    last that may be said in vain.)"""
    return replica_log.size_of(w, _with_bytes(w, key, at)) > size


@inlined
def _carried(w: World, key: Any, part: Any, operation: Any, at: int, left: int, at_least_one: bool) -> int:
    """What the answer carries of a partition with data (`LogSegment.read`), from its batch `at` on: cut at the limits,
    but a first batch."""
    if at == key.batch_begin + key.end_batch:
        return 0
    at = _with_bytes(w, key, at)
    begin, whole = replica_log.begins(batch_at(w, at)), replica_log.size_of(w, at)
    limit = min(part.size, left)
    if _is_far(w, key, begin, whole):
        return limit
    if at_least_one:
        limit = max(limit, whole)
    elif limit < whole and not operation.hard:
        return 0
    return max(0, min(limit, _readable_to(w, key, part.offset, begin, operation.mode) - begin))


@inlined
def first_read(w: World, o: int) -> int:
    """How many bytes an answer would carry now."""
    operation = operation_at(w, o)
    left, at_least_one, total = operation.most, operation.hard == 0, 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        if _has_data(key, part, operation.mode) and error_of(key, part) == Error.NONE:
            batch = replica_log.batch_of(w, key, part.offset)
            carried = _carried(w, key, part, operation, batch, left, at_least_one)
            at_least_one = at_least_one and carried == 0
            left = max(0, left - carried)
            total += carried
    return total


@inlined
def answer(w: World, key: Any, at: int, operation: Any, calm: bool, left: int, at_least_one: bool) -> int:
    """Whatever ended a fetch, even its deadline: read the partition again. How many bytes the answer carries of it.
    `left`: of the limit; less than nothing, if a first batch was larger than that.
    `calm`: nothing has happened since it came that could make an error of it, or take away batches before it."""
    part = part_at(w, at)
    if calm and key.roll_count == 0:
        # Most answers carry all that there is. Whether that is anything is not asked, but counted.
        end, _, end_pos = reader_end(key, operation.mode)
        size = (end_pos - part.start_pos) * (part.offset < end)
        if size <= part.size and size <= left:
            part.size = size
            return size
    return _answer_in_full(w, key, at, operation, calm, left, at_least_one)


@rule
def _answer_in_full(w: World, key: Any, at: int, operation: Any, calm: bool, left: int, at_least_one: bool) -> int:
    part = part_at(w, at)
    if not calm:
        part.error = error_of(key, part)
    if not _has_data(key, part, operation.mode):
        part.size = 0
        return 0
    batch = replica_log.batch_of(w, key, part.offset)
    carried = 0
    if part.error == Error.NONE:
        carried = _carried(w, key, part, operation, batch, max(0, left), at_least_one)
    # Bytes from the batch that holds the fetch offset to the reader's end, over all segments.
    _, _, end_pos = reader_end(key, operation.mode)
    part.size = min(part.size, max(0, end_pos - replica_log.begins(batch_at(w, batch))))
    return carried
