"""The requests of one slice as columns: when, of which partition, from which offset.

All offsets follow from the produces: a follower fetches from the log's end, a consumer from the high watermark, both as
they stand at that instant; so a fetch waits for what comes next. Times count from the beginning of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.simulate.open_loop.arrivals import Counts, arrivals
from purgatory_udf.simulate.open_loop.streams import Flags, Numbers, Purpose, stream
from purgatory_udf.simulate.open_loop.workload import BROKERS, Workload

ONE_IN_HAS_ACKS_1 = 10
FOLLOWERS_SHARE = 0.3
LEADERLESS_US = 50_000


@dataclass(frozen=True)
class Produces:
    """In order of (partition, time); `before` is what each partition's log ends at when the slice begins."""

    t: Numbers
    partition: Numbers
    base_offset: Numbers
    end_offset: Numbers
    bytes: Numbers
    acks: Numbers
    replicated_t: Numbers
    before: Numbers


@dataclass(frozen=True)
class Marks:
    """Rises of high watermarks that happen in a slice, and where each partition's stands when it begins."""

    t: Numbers
    partition: Numbers
    offset: Numbers
    before: Numbers


@dataclass(frozen=True)
class Fetches:
    """`partitions` and `offsets` have a row for each fetch and a column for each of its keys. `committed`: it reads no
    further than the last stable offsets, and has read up to them."""

    t: Numbers
    follower: Flags
    committed: Flags
    partitions: Numbers
    offsets: Numbers


@dataclass(frozen=True)
class Move:
    """A partition without its leader for a while."""

    partition: int
    resigns_t: int
    leads_t: int


def produces(workload: Workload, number: int) -> Produces:
    counts = arrivals(workload, number)
    partition = np.repeat(np.arange(workload.partitions), counts.produces)
    size = len(partition)
    random = stream(workload.seed, Purpose.PRODUCES, number)
    t = random.integers(workload.edge_us(number), workload.edge_us(number + 1), size)
    order = np.lexsort((t, partition))
    t, partition = t[order], partition[order]
    began = np.cumsum(counts.produces) - counts.produces
    earlier = counts.before[partition] + np.arange(size) - began[partition]
    records = _records_of(partition)
    latency_us = latencies_us(workload, random, (size,))
    return Produces(
        t=t,
        partition=partition,
        base_offset=earlier * records,
        end_offset=(earlier + 1) * records,
        bytes=random.integers(200, 2000, size),
        acks=np.where(random.integers(0, ONE_IN_HAS_ACKS_1, size) == 0, 1, -1),
        replicated_t=t + latency_us,
        before=log_ends(counts.before),
    )


def marks(workload: Workload, number: int, now: Produces) -> Marks:
    """No latency is longer than a slice: what rises in this one was produced in it, or in the one before."""
    begins = workload.edge_us(number)
    ends = 2**62 if number == workload.slices - 1 else workload.edge_us(number + 1)
    here = now.replicated_t < ends
    t, partition, offset = now.replicated_t[here], now.partition[here], now.end_offset[here]
    if number == 0:
        return Marks(t, partition, offset, np.zeros(workload.partitions, dtype=np.int64))
    last = produces(workload, number - 1)
    late = last.replicated_t >= begins
    before = last.before.copy()
    np.maximum.at(before, last.partition[~late], last.end_offset[~late])
    return Marks(
        np.concatenate([last.replicated_t[late], t]),
        np.concatenate([last.partition[late], partition]),
        np.concatenate([last.end_offset[late], offset]),
        before,
    )


def fetches(workload: Workload, number: int, now: Produces, rising: Marks) -> Fetches:
    size = arrivals(workload, number).fetches
    random = stream(workload.seed, Purpose.FETCHES, number)
    t = random.integers(workload.edge_us(number), workload.edge_us(number + 1), size)
    follower = random.random(size) < FOLLOWERS_SHARE
    partitions = _of_one_broker(partitions_asked_for(workload, random, size), workload)
    when = np.repeat(t[:, None], workload.keys, axis=1)
    log_end = Watermarks(now.partition, now.t, now.end_offset, now.before).at(partitions, when)
    watermark = Watermarks.of(rising).at(partitions, when)
    offsets = np.where(follower[:, None], log_end, watermark)
    return Fetches(t, follower, ~follower & workload.transactional[partitions[:, 0]], partitions, offsets)


def move(workload: Workload, number: int) -> Move:
    """One partition in each slice, in its first half."""
    random = stream(workload.seed, Purpose.MOVES, number)
    begins, ends = workload.edge_us(number), workload.edge_us(number + 1)
    half = (ends - begins) // 2
    resigns = int(random.integers(begins, begins + half))
    return Move(int(random.integers(0, workload.partitions)), resigns, resigns + min(LEADERLESS_US, half))


def latencies_us(workload: Workload, random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    latency_ms = workload.median_ms * np.exp(workload.sigma * random.standard_normal(shape))
    return np.asarray((np.minimum(latency_ms, workload.longest_ms) * 1000).astype(np.int64))


def partitions_asked_for(workload: Workload, random: np.random.Generator, size: int) -> Numbers:
    return np.searchsorted(np.cumsum(workload.weights)[:-1], random.random(size), side="right")


def log_ends(batches: Counts) -> Numbers:
    """What all logs end at after so many batches each."""
    return batches * _records_of(np.arange(len(batches)))


def _records_of(partition: Numbers) -> Numbers:
    """How many records each batch of the partition has."""
    return 1 + partition * 7 % 20


def _of_one_broker(first: Numbers, workload: Workload) -> Numbers:
    """The partition and the next ones that its broker leads: partitions go round the brokers."""
    broker, place = first % BROKERS, first // BROKERS
    led = (workload.partitions - broker + BROKERS - 1) // BROKERS
    return (place[:, None] + np.arange(workload.keys)) % led[:, None] * BROKERS + broker[:, None]


class Watermarks:
    """The greatest offset of each partition at any instant of a slice: one sorted array of (partition, time)."""

    # A slice is shorter than 2**40 us, an offset less than 2**43: each fits one number with the partition before it.
    _TIME, _OFFSET = 40, 43

    def __init__(self, partition: Numbers, t: Numbers, offset: Numbers, before: Numbers) -> None:
        everyone = np.arange(len(before))
        self._zero_t = int(t.min()) if len(t) else 0
        keys = np.concatenate([everyone << self._TIME, partition << self._TIME | (t - self._zero_t + 1)])
        offsets = np.concatenate([everyone << self._OFFSET | before, partition << self._OFFSET | offset])
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._offsets = np.maximum.accumulate(offsets[order]) & (2**self._OFFSET - 1)

    @classmethod
    def of(cls, rising: Marks) -> Watermarks:
        return cls(rising.partition, rising.t, rising.offset, rising.before)

    def at(self, partition: Numbers, t: Numbers) -> Numbers:
        key = partition << self._TIME | np.maximum(t - self._zero_t + 1, 0)
        return self._offsets[np.searchsorted(self._keys, key, side="right") - 1]
