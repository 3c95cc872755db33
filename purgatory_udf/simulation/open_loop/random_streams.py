"""Random numbers by name. A number depends only on its name, not on the task or the order in which it is drawn.

`stream` uses Philox, a hash of (seed, name, index), so a stream can start anywhere. `draw` returns one number for each
entity and index of an array, by another hash: the finalizer of SplitMix64, applied to each part of the name.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """The purpose of a random number; part of its name. The values must not change, or traces change."""

    TOTALS = 1
    SPLIT = 2
    PRODUCES = 3
    FETCHES = 4
    MOVES = 5
    DELETES = 6
    CREATIONS = 7
    GROUP_SIZES = 8
    GROUP_STARTS = 9
    INCIDENTS = 10
    CRASHES = 11
    HEARTBEATS = 12
    COMMITS = 13
    FIRST_JOINS = 14
    JOINS = 15
    SYNCS = 16
    LEAVES = 17


def stream(seed: int, purpose: Purpose, *name: int) -> np.random.Generator:
    """Return the generator for a purpose and a name of at most two parts, each below 2**24."""
    number = int(purpose)
    for part in name:
        number = number << 24 | part
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, number], dtype=np.uint64)))


def draw(below: int, seed: int, purpose: Purpose, entity: Numbers, index: Numbers | int = 0) -> Numbers:
    """Return a repeatable random number in [0, below) for each pair of entity and index."""
    words = _mix(np.array([seed % 2**64], dtype=np.uint64) ^ np.uint64(purpose << 56))
    words = _mix(words ^ entity.astype(np.uint64))
    words = _mix(words ^ np.asarray(index, dtype=np.int64).astype(np.uint64))
    return ((words >> np.uint64(1)) % np.uint64(below)).astype(np.int64)


def _mix(words: _Words) -> _Words:
    """Apply a bijection of 64-bit words in which every output bit depends on every input bit."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
