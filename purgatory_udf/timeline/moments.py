"""Moments: places in the one order of everything that happens, each a (t, seq, sub).

An event's own steps are at its time and `seq`; `sub` tells apart its steps that see different states. What the clock
alone brings about in a millisecond, such as an expiration, comes before all its events: the `seq` is -1. Where several
purgatories bring about something in each other, they take turns, and `sub` counts these: see `groups.clock.Moment`.
"""

from __future__ import annotations

import numpy as np

from purgatory_udf.frames.frame import Array, Frame
from purgatory_udf.loop.words import FOREVER, UNKNOWN
from purgatory_udf.timeline.lookup import Index

BY_CLOCK = UNKNOWN


# The `sub` of what an event sets off once it has been handled.
HANDLED = FOREVER


def seen_from(t: Array, seq: Array) -> Array:
    """The first millisecond that begins after the moment, or with it if it is the clock's."""
    seen: Array = t // 1000 + (seq != BY_CLOCK)
    return seen


def distinct(values: Array) -> Array:
    """Each value once, in order. Sorting beats the hash table of `np.unique` several times over."""
    ordered: Array = np.sort(values)
    fresh = np.ones(len(ordered), dtype=bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    once: Array = ordered[fresh]
    return once


def in_order(rows: Frame) -> Frame:
    """Rows by (key, t, seq, sub); those that come in order are left alone."""
    key, t, seq, sub = rows.key, rows.t, rows.seq, rows.sub
    rises = sub[1:] >= sub[:-1]
    for column in (seq, t, key):
        rises = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & rises)
    return rows if rises.all() else rows.take(np.lexsort((sub, seq, t, key)))


class Timeline:
    """Rows with `key` and moment, in order: which is a key's first row at or after a given moment?"""

    def __init__(self, rows: Frame) -> None:
        self.rows = rows
        self._times = Index(rows.key, rows.t)

    @staticmethod
    def of_one(t: Array, seq: Array, sub: Array) -> Timeline:
        """Moments that belong to no key (or all to key 0), in any order."""
        order = np.lexsort((sub, seq, t))
        zero = np.zeros(len(t), dtype=np.int64)
        return Timeline(Frame({"key": zero, "t": t[order], "seq": seq[order], "sub": sub[order]}))

    def __len__(self) -> int:
        return len(self.rows)

    def first_from(self, key: Array, t: Array, seq: Array, sub: Array) -> Array:
        """By binary search among the key's rows of that very time; the row after the key's last if there is none."""
        low, high = self._times.first_at_least(key, t), self._times.first_at_least(key, t + 1)
        while len(tied := np.flatnonzero(low < high)):
            middle = (low[tied] + high[tied]) // 2
            this_seq, same = self.rows.seq[middle], self.rows.seq[middle] == seq[tied]
            earlier = (this_seq < seq[tied]) | (same & (self.rows.sub[middle] < sub[tied]))
            low[tied] = np.where(earlier, middle + 1, low[tied])
            high[tied] = np.where(earlier, high[tied], middle)
        return low

    def number_until(self, t: Array, seq: Array, sub: Array) -> Array:
        """For moments of no key: how many of these rows are at or before each."""
        return self.first_from(np.zeros(len(t), dtype=np.int64), t, seq, sub + 1)
