"""The first check of any of its keys at which a fetch over several keys is complete.

Two ways, with one answer. Where no key of the operation had its log cut or rolled while it waited, what it can read
only grows: the crossing is found by bisection over the order of events, for all operations together. Where one had,
every step of every key is laid out in order and walked by running sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from purgatory_udf.columnar.lookup import Index, expand
from purgatory_udf.columnar.replicas import FETCH_CHECK
from purgatory_udf.columnar.tries import fetch_try
from purgatory_udf.columnar.watches import CHECKED
from purgatory_udf.loop.words import FOREVER, UNKNOWN

if TYPE_CHECKING:
    from purgatory_udf.columnar.frame import Array
    from purgatory_udf.columnar.settle import Windows

# Steps laid out at once, which bounds memory.
_STEPS_AT_ONCE = 2_000_000


def first_met(windows: Windows) -> Array:
    """By operation: the rank of the check that completes it, or -1 where it expires."""
    count = len(windows.limit)
    met = np.full(count, UNKNOWN, dtype=np.int64)
    if not len(windows.entries):
        return met
    high = windows.last_by(windows.limit) + 1
    turns = np.concatenate([[0], np.cumsum(windows.entries.turned)])
    turned = np.zeros(count, dtype=bool)
    np.logical_or.at(turned, windows.owner, turns[np.maximum(high, windows.low)] > turns[windows.low])
    steady = np.flatnonzero(~turned)
    if len(steady):
        part = windows if len(steady) == count else _some(windows, ~turned)
        met[steady] = _by_bisection(part)
    if turned.any():
        met[turned] = _by_walking(_some(windows, turned))
    return met


def _some(windows: Windows, which: Array) -> Windows:
    rows = which[windows.owner]
    return type(windows)(
        windows.watches.take(rows), (np.cumsum(which) - 1)[windows.owner[rows]], windows.entries, windows.rank,
        windows.index, windows.low[rows], windows.limit[which], windows.least[which],
    )  # fmt: skip


def _sums(values: Array, owner: Array) -> Array:
    begin = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    return np.add.reduceat(values, begin)


def _by_bisection(windows: Windows) -> Array:
    """Least rank with enough bytes, then the first check from there on; what is forced ends it at its own limit."""
    owner, watches, limit = windows.owner, windows.watches, windows.limit
    forced_at_limit = np.zeros(len(limit), dtype=bool)
    at = windows.last_by(limit)
    rule, size = windows.tried(at)
    np.logical_or.at(forced_at_limit, owner, (watches.how == CHECKED) & (rule > 0))
    # What counts at the very check that forces it does not matter: forced comes first.
    last = np.where(forced_at_limit, limit - 1, limit)
    if forced_at_limit.any():
        _, size = windows.tried(windows.last_by(last))
    met = np.where(forced_at_limit, limit, UNKNOWN)
    crossed = _sums(size, owner) >= windows.least
    if not crossed.any():
        return met
    part = _some(windows, crossed)
    low = np.full(len(part.limit), UNKNOWN, dtype=np.int64)
    high = last[crossed]
    while (high - low > 1).any():
        middle = (low + high) // 2
        _, size = part.tried(part.last_by(middle))
        enough = _sums(size, part.owner) >= part.least
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    check = _first_check(part, high)
    met[crossed] = np.where(check <= last[crossed], check, met[crossed])
    return met


def _first_check(windows: Windows, rank: Array) -> Array:
    """By operation the first rank, from the given one on, at which one of its keys is checked."""
    checks = np.flatnonzero(windows.entries.checks & FETCH_CHECK > 0)
    watches, owner = windows.watches, windows.owner
    first = np.full(len(watches), FOREVER, dtype=np.int64)
    if len(checks):
        keys, ranks = windows.entries.key[checks], windows.rank[checks]
        at = Index(keys, ranks).first_at_least(watches.key, rank[owner])
        safe = np.minimum(at, len(checks) - 1)
        first = np.where((at < len(checks)) & (keys[safe] == watches.key), ranks[safe], FOREVER)
    begin = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    return np.minimum.reduceat(first, begin)


def _by_walking(windows: Windows) -> Array:
    """Every step of every key in order, as far as memory allows at once."""
    high = np.maximum(windows.last_by(windows.limit) + 1, windows.low)
    steps = np.bincount(windows.owner, weights=high - windows.low, minlength=len(windows.limit))
    chunk = (np.cumsum(steps) // _STEPS_AT_ONCE).astype(np.int64)
    if not len(chunk) or chunk[-1] == 0:
        return _walk(windows)
    met = np.full(len(windows.limit), UNKNOWN, dtype=np.int64)
    for number in np.unique(chunk):
        which = chunk == number
        met[which] = _walk(_some(windows, which))
    return met


def _walk(windows: Windows) -> Array:
    met = np.full(len(windows.limit), UNKNOWN, dtype=np.int64)
    high = np.maximum(windows.last_by(windows.limit) + 1, windows.low)
    watch, nth = expand(high - windows.low)
    if not len(watch):
        return met
    at = windows.low[watch] + nth
    entries = windows.entries.take(at)
    rule, size = fetch_try(windows.watches.take(watch), entries)
    forced = (rule > 0).astype(np.int64)
    first = nth == 0
    gain = size - np.where(first, windows.watches.had[watch], np.append(0, size[:-1]))
    force = forced - np.where(first, 0, np.append(0, forced[:-1]))

    rank, owner = windows.rank[at], windows.owner[watch]
    order = np.lexsort((rank, owner))
    rank, owner = rank[order], owner[order]
    checked = (entries.checks & FETCH_CHECK > 0)[order]
    opens = np.append(True, (owner[1:] != owner[:-1]) | (rank[1:] != rank[:-1]))
    begin = np.flatnonzero(opens)
    gain, force = np.add.reduceat(gain[order], begin), np.add.reduceat(force[order], begin)
    checked, rank, owner = np.logical_or.reduceat(checked, begin), rank[begin], owner[begin]

    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    which = np.cumsum(np.append(True, owner[1:] != owner[:-1])) - 1
    gained, forces = np.cumsum(gain), np.cumsum(force)
    had = _sums(windows.watches.had, windows.owner)[owner]
    total = had + gained - (gained[starts] - gain[starts])[which]
    forcing = forces - (forces[starts] - force[starts])[which]
    holds = checked & ((forcing > 0) | (total >= windows.least[owner]))
    hit = np.flatnonzero(holds)[::-1]
    met[owner[hit]] = rank[hit]
    return met
