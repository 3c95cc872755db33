"""Binary search for many keys at once, in columns sorted by key: when was this value first reached?

One `searchsorted` serves every key because (key, value) is folded into one number.
"""

from __future__ import annotations

import numpy as np

from purgatory_udf.frames.frame import Array

_ROOM = 2**62


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
