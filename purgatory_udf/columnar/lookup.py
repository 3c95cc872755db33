"""Look-ups over many keys at once, on columns sorted by key.

Three questions are asked of a key's timeline, always for all keys and all operations together:

* what had the greatest value been by then? (`running_max`: a log end only grows)
* what was said last? (`last_said`: the row that set a status)
* when was this value first reached? (`Index.first_at_least`: one binary search for all)

One `searchsorted` serves every key because (key, value) is folded into one number.
"""

from __future__ import annotations

import numpy as np

from purgatory_udf.columnar.frame import Array

_ROOM = 2**62


def bounds(sorted_keys: Array, keys: int) -> Array:
    """Where each key's rows begin; one more entry says where the last one's end."""
    return np.searchsorted(sorted_keys, np.arange(keys + 1))


def running_max(keys: Array, values: Array, initial: Array) -> Array:
    """Row by row the greatest of the key's initial value and its values so far; `keys` sorted, `initial` by key."""
    if not len(keys):
        return values
    start = initial[keys]
    low = min(int(values.min()), int(start.min()))
    span = max(int(values.max()), int(start.max())) - low + 1
    if span * (int(keys[-1]) + 1) < _ROOM:
        floor = keys * span - low
        return np.maximum.accumulate(np.maximum(values, start) + floor) - floor
    ranks, inverse = np.unique(np.maximum(values, start), return_inverse=True)
    floor = keys * len(ranks)
    return ranks[np.maximum.accumulate(inverse + floor) - floor]


def running_sum(keys: Array, values: Array, begins: Array) -> Array:
    """Row by row the sum of the key's values so far, this row's included."""
    total = np.cumsum(values)
    before = np.concatenate([[0], total])[begins[:-1]]
    return total - before[keys]


def last_said(keys: Array, says: Array, begins: Array) -> Array:
    """Row by row the index of the key's latest row (itself included) where `says`, else -1."""
    index = np.where(says, np.arange(len(keys)), -1)
    latest = np.maximum.accumulate(index) if len(index) else index
    return np.where(latest >= begins[keys], latest, -1)


def next_where(says: Array) -> Array:
    """Row by row the index of the next row (itself included) where `says`, else one past the end; blind to keys."""
    rows = len(says)
    index = np.where(says, np.arange(rows), rows)
    following = np.minimum.accumulate(index[::-1])[::-1] if rows else index
    return np.concatenate([following, [rows, rows]]).astype(np.int64)


class Index:
    """Binary search in columns that never fall within a key."""

    def __init__(self, keys: Array, values: Array) -> None:
        self._empty = not len(keys)
        if self._empty:
            return
        low, high = int(values.min()), int(values.max())
        self._low, self._span = low, high - low + 3
        self._ranks: Array | None = None
        if self._span * (int(keys[-1]) + 2) >= _ROOM:
            self._ranks, values = np.unique(values, return_inverse=True)
            self._low, self._span = 0, len(self._ranks) + 3
        self._codes = keys * self._span + (values - self._low + 1)

    def first_at_least(self, keys: Array, targets: Array) -> Array:
        """The first row of the key with a value >= its target; the row after the key's last one if there is none."""
        if self._empty:
            return np.zeros(len(keys), dtype=np.int64)
        if self._ranks is not None:
            targets = np.searchsorted(self._ranks, targets)
        # Half the price of np.clip where there are few rows.
        place = np.minimum(np.maximum(targets - self._low + 1, 0), self._span - 1)
        return np.searchsorted(self._codes, keys * self._span + place).astype(np.int64)


def expand(lengths: Array) -> tuple[Array, Array]:
    """For counts per item: the item of every unit, and the unit's number within its item."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    first = np.cumsum(lengths) - lengths
    return owner, np.arange(len(owner)) - first[owner]
