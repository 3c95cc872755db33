"""What administrators ask for: that old records are deleted, and that topics are created; and when it is done.

No latency is longer than a slice: what is done in this one was asked for in it, or in the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.simulate.open_loop.arrivals import arrivals
from purgatory_udf.simulate.open_loop.requests import latencies_us, log_ends, partitions_asked_for
from purgatory_udf.simulate.open_loop.streams import Flags, Numbers, Purpose, stream
from purgatory_udf.simulate.open_loop.workload import NEW_PARTITIONS, Workload


@dataclass(frozen=True)
class Deletes:
    """Of everything before `offset`: what the log ended at a slice ago."""

    t: Numbers
    partition: Numbers
    offset: Numbers
    done_t: Numbers


@dataclass(frozen=True)
class Creations:
    """`leads_t` has a row for each topic and a column for each of its partitions."""

    t: Numbers
    topic: Numbers
    leads_t: Numbers


def deletes(workload: Workload, number: int) -> Deletes:
    size = arrivals(workload, number).deletes
    random = stream(workload.seed, Purpose.DELETES, number)
    t = random.integers(workload.edge_us(number), workload.edge_us(number + 1), size)
    partition = partitions_asked_for(workload, random, size)
    old = log_ends(arrivals(workload, number - 1).before)[partition] if number else np.zeros_like(partition)
    return Deletes(t, partition, old, t + latencies_us(workload, random, (size,)))


def creations(workload: Workload, number: int) -> Creations:
    come = arrivals(workload, number)
    random = stream(workload.seed, Purpose.CREATIONS, number)
    t = np.sort(random.integers(workload.edge_us(number), workload.edge_us(number + 1), come.creations))
    topic = come.created_before + np.arange(come.creations)
    return Creations(t, topic, t[:, None] + latencies_us(workload, random, (come.creations, NEW_PARTITIONS)))


def due(workload: Workload, number: int, t: Numbers) -> Flags:
    """What is done in this slice; the last one has all that is done later, too."""
    late = t < workload.edge_us(number + 1) if number < workload.slices - 1 else np.ones_like(t, dtype=np.bool_)
    return np.asarray((t >= workload.edge_us(number)) & late)
