"""Advancing the clock: reapers wake, expire and purge, and the gauges are read every 200 ms.

A reaper wakes when its timer's next bucket starts, at the latest 200 ms after it last woke, or when its broker resumes
after it stood still (see `rules.purgatory.clock`). Purgatories of partitions and topics do not affect each other, so
each is advanced separately.
"""

from __future__ import annotations

from purgatory_udf.rules.engine.jit.compiled_functions import floor_div, helper, inlined, int64
from purgatory_udf.rules.engine.loop import compiled_timing_wheel, engine_purgatory
from purgatory_udf.rules.engine.loop.arena import (
    NONE,
    Arena,
    operation_at,
    pause_at,
    purgatory_at,
    reading_at,
    timer_link_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, Rule

REAPER_IDLE_MS = int64(200)
GAUGE_INTERVAL_MS = int64(200)


@helper
def fires_ms(arena: Arena, p: int, due_ms: int) -> int:
    """Return when a timer that is due at `due_ms` fires: then, or when the purgatory's broker resumes from a pause."""
    for n in range(arena.pauses_capacity):
        pause = pause_at(arena, n)
        if pause.broker == purgatory_at(arena, p).broker and pause.paused_ms < due_ms and due_ms < pause.resumed_ms:
            return pause.resumed_ms
    return due_ms


@helper
def _next_pause_ms(arena: Arena, p: int, now_ms: int) -> int:
    """Return the start of the purgatory's first pause that lasts beyond `now_ms`; `FOREVER` without one."""
    for n in range(arena.pauses_capacity):
        pause = pause_at(arena, n)
        if pause.broker == purgatory_at(arena, p).broker and pause.resumed_ms > now_ms:
            return pause.paused_ms
    return FOREVER


@inlined
def _expire(arena: Arena, o: int, at_ms: int) -> None:
    engine_purgatory.finish(arena, o, Rule.TIMEOUT, at_ms * 1000, NONE)


@inlined
def read_gauges(arena: Arena, p: int, at_ms: int) -> None:
    """Read the gauges at `at_ms`. Store the reading only if a gauge has changed or entries have been purged since."""
    purgatory = purgatory_at(arena, p)
    if (
        purgatory.watched == purgatory.read_watched
        and purgatory.delayed == purgatory.read_delayed
        and purgatory.purged == 0
    ):
        return
    reading = reading_at(arena, arena.readings)
    arena.readings += 1
    reading.purgatory, reading.at_ms, reading.purged = p, at_ms, purgatory.purged
    reading.watched = purgatory.read_watched = purgatory.watched
    reading.delayed = purgatory.read_delayed = purgatory.delayed
    purgatory.purged = 0


@helper
def wake_reaper(arena: Arena, p: int, at_ms: int) -> None:
    """Run the reaper at `at_ms`: expire operations, then purge if necessary."""
    expire_due(arena, p, at_ms)
    purge_if_needed(arena, p)


@helper
def expire_due(arena: Arena, p: int, at_ms: int) -> None:
    """Expire the operations in due buckets, or move them to finer wheels."""
    purgatory = purgatory_at(arena, p)
    purgatory.last_wake_ms = at_ms
    while purgatory.next_bucket_ms <= at_ms:
        o = compiled_timing_wheel.take_bucket(arena, p)
        while o != NONE:
            operation = operation_at(arena, o)
            following = compiled_timing_wheel.next_in_bucket(arena, o)
            operation.bucket = NONE
            purgatory.delayed -= 1
            if not compiled_timing_wheel.add(arena, p, o):
                _expire(arena, o, max(operation.deadline, at_ms))
            o = following
        compiled_timing_wheel.find_next_bucket(arena, p)


@helper
def purge_if_needed(arena: Arena, p: int) -> None:
    """Purge if more than `interval` operations may be dead.

    The estimate counts operations watched since the last purge. Walks that remove dead entries do not lower it, so a
    purge may find nothing.
    """
    purgatory = purgatory_at(arena, p)
    if purgatory.estimated - purgatory.delayed > purgatory.interval:
        purgatory.estimated = purgatory.delayed
        engine_purgatory.purge(arena, p)


@helper
def advance_purgatory(arena: Arena, p: int, now_ms: int) -> None:
    """Advance one purgatory's clock to `now_ms`, with all wake-ups of its reaper and all gauge readings on the way."""
    purgatory, at_ms = purgatory_at(arena, p), floor_div(arena.now, 1000)
    while True:
        # A bucket may have started before an operation was put into it; the reaper does not wake in the past.
        due_ms = min(purgatory.last_wake_ms + REAPER_IDLE_MS, max(purgatory.next_bucket_ms, at_ms))
        wake_ms = fires_ms(arena, p, due_ms)
        step_ms = purgatory.next_step_ms
        if step_ms <= now_ms and step_ms < wake_ms:
            read_gauges(arena, p, step_ms)
            purgatory.next_step_ms += GAUGE_INTERVAL_MS
            continue
        if wake_ms > now_ms:
            return
        wake_reaper(arena, p, wake_ms)
        at_ms = wake_ms
        skip_idle_time(arena, p, now_ms)


@helper
def skip_idle_time(arena: Arena, p: int, now_ms: int) -> None:
    """Skip wake-ups and gauge readings up to the next bucket or pause, because they would change nothing."""
    purgatory = purgatory_at(arena, p)
    pause_ms = _next_pause_ms(arena, p, purgatory.last_wake_ms)
    quiet_ms = min(now_ms, purgatory.next_bucket_ms - 1, pause_ms)
    if quiet_ms - purgatory.last_wake_ms < 3 * GAUGE_INTERVAL_MS:
        return
    if purgatory.next_step_ms <= quiet_ms:  # pragma: no branch (only `group_gauges` gets here otherwise)
        read_gauges(arena, p, purgatory.next_step_ms)
        intervals = (quiet_ms - purgatory.next_step_ms) // GAUGE_INTERVAL_MS
        purgatory.next_step_ms += intervals * GAUGE_INTERVAL_MS + GAUGE_INTERVAL_MS
    purgatory.last_wake_ms += (quiet_ms - purgatory.last_wake_ms) // REAPER_IDLE_MS * REAPER_IDLE_MS


@helper
def _next_due_ms(arena: Arena) -> int:
    """Return the time in milliseconds at which some purgatory must be advanced next."""
    due_ms = FOREVER // 1000
    for p in range(arena.purgatories):
        purgatory = purgatory_at(arena, p)
        due_ms = min(due_ms, purgatory.next_bucket_ms, purgatory.last_wake_ms + REAPER_IDLE_MS, purgatory.next_step_ms)
    return due_ms


@helper
def _advance_all(arena: Arena, now_ms: int) -> None:
    # Tasks that were due when they were added do not wake the reaper.
    while arena.overdue != NONE:
        o = arena.overdue
        arena.overdue = timer_link_at(arena, o).next
        _expire(arena, o, operation_at(arena, o).deadline)
    for p in range(arena.purgatories):
        advance_purgatory(arena, p, now_ms)
    arena.next_due = _next_due_ms(arena) * 1000


@inlined
def advance(arena: Arena, now: int) -> None:
    """Advance the clock to `now` in µs: expire operations up to its millisecond."""
    if arena.next_due <= now:
        _advance_all(arena, floor_div(now, 1000))
    arena.now = now


@helper
def drain(arena: Arena) -> None:
    """Advance the clock until no operation is open and every purge has been read."""
    while arena.overdue != NONE or _next_expiry_ms(arena) < FOREVER:
        _advance_to(arena, floor_div(arena.now, 1000) if arena.overdue != NONE else _next_expiry_ms(arena))
    _advance_to(arena, floor_div(arena.now, 1000) + REAPER_IDLE_MS + 3 * GAUGE_INTERVAL_MS)


@helper
def _next_expiry_ms(arena: Arena) -> int:
    """Return the time in milliseconds at which some reaper takes its next bucket."""
    next_ms, now_ms = FOREVER, floor_div(arena.now, 1000)
    for p in range(arena.purgatories):
        next_ms = min(next_ms, fires_ms(arena, p, max(purgatory_at(arena, p).next_bucket_ms, now_ms)))
    return next_ms


@helper
def _advance_to(arena: Arena, now_ms: int) -> None:
    _advance_all(arena, now_ms)
    arena.now = now_ms * 1000
