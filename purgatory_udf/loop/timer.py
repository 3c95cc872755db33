"""A purgatory's timer: Kafka's hierarchical wheels (see `purgatory.timing_wheel`).

Wheel n has 20 buckets of 20^n ms. A bucket begins with its slot, and puts its operations into finer wheels. The
clock of all wheels of a timer is the beginning of the bucket that began last, so it may lag behind the time. A bucket
whose operations have all ended still begins, and wakes the reaper; `queued` has a bit for every bucket that will.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop.compiled import inlined, rule
from purgatory_udf.loop.tables import World, operation_at, purgatory_at, queued_at, wheel_at
from purgatory_udf.loop.words import FOREVER
from purgatory_udf.loop.world import BUCKETS, NONE, TIMER, WHEELS

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
    bucket = wheel * BUCKETS + slot % BUCKETS
    first = wheel_at(w, p * TIMER + bucket).first
    operation.bucket, operation.prev, operation.next = bucket, NONE, first
    if first != NONE:
        operation_at(w, first).prev = o
    wheel_at(w, p * TIMER + bucket).first = o
    queued_at(w, p * WHEELS + wheel).bits |= 1 << slot % BUCKETS
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
    if deadline < now // BUCKETS * BUCKETS + _ROUND:
        return 1, deadline // BUCKETS, deadline // BUCKETS * BUCKETS
    if deadline < now // _ROUND * _ROUND + _ROUNDS:
        return 2, deadline // _ROUND, deadline // _ROUND * _ROUND
    wheel, tick = 3, _ROUNDS
    while deadline >= now // tick * tick + tick * BUCKETS:
        wheel += 1
        tick *= BUCKETS
    return wheel, deadline // tick, deadline // tick * tick


@inlined
def cancel(w: World, operation: Any) -> None:
    """Leave the timer at once. The bucket stays queued, even if it is empty now."""
    if operation.bucket == NONE:
        return
    if operation.prev == NONE:
        wheel_at(w, operation.purgatory * TIMER + operation.bucket).first = operation.next
    else:
        operation_at(w, operation.prev).next = operation.next
    if operation.next != NONE:
        operation_at(w, operation.next).prev = operation.prev
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
            slot = purgatory.wheel_ms // tick
            # Bits from this slot on, round the wheel.
            ahead = (queued >> slot % BUCKETS) | (queued << (BUCKETS - slot % BUCKETS))
            while not ahead & 1:
                ahead >>= 1
                slot += 1
            if slot * tick < begins:
                bucket, begins = wheel * BUCKETS + slot % BUCKETS, slot * tick
        tick *= BUCKETS
    purgatory.next_bucket_ms, purgatory.next_bucket = begins, bucket


@inlined
def take_bucket(w: World, p: int) -> int:
    """The next bucket begins: the wheels' clock moves to it. Its first operation; the others follow by `next`."""
    purgatory = purgatory_at(w, p)
    bucket = purgatory.next_bucket
    purgatory.wheel_ms = purgatory.next_bucket_ms
    wheel = bucket // BUCKETS
    queued_at(w, p * WHEELS + wheel).bits &= ~(1 << bucket % BUCKETS)
    first = wheel_at(w, p * TIMER + bucket).first
    wheel_at(w, p * TIMER + bucket).first = NONE
    return first
