"""The reads of a fetch: errors, available bytes, and the bytes in its response (see `rules.reference.delayed_fetch`).

A response is filled partition by partition, as by Kafka's `ReplicaManager.readFromLog`: the bytes of one partition
reduce the request's limit for those behind it, and the first partition with data provides at least one batch, however
large. A read does not cross the end of the segment where it starts.

Far behind the watermarks and the end of its segment, only batches larger than `smallest_limit` are kept individually
(`state_layout`). A read that starts there finds as many smaller batches as its limit allows.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import helper, inlined
from purgatory_udf.rules.engine.loop import replica_state
from purgatory_udf.rules.engine.loop.arena import (
    BROKER_DECIDES,
    UNREAD,
    Arena,
    batch_at,
    end_at,
    key_at,
    operation_at,
    part_at,
    purgatory_at,
    roll_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Error, Reader


@inlined
def reader_end(key: Any, reader: int) -> tuple[int, int, int]:
    """Return the offset, segment and position up to which this kind of reader may read."""
    end = end_at(key, reader)
    return end.offset, end.seg, end.pos


@inlined
def read_error(key: Any, part: Any) -> int:
    """Return the error of a read of the partition at this moment; `Error.NONE` if it would succeed."""
    if key.partition_error != Error.NONE:
        return key.partition_error
    if part.epoch >= 0 and key.epoch != UNKNOWN:
        if part.epoch < key.epoch:
            return Error.FENCED_LEADER_EPOCH
        if part.epoch > key.epoch:
            return Error.UNKNOWN_LEADER_EPOCH
    if part.offset > key.end and key.end != UNKNOWN:
        return Error.OFFSET_OUT_OF_RANGE
    # Never true while the log start is unknown: no offset is lower than `UNKNOWN`.
    return Error.OFFSET_OUT_OF_RANGE if part.offset < key.log_start else Error.NONE


@inlined
def is_remote(key: Any, part: Any) -> bool:
    """Return whether the records at the fetch offset are only in remote storage; False if they are deleted."""
    return part.offset < key.local_start and part.offset >= key.log_start


@inlined
def has_data(key: Any, part: Any, reader: int) -> bool:
    """Return whether a local read of the partition would find data. Errors are not checked (`read_error`)."""
    return part.offset < end_at(key, reader).offset and not part.throttled and key.partition_error == Error.NONE


@inlined
def _readable_end(arena: Arena, key: Any, offset: int, begin: int, reader: int) -> int:
    """Return the end position of a read from the offset.

    That is the end of the offset's segment, or the reader's end if it is on that segment. If the segment is later than
    the reader's end, nothing is readable (`begin`).
    """
    _, end_seg, end_pos = reader_end(key, reader)
    if key.roll_count == 0:
        return end_pos
    at = replica_state.last_roll(arena, key, offset)
    segment = roll_at(arena, at).base if at >= key.roll_begin else 0
    if segment == end_seg:
        return end_pos
    if segment > end_seg:
        return begin
    return replica_state.position_of(arena, key, roll_at(arena, at + 1).base)


@inlined
def _may_be_merged(arena: Arena, key: Any, begin: int, size: int, readable_end: int) -> bool:
    """Return whether the batch at this position may have been merged with others after an earlier call.

    The result depends on positions only, so it is the same however the events are divided into calls.

    Args:
        arena: The call's tables.
        key: The partition.
        begin: Position of the batch's first byte.
        size: Bytes of the batch, 0 if it may be several batches.
        readable_end: End position of the read (`_readable_end`).
    """
    if key.hw == UNKNOWN or size > arena.smallest_limit:
        return False
    return begin <= min(key.hw_pos, key.lso_pos, readable_end) - arena.retain_bytes


@inlined
def _skip_empty_batches(arena: Arena, key: Any, at: int) -> int:
    """Return the first batch from `at` on that has bytes, or the log's last batch."""
    last = key.batch_begin + key.end_batch - 1
    while at < last and replica_state.start_of(batch_at(arena, at + 1)) == replica_state.start_of(batch_at(arena, at)):
        at += 1
    return at


@inlined
def first_batch_exceeds(arena: Arena, key: Any, at: int, size: int) -> bool:
    """Return whether the first batch with bytes, from batch `at` on, is larger than `size` bytes.

    A read returns at least one batch, so it may then exceed its limit. At the end of the log the result may be a false
    positive.
    """
    return replica_state.size_of(arena, _skip_empty_batches(arena, key, at)) > size


@inlined
def read_bytes(arena: Arena, key: Any, part: Any, operation: Any, at: int, left: int, at_least_one: bool) -> int:
    """Return the number of bytes that a read of a partition with data returns (Kafka's `LogSegment.read`).

    Args:
        arena: The call's tables.
        key: The partition.
        part: The fetch's part, with its limit.
        operation: The fetch.
        at: The batch at which the read starts.
        left: Remaining bytes of the request's limit.
        at_least_one: Whether the limits do not apply to the first batch: no earlier partition had data.
    """
    if at == key.batch_begin + key.end_batch:
        return 0
    at = _skip_empty_batches(arena, key, at)
    begin, batch_size = replica_state.start_of(batch_at(arena, at)), replica_state.size_of(arena, at)
    limit = min(part.size, left)
    end = _readable_end(arena, key, part.offset, begin, operation.mode)
    if _may_be_merged(arena, key, begin, batch_size, end):
        return limit
    if at_least_one:
        limit = max(limit, batch_size)
    elif limit < batch_size and not operation.hard_max:
        return 0
    return max(0, min(limit, end - begin))


@inlined
def first_read_bytes(arena: Arena, o: int) -> int:
    """Return the number of bytes that a response to the fetch would carry now."""
    operation = operation_at(arena, o)
    left, at_least_one, total = operation.max_bytes, operation.hard_max == 0, 0
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(arena, at)
        key = key_at(arena, part.key)
        if has_data(key, part, operation.mode) and read_error(key, part) == Error.NONE:
            batch = replica_state.batch_of(arena, key, part.offset)
            carried = read_bytes(arena, key, part, operation, batch, left, at_least_one)
            at_least_one = at_least_one and carried == 0
            left = max(0, left - carried)
            total += carried
    return total


@inlined
def read_answer(
    arena: Arena, key: Any, at: int, operation: Any, undisturbed: bool, left: int, at_least_one: bool
) -> int:
    """Read the partition again for the response; return the number of bytes that the response carries.

    Kafka does this for every fetch, even an expired one.

    Args:
        arena: The call's tables.
        key: The partition.
        at: The fetch's part; its error and its available bytes are set.
        operation: The fetch.
        undisturbed: Whether no event since the arrival of the fetch can make the read fail or has removed batches.
        left: Remaining bytes of the request's limit; negative if a first batch exceeded it.
        at_least_one: Whether no earlier partition had data, so the first batch is read regardless of its size.
    """
    part = part_at(arena, at)
    if undisturbed and key.roll_count == 0:
        # Most responses carry all that is available. Without a branch on whether that is anything, which is
        # unpredictable.
        end, _, end_pos = reader_end(key, operation.mode)
        size = (end_pos - part.start_pos) * (part.offset < end)
        if size <= part.size and size <= left:
            part.size = size
            return size
    return _read_answer_in_full(arena, key, at, operation, undisturbed, left, at_least_one)


@helper
def _read_remote_answer(arena: Arena, key: Any, part: Any, operation: Any, left: int) -> None:
    """Answer one partition of an ordinary fetch, with an offset that is only in remote storage.

    The answer has no data, but it uses up part of the request's limit: at most `left` bytes.
    """
    if operation.mode == Reader.FOLLOWER:
        if part.error == Error.NONE:
            part.error = Error.OFFSET_MOVED_TO_TIERED_STORAGE
    elif operation.split == 0:
        operation.split = BROKER_DECIDES
    is_charged = part.throttled == 0 or part.throttled == UNREAD or operation.redirected == 0
    if is_charged and part.error == Error.NONE and arena.reads_all != 0 and may_read_remote(arena, operation.broker):
        arena.charged += max(0, min(part.size, left - arena.charged))


@inlined
def may_read_remote(arena: Arena, broker: int) -> bool:
    """Return whether the broker's quota allows reads of remote storage, as its RemoteFetch purgatory records it."""
    for p in range(arena.purgatories):
        if purgatory_at(arena, p).broker == broker and purgatory_at(arena, p).quota_exhausted != 0:
            return False
    return True


@helper
def _read_answer_in_full(
    arena: Arena, key: Any, at: int, operation: Any, undisturbed: bool, left: int, at_least_one: bool
) -> int:
    part = part_at(arena, at)
    if not undisturbed:
        part.error = read_error(key, part)
        if part.offset < key.local_start:
            if is_remote(key, part):
                _read_remote_answer(arena, key, part, operation, left)
            part.size = 0
            return 0
        left, at_least_one = left - arena.charged, at_least_one and arena.charged == 0
    if not has_data(key, part, operation.mode):
        part.size = 0
        return 0
    batch = replica_state.batch_of(arena, key, part.offset)
    carried = 0
    if part.error == Error.NONE:
        carried = read_bytes(arena, key, part, operation, batch, max(0, left), at_least_one)
    # From the batch that holds the fetch offset to the reader's end, over all segments.
    _, _, end_pos = reader_end(key, operation.mode)
    part.size = min(part.size, max(0, end_pos - replica_state.start_of(batch_at(arena, batch))))
    return carried
