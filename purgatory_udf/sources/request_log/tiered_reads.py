"""Which fetches of a tiered partition waited for remote storage, and where its local log started.

The log contains neither. If a fetch waited although the broker could have answered it at once from its local log, it
waited for remote storage:

    fetch offset   high watermark   answered     so the offset was
    120            430 or more      at once      in the local log: the local log starts at 120 or before
    430            430              after 80 ms  in the local log, since no record above the high watermark is remote
    20             430 or more      after 80 ms  in remote storage: the local log starts after 20

The high watermark is known from earlier responses. A local log start never decreases, so each fetch bounds it for all
earlier or later times. It is raised only if a fetch that waited for remote storage requires it, up to the lowest offset
that a later fetch shows to be local. If a wait may be of either kind, it counts as an ordinary one, unless the fetch
offset is below the local log start of that time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from typing import Any

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import COMPLETION_SPREAD_US, READ_TO_RESPONSE_US, Report
from purgatory_udf.sources.request_log.fact_kinds import ConsumerRead, HighWatermarkReading, LocalStart
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts

NEVER = 2**62


class Location(Enum):
    """Where the records at a fetch offset were, as far as the fetch shows it."""

    LOCAL = auto()
    REMOTE = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class TieredReads:
    """Local log start and remote reads of a partition.

    Attributes:
        starts: (time, local log start from then on), rising in both.
        remote: The fetches that waited for remote storage.
        high_watermarks: Readings of the high watermark by fetches that waited.
        local_start: Latest local log start.
    """

    starts: list[tuple[int, int]] = field(default_factory=list)
    remote: list[ConsumerRead] = field(default_factory=list)
    high_watermarks: list[HighWatermarkReading] = field(default_factory=list)
    local_start: int = 0


def tiered_reads(facts: PartitionFacts, local_start: int, report: Report) -> TieredReads:
    """Derive the local log start and the remote reads of a tiered partition.

    Args:
        facts: Facts of the partition at the broker.
        local_start: Local log start before all of these facts.
        report: Counts the sources of the local log start.
    """
    readable = _Readable(facts)
    judged = [(read, readable.location(read)) for read in facts.reads]
    exact = [(start.at_us, start.offset) for start in facts.local_starts if start.exact]
    local = _Lowest([*((read.at_us, read.offset) for read, location in judged if location is Location.LOCAL), *exact])
    ordinary = _Lowest(
        [*((read.at_us, read.offset) for read, location in judged if location is not Location.REMOTE), *exact]
    )
    result = TieredReads(local_start=local_start)

    def raise_start(at_us: int, offset: int, cause: str) -> None:
        if offset > result.local_start:
            result.local_start = offset
            result.starts.append((at_us, offset))
            report.count(cause)

    for fact, location in _in_order(judged, facts.local_starts):
        if isinstance(fact, LocalStart):
            raise_start(fact.at_us, fact.offset, "local_start_reported")
            continue
        if location is Location.REMOTE and fact.offset < local.after(fact.at_us):
            bound = min(ordinary.after(fact.at_us), readable.end(fact))
            if fact.offset >= result.local_start:
                raise_start(fact.at_us, max(fact.offset + 1, bound), "local_start_supposed")
        is_remote = location is not Location.LOCAL and fact.offset < result.local_start
        if is_remote:
            result.remote.append(fact)
        if fact.waited_us and fact.high_watermark >= 0 and not fact.error:
            result.high_watermarks.append(_reading(fact, is_remote))
    return result


def _in_order(
    judged: Iterable[tuple[ConsumerRead, Location]], starts: Iterable[LocalStart]
) -> Iterator[tuple[ConsumerRead | LocalStart, Location]]:
    """Yield reads and reported starts in time order; a start comes before a read of the same time."""
    entries: list[tuple[ConsumerRead | LocalStart, Location]] = [(start, Location.UNKNOWN) for start in starts]
    yield from sorted([*entries, *judged], key=lambda entry: entry[0].at_us)


def _reading(read: ConsumerRead, is_remote: bool) -> HighWatermarkReading:
    """Return the high watermark of a response: a remote fetch reads the log on arrival, others when they end."""
    if is_remote:
        return HighWatermarkReading(read.at_us - READ_TO_RESPONSE_US, read.at_us, read.high_watermark)
    since, until = read.until_us - READ_TO_RESPONSE_US, read.until_us + COMPLETION_SPREAD_US
    return HighWatermarkReading(since, until, read.high_watermark)


class _Lowest:
    """Finds the lowest offset from a given time on. Offsets may be added in any order."""

    def __init__(self, offsets: Sequence[tuple[int, int]]) -> None:
        ordered = sorted(offsets)
        self._times = [at_us for at_us, _ in ordered]
        self._lowest = list(accumulate((offset for _, offset in reversed(ordered)), min))[::-1]

    def after(self, at_us: int) -> int:
        """Return the lowest offset at `at_us` or later; NEVER without one."""
        place = bisect_left(self._times, at_us)
        return self._lowest[place] if place < len(self._lowest) else NEVER


class _Highest:
    """Finds the highest offset up to a given time. Offsets may be added in any order."""

    def __init__(self, offsets: Sequence[tuple[int, int]]) -> None:
        ordered = sorted(offsets)
        self._times = [at_us for at_us, _ in ordered]
        self._highest = list(accumulate((offset for _, offset in ordered), max))

    def before(self, at_us: int) -> int | None:
        """Return the highest offset until `at_us`; None without one."""
        place = bisect_right(self._times, at_us)
        return self._highest[place - 1] if place else None


class _Readable:
    """The records that a consumer could certainly read when its fetch arrived."""

    def __init__(self, facts: PartitionFacts) -> None:
        reads = facts.reads
        self._high_watermarks = _Highest(
            [
                *((reading.until_us, reading.offset) for reading in facts.high_watermarks),
                *((position.at_us, position.offset) for position in facts.positions if position.replica < 0),
                *((read.until_us, read.high_watermark) for read in reads if read.high_watermark >= 0),
            ]
        )
        self._last_stable = _Highest([(read.until_us, read.last_stable) for read in reads if read.last_stable >= 0])
        sizes = sorted((append.base, append.bytes) for append in facts.appends if append.base >= 0)
        self._bases = [base for base, _ in sizes]
        self._positions = [0, *accumulate(size for _, size in sizes)]

    def location(self, read: ConsumerRead) -> Location:
        """Return whether the records at the fetch offset were in the local log or in remote storage, or UNKNOWN."""
        end = self._end(read)
        if read.error:
            # A full queue of readers fails a read at once.
            fails = read.error == errors.UNKNOWN_SERVER_ERROR and end is not None and read.offset < end
            return Location.REMOTE if fails else Location.UNKNOWN
        if not read.waited_us:
            return Location.LOCAL
        if end is None:
            return Location.UNKNOWN
        if read.offset >= end:
            return Location.LOCAL
        enough = min(self._bytes(read.offset, end), read.max_bytes) >= read.min_bytes
        return Location.REMOTE if enough or read.min_bytes <= 1 else Location.UNKNOWN

    def end(self, read: ConsumerRead) -> int:
        """Return the offset up to which the consumer could certainly read; 0 if unknown."""
        return self._end(read) or 0

    def _end(self, read: ConsumerRead) -> int | None:
        return (self._last_stable if read.committed else self._high_watermarks).before(read.start_us)

    def _bytes(self, offset: int, end: int) -> int:
        """Return a lower bound of the bytes in [offset, end). Records before the log count one byte each."""
        first, last = bisect_left(self._bases, offset), bisect_left(self._bases, end)
        unknown = (min(end, self._bases[first]) if first < len(self._bases) else end) - offset
        return self._positions[last] - self._positions[first] + max(0, unknown)


def remote_read_event(facts: PartitionFacts, read: ConsumerRead) -> dict[str, Any]:
    """Return the event of the end of a remote read, halfway through the wait of its fetch."""
    return {
        "time_us": end_of_read_us(read) - read.waited_us // 2,
        "type": "remote_read",
        "broker": facts.broker,
        "topic": facts.topic,
        "partition": facts.partition,
        "error": errors.name_of(read.error),
        "bytes": read.bytes,
    }


def end_of_read_us(read: ConsumerRead) -> int:
    """Return the time of the response in microseconds, at least 1 µs after L, the time of the fetch's own event."""
    return max(read.until_us, read.at_us + 1)


def is_open(read: ConsumerRead) -> bool:
    """Return whether the read had not ended when the fetch was answered: the response has no records and no error."""
    return not read.bytes and not read.error
