"""Moving the clock: every purgatory's reaper wakes, expires, purges, and its gauges are read each 200 ms.

A reaper wakes when its timer's next bucket begins, else 200 ms after it last woke (see `purgatory.reaper`). Purgatories
of partitions bring nothing about in each other, so each is taken through the time by itself.
"""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.jit.intrinsics import units
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import expiry_timer
from purgatory_udf.rules.engine.loop.arena import NONE, World, operation_at, purgatory_at, reading_at, turn_at
from purgatory_udf.rules.engine.loop.codes import FOREVER, Rule

IDLE_MS = number(200)
STEP_MS = number(200)


@inlined
def _expire(w: World, o: int) -> None:
    lists.end(w, o, Rule.TIMEOUT, operation_at(w, o).deadline * 1000, NONE)


@inlined
def read(w: World, p: int, at_ms: int) -> None:
    """The gauges, where they read otherwise than at the step before, or a purge came between."""
    purgatory = purgatory_at(w, p)
    if (
        purgatory.watched == purgatory.read_watched
        and purgatory.delayed == purgatory.read_delayed
        and purgatory.purged == 0
    ):
        return
    reading = reading_at(w, w.readings)
    w.readings += 1
    reading.purgatory, reading.at_ms, reading.purged = p, at_ms, purgatory.purged
    reading.watched = purgatory.read_watched = purgatory.watched
    reading.delayed = purgatory.read_delayed = purgatory.delayed
    purgatory.purged = 0


@rule
def wake(w: World, p: int, at_ms: int) -> None:
    """Expire what is due, then purge if more than the interval may be dead."""
    fire(w, p, at_ms)
    clean(w, p)


@rule
def fire(w: World, p: int, at_ms: int) -> None:
    purgatory = purgatory_at(w, p)
    purgatory.last_wake_ms = at_ms
    while purgatory.next_bucket_ms <= at_ms:
        o = expiry_timer.take_bucket(w, p)
        while o != NONE:
            operation = operation_at(w, o)
            following = expiry_timer.after(w, o)
            operation.bucket = NONE
            purgatory.delayed -= 1
            if not expiry_timer.add(w, p, o):
                _expire(w, o)
            o = following
        expiry_timer.find_next_bucket(w, p)


@rule
def clean(w: World, p: int) -> None:
    """The estimate counts operations watched since the last purge and is not lowered when a walk removes them, so a
    purge may find nothing."""
    purgatory = purgatory_at(w, p)
    if purgatory.estimated - purgatory.delayed > purgatory.interval:
        purgatory.estimated = purgatory.delayed
        lists.purge(w, p)


@rule
def advance_one(w: World, p: int, now_ms: int) -> None:
    """Everything that the clock brings about in one purgatory by then, readings included."""
    purgatory, at_ms = purgatory_at(w, p), units(w.now, 1000)
    while True:
        # A bucket may have begun before something was put into it; nobody wakes in the past.
        wake_ms = min(purgatory.last_wake_ms + IDLE_MS, max(purgatory.next_bucket_ms, at_ms))
        step_ms = purgatory.next_step_ms
        if step_ms <= now_ms and step_ms < wake_ms:
            read(w, p, step_ms)
            purgatory.next_step_ms += STEP_MS
            continue
        if wake_ms > now_ms:
            return
        wake(w, p, wake_ms)
        at_ms = wake_ms
        pass_quiet_time(w, p, now_ms)


@rule
def pass_quiet_time(w: World, p: int, now_ms: int) -> None:
    """Until the next bucket begins nobody has anything to do, and every reading is as the one before."""
    purgatory = purgatory_at(w, p)
    quiet_ms = min(now_ms, purgatory.next_bucket_ms - 1)
    if quiet_ms - purgatory.last_wake_ms < 3 * STEP_MS:
        return
    if purgatory.next_step_ms <= quiet_ms:  # pragma: no branch (only where others wake the reaper, see `dictated`)
        read(w, p, purgatory.next_step_ms)
        purgatory.next_step_ms += (quiet_ms - purgatory.next_step_ms) // STEP_MS * STEP_MS + STEP_MS
    purgatory.last_wake_ms += (quiet_ms - purgatory.last_wake_ms) // IDLE_MS * IDLE_MS


@rule
def _next_due(w: World) -> int:
    due_ms = FOREVER // 1000
    for p in range(w.purgatories):
        purgatory = purgatory_at(w, p)
        due_ms = min(due_ms, purgatory.next_bucket_ms, purgatory.last_wake_ms + IDLE_MS, purgatory.next_step_ms)
    return due_ms


@rule
def _advance(w: World, now_ms: int) -> None:
    # Tasks that were due when they were added wake no reaper.
    while w.due != NONE:
        o = w.due
        w.due = turn_at(w, o).next
        _expire(w, o)
    for p in range(w.purgatories):
        advance_one(w, p, now_ms)
    w.next_due = _next_due(w) * 1000


@inlined
def advance(w: World, now: int) -> None:
    """Expire everything whose deadline is the present millisecond or an earlier one."""
    if w.next_due <= now:
        _advance(w, units(now, 1000))
    w.now = now


@rule
def run_out(w: World) -> None:
    """The trace is over: let the clock run until no operation is open and every purge has been read."""
    while w.due != NONE or _next_bucket(w) < FOREVER:
        now_ms = units(w.now, 1000)
        _move(w, now_ms if w.due != NONE else max(now_ms, _next_bucket(w)))
    _move(w, units(w.now, 1000) + IDLE_MS + 3 * STEP_MS)


@rule
def _next_bucket(w: World) -> int:
    begins_ms = FOREVER
    for p in range(w.purgatories):
        begins_ms = min(begins_ms, purgatory_at(w, p).next_bucket_ms)
    return begins_ms


@rule
def _move(w: World, now_ms: int) -> None:
    _advance(w, now_ms)
    w.now = now_ms * 1000
