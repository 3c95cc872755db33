"""Offsets of appends.

The log has only the base offset of each answered produce. The last offset comes from `--batches`, or otherwise from the
next known offset: the next base offset, or a follower's fetch offset, which is always the end of a batch.

Produces with acks 0 have no response, so not even a base offset. They share the offsets that remain between others.

Appends without a PRODUCE line are *unlogged*: coordinators store offsets, groups and transactions, and append markers.
With `--batches`, each of them is known by its batch. Otherwise, a follower's offset beyond the produces shows that
there was an append, and its time is that of a request that may have caused it. Without such an offset no append is
assumed, because one append too many would leave the log end too high for the rest of the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from purgatory_udf.sources.request_log.assumptions import (
    BATCH_TIME_TOLERANCE_US,
    COORDINATOR_APPEND_US,
    COORDINATOR_CHECK_US,
    MAX_APPEND_TO_FETCH_US,
    MAX_HANDLING_US,
    Report,
)
from purgatory_udf.sources.request_log.fact_columns import INTERVAL, MAX_INTERVALS, FactColumns, order_by
from purgatory_udf.sources.request_log.fact_kinds import Append, Booleans, Integers
from purgatory_udf.sources.request_log.internal_topics import (
    BatchIndex,
    StoredBatch,
    TransactionFacts,
    replication_wait_ms,
)
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts

NEVER = 2**62
# Offsets from here on do not fit into the interval of a partition.
_MOST_OFFSET = INTERVAL - 1


class SelectedAppends:
    """Some of the appends of a partition, in their own order.

    Attributes:
        facts: The columns of all appends.
        rows: The numbers of the selected ones among these, in order.
    """

    __slots__ = ("facts", "rows")

    def __init__(self, facts: FactColumns[Append], rows: Integers) -> None:
        self.facts, self.rows = facts, rows

    @classmethod
    def none(cls) -> SelectedAppends:
        """Return a selection without appends."""
        return cls(FactColumns.none(Append), np.arange(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Append]:
        yield from self.facts.in_order(self.rows)

    def __getitem__(self, number: int) -> Append:
        return self.facts[int(self.rows[number])]

    def integers(self, name: str) -> Integers:
        """Return the values of a field."""
        return self.facts.integers(name)[self.rows]

    def has_any(self, name: str) -> bool:
        """Return whether any value of a field is true."""
        return self.facts.has_any(name, self.rows)

    def replace(self, name: str, values: Integers) -> None:
        """Replace the values of a field."""
        column = self.facts.integers(name).copy()
        column[self.rows] = values
        self.facts.replace(name, column)

    def since_row(self, first: int) -> SelectedAppends:
        """Return the appends whose rows have at least the number `first`."""
        return SelectedAppends(self.facts, self.rows[self.rows >= first])


def places_right(values: Integers, wanted: Integers) -> Integers:
    """Return what `bisect_right` finds for each wanted number, even if the values are not in order."""
    if np.all(values[1:] >= values[:-1]):
        return np.searchsorted(values, wanted, side="right")
    listed = values.tolist()
    return np.array([bisect_right(listed, number) for number in wanted.tolist()], np.int64)


def unlogged_appends_from_batches(
    batches: Iterable[StoredBatch], facts: PartitionFacts, classic: bool, transactions: TransactionFacts
) -> Iterator[Append]:
    """Yield an append for each batch of an unlogged append.

    Args:
        batches: Batches on disk without a PRODUCE line, in offset order.
        facts: Facts of the partition at the broker.
        classic: Whether the broker's group coordinator is a classic one.
        transactions: Transactions that the log shows.
    """
    writers, markers = _writers(facts), _marker_writers(facts)
    for batch in batches:
        ended = transactions.transaction_of(batch.producer_id) if batch.control else None
        writer = _writer_of(batch, writers) if ended is None else _writer_of_marker(batch, markers.get(ended, ()))
        if writer is not None and (classic or writer.ends_transaction):
            append = _append_during(writer, batch.created_us)
        else:
            append = _append_after(max(batch.created_us, writer.start_us if writer else 0))
        append.base, append.end, append.bytes = batch.base, batch.last + 1, batch.bytes
        _attribute_to(append, writer, facts.topic, classic)
        if batch.control:
            append.ends_transaction, append.aborts = ended, writer is not None and writer.aborts
        elif batch.transactional:
            append.transaction = transactions.transaction_of(batch.producer_id)
        yield append


class _Writers:
    """The requests that may have caused an unlogged append, in time order."""

    def __init__(self, appends: SelectedAppends) -> None:
        self._appends = appends
        # Their values are Python's integers.
        self.starts, self.untils = (appends.integers(name).data for name in ("start_us", "until_us"))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> Append:
        return self._appends[number]

    def __iter__(self) -> Iterator[Append]:
        return iter(self._appends)


def _writers(facts: PartitionFacts) -> _Writers:
    is_writer = (facts.appends.integers("line") < 0) & (facts.appends.integers("base") < 0)
    return _Writers(SelectedAppends(facts.appends, np.flatnonzero(is_writer)))


def _marker_writers(facts: PartitionFacts) -> dict[str, list[Append]]:
    """Return the requests that may have appended a transaction marker, by transactional id."""
    by_transaction: dict[str, list[Append]] = {}
    for writer in _writers(facts):
        if writer.ends_transaction is not None:
            by_transaction.setdefault(writer.ends_transaction, []).append(writer)
    return by_transaction


def _writer_of(batch: StoredBatch, writers: _Writers) -> Append | None:
    """Return the first request during which the batch was created, or None."""
    for number in range(bisect_left(writers.starts, batch.created_us - MAX_HANDLING_US), len(writers)):
        if writers.starts[number] > batch.created_us + BATCH_TIME_TOLERANCE_US:
            return None
        if batch.created_us <= writers.untils[number] + BATCH_TIME_TOLERANCE_US:
            return writers[number]
    return None


def _writer_of_marker(batch: StoredBatch, markers: Sequence[Append]) -> Append | None:
    """Return the request for a marker's transaction that is nearest in time to the batch, or None.

    The first request during which the batch was created would be wrong on a busy broker, which writes lines late.
    """

    def away_us(append: Append) -> int:
        return max(append.start_us - batch.created_us, batch.created_us - append.until_us, 0)

    first = bisect_left(markers, batch.created_us - MAX_HANDLING_US, key=lambda marker: marker.start_us)
    last = bisect_right(markers, batch.created_us + MAX_HANDLING_US, key=lambda marker: marker.start_us)
    return min(markers[first:last], key=away_us, default=None)


def _append_during(writer: Append, earliest_us: int) -> Append:
    """Return an append during the handling of a request, not before `earliest_us`."""
    at, check = max(earliest_us, writer.at_us), max(earliest_us, writer.check_us)
    ended, until_us = writer.ends_transaction, at + MAX_APPEND_TO_FETCH_US
    return Append(writer.start_us, at, check, until_us, ends_transaction=ended, aborts=writer.aborts)


def _attribute_to(append: Append, writer: Append | None, topic: str, classic: bool) -> None:
    """Set the request that caused an append, and how long the append waits for replicas.

    Without a `writer` no request caused it, for instance when a member's session expires.
    """
    append.wait_ms = replication_wait_ms(topic, classic)
    if writer is None:
        return
    append.writer_file, append.writer_line, append.client = writer.writer_file, writer.writer_line, writer.client
    append.slot = writer.slot
    if writer.wait_ms >= 0 or writer.ends_transaction:
        append.wait_ms = writer.wait_ms


def _append_after(started_us: int) -> Append:
    """Return an append by a coordinator's own thread, for a request that was handled from `started_us` on."""
    at = started_us + COORDINATOR_APPEND_US
    return Append(started_us, at, started_us + COORDINATOR_CHECK_US, at + MAX_APPEND_TO_FETCH_US)


def unlogged_appends(
    appends: SelectedAppends, facts: PartitionFacts, classic: bool, report: Report
) -> Iterator[Append]:
    """Yield the appends that followers' offsets show in addition to the known ones.

    Args:
        appends: The known appends, in offset order.
        facts: Facts of the partition at the broker.
        classic: Whether the broker's group coordinator is a classic one.
        report: Counts what could not be derived.
    """
    positions = facts.positions
    followers = np.flatnonzero(positions.integers("replica") >= 0)
    if not len(followers):
        return
    shown_us, shown = (positions.integers(name)[followers] for name in ("proven_us", "offset"))
    order = order_by(shown_us, shown)
    # The values of these are Python's integers.
    offsets, proven_us = shown[order].data, shown_us[order].data
    search = _WriterSearch(facts, classic, report)
    bases, ends = (appends.integers(name).data for name in ("base", "end"))
    known = min(offsets[0], bases[0]) if bases else offsets[0]
    upcoming, count = 0, len(bases)
    for number, offset in enumerate(offsets):
        while known < offset:
            while upcoming < count and ends[upcoming] <= known:
                upcoming += 1
            if upcoming < count and bases[upcoming] <= known:
                known = ends[upcoming]
                continue
            limit = bases[upcoming] if upcoming < count else offset
            append = search.append(known, min(limit, offset), proven_us[number])
            known = append.end
            yield append


class _WriterSearch:
    """Finds the requests that caused unlogged appends; each request is used once, in time order."""

    def __init__(self, facts: PartitionFacts, classic: bool, report: Report) -> None:
        self._writers = _writers(facts)
        self._topic = facts.topic
        self._next = 0
        self._deliveries = facts.deliveries
        self._delivered_us = facts.deliveries.integers("at_us").data
        self._classic = classic
        self._report = report

    def append(self, base: int, limit: int, proven_us: int) -> Append:
        """Return the append that starts at offset `base` and ends at `limit` or before.

        It is attributed to the next request that started before `proven_us`, the time of a follower's fetch that shows
        the append, if there is one.
        """
        while self._may_write(proven_us) and self._writers.starts[self._next] < proven_us - MAX_APPEND_TO_FETCH_US:
            self._next += 1
        if not self._may_write(proven_us):
            return self._inferred(base, limit, proven_us)
        writer = self._writers[self._next]
        self._next += 1
        in_thread = self._classic or writer.ends_transaction
        append = _append_during(writer, 0) if in_thread else _append_after(writer.start_us)
        # Offsets beyond these records belong to the next request, if there is one in time.
        end = base + max(1, writer.records)
        append.base, append.end = base, min(limit, end) if self._may_write(proven_us) else limit
        append.bytes = max(1, writer.bytes)
        _attribute_to(append, writer, self._topic, self._classic)
        self._report.count("hidden_confirmed")
        return append

    def _may_write(self, proven_us: int) -> bool:
        """Return whether the next request started before the follower's fetch."""
        return self._next < len(self._writers) and self._writers.starts[self._next] < proven_us

    def _inferred(self, base: int, limit: int, proven_us: int) -> Append:
        """Return an append of the offsets [base, limit) that no request explains.

        Its time is just before a response with its records, or otherwise just before the follower's fetch.
        """
        at, size = proven_us - 1, 1
        place = bisect_right(self._delivered_us, at) - 1
        if place >= 0 and at - self._delivered_us[place] < MAX_APPEND_TO_FETCH_US:
            at, size = self._delivered_us[place] - 1, self._deliveries[place].bytes
        self._report.count("hidden_inferred")
        append = Append(at, at, at, at, base=base, end=limit, bytes=max(1, size))
        _attribute_to(append, None, self._topic, self._classic)
        return append


def appends_from_batches(
    facts: PartitionFacts,
    batches: Iterable[StoredBatch],
    span_us: tuple[int, int],
    classic: bool,
    transactions: TransactionFacts,
    report: Report,
) -> SelectedAppends:
    """Return all appends in offset order, with their offsets from `--batches`. Adds unlogged ones to the facts.

    Args:
        facts: Facts of the partition at the broker.
        batches: Batches of the partition on disk.
        span_us: First arrival and last response of the log; batches with other timestamps are ignored.
        classic: Whether the broker's group coordinator is a classic one.
        transactions: Transactions that the log shows.
        report: Counts what could not be derived.
    """
    index = BatchIndex(batches)
    appends = facts.appends
    named = _with_base_offset(facts, report)
    base, end, size = (appends.integers(name).copy() for name in ("base", "end", "bytes"))
    taken: set[int] = set()
    for row in named.tolist():
        run = index.batches_of_request(int(base[row]), int(size[row]))
        if run:
            end[row] = run[-1].last + 1
            taken.update(batch.base for batch in run)
    report.count("end_from_batches", int(np.count_nonzero(end[named] >= 0)))
    free = [batch for batch in index.batches if batch.base not in taken]
    placed = []
    for row in _unanswered(facts).tolist():
        # The log has the size of the records: take the next batch of the same size, in order of arrival.
        match = next((batch for batch in free if batch.bytes == size[row] and not batch.control), None)
        if match is None:
            report.count("unanswered_lost")
            continue
        free.remove(match)
        base[row], end[row] = match.base, match.last + 1
        report.count("unanswered_offsets")
        placed.append(row)
    appends.replace("base", base)
    appends.replace("end", end)
    within = [batch for batch in free if span_us[0] <= batch.created_us <= span_us[1]]
    report.count("hidden_from_batches", len(within))
    logged = np.concatenate([named, np.array(placed, np.int64)])
    found = FactColumns.of(Append, unlogged_appends_from_batches(within, facts, classic, transactions))
    all_appends = _in_offset_order(_with_unlogged(facts, logged, found))
    _set_missing_ends(all_appends, facts, report)
    return all_appends


class OffsetInput(NamedTuple):
    """The input for the offsets of a partition's appends.

    Attributes:
        facts: Facts of the partition at the broker.
        classic: Whether the broker's group coordinator is a classic one.
        report: Counts what could not be derived.
    """

    facts: PartitionFacts
    classic: bool
    report: Report


def appends_from_offsets(partitions: Sequence[OffsetInput]) -> list[SelectedAppends]:
    """Return all appends in offset order, with offsets from responses and followers' fetches alone, by partition.

    Adds unlogged appends to the facts.
    """
    if len(partitions) == 1:
        return [_appends_of_one(*partitions[0])]
    return [
        appends
        for start in range(0, len(partitions), MAX_INTERVALS)
        for appends in _appends_together(partitions[start : start + MAX_INTERVALS])
    ]


def _appends_of_one(facts: PartitionFacts, classic: bool, report: Report) -> SelectedAppends:
    named = _with_base_offset(facts, report)
    placed = _place_unanswered(named, facts, report)
    logged = _in_offset_order(SelectedAppends(facts.appends, np.concatenate([named, placed])))
    _set_missing_ends(logged, facts, report)
    return _with_unlogged_in_order(logged.rows, facts, classic, report)


def _with_unlogged_in_order(rows: Integers, facts: PartitionFacts, classic: bool, report: Report) -> SelectedAppends:
    logged = SelectedAppends(facts.appends, rows)
    found = FactColumns.of(Append, unlogged_appends(logged, facts, classic, report))
    return _in_offset_order(_with_unlogged(facts, rows, found))


def _appends_together(partitions: Sequence[OffsetInput]) -> list[SelectedAppends]:
    """Do the same as `_appends_of_one` for several partitions, in one pass over most of them; see `INTERVAL`."""
    count, all_facts = len(partitions), [partition.facts for partition in partitions]
    numbers = np.repeat(np.arange(count), [len(facts.appends) for facts in all_facts])
    base, end, line = (
        np.concatenate([facts.appends.integers(name) for facts in all_facts]) for name in ("base", "end", "line")
    )
    follower, followed = _offsets_of_followers(all_facts)
    is_unusual = np.zeros(count, bool)
    is_unusual[numbers[((base < 0) & (line >= 0)) | (base >= _MOST_OFFSET) | (end >= _MOST_OFFSET)]] = True
    is_unusual[follower[(followed < 0) | (followed >= _MOST_OFFSET)]] = True
    is_usual = ~is_unusual[follower]
    follower, followed = follower[is_usual], followed[is_usual]
    starts = np.arange(count) * INTERVAL
    moved = base + starts[numbers]
    known = np.flatnonzero((base >= 0) & ~is_unusual[numbers])
    in_order = known[moved[known].argsort(kind="stable")]
    is_first = np.ones(len(in_order), bool)
    is_first[1:] = moved[in_order[1:]] != moved[in_order[:-1]]
    named, retries = in_order[is_first], in_order[~is_first]
    end[retries] = base[retries]
    missing = named[end[named] < 0]
    if len(missing):
        shown = _moved_readings(all_facts, is_unusual)
        boundaries = np.unique(np.concatenate([followed + starts[follower], shown, moved[named]]))
        following = np.searchsorted(boundaries, moved[missing], side="right")
        next_offsets = np.append(boundaries, NEVER)[following] - starts[numbers[missing]]
        is_shown = next_offsets < INTERVAL
        end[missing] = np.where(is_shown, next_offsets, base[missing] + 1)
        _count(partitions, "end_from_offsets", numbers[missing[is_shown]])
        _count(partitions, "end_supposed", numbers[missing[~is_shown]])
    _count(partitions, "retried_batch", numbers[retries])
    changed = set(numbers[retries].tolist()) | set(numbers[missing].tolist())
    has_gaps = _have_gaps(numbers[named], base[named], end[named], follower, followed, count)
    of_partitions = np.searchsorted(numbers, np.arange(count + 1)).tolist()
    of_named = np.searchsorted(numbers[named], np.arange(count + 1)).tolist()
    results = []
    for number, partition in enumerate(partitions):
        first, last = of_partitions[number : number + 2]
        if is_unusual[number]:
            results.append(_appends_of_one(*partition))
            continue
        appends = partition.facts.appends
        if number in changed:
            appends.replace("end", end[first:last])
        rows = named[of_named[number] : of_named[number + 1]] - first
        results.append(
            _with_unlogged_in_order(rows, *partition) if has_gaps[number] else SelectedAppends(appends, rows)
        )
    return results


def _offsets_of_followers(all_facts: Sequence[PartitionFacts]) -> tuple[Integers, Integers]:
    """Return the offsets of followers' positions in all partitions: the numbers of the partitions, and the offsets."""
    numbers = np.repeat(np.arange(len(all_facts)), [len(facts.positions) for facts in all_facts])
    replica, offset = (
        np.concatenate([facts.positions.integers(name) for facts in all_facts]) for name in ("replica", "offset")
    )
    return numbers[replica >= 0], offset[replica >= 0]


def _moved_readings(all_facts: Sequence[PartitionFacts], is_unusual: Booleans) -> Integers:
    """Return the high watermarks in responses, moved into the interval of their partition."""
    numbers = np.repeat(np.arange(len(all_facts)), [len(facts.high_watermarks) for facts in all_facts])
    offset = np.concatenate([facts.high_watermarks.integers("offset") for facts in all_facts])
    is_valid = (offset >= 0) & (offset < INTERVAL) & ~is_unusual[numbers]
    return offset[is_valid] + INTERVAL * numbers[is_valid]


def _have_gaps(
    numbers: Integers, base: Integers, end: Integers, follower: Integers, followed: Integers, count: int
) -> Booleans:
    """Return for each partition whether a follower's offset may show an unlogged append.

    This is impossible if the appends leave no gap from the first one up to the highest offset of a follower.

    Args:
        numbers: The number of the partition of each append.
        base: The first offsets of the appends, in order.
        end: The offsets after their last ones.
        follower: The number of the partition of each follower's position.
        followed: The offsets of these.
        count: Number of partitions.
    """
    highest, lowest = np.full(count, -1), np.full(count, NEVER)
    np.maximum.at(highest, follower, followed)
    np.minimum.at(lowest, follower, followed)
    starts = numbers * INTERVAL
    until = np.maximum.accumulate(end + starts) - starts
    is_first = np.ones(len(numbers), bool)
    is_first[1:] = numbers[1:] != numbers[:-1]
    has_gaps = np.zeros(count, bool)
    has_gaps[numbers[1:][(base[1:] > until[:-1]) & ~is_first[1:]]] = True
    # Without appends, known offsets start at the lowest offset of a follower.
    first, last = lowest.copy(), lowest.copy()
    first[numbers[is_first]] = base[is_first]
    is_last = np.append(is_first[1:], np.ones(len(numbers[:1]), bool))
    last[numbers[is_last]] = until[is_last]
    return (has_gaps | (lowest < first) | (last < highest)) & (highest >= 0)


def _count(partitions: Sequence[OffsetInput], cause: str, numbers: Integers) -> None:
    """Add the counts of a cause to the reports of partitions, given the number of the partition of each occurrence."""
    for number, occurrences in enumerate(np.bincount(numbers).tolist()):
        if occurrences:
            partitions[number].report.count(cause, occurrences)


def _with_unlogged(facts: PartitionFacts, rows: Integers, unlogged: FactColumns[Append]) -> SelectedAppends:
    """Add unlogged appends to the facts; return the rows and these."""
    first = len(facts.appends)
    if len(unlogged):
        facts.appends.extend(unlogged)
    return SelectedAppends(facts.appends, np.concatenate([rows, np.arange(first, len(facts.appends))]))


def _in_offset_order(appends: SelectedAppends) -> SelectedAppends:
    order = np.argsort(appends.integers("base"), kind="stable")
    return SelectedAppends(appends.facts, appends.rows[order])


def _with_base_offset(facts: PartitionFacts, report: Report) -> Integers:
    """Return the rows of the appends with a known base offset, in offset order.

    A repeated base offset is a retry, which appends nothing.
    """
    base = facts.appends.integers("base")
    known = np.flatnonzero(base >= 0)
    _, first = np.unique(base[known], return_index=True)
    if len(first) < len(known):
        is_retry = np.ones(len(known), bool)
        is_retry[first] = False
        retries, end = known[is_retry], facts.appends.integers("end").copy()
        end[retries] = base[retries]
        facts.appends.replace("end", end)
        report.count("retried_batch", len(retries))
    return known[first]


def _unanswered(facts: PartitionFacts) -> Integers:
    """Return the rows of the appends of produces without a response (acks 0)."""
    return np.flatnonzero((facts.appends.integers("base") < 0) & (facts.appends.integers("line") >= 0))


def _set_missing_ends(appends: SelectedAppends, facts: PartitionFacts, report: Report) -> None:
    """Set each unknown end to the next known boundary of a batch, or without one to a single record."""
    base, end = appends.integers("base"), appends.integers("end")
    is_missing = end < 0
    if not is_missing.any():
        return
    positions = facts.positions
    followed = positions.integers("offset")[positions.integers("replica") >= 0]
    # The high watermark is always the end of a batch, too.
    boundaries = np.unique(np.concatenate([followed, facts.high_watermarks.integers("offset"), base]))
    following = np.searchsorted(boundaries, base[is_missing], side="right")
    is_shown = following < len(boundaries)
    next_boundaries = boundaries[np.minimum(following, len(boundaries) - 1)]
    end[is_missing] = np.where(is_shown, next_boundaries, base[is_missing] + 1)
    appends.replace("end", end)
    for cause, number in (("end_from_offsets", is_shown.sum()), ("end_supposed", (~is_shown).sum())):
        if number:
            report.count(cause, int(number))


def _place_unanswered(named: Integers, facts: PartitionFacts, report: Report) -> Integers:
    """Assign offsets to appends without a response, from the gaps between known base offsets.

    Appends in one gap share its offsets in proportion to their size. Returns the rows of those that got offsets.

    Args:
        named: The rows of the appends with known base offsets, in offset order.
        facts: Facts of the partition at the broker.
        report: Counts what could not be derived.
    """
    appends, unanswered = facts.appends, _unanswered(facts)
    if not len(unanswered):
        return unanswered
    starts = appends.integers("start_us")
    following = places_right(starts[named], starts[unanswered])
    positions, high_watermarks = facts.positions, facts.high_watermarks.integers("offset")
    read, is_follower = positions.integers("offset"), positions.integers("replica") >= 0
    highest = max([int(offsets.max()) for offsets in (high_watermarks, read) if len(offsets)], default=0)
    # A follower starts at the end of its log, but a consumer may read old records.
    known = np.concatenate([high_watermarks, read[is_follower]])
    lowest = int(known.min()) if len(known) else 0
    base, end, size = (appends.integers(name).copy() for name in ("base", "end", "bytes"))
    _, first, numbers = np.unique(following, return_index=True, return_inverse=True)
    in_groups = np.split(unanswered[np.argsort(numbers, kind="stable")], np.cumsum(np.bincount(numbers))[:-1])
    placed = []
    for gap in np.argsort(first).tolist():
        group, place = in_groups[gap], int(following[first[gap]])
        before = named[place - 1 : place] if place else named[:0]
        begin = int(base[before[0]]) if place else lowest
        last = int(base[named[place]]) if place < len(named) else max(highest, begin)
        sharing = np.concatenate([before, group])
        if last - begin < len(sharing):
            report.count("unanswered_lost", len(group))
            continue
        base[sharing], end[sharing] = _divide_offsets(size[sharing].tolist(), begin, last)
        report.count("unanswered_offsets", len(group))
        placed.append(group)
    appends.replace("base", base)
    appends.replace("end", end)
    return np.concatenate([unanswered[:0], *placed])


def _divide_offsets(sizes: Sequence[int], first: int, last: int) -> tuple[list[int], list[int]]:
    """Divide the offsets [first, last) among appends by their size, with at least one offset for each.

    Returns the first offset of each, and the offset after its last one.
    """
    weights = [max(1, size) for size in sizes]
    bases, ends, rest = [], [], sum(weights)
    for number, weight in enumerate(weights):
        after = len(sizes) - number - 1
        part = round((last - first) * weight / rest)
        rest -= weight
        bases.append(first)
        first = last if not after else first + max(1, min(last - first - after, part))
        ends.append(first)
    return bases, ends
