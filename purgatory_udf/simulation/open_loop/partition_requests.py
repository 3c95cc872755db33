"""The requests of one slice as columns: when, of which partition, from which offset.

All offsets follow from the produces: a follower fetches from the log's end, a consumer from the high watermark, both as
they stand at that instant; so a fetch waits for what comes next. Times count from the beginning of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from purgatory_udf.simulation.open_loop.random_streams import Flags, Numbers, Purpose, stream
from purgatory_udf.simulation.open_loop.workload import BROKERS, Workload

# How many requests come in a slice, and how many came before: asked for any slice by itself.
#
# Given how many arrive in all, the arrivals of a Poisson process are spread evenly and independently. So the number in
# the first half of the time is binomial, and so on down to the slice: as many draws as a tree over the slices is deep.
#
#     all of 8 slices: 1000
#       0..3: 493                4..7: 507
#       0..1: 251   2..3: 242    …                      before slice 2: 251
#       …           2: 117  3: 125                      in slice 2: 117


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


PRODUCES_PER_ACKS_1 = 10
FOLLOWER_SHARE = 0.3
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
class HighWatermarkRises:
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
class LeaderMove:
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
    records = _records_per_batch(partition)
    latency_us = latencies_us(workload, random, (size,))
    return Produces(
        t=t,
        partition=partition,
        base_offset=earlier * records,
        end_offset=(earlier + 1) * records,
        bytes=random.integers(200, 2000, size),
        acks=np.where(random.integers(0, PRODUCES_PER_ACKS_1, size) == 0, 1, -1),
        replicated_t=t + latency_us,
        before=log_ends(counts.before),
    )


def high_watermark_rises(workload: Workload, number: int, now: Produces) -> HighWatermarkRises:
    """No latency is longer than a slice: what rises in this one was produced in it, or in the one before."""
    begins = workload.edge_us(number)
    ends = 2**62 if number == workload.slices - 1 else workload.edge_us(number + 1)
    here = now.replicated_t < ends
    t, partition, offset = now.replicated_t[here], now.partition[here], now.end_offset[here]
    if number == 0:
        return HighWatermarkRises(t, partition, offset, np.zeros(workload.partitions, dtype=np.int64))
    last = produces(workload, number - 1)
    late = last.replicated_t >= begins
    before = last.before.copy()
    np.maximum.at(before, last.partition[~late], last.end_offset[~late])
    return HighWatermarkRises(
        np.concatenate([last.replicated_t[late], t]),
        np.concatenate([last.partition[late], partition]),
        np.concatenate([last.end_offset[late], offset]),
        before,
    )


def fetches(workload: Workload, number: int, now: Produces, rising: HighWatermarkRises) -> Fetches:
    size = arrivals(workload, number).fetches
    random = stream(workload.seed, Purpose.FETCHES, number)
    t = random.integers(workload.edge_us(number), workload.edge_us(number + 1), size)
    follower = random.random(size) < FOLLOWER_SHARE
    partitions = _partitions_of_one_broker(choose_partitions(workload, random, size), workload)
    when = np.repeat(t[:, None], workload.keys, axis=1)
    log_end = OffsetIndex(now.partition, now.t, now.end_offset, now.before).at(partitions, when)
    watermark = OffsetIndex.of(rising).at(partitions, when)
    offsets = np.where(follower[:, None], log_end, watermark)
    return Fetches(t, follower, ~follower & workload.transactional[partitions[:, 0]], partitions, offsets)


def leader_move(workload: Workload, number: int) -> LeaderMove:
    """One partition in each slice, in its first half."""
    random = stream(workload.seed, Purpose.MOVES, number)
    begins, ends = workload.edge_us(number), workload.edge_us(number + 1)
    half = (ends - begins) // 2
    resigns = int(random.integers(begins, begins + half))
    return LeaderMove(int(random.integers(0, workload.partitions)), resigns, resigns + min(LEADERLESS_US, half))


def latencies_us(workload: Workload, random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    latency_ms = workload.median_ms * np.exp(workload.sigma * random.standard_normal(shape))
    return np.asarray((np.minimum(latency_ms, workload.longest_ms) * 1000).astype(np.int64))


def choose_partitions(workload: Workload, random: np.random.Generator, size: int) -> Numbers:
    return np.searchsorted(np.cumsum(workload.weights)[:-1], random.random(size), side="right")


def log_ends(batches: Counts) -> Numbers:
    """What all logs end at after so many batches each."""
    return batches * _records_per_batch(np.arange(len(batches)))


def _records_per_batch(partition: Numbers) -> Numbers:
    """How many records each batch of the partition has."""
    return 1 + partition * 7 % 20


def _partitions_of_one_broker(first: Numbers, workload: Workload) -> Numbers:
    """The partition and the next ones that its broker leads: partitions go round the brokers."""
    broker, place = first % BROKERS, first // BROKERS
    led = (workload.partitions - broker + BROKERS - 1) // BROKERS
    return (place[:, None] + np.arange(workload.keys)) % led[:, None] * BROKERS + broker[:, None]


class OffsetIndex:
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
    def of(cls, rising: HighWatermarkRises) -> OffsetIndex:
        return cls(rising.partition, rising.t, rising.offset, rising.before)

    def at(self, partition: Numbers, t: Numbers) -> Numbers:
        key = partition << self._TIME | np.maximum(t - self._zero_t + 1, 0)
        return self._offsets[np.searchsorted(self._keys, key, side="right") - 1]


# Partitions with transactions, one after the other: what is readable of committed records moves at their ends alone.
#
#     t       ──┬────────────────┬────────────────┬──     a partition's transactions end `transaction_ms` after each
#     stable    at h0            at h1            at h2    other, from a moment of its own on; the last stable offset is
#                                                          what the high watermark is then, until the next end
#
# Whoever reads committed records has read up to there, and waits for the next end. A partition's first transaction
# begins with its first end; before that its last stable offset follows the high watermark. None is longer than a
# slice.


@dataclass(frozen=True)
class TransactionEnds:
    """Of transactions that end in a slice."""

    t: Numbers
    partition: Numbers
    offset: Numbers


def transaction_ends(workload: Workload, number: int, rising: HighWatermarkRises) -> TransactionEnds:
    begins, until = workload.edge_us(number), workload.edge_us(number + 1)
    everyone = np.flatnonzero(workload.transactional)
    each, first = workload.transaction_us, workload.first_ends_us[everyone]
    before = np.maximum(0, -((first - begins) // each))
    count = np.maximum(0, -((first - until) // each)) - before
    partition = np.repeat(everyone, count)
    nth = np.arange(len(partition)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(before, count)
    t = workload.first_ends_us[partition] + nth * each
    return TransactionEnds(t, partition, OffsetIndex.of(rising).at(partition, t))


class LastStableOffsets:
    """The last stable offsets of all partitions, at any instant of a slice."""

    def __init__(self, workload: Workload, number: int, rising: HighWatermarkRises) -> None:
        self._workload, self._begins = workload, workload.edge_us(number)
        self._now = OffsetIndex.of(rising)
        self._before = self._now
        if number and workload.transactional.any():
            self._before = OffsetIndex.of(high_watermark_rises(workload, number - 1, produces(workload, number - 1)))

    def at(self, partition: Numbers, t: Numbers) -> Numbers:
        first, each = self._workload.first_ends_us[partition], self._workload.transaction_us
        held: Flags = self._workload.transactional[partition] & (t >= first)
        ended = np.where(held, first + (t - first) // each * each, t)
        return np.where(ended < self._begins, self._before.at(partition, ended), self._now.at(partition, ended))
