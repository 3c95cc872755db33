"""How many requests come in a slice, and how many came before: asked for any slice by itself.

Given how many arrive in all, the arrivals of a Poisson process are spread evenly and independently. So the number in
the first half of the time is binomial, and so on down to the slice: as many draws as a tree over the slices is deep.

    all of 8 slices: 1000
      0..3: 493                4..7: 507
      0..1: 251   2..3: 242    …                      before slice 2: 251
      …           2: 117  3: 125                      in slice 2: 117
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from purgatory_udf.simulate.open_loop.streams import Purpose, stream
from purgatory_udf.simulate.open_loop.workload import Workload

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Arrivals:
    """Produces by partition, and other requests, in one slice; `…before`: those of all earlier ones."""

    produces: Counts
    before: Counts
    fetches: int
    deletes: int
    creations: int
    created_before: int


def totals(workload: Workload) -> Counts:
    """Over the whole trace: produces by partition, then all fetches, deletes, and creations."""
    random = stream(workload.seed, Purpose.TOTALS)
    others = [workload.fetches, workload.deletes, workload.creations]
    return np.append(random.multinomial(workload.produces, workload.weights), others)


# A slice and the one or two before it are asked for by all kinds of requests.
@lru_cache(maxsize=8)
def arrivals(workload: Workload, number: int) -> Arrivals:
    low, high = 0, workload.slices
    inside = totals(workload)
    before = np.zeros_like(inside)
    while high - low > 1:
        middle = (low + high) // 2
        begin, end = workload.edge_us(low), workload.edge_us(high)
        share = (workload.edge_us(middle) - begin) / max(1, end - begin)
        # A node is known by its middle: no two have the same.
        first = stream(workload.seed, Purpose.SPLIT, middle).binomial(inside, share)
        if number < middle:
            high, inside = middle, first
        else:
            low, inside, before = middle, inside - first, before + first
    fetches, deletes, creations = inside[-3:].tolist()
    return Arrivals(inside[:-3], before[:-3], fetches, deletes, creations, int(before[-1]))
