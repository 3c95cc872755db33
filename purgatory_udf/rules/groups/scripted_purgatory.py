"""The gauges of a purgatory with operations that start, end and are checked at given moments (the script).

A coordinator's operations are completed by its groups, not by the compiled loop. The wake-ups and purges of the reaper,
however, depend on all groups of a broker. The moments of the script are ordered by:

    t, seq, sub     a timer (`seq` is -1) precedes the events of its millisecond; `sub` is the turn of the reapers
    late            whether a moment in the reaper's own turn follows only after its buckets have expired

`turn` is the turn of this purgatory's reaper, 0 or 1, among those of its broker.

An operation has one entry, on one list. The check that completes it also removes it, as a walk at the same moment.
Otherwise the entry is dead until the next walk of its list, or a purge. Most operations end and are removed at one
moment, which is therefore one step (`END_WALK`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import helper, int64
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop import clock_advance, compiled_timing_wheel
from purgatory_udf.rules.engine.loop.arena import OPEN, Arena, operation_at, purgatory_at
from purgatory_udf.rules.engine.loop.codes import UNKNOWN

MOMENT = np.dtype(
    [(name, "i8") for name in ("t", "seq", "sub")] + [(name, "i4") for name in ("late", "kind", "operation", "key")]
)
# A list: the number of its dead entries, and the stamp of the last purge that this number takes into account.
LIST = np.dtype([("dead", "i8"), ("stamp", "i8")])

# The kinds of moments, in their order at one moment. `RESET_ESTIMATE`: a new process restarts the purge estimate.
BEGIN, END, END_WALK, WALK, RESET_ESTIMATE = map(int64, (0, 1, 2, 3, 4))

_BY_CLOCK = int64(UNKNOWN)
_PURGATORY = int64(0)  # the only purgatory of its arena


@entry_point
def run_script(arenas: Records, moments: Records, dead: Records, turn: int, until_ms: int) -> None:
    """Apply all moments, then advance the clock to `until_ms`.

    Args:
        arenas: One record: the arena of the purgatory, the only one in it.
        moments: The script (`MOMENT`), in the order of the module's table.
        dead: The lists (`LIST`), by the `key` of moments; updated.
        turn: The turn of this purgatory's reaper, 0 or 1.
        until_ms: The new time in epoch milliseconds. An earlier time than the clock's has no effect.
    """
    arena = arenas[0]
    count = len(moments)
    at = 0
    while at < count:
        first = moments[at]
        now_ms = first.t // 1000
        by_clock = first.seq == _BY_CLOCK
        if not by_clock:
            _advance(arena, now_ms)
        elif first.sub > turn:
            _advance_to_turn(arena, now_ms)
        else:
            _advance(arena, now_ms - 1)
        woken = by_clock and first.sub == turn and _next_wake_ms(arena) <= now_ms
        while at < count and _same_step(first, moments[at], by_clock) and (moments[at].late == 0 or not woken):
            _apply_step(arena, moments[at], dead)
            at += 1
        if woken:
            clock_advance.expire_due(arena, _PURGATORY, now_ms)
            while at < count and _same_step(first, moments[at], by_clock):
                _apply_step(arena, moments[at], dead)
                at += 1
            clock_advance.purge_if_needed(arena, _PURGATORY)
        # In a lagging wheel an operation may have been put into an expired bucket: the reaper wakes at once.
        is_overdue = purgatory_at(arena, _PURGATORY).next_bucket_ms <= now_ms
        is_running = clock_advance.fires_ms(arena, _PURGATORY, now_ms) == now_ms
        if (not by_clock or first.sub >= turn) and is_overdue and is_running:
            clock_advance.wake_reaper(arena, _PURGATORY, now_ms)
    _advance(arena, max(until_ms, arena.now // 1000))


@helper
def _same_step(left: Any, right: Any, by_clock: bool) -> bool:
    """Return whether two moments belong to one event or one turn of the reapers, so that no reaper wakes in between.

    `by_clock` is whether they are moments of timers.
    """
    return left.t == right.t and left.seq == right.seq and (not by_clock or left.sub == right.sub)


@helper
def _apply_step(arena: Arena, moment: Any, dead: Records) -> None:
    purgatory = purgatory_at(arena, _PURGATORY)
    if moment.kind == BEGIN:
        operation = operation_at(arena, moment.operation)
        operation.state = OPEN
        purgatory.watched += 1
        purgatory.estimated += 1
        compiled_timing_wheel.add(arena, _PURGATORY, moment.operation)
        return
    if moment.kind == RESET_ESTIMATE:
        purgatory.estimated = purgatory.delayed
        return
    entries = dead[moment.key]
    if entries.stamp != purgatory.stamp:
        entries.stamp, entries.dead = purgatory.stamp, 0
    if moment.kind == END or moment.kind == END_WALK:
        compiled_timing_wheel.cancel(arena, moment.operation)
        entries.dead += 1
        purgatory.dead += 1
    if moment.kind == WALK or moment.kind == END_WALK:
        purgatory.watched -= entries.dead
        purgatory.dead -= entries.dead
        entries.dead = 0


@helper
def _advance(arena: Arena, now_ms: int) -> None:
    clock_advance.advance_purgatory(arena, _PURGATORY, now_ms)
    arena.now = max(arena.now, now_ms * 1000)


@helper
def _next_wake_ms(arena: Arena) -> int:
    """Return when the reaper wakes next."""
    purgatory = purgatory_at(arena, _PURGATORY)
    return min(purgatory.last_wake_ms + clock_advance.REAPER_IDLE_MS, purgatory.next_bucket_ms)


@helper
def _advance_to_turn(arena: Arena, now_ms: int) -> None:
    """Advance to the reaper's turn in this millisecond, without reading the gauges."""
    _advance(arena, now_ms - 1)
    if _next_wake_ms(arena) <= now_ms:
        clock_advance.wake_reaper(arena, _PURGATORY, now_ms)
