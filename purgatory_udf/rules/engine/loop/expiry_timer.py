"""A purgatory's timer: Kafka's hierarchical wheels (see `purgatory.timing_wheel`).

Wheel n has 20 buckets of 20^n ms. A bucket begins with its slot, and puts its operations into finer wheels. The
clock of all wheels of a timer is the beginning of the bucket that began last, so it may lag behind the time. A bucket
whose operations have all ended still begins, and wakes the reaper; `queued` has a bit for every bucket that will.
"""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, rule
from purgatory_udf.rules.engine.jit.intrinsics import lowest_bit, units
from purgatory_udf.rules.engine.loop.arena import (
    BUCKETS,
    NONE,
    TIMER,
    WHEELS,
    World,
    operation_at,
    purgatory_at,
    queued_at,
    turn_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER

# What the second and the third wheel turn once in.
_ROUND, _ROUNDS = BUCKETS * BUCKETS, BUCKETS * BUCKETS * BUCKETS


@inlined
def add(w: World, p: int, o: int) -> bool:
    """Put the operation into its bucket. False if it is due already, by the wheels' clock, so that it is in none."""
    purgatory, operation = purgatory_at(w, p), operation_at(w, o)
    deadline, now = operation.deadline, purgatory.wheel_ms
    if deadline <= now:
        return False
    wheel, slot, begins = _slot_of(deadline, now)
    at = _place_of(slot)
    bucket = wheel * BUCKETS + at
    operation.bucket = bucket
    enter(w, root_of(w, p, bucket), o)
    queued_at(w, p * WHEELS + wheel).bits |= 1 << at
    # Of buckets that begin together the finer wheel's is the first, as for `find_next_bucket`.
    if begins < purgatory.next_bucket_ms or (begins == purgatory.next_bucket_ms and bucket < purgatory.next_bucket):
        purgatory.next_bucket_ms, purgatory.next_bucket = begins, bucket
    purgatory.delayed += 1
    return True


@inlined
def _slot_of(deadline: int, now: int) -> tuple[int, int, int]:
    """The finest wheel that reaches so far from the clock, the slot there, and when that begins. Nearly all time-outs
    lie in the first three; to divide by a number that the compiler knows is many times as fast."""
    if deadline < now + BUCKETS:
        return 0, deadline, deadline
    slot = units(deadline, BUCKETS)
    if slot < units(now, BUCKETS) + BUCKETS:
        return 1, slot, slot * BUCKETS
    slot = units(deadline, _ROUND)
    if slot < units(now, _ROUND) + BUCKETS:
        return 2, slot, slot * _ROUND
    wheel, tick = 3, _ROUNDS
    slot = units(deadline, tick)
    while slot >= units(now, tick) + BUCKETS:
        wheel += 1
        tick *= BUCKETS
        slot = units(deadline, tick)
    return wheel, slot, slot * tick


@inlined
def _place_of(slot: int) -> int:
    """In its wheel."""
    return slot - units(slot, BUCKETS) * BUCKETS


@inlined
def root_of(w: World, p: int, bucket: int) -> int:
    """A bucket is a ring (as `listed` has them), whose root is one of the turns, behind those of the operations."""
    return w.operations_room + p * TIMER + bucket


@inlined
def enter(w: World, root: int, o: int) -> None:
    turn, following = turn_at(w, o), turn_at(w, root).next
    turn.prev, turn.next = root, following
    turn_at(w, following).prev = o
    turn_at(w, root).next = o


@inlined
def after(w: World, at: int) -> int:
    """Who follows in the bucket, if anybody does."""
    following = turn_at(w, at).next
    return following if following < w.operations_room else NONE


@inlined
def cancel(w: World, o: int) -> None:
    """Leave the timer at once. The bucket stays queued, even if it is empty now."""
    operation = operation_at(w, o)
    if operation.bucket == NONE:
        return
    turn = turn_at(w, o)
    before, following = turn.prev, turn.next
    turn_at(w, before).next = following
    turn_at(w, following).prev = before
    operation.bucket = NONE
    purgatory_at(w, operation.purgatory).delayed -= 1


@rule
def find_next_bucket(w: World, p: int) -> None:
    """The queued bucket that begins next, if any is queued."""
    purgatory = purgatory_at(w, p)
    bucket, begins, tick = NONE, FOREVER, 1
    for wheel in range(WHEELS):
        queued = queued_at(w, p * WHEELS + wheel).bits
        if queued != 0:
            slot = units(purgatory.wheel_ms, tick)
            # Bits from this slot on, round the wheel.
            at = _place_of(slot)
            further = lowest_bit((queued >> at) | (queued << (BUCKETS - at)))
            if (slot + further) * tick < begins:
                at += further
                bucket = wheel * BUCKETS + (at - BUCKETS if at >= BUCKETS else at)
                begins = (slot + further) * tick
        tick *= BUCKETS
    purgatory.next_bucket_ms, purgatory.next_bucket = begins, bucket


@inlined
def take_bucket(w: World, p: int) -> int:
    """The next bucket begins: the wheels' clock moves to it. Its first operation; the others come `after` it."""
    purgatory = purgatory_at(w, p)
    bucket = purgatory.next_bucket
    purgatory.wheel_ms = purgatory.next_bucket_ms
    wheel = units(bucket, BUCKETS)
    queued_at(w, p * WHEELS + wheel).bits &= ~(1 << (bucket - wheel * BUCKETS))
    at = root_of(w, p, bucket)
    first, root = after(w, at), turn_at(w, at)
    root.prev = root.next = at
    return first
