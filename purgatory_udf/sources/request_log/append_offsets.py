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

from purgatory_udf.sources.request_log.assumptions import (
    BATCH_TIME_TOLERANCE_US,
    COORDINATOR_APPEND_US,
    COORDINATOR_CHECK_US,
    MAX_APPEND_TO_FETCH_US,
    MAX_HANDLING_US,
    Report,
)
from purgatory_udf.sources.request_log.internal_topics import (
    BatchIndex,
    StoredBatch,
    TransactionFacts,
    replication_wait_ms,
)
from purgatory_udf.sources.request_log.partition_facts import Append, PartitionFacts, ReaderPosition


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


def _writers(facts: PartitionFacts) -> list[Append]:
    """Return the requests that may have caused an unlogged append, in time order."""
    return [append for append in facts.appends if not append.is_operation and append.base < 0]


def _marker_writers(facts: PartitionFacts) -> dict[str, list[Append]]:
    """Return the requests that may have appended a transaction marker, by transactional id."""
    by_transaction: dict[str, list[Append]] = {}
    for writer in _writers(facts):
        if writer.ends_transaction is not None:
            by_transaction.setdefault(writer.ends_transaction, []).append(writer)
    return by_transaction


def _writer_of(batch: StoredBatch, writers: Sequence[Append]) -> Append | None:
    """Return the first request during which the batch was created, or None."""
    first = bisect_left(writers, batch.created_us - MAX_HANDLING_US, key=lambda writer: writer.start_us)
    for writer in writers[first:]:
        if writer.start_us > batch.created_us + BATCH_TIME_TOLERANCE_US:
            return None
        if batch.created_us <= writer.until_us + BATCH_TIME_TOLERANCE_US:
            return writer
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
    appends: Sequence[Append], facts: PartitionFacts, classic: bool, report: Report
) -> Iterator[Append]:
    """Yield the appends that followers' offsets show in addition to the known ones.

    Args:
        appends: The known appends, in offset order.
        facts: Facts of the partition at the broker.
        classic: Whether the broker's group coordinator is a classic one.
        report: Counts what could not be derived.
    """
    followers = sorted(
        (position for position in facts.positions if position.replica >= 0),
        key=lambda position: (position.proven_us, position.offset),
    )
    if not followers:
        return
    search = _WriterSearch(facts, classic, report)
    known = min(followers[0].offset, appends[0].base) if appends else followers[0].offset
    upcoming = 0
    for follower in followers:
        while known < follower.offset:
            while upcoming < len(appends) and appends[upcoming].end <= known:
                upcoming += 1
            if upcoming < len(appends) and appends[upcoming].base <= known:
                known = appends[upcoming].end
                continue
            limit = appends[upcoming].base if upcoming < len(appends) else follower.offset
            append = search.append(known, min(limit, follower.offset), follower)
            known = append.end
            yield append


class _WriterSearch:
    """Finds the requests that caused unlogged appends; each request is used once, in time order."""

    def __init__(self, facts: PartitionFacts, classic: bool, report: Report) -> None:
        self._writers = _writers(facts)
        self._topic = facts.topic
        self._next = 0
        self._deliveries = facts.deliveries
        self._classic = classic
        self._report = report

    def append(self, base: int, limit: int, shown_by: ReaderPosition) -> Append:
        """Return the append that starts at offset `base` and ends at `limit` or before.

        It is attributed to the next request that started before the follower's fetch `shown_by`, if there is one.
        """
        while (
            self._may_write(shown_by)
            and self._writers[self._next].start_us < shown_by.proven_us - MAX_APPEND_TO_FETCH_US
        ):
            self._next += 1
        if not self._may_write(shown_by):
            return self._inferred(base, limit, shown_by)
        writer = self._writers[self._next]
        self._next += 1
        in_thread = self._classic or writer.ends_transaction
        append = _append_during(writer, 0) if in_thread else _append_after(writer.start_us)
        # Offsets beyond these records belong to the next request, if there is one in time.
        end = base + max(1, writer.records)
        append.base, append.end = base, min(limit, end) if self._may_write(shown_by) else limit
        append.bytes = max(1, writer.bytes)
        _attribute_to(append, writer, self._topic, self._classic)
        self._report.count("hidden_confirmed")
        return append

    def _may_write(self, shown_by: ReaderPosition) -> bool:
        """Return whether the next request started before the follower's fetch."""
        return self._next < len(self._writers) and self._writers[self._next].start_us < shown_by.proven_us

    def _inferred(self, base: int, limit: int, shown_by: ReaderPosition) -> Append:
        """Return an append of the offsets [base, limit) that no request explains.

        Its time is just before a response with its records, or otherwise just before the follower's fetch.
        """
        at, size = shown_by.proven_us - 1, 1
        place = bisect_right(self._deliveries, at, key=lambda delivery: delivery.at_us) - 1
        if place >= 0 and at - self._deliveries[place].at_us < MAX_APPEND_TO_FETCH_US:
            at, size = self._deliveries[place].at_us - 1, self._deliveries[place].bytes
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
) -> list[Append]:
    """Return all appends in offset order, with their offsets from `--batches`.

    Args:
        facts: Facts of the partition at the broker.
        batches: Batches of the partition on disk.
        span_us: First arrival and last response of the log; batches with other timestamps are ignored.
        classic: Whether the broker's group coordinator is a classic one.
        transactions: Transactions that the log shows.
        report: Counts what could not be derived.
    """
    index = BatchIndex(batches)
    appends = _with_base_offset(facts, report)
    taken: set[int] = set()
    for append in appends:
        run = index.batches_of_request(append.base, append.bytes)
        if run:
            append.end = run[-1].last + 1
            taken.update(batch.base for batch in run)
    report.count("end_from_batches", sum(append.end >= 0 for append in appends))
    free = [batch for batch in index.batches if batch.base not in taken]
    for append in _unanswered(facts):
        # The log has the size of the records: take the next batch of the same size, in order of arrival.
        match = next((batch for batch in free if batch.bytes == append.bytes and not batch.control), None)
        if match is None:
            report.count("unanswered_lost")
            continue
        free.remove(match)
        append.base, append.end = match.base, match.last + 1
        report.count("unanswered_offsets")
        appends.append(append)
    within = [batch for batch in free if span_us[0] <= batch.created_us <= span_us[1]]
    report.count("hidden_from_batches", len(within))
    appends.extend(unlogged_appends_from_batches(within, facts, classic, transactions))
    appends.sort(key=lambda append: append.base)
    _set_missing_ends(appends, facts, report)
    return appends


def appends_from_offsets(facts: PartitionFacts, classic: bool, report: Report) -> list[Append]:
    """Return all appends in offset order, with offsets from responses and followers' fetches alone.

    `classic`: whether the broker's group coordinator is a classic one.
    """
    appends = _with_base_offset(facts, report)
    appends.extend(_place_unanswered(appends, facts, report))
    appends.sort(key=lambda append: append.base)
    _set_missing_ends(appends, facts, report)
    appends.extend(unlogged_appends(appends, facts, classic, report))
    return sorted(appends, key=lambda append: append.base)


def _with_base_offset(facts: PartitionFacts, report: Report) -> list[Append]:
    """Return the appends with a known base offset. A repeated base offset is a retry, which appends nothing."""
    named: dict[int, Append] = {}
    for append in facts.appends:
        if append.base >= 0 and named.setdefault(append.base, append) is not append:
            append.end = append.base
            report.count("retried_batch")
    return [named[base] for base in sorted(named)]


def _unanswered(facts: PartitionFacts) -> list[Append]:
    """Return the appends of produces without a response (acks 0)."""
    return [append for append in facts.appends if append.base < 0 and append.is_operation]


def _set_missing_ends(appends: Sequence[Append], facts: PartitionFacts, report: Report) -> None:
    """Set each unknown end to the next known boundary of a batch, or without one to a single record."""
    followed = {position.offset for position in facts.positions if position.replica >= 0}
    # The high watermark is always the end of a batch, too.
    followed |= {reading.offset for reading in facts.high_watermarks}
    boundaries = sorted(followed | {append.base for append in appends})
    for append in appends:
        if append.end >= 0:
            continue
        following = bisect_right(boundaries, append.base)
        if following < len(boundaries):
            append.end = boundaries[following]
            report.count("end_from_offsets")
        else:
            append.end = append.base + 1
            report.count("end_supposed")


def _place_unanswered(named: Sequence[Append], facts: PartitionFacts, report: Report) -> list[Append]:
    """Assign offsets to appends without a response, from the gaps between known base offsets.

    Appends in one gap share its offsets in proportion to their size. Returns the appends that got offsets.
    """
    starts = [append.start_us for append in named]
    groups: dict[int, list[Append]] = {}
    for append in _unanswered(facts):
        groups.setdefault(bisect_right(starts, append.start_us), []).append(append)
    high_watermarks = [reading.offset for reading in facts.high_watermarks]
    highest = max([*high_watermarks, *(position.offset for position in facts.positions)], default=0)
    # A follower starts at the end of its log, but a consumer may read old records.
    lowest = min(
        [*high_watermarks, *(position.offset for position in facts.positions if position.replica >= 0)], default=0
    )
    placed: list[Append] = []
    for following, group in groups.items():
        before = [named[following - 1]] if following else []
        first = before[0].base if before else lowest
        last = named[following].base if following < len(named) else max(highest, first)
        sharing = [*before, *group]
        if last - first < len(sharing):
            report.count("unanswered_lost", len(group))
            continue
        _divide_offsets(sharing, first, last)
        report.count("unanswered_offsets", len(group))
        placed.extend(group)
    return placed


def _divide_offsets(sharing: Sequence[Append], first: int, last: int) -> None:
    """Divide the offsets [first, last) among the appends by their size, with at least one offset for each."""
    weights = [max(1, append.bytes) for append in sharing]
    for number, append in enumerate(sharing):
        after = len(sharing) - number - 1
        part = round((last - first) * weights[number] / sum(weights[number:]))
        append.base = first
        append.end = first = last if not after else first + max(1, min(last - first - after, part))
