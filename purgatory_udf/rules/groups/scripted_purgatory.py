"""A purgatory's gauges where somebody else decides what ends: operations begin, end, and lists are walked as dictated.

So it is with a coordinator's purgatories. Their operations end by the state of a group, which is no business of the
loop's; but when the reaper wakes and purges follows from all of a broker's groups together. Moments come in order:

    t, seq, sub     the clock's own (`seq` is -1) come before a millisecond's events; `sub` counts the reapers' turns
    turn            of this purgatory's reaper among those of its broker: 0 or 1
    late            of the moments in the reaper's own turn: what comes only once its buckets have begun

An operation has one entry, on one list. The check that completes it takes that off (a walk, at the same moment);
otherwise the entry is dead until the list's next walk, or a purge.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from purgatory_udf.rules.engine.jit.compiled_functions import entry, number, rule
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop import clock_advance, expiry_timer
from purgatory_udf.rules.engine.loop.arena import OPEN, World, operation_at, purgatory_at
from purgatory_udf.rules.engine.loop.codes import UNKNOWN

MOMENT = np.dtype(
    [(name, "i8") for name in ("t", "seq", "sub")] + [(name, "i4") for name in ("late", "kind", "operation", "key")]
)
# An operation's list, and how many dead entries a list has, since which purge.
LIST = np.dtype([("dead", "i8"), ("stamp", "i8")])

# What happens, of one moment in this order. `ANEW`: another process estimates from what it holds when to purge.
BEGIN, END, WALK, RESET_ESTIMATE = map(number, (0, 1, 2, 3))

_BY_CLOCK = number(UNKNOWN)
_PURGATORY = number(0)  # the one purgatory of its world


@entry
def run_script(world: Records, moments: Records, dead: Records, turn: int, until_ms: int) -> None:
    """Let everything happen, then let the clock run until then: what happens later is not known yet."""
    w = world[0]
    count = len(moments)
    at = 0
    while at < count:
        first = moments[at]
        now_ms = first.t // 1000
        by_clock = first.seq == _BY_CLOCK
        if not by_clock:
            _advance(w, now_ms)
        elif first.sub > turn:
            _advance_to_turn(w, now_ms)
        else:
            _advance(w, now_ms - 1)
        woken = by_clock and first.sub == turn and _next_wake_ms(w) <= now_ms
        while at < count and _same_step(first, moments[at], by_clock) and (moments[at].late == 0 or not woken):
            _apply_step(w, moments[at], dead)
            at += 1
        if woken:
            clock_advance.fire(w, _PURGATORY, now_ms)
            while at < count and _same_step(first, moments[at], by_clock):
                _apply_step(w, moments[at], dead)
                at += 1
            clock_advance.clean(w, _PURGATORY)
        # What lags has begun before something was put into it: the reaper wakes at once.
        if (not by_clock or first.sub >= turn) and purgatory_at(w, _PURGATORY).next_bucket_ms <= now_ms:
            clock_advance.wake(w, _PURGATORY, now_ms)
    _advance(w, max(until_ms, w.now // 1000))


@rule
def _same_step(left: Any, right: Any, by_clock: bool) -> bool:
    """Reapers wake between an event and the next, and between the clock's turns."""
    return left.t == right.t and left.seq == right.seq and (not by_clock or left.sub == right.sub)


@rule
def _apply_step(w: World, moment: Any, dead: Records) -> None:
    purgatory = purgatory_at(w, _PURGATORY)
    if moment.kind == BEGIN:
        operation = operation_at(w, moment.operation)
        operation.state = OPEN
        purgatory.watched += 1
        purgatory.estimated += 1
        expiry_timer.add(w, _PURGATORY, moment.operation)
        return
    if moment.kind == RESET_ESTIMATE:
        purgatory.estimated = purgatory.delayed
        return
    mine = dead[moment.key]
    if mine.stamp != purgatory.stamp:
        mine.stamp, mine.dead = purgatory.stamp, 0
    if moment.kind == END:
        expiry_timer.cancel(w, moment.operation)
        mine.dead += 1
        purgatory.dead += 1
    else:
        purgatory.watched -= mine.dead
        purgatory.dead -= mine.dead
        mine.dead = 0


@rule
def _advance(w: World, now_ms: int) -> None:
    clock_advance.advance_one(w, _PURGATORY, now_ms)
    w.now = max(w.now, now_ms * 1000)


@rule
def _next_wake_ms(w: World) -> int:
    """When the reaper would wake next."""
    purgatory = purgatory_at(w, _PURGATORY)
    return min(purgatory.last_wake_ms + clock_advance.IDLE_MS, purgatory.next_bucket_ms)


@rule
def _advance_to_turn(w: World, now_ms: int) -> None:
    """Up to the reaper's turn in this millisecond, and no further: nothing is read."""
    _advance(w, now_ms - 1)
    if _next_wake_ms(w) <= now_ms:
        clock_advance.wake(w, _PURGATORY, now_ms)
