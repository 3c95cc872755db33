"""A purgatory's timer: Kafka's hierarchical timing wheels (see `rules.purgatory.timing_wheel`).

Wheel n has 20 buckets of 20^n ms. When a bucket's time comes, its operations move to finer wheels. All wheels of a
timer share one clock, `wheel_ms`: the start of the last bucket that was due, so it may lag behind the time. A bucket
without any operation left still becomes due and wakes the reaper; `bucket_bits` has a bit for each such queued bucket.
"""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import floor_div, helper, inlined, lowest_set_bit
from purgatory_udf.rules.engine.loop.arena import (
    BUCKETS_PER_TIMER,
    NONE,
    WHEEL_SIZE,
    WHEELS,
    Arena,
    bucket_bits_at,
    operation_at,
    purgatory_at,
    timer_link_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER

# Bucket lengths of wheels 2 and 3, in ms.
_TICK_2, _TICK_3 = WHEEL_SIZE * WHEEL_SIZE, WHEEL_SIZE * WHEEL_SIZE * WHEEL_SIZE


@inlined
def add(arena: Arena, p: int, o: int) -> bool:
    """Put the operation into the bucket of its deadline. Return False if the deadline is already due."""
    purgatory, operation = purgatory_at(arena, p), operation_at(arena, o)
    deadline, now = operation.deadline, purgatory.wheel_ms
    if deadline <= now:
        return False
    wheel, slot, begin_ms = _find_slot(deadline, now)
    offset = _bucket_in_wheel(slot)
    bucket = wheel * WHEEL_SIZE + offset
    operation.bucket = bucket
    push_to_bucket(arena, bucket_root(arena, p, bucket), o)
    bucket_bits_at(arena, p * WHEELS + wheel).bits |= 1 << offset
    # Of buckets that start together, the finer wheel's comes first, as in `find_next_bucket`.
    if begin_ms < purgatory.next_bucket_ms or (begin_ms == purgatory.next_bucket_ms and bucket < purgatory.next_bucket):
        purgatory.next_bucket_ms, purgatory.next_bucket = begin_ms, bucket
    purgatory.delayed += 1
    return True


@inlined
def _find_slot(deadline: int, now: int) -> tuple[int, int, int]:
    """Return the finest wheel that reaches the deadline, the slot there, and the slot's start.

    Nearly all timeouts are within the first three wheels; dividing by a constant is many times faster.
    """
    if deadline < now + WHEEL_SIZE:
        return 0, deadline, deadline
    slot = floor_div(deadline, WHEEL_SIZE)
    if slot < floor_div(now, WHEEL_SIZE) + WHEEL_SIZE:
        return 1, slot, slot * WHEEL_SIZE
    slot = floor_div(deadline, _TICK_2)
    if slot < floor_div(now, _TICK_2) + WHEEL_SIZE:
        return 2, slot, slot * _TICK_2
    wheel, tick = 3, _TICK_3
    slot = floor_div(deadline, tick)
    while slot >= floor_div(now, tick) + WHEEL_SIZE:
        wheel += 1
        tick *= WHEEL_SIZE
        slot = floor_div(deadline, tick)
    return wheel, slot, slot * tick


@inlined
def _bucket_in_wheel(slot: int) -> int:
    """Return the slot modulo the wheel's size."""
    return slot - floor_div(slot, WHEEL_SIZE) * WHEEL_SIZE


@inlined
def bucket_root(arena: Arena, p: int, bucket: int) -> int:
    """Return the row of the bucket's root in `timer_links`.

    Buckets are rings as in `waiter_queues`; their roots follow the operations' rows.
    """
    return arena.operations_capacity + p * BUCKETS_PER_TIMER + bucket


@inlined
def push_to_bucket(arena: Arena, root: int, o: int) -> None:
    """Insert the operation into the bucket with this root."""
    link, following = timer_link_at(arena, o), timer_link_at(arena, root).next
    link.prev, link.next = root, following
    timer_link_at(arena, following).prev = o
    timer_link_at(arena, root).next = o


@inlined
def next_in_bucket(arena: Arena, at: int) -> int:
    """Return the operation behind row `at` in its bucket, or `NONE`."""
    following = timer_link_at(arena, at).next
    return following if following < arena.operations_capacity else NONE


@inlined
def cancel(arena: Arena, o: int) -> None:
    """Remove the operation from its bucket, if it is in one. The bucket stays queued even if it is empty now."""
    operation = operation_at(arena, o)
    if operation.bucket == NONE:
        return
    link = timer_link_at(arena, o)
    before, following = link.prev, link.next
    timer_link_at(arena, before).next = following
    timer_link_at(arena, following).prev = before
    operation.bucket = NONE
    purgatory_at(arena, operation.purgatory).delayed -= 1


@helper
def find_next_bucket(arena: Arena, p: int) -> None:
    """Find the queued bucket that starts next, if there is any."""
    purgatory = purgatory_at(arena, p)
    bucket, begin_ms, tick = NONE, FOREVER, 1
    for wheel in range(WHEELS):
        queued = bucket_bits_at(arena, p * WHEELS + wheel).bits
        if queued != 0:
            slot = floor_div(purgatory.wheel_ms, tick)
            # Rotate the bits, so that those from this slot on come first.
            offset = _bucket_in_wheel(slot)
            further = lowest_set_bit((queued >> offset) | (queued << (WHEEL_SIZE - offset)))
            if (slot + further) * tick < begin_ms:
                offset += further
                bucket = wheel * WHEEL_SIZE + (offset - WHEEL_SIZE if offset >= WHEEL_SIZE else offset)
                begin_ms = (slot + further) * tick
        tick *= WHEEL_SIZE
    purgatory.next_bucket_ms, purgatory.next_bucket = begin_ms, bucket


@inlined
def take_bucket(arena: Arena, p: int) -> int:
    """Move the wheels' clock to the next bucket, empty it, and return its first operation."""
    purgatory = purgatory_at(arena, p)
    bucket = purgatory.next_bucket
    purgatory.wheel_ms = purgatory.next_bucket_ms
    wheel = floor_div(bucket, WHEEL_SIZE)
    bucket_bits_at(arena, p * WHEELS + wheel).bits &= ~(1 << (bucket - wheel * WHEEL_SIZE))
    at = bucket_root(arena, p, bucket)
    first, root = next_in_bucket(arena, at), timer_link_at(arena, at)
    root.prev = root.next = at
    return first
