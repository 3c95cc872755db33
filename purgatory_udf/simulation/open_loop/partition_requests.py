"""The produces, fetches, transactions, leader moves and requests of admin clients of one slice, as columns.

Offsets follow from the produces. A follower fetches from the log end, a consumer from the high watermark at that time,
so that each fetch waits for the next record. Times are microseconds since the start of the trace.

The number of requests in a slice, and the number before it, are computed for each slice independently. Given their
total number, the arrivals of a Poisson process are uniform and independent. So the number in the first half of the time
has a binomial distribution, and so have the numbers in its halves, down to the slice. This takes one draw for each
level of a tree over the slices:

    8 slices: 1000
      0..3: 493                4..7: 507
      0..1: 251   2..3: 242    …                      before slice 2: 251
      …           2: 117  3: 125                      in slice 2: 117

In a partition with transactions, each one starts at the end of the previous one, and the last stable offset moves
only when a transaction is committed or aborted:

    t       ──┬────────────────┬────────────────┬──     transactions end every `transaction_ms`, from a time that
    stable    at h0            at h1            at h2   differs by partition; the last stable offset is the high
                                                        watermark of that time, until the next end

A `read_committed` consumer has read up to the last stable offset and waits for the end of the next transaction. Before
the first transaction starts, the last stable offset equals the high watermark. No transaction is longer than a slice.

Deletions and creations complete after a latency. No latency is longer than a slice, so an operation that completes in a
slice was requested in that slice or in the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from purgatory_udf.simulation.open_loop import Flags, Numbers, Purpose, stream
from purgatory_udf.simulation.open_loop.workload import BROKERS, NEW_PARTITIONS, Workload

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Arrivals:
    """The numbers of requests in a slice; produces by partition.

    `before` is the number of produces in earlier slices, `created_before` the number of created topics.
    """

    produces: Counts
    before: Counts
    fetches: int
    deletes: int
    creations: int
    created_before: int


def totals(workload: Workload) -> Counts:
    """Return the totals of the trace: produces by partition, then fetches, deletions and creations."""
    random = stream(workload.seed, Purpose.TOTALS)
    others = [workload.fetches, workload.deletes, workload.creations]
    return np.append(random.multinomial(workload.produces, workload.weights), others)


# Cached because each kind of request uses the arrivals of the same two or three slices.
@lru_cache(maxsize=8)
def arrivals(workload: Workload, number: int) -> Arrivals:
    """Return the numbers of requests in the slice `number` and before it, by binomial draws down the tree of slices."""
    low, high = 0, workload.slices
    inside = totals(workload)
    before = np.zeros_like(inside)
    while high - low > 1:
        middle = (low + high) // 2
        begin, end = workload.slice_start_us(low), workload.slice_start_us(high)
        share = (workload.slice_start_us(middle) - begin) / max(1, end - begin)
        # A node's name is the middle of its range, which is unique.
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
    """The produces of a slice, sorted by (partition, time).

    `before` is each partition's log end at the start of the slice.
    """

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
    """The rises of high watermarks in a slice.

    `before` is each partition's high watermark at the start of the slice.
    """

    t: Numbers
    partition: Numbers
    offset: Numbers
    before: Numbers


@dataclass(frozen=True)
class FetchRequests:
    """The fetches of a slice; `partitions` and `offsets` have a row per fetch and a column per partition.

    `committed` marks fetches of `read_committed` consumers, which start at the last stable offsets.
    """

    t: Numbers
    follower: Flags
    committed: Flags
    partitions: Numbers
    offsets: Numbers


@dataclass(frozen=True)
class LeaderMove:
    """A partition's leader resigns at `resigns_t` and leads again from `leads_t` on."""

    partition: int
    resigns_t: int
    leads_t: int


def produces(workload: Workload, number: int) -> Produces:
    """Return the produces of the slice `number`, with random times, sizes and replication latencies."""
    counts = arrivals(workload, number)
    partition = np.repeat(np.arange(workload.partitions), counts.produces)
    size = len(partition)
    random = stream(workload.seed, Purpose.PRODUCES, number)
    t = random.integers(workload.slice_start_us(number), workload.slice_start_us(number + 1), size)
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
    """Return the rises of high watermarks in a slice. `now` are its produces.

    No latency is longer than a slice, so they belong to produces of this slice or the one before.
    """
    start_us = workload.slice_start_us(number)
    ends = 2**62 if number == workload.slices - 1 else workload.slice_start_us(number + 1)
    in_slice = now.replicated_t < ends
    t, partition, offset = now.replicated_t[in_slice], now.partition[in_slice], now.end_offset[in_slice]
    if number == 0:
        return HighWatermarkRises(t, partition, offset, np.zeros(workload.partitions, dtype=np.int64))
    last = produces(workload, number - 1)
    rises_later = last.replicated_t >= start_us
    before = last.before.copy()
    np.maximum.at(before, last.partition[~rises_later], last.end_offset[~rises_later])
    return HighWatermarkRises(
        np.concatenate([last.replicated_t[rises_later], t]),
        np.concatenate([last.partition[rises_later], partition]),
        np.concatenate([last.end_offset[rises_later], offset]),
        before,
    )


def fetches(workload: Workload, number: int, now: Produces, rises: HighWatermarkRises) -> FetchRequests:
    """Return the fetches of a slice. Their offsets follow from the slice's produces, `now`, and from `rises`."""
    size = arrivals(workload, number).fetches
    random = stream(workload.seed, Purpose.FETCHES, number)
    t = random.integers(workload.slice_start_us(number), workload.slice_start_us(number + 1), size)
    follower = random.random(size) < FOLLOWER_SHARE
    partitions = _partitions_of_one_broker(choose_partitions(workload, random, size), workload)
    when = np.repeat(t[:, None], workload.keys, axis=1)
    log_end = OffsetIndex(now.partition, now.t, now.end_offset, now.before).at(partitions, when)
    watermark = OffsetIndex.of(rises).at(partitions, when)
    offsets = np.where(follower[:, None], log_end, watermark)
    return FetchRequests(t, follower, ~follower & workload.transactional[partitions[:, 0]], partitions, offsets)


def leader_move(workload: Workload, number: int) -> LeaderMove:
    """Return the leader move of the slice `number`: the leader of a random partition resigns in its first half."""
    random = stream(workload.seed, Purpose.MOVES, number)
    start_us, ends = workload.slice_start_us(number), workload.slice_start_us(number + 1)
    half = (ends - start_us) // 2
    resigns = int(random.integers(start_us, start_us + half))
    return LeaderMove(int(random.integers(0, workload.partitions)), resigns, resigns + min(LEADERLESS_US, half))


def latencies_us(workload: Workload, random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    """Draw an array of latencies in microseconds, with this shape. They are cut off at `max_latency_ms`."""
    latency_ms = workload.median_ms * np.exp(workload.sigma * random.standard_normal(shape))
    return np.asarray((np.minimum(latency_ms, workload.max_latency_ms) * 1000).astype(np.int64))


def choose_partitions(workload: Workload, random: np.random.Generator, size: int) -> Numbers:
    """Draw `size` partitions (numbers) at random, each with the probability that `workload.weights` gives it."""
    return np.searchsorted(np.cumsum(workload.weights)[:-1], random.random(size), side="right")


def log_ends(batches: Counts) -> Numbers:
    """Return each partition's log end offset after `batches` batches."""
    return batches * _records_per_batch(np.arange(len(batches)))


def _records_per_batch(partition: Numbers) -> Numbers:
    """Return for each partition the number of records in each of its batches, 1 to 20."""
    return 1 + partition * 7 % 20


def _partitions_of_one_broker(first: Numbers, workload: Workload) -> Numbers:
    """Return the first partition and the next ones that its broker leads; partitions are assigned round robin."""
    broker, place = first % BROKERS, first // BROKERS
    led = (workload.partitions - broker + BROKERS - 1) // BROKERS
    return (place[:, None] + np.arange(workload.keys)) % led[:, None] * BROKERS + broker[:, None]


class OffsetIndex:
    """Finds the greatest offset of a partition at any time of a slice, in one array sorted by (partition, time)."""

    # A slice is shorter than 2**40 us and offsets are below 2**43: each fits into 64 bits together with the partition.
    _TIME, _OFFSET = 40, 43

    def __init__(self, partition: Numbers, t: Numbers, offset: Numbers, before: Numbers) -> None:
        partitions = np.arange(len(before))
        self._zero_t = int(t.min()) if len(t) else 0
        keys = np.concatenate([partitions << self._TIME, partition << self._TIME | (t - self._zero_t + 1)])
        offsets = np.concatenate([partitions << self._OFFSET | before, partition << self._OFFSET | offset])
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._offsets = np.maximum.accumulate(offsets[order]) & (2**self._OFFSET - 1)

    @classmethod
    def of(cls, rises: HighWatermarkRises) -> OffsetIndex:
        return cls(rises.partition, rises.t, rises.offset, rises.before)

    def at(self, partition: Numbers, t: Numbers) -> Numbers:
        """Return the greatest offset up to time `t` of each pair of partition and `t`."""
        key = partition << self._TIME | np.maximum(t - self._zero_t + 1, 0)
        return self._offsets[np.searchsorted(self._keys, key, side="right") - 1]


@dataclass(frozen=True)
class TransactionEnds:
    """The last events of transactions in a slice, with the last stable offset after each."""

    t: Numbers
    partition: Numbers
    offset: Numbers


def transaction_ends(workload: Workload, number: int, rises: HighWatermarkRises) -> TransactionEnds:
    """Return the last event of each transaction in a slice, with the high watermark by the `rises` as its offset."""
    start_us, until = workload.slice_start_us(number), workload.slice_start_us(number + 1)
    partitions = np.flatnonzero(workload.transactional)
    each, first = workload.transaction_us, workload.first_ends_us[partitions]
    before = np.maximum(0, -((first - start_us) // each))
    count = np.maximum(0, -((first - until) // each)) - before
    partition = np.repeat(partitions, count)
    nth = np.arange(len(partition)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(before, count)
    t = workload.first_ends_us[partition] + nth * each
    return TransactionEnds(t, partition, OffsetIndex.of(rises).at(partition, t))


class LastStableOffsets:
    """Finds the last stable offset of a partition at any time of a slice."""

    def __init__(self, workload: Workload, number: int, rises: HighWatermarkRises) -> None:
        self._workload, self._slice_start_us = workload, workload.slice_start_us(number)
        self._now = OffsetIndex.of(rises)
        self._before = self._now
        if number and workload.transactional.any():
            self._before = OffsetIndex.of(high_watermark_rises(workload, number - 1, produces(workload, number - 1)))

    def at(self, partition: Numbers, t: Numbers) -> Numbers:
        """Return the last stable offset at time `t` for each pair of partition and `t`."""
        first, each = self._workload.first_ends_us[partition], self._workload.transaction_us
        held: Flags = self._workload.transactional[partition] & (t >= first)
        ended = np.where(held, first + (t - first) // each * each, t)
        return np.where(ended < self._slice_start_us, self._before.at(partition, ended), self._now.at(partition, ended))


@dataclass(frozen=True)
class Deletes:
    """DELETE_RECORDS requests, a row for each: requested at `t`, and completed at `done_t`.

    They delete the records before `offset`, which is the log end at the start of the previous slice.
    """

    t: Numbers
    partition: Numbers
    offset: Numbers
    done_t: Numbers


@dataclass(frozen=True)
class Creations:
    """Creations of topics.

    `leads_t` has a row per topic and a column per partition: the time of the partition's first leader.
    """

    t: Numbers
    topic: Numbers
    leads_t: Numbers


def deletes(workload: Workload, number: int) -> Deletes:
    """Return the DELETE_RECORDS requests of the slice `number`."""
    size = arrivals(workload, number).deletes
    random = stream(workload.seed, Purpose.DELETES, number)
    t = random.integers(workload.slice_start_us(number), workload.slice_start_us(number + 1), size)
    partition = choose_partitions(workload, random, size)
    old = log_ends(arrivals(workload, number - 1).before)[partition] if number else np.zeros_like(partition)
    return Deletes(t, partition, old, t + latencies_us(workload, random, (size,)))


def creations(workload: Workload, number: int) -> Creations:
    """Return the CREATE_TOPICS requests of the slice `number`."""
    arriving = arrivals(workload, number)
    random = stream(workload.seed, Purpose.CREATIONS, number)
    t = np.sort(
        random.integers(workload.slice_start_us(number), workload.slice_start_us(number + 1), arriving.creations)
    )
    topic = arriving.created_before + np.arange(arriving.creations)
    return Creations(t, topic, t[:, None] + latencies_us(workload, random, (arriving.creations, NEW_PARTITIONS)))


def completed_in_slice(workload: Workload, number: int, t: Numbers) -> Flags:
    """Return a mask of the times in the slice `number`. The last slice also contains all later times."""
    ends_in_slice = (
        t < workload.slice_start_us(number + 1) if number < workload.slices - 1 else np.ones_like(t, dtype=np.bool_)
    )
    return np.asarray((t >= workload.slice_start_us(number)) & ends_in_slice)
