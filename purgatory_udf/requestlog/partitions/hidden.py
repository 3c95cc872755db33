"""Appends that no PRODUCE line shows: offsets committed, groups and transactions stored, transactions ended.

With `--batches` each is known by its batch. Without, only a follower's offset beyond what produces explain shows that
there was one, and a request that may have written it says when. One append too many would leave the log end ahead for
good, so none is made without such an offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from purgatory_udf.requestlog.cluster.batches import StoredBatch
from purgatory_udf.requestlog.cluster.transactions import TransactionFacts
from purgatory_udf.requestlog.cluster.writing import waits_ms
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import Append, PartitionFacts, Position
from purgatory_udf.requestlog.supposed import (
    BEGAN_TO_APPENDED_US,
    BEGAN_TO_CHECKED_US,
    SHOWN_WITHIN_US,
    STAMP_OFF_US,
    WRITTEN_WITHIN_US,
)


def hidden_from_batches(
    batches: Iterable[StoredBatch], facts: PartitionFacts, classic: bool, transactions: TransactionFacts
) -> Iterator[Append]:
    """An append for each batch. `classic`: the group coordinator works in the thread that handles the request."""
    writers, markers = _writers(facts), _markers(facts)
    for batch in batches:
        ended = transactions.name(batch.producer_id) if batch.control else None
        writer = _writer_of(batch, writers) if ended is None else _marker_of(batch, markers.get(ended, ()))
        if writer is not None and (classic or writer.ends_transaction):
            append = _by(writer, batch.created_us)
        else:
            append = _beginning(max(batch.created_us, writer.start_us if writer else 0))
        append.base, append.end, append.bytes = batch.base, batch.last + 1, batch.bytes
        _by_whom(append, writer, facts.topic, classic)
        if batch.control:
            append.ends_transaction = ended
        elif batch.transactional:
            append.transaction = transactions.name(batch.producer_id)
        yield append


def _writers(facts: PartitionFacts) -> list[Append]:
    return [append for append in facts.appends if not append.is_operation and append.base < 0]


def _markers(facts: PartitionFacts) -> dict[str, list[Append]]:
    """Who may have ended a transaction, by transaction."""
    by_transaction: dict[str, list[Append]] = {}
    for writer in _writers(facts):
        if writer.ends_transaction is not None:
            by_transaction.setdefault(writer.ends_transaction, []).append(writer)
    return by_transaction


def _writer_of(batch: StoredBatch, writers: Sequence[Append]) -> Append | None:
    """The first request in whose handling the batch was made."""
    first = bisect_left(writers, batch.created_us - WRITTEN_WITHIN_US, key=lambda writer: writer.start_us)
    for writer in writers[first:]:
        if writer.start_us > batch.created_us + STAMP_OFF_US:
            return None
        if batch.created_us <= writer.until_us + STAMP_OFF_US:
            return writer
    return None


def _marker_of(batch: StoredBatch, markers: Sequence[Append]) -> Append | None:
    """Of those that end the batch's transaction, the nearest in time: on a busy machine a request's line is late."""

    def away_us(append: Append) -> int:
        return max(append.start_us - batch.created_us, batch.created_us - append.until_us, 0)

    first = bisect_left(markers, batch.created_us - WRITTEN_WITHIN_US, key=lambda marker: marker.start_us)
    last = bisect_right(markers, batch.created_us + WRITTEN_WITHIN_US, key=lambda marker: marker.start_us)
    return min(markers[first:last], key=away_us, default=None)


def _by(writer: Append, earliest_us: int) -> Append:
    """An append in the handling of its request."""
    at, check = max(earliest_us, writer.at_us), max(earliest_us, writer.check_us)
    ended = writer.ends_transaction
    return Append(writer.start_us, at, check, at + SHOWN_WITHIN_US, ends_transaction=ended)


def _by_whom(append: Append, writer: Append | None, topic: str, classic: bool) -> None:
    """Whether it is a produce of its own, and for whose request. A session that ends writes for nobody's."""
    append.waits_ms = waits_ms(topic, classic)
    if writer is None:
        return
    append.writer_file, append.writer_line, append.client = writer.writer_file, writer.writer_line, writer.client
    append.slot = writer.slot
    if writer.waits_ms >= 0 or writer.ends_transaction:
        append.waits_ms = writer.waits_ms


def _beginning(began_us: int) -> Append:
    """An append in a coordinator's own thread."""
    at = began_us + BEGAN_TO_APPENDED_US
    return Append(began_us, at, began_us + BEGAN_TO_CHECKED_US, at + SHOWN_WITHIN_US)


def hidden_appends(appends: Sequence[Append], facts: PartitionFacts, classic: bool, report: Report) -> Iterator[Append]:
    """What followers' offsets show beyond the `appends` (in offset order)."""
    followers = sorted(
        (position for position in facts.positions if position.replica >= 0),
        key=lambda position: (position.proven_us, position.offset),
    )
    if not followers:
        return
    search = _Search(facts, classic, report)
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


class _Search:
    """Looks for what may have made an append, request by request in the order of time."""

    def __init__(self, facts: PartitionFacts, classic: bool, report: Report) -> None:
        self._writers = _writers(facts)
        self._topic = facts.topic
        self._next = 0
        self._deliveries = facts.deliveries
        self._classic = classic
        self._report = report

    def append(self, base: int, limit: int, shown_by: Position) -> Append:
        """An append from `base` on, at most up to `limit`, that was there before a follower showed it."""
        while self._may_write(shown_by) and self._writers[self._next].start_us < shown_by.proven_us - SHOWN_WITHIN_US:
            self._next += 1
        if not self._may_write(shown_by):
            return self._inferred(base, limit, shown_by)
        writer = self._writers[self._next]
        self._next += 1
        in_thread = self._classic or writer.ends_transaction
        append = _by(writer, 0) if in_thread else _beginning(writer.start_us)
        # What is left over belongs to the next request, if there is one that can have made it.
        end = base + max(1, writer.records)
        append.base, append.end = base, min(limit, end) if self._may_write(shown_by) else limit
        append.bytes = max(1, writer.bytes)
        _by_whom(append, writer, self._topic, self._classic)
        self._report.count("hidden_confirmed")
        return append

    def _may_write(self, shown_by: Position) -> bool:
        return self._next < len(self._writers) and self._writers[self._next].start_us < shown_by.proven_us

    def _inferred(self, base: int, limit: int, shown_by: Position) -> Append:
        """No request explains it: it is put just before the answer that carried it, else just before the offset."""
        at, size = shown_by.proven_us - 1, 1
        place = bisect_right(self._deliveries, at, key=lambda delivery: delivery.at_us) - 1
        if place >= 0 and at - self._deliveries[place].at_us < SHOWN_WITHIN_US:
            at, size = self._deliveries[place].at_us - 1, self._deliveries[place].bytes
        self._report.count("hidden_inferred")
        append = Append(at, at, at, at, base=base, end=limit, bytes=max(1, size))
        _by_whom(append, None, self._topic, self._classic)
        return append
