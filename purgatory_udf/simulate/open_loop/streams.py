"""Random numbers by name: Philox is a hash of (seed, name, index), so every stream can be begun anywhere."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is drawn for."""

    TOTALS = 1
    SPLIT = 2
    PRODUCES = 3
    FETCHES = 4
    MOVES = 5


def stream(seed: int, purpose: Purpose, *name: int) -> np.random.Generator:
    """The numbers of one purpose and one name, of at most two parts below 2**24."""
    number = int(purpose)
    for part in name:
        number = number << 24 | part
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, number], dtype=np.uint64)))
