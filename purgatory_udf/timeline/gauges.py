"""The gauges of one purgatory, from settled operations: what `PurgatorySize` and `NumDelayedOperations` had read.

    watched   the entries on all watcher lists: an operation has one per key
    delayed   the operations that the timer holds

An operation that has to wait counts as delayed from its arrival to its end. Its entries come with it and go one by one:
each at the first walk of its key's list at or after the operation's end (the check that completes an operation drops
the entry on the list that it walks, no other), or at the first purge after the end, whichever is earlier. An expired
operation stays on all its lists until then.

Both gauges are read each 200 ms, after what the clock brings about at that time and before the events of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.frames.frame import Array, Frame, FrameLayout
from purgatory_udf.loop.words import FOREVER
from purgatory_udf.timeline.moments import BY_CLOCK, Timeline, distinct, in_order, seen_from
from purgatory_udf.timeline.purges import purges
from purgatory_udf.timeline.reaper_times import wake_ups

STEP_MS = 200

# `purged`: how many entries purges have removed since the step before.
GAUGES = FrameLayout(("at_ms", "watched", "delayed", "purged"))


def gauges(operations: Frame, watches: Frame, walks: Frame, purge_interval: int, first_ms: int, last_ms: int) -> Frame:
    """The steps up to `last_ms` at which one purgatory reads otherwise than at the step before, or has purged since.

    `operations` as settled (`op`, `t`, `deadline`, `expired`, `watched`, `end_t`, `end_seq`, `end_sub`), `watches` with
    their `op` and `key`, `walks` of this purgatory's lists (`key`, `t`, `seq`, `sub`), each in any order. `first_ms` is
    the time of the whole trace's first event: the clock starts at the step at or before it.
    """
    waited = operations.take(operations.watched > 0)
    if not len(waited):
        return GAUGES.empty()
    waited = waited.take(np.lexsort((waited.op, waited.t)))
    began = Frame({"t": waited.t, "seq": waited.op, "sub": np.zeros(len(waited), dtype=np.int64)})
    lives = Lives(began, _ends(waited), waited.deadline, waited.expired > 0)
    return readings(lives, _entries(waited, watches), walks, purge_interval, first_ms, last_ms)


@dataclass(frozen=True)
class Lives:
    """When operations that had to wait began and ended, in moments; their deadlines, and whether it was these that
    ended them. In the order in which they began."""

    began: Frame
    ended: Frame
    deadline: Array
    by_timer: Array


def readings(
    lives: Lives, entries: Frame, walks: Frame, purge_interval: int, first_ms: int, last_ms: int, turn: int = 0
) -> Frame:
    """`entries` of watcher lists: the list's `key`, and `owner`, a place among the lives. `turn`: the purgatory's among
    those of a broker that bring about something in each other."""
    began, ended = lives.began, lives.ended
    purge = _purges_after(lives, purge_interval, first_ms // STEP_MS * STEP_MS, turn)
    gone, by_purge = _gone(ended.take(entries.owner).with_columns(key=entries.key), purge.take(entries.owner), walks)
    come = _step(began.t, began.seq)
    return _readings(
        last_ms,
        watched=(come[entries.owner], gone),
        delayed=(come, _step(ended.t, ended.seq)),
        purged=gone[by_purge],
    )


def at_every_step(changes: Frame, first_ms: int, last_ms: int) -> Frame:
    """The same gauges as read at every step after the clock's start, changed or not."""
    at_ms = np.arange(first_ms // STEP_MS + 1, last_ms // STEP_MS + 1, dtype=np.int64) * STEP_MS
    latest = np.searchsorted(changes.at_ms, at_ms, side="right")
    now = np.append(False, changes.at_ms)[latest] == at_ms
    held = {name: np.append(0, changes.columns[name])[latest] for name in ("watched", "delayed", "purged")}
    return Frame({"at_ms": at_ms, **held, "purged": np.where(now, held["purged"], 0)})


def _step(t: Array, seq: Array) -> Array:
    """The number of the first step that sees the moment."""
    return -(-seen_from(t, seq) // STEP_MS)


def _ends(waited: Frame) -> Frame:
    """When each operation ended. One without delay expires as soon as the event that brought it has been handled."""
    expired = waited.expired > 0
    at_once = expired & (waited.deadline <= waited.t // 1000)
    by_clock = expired & ~at_once
    return Frame(
        {
            "t": np.select([at_once, by_clock], [waited.t, waited.deadline * 1000], waited.end_t),
            "seq": np.select([at_once, by_clock], [waited.op, BY_CLOCK], waited.end_seq),
            "sub": np.select([at_once, by_clock], [FOREVER, 0], waited.end_sub),
        }
    )


def _purges_after(lives: Lives, interval: int, start_ms: int, turn: int) -> Frame:
    """By operation: the first purge after its end, or a time that never comes."""
    ends = lives.ended
    tasks = lives.began.with_columns(deadline=lives.deadline, until=_alive_until(lives, turn))
    timeline = Timeline.of_one(ends.t, ends.seq, ends.sub)
    found = purges(timeline, wake_ups(tasks, start_ms, turn), interval, start_ms, turn)
    order = np.lexsort((ends.sub, ends.seq, ends.t))
    first = np.empty(len(order), dtype=np.int64)
    first[order] = np.searchsorted(found.ended, np.arange(len(order)), side="right")
    never = {"t": FOREVER, "seq": BY_CLOCK, "sub": 0}
    return Frame({name: np.append(found.columns[name], value)[first] for name, value in never.items()})


def _alive_until(lives: Lives, turn: int) -> Array:
    """The last millisecond in which the clock finds the task alive: the buckets of a millisecond begin in the reaper's
    turn, before all events. What ends in the very step that began it is never found."""
    began, ended = lives.began, lives.ended
    by_clock = ended.seq == BY_CLOCK
    until = np.minimum(lives.deadline, ended.t // 1000 - (by_clock & (ended.sub < turn)))
    at_once = (began.t == ended.t) & (began.seq == ended.seq) & (~by_clock | (began.sub == ended.sub))
    return np.where(at_once & ~lives.by_timer, -1, until)


def _entries(waited: Frame, watches: Frame) -> Frame:
    """Every entry (`key`), by the row of its operation (`owner`). A key named twice has one entry."""
    number = np.argsort(waited.op)
    place = np.searchsorted(waited.op, watches.op, sorter=number)
    known = place < len(number)
    owner = number[np.where(known, place, 0)]
    known &= waited.op[owner] == watches.op
    owner, key = owner[known], watches.key[known]
    once = distinct(key * len(waited) + owner)
    return Frame({"key": once // len(waited), "owner": once % len(waited)})


def _gone(ends: Frame, purge: Frame, walks: Frame) -> tuple[Array, Array]:
    """By entry: the first step that misses it, and whether it was purged. `ends` says `key` and moment of each."""
    walks = in_order(walks)
    at = Timeline(walks).first_from(ends.key, ends.t, ends.seq, ends.sub)
    walked = np.append(walks.key, -1)[at] == ends.key
    t, seq, sub = (np.append(walks.columns[name], last)[at] for name, last in (("t", FOREVER), ("seq", -1), ("sub", 0)))
    walked &= (t < purge.t) | ((t == purge.t) & ((seq < purge.seq) | ((seq == purge.seq) & (sub <= purge.sub))))
    by_purge = ~walked & (purge.t < FOREVER)
    return _step(np.where(walked, t, purge.t), np.where(walked, seq, purge.seq)), by_purge


def _readings(last_ms: int, watched: tuple[Array, Array], delayed: tuple[Array, Array], purged: Array) -> Frame:
    """Steps by number in (those at which something came, and at which it went), readings out."""
    steps = distinct(np.concatenate([distinct(steps) for steps in (*watched, *delayed)]))

    def count(at: Array) -> Array:
        return np.bincount(np.searchsorted(steps, at), minlength=len(steps)).astype(np.int64)

    def level(change: tuple[Array, Array]) -> Array:
        return np.cumsum(count(change[0]) - count(change[1]))

    found = Frame(
        {"at_ms": steps * STEP_MS, "watched": level(watched), "delayed": level(delayed), "purged": count(purged)}
    )
    changed = found.purged > 0
    for name in ("watched", "delayed"):
        changed |= np.diff(found.columns[name], prepend=0) != 0
    return found.take(changed & (found.at_ms <= last_ms))
