"""Partitions with transactions, one after the other: what is readable of committed records moves at their ends alone.

    t       ──┬────────────────┬────────────────┬──       a partition's transactions end `transaction_ms` after each
    stable    at h0            at h1            at h2      other, from a moment of its own on; the last stable offset is
                                                           what the high watermark is then, until the next end

Whoever reads committed records has read up to there, and waits for the next end. A partition's first transaction begins
with its first end; before that its last stable offset follows the high watermark. None is longer than a slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.simulate.open_loop.requests import Marks, Watermarks, marks, produces
from purgatory_udf.simulate.open_loop.streams import Flags, Numbers
from purgatory_udf.simulate.open_loop.workload import Workload


@dataclass(frozen=True)
class Ends:
    """Of transactions that end in a slice."""

    t: Numbers
    partition: Numbers
    offset: Numbers


def ends(workload: Workload, number: int, rising: Marks) -> Ends:
    begins, until = workload.edge_us(number), workload.edge_us(number + 1)
    everyone = np.flatnonzero(workload.transactional)
    each, first = workload.transaction_us, workload.first_ends_us[everyone]
    before = np.maximum(0, -((first - begins) // each))
    count = np.maximum(0, -((first - until) // each)) - before
    partition = np.repeat(everyone, count)
    nth = np.arange(len(partition)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(before, count)
    t = workload.first_ends_us[partition] + nth * each
    return Ends(t, partition, Watermarks.of(rising).at(partition, t))


class Stable:
    """The last stable offsets of all partitions, at any instant of a slice."""

    def __init__(self, workload: Workload, number: int, rising: Marks) -> None:
        self._workload, self._begins = workload, workload.edge_us(number)
        self._now = Watermarks.of(rising)
        self._before = self._now
        if number and workload.transactional.any():
            self._before = Watermarks.of(marks(workload, number - 1, produces(workload, number - 1)))

    def at(self, partition: Numbers, t: Numbers) -> Numbers:
        first, each = self._workload.first_ends_us[partition], self._workload.transaction_us
        held: Flags = self._workload.transactional[partition] & (t >= first)
        ended = np.where(held, first + (t - first) // each * each, t)
        return np.where(ended < self._begins, self._before.at(partition, ended), self._now.at(partition, ended))
