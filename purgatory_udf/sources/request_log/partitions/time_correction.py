"""Corrects what `handling` supposes by what readers' offsets and answers prove.

No reader asks for an offset before what lies below it was appended; none asks for the same offset twice if there was
something to get the first time, or waits for a first byte that is there (but some do, after a pause or a step back: a
reader that asks for what others had before proves nothing); the high watermark in an answer was the partition's when
that was read; and where a fetch is tried between an append and its check, the contract's append,
which is both at once, is put just before that fetch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from purgatory_udf.sources.request_log.requests.fetch_sessions import AttemptColumns, Integers
from purgatory_udf.sources.request_log.requests.partition_facts import Append, HighWatermarkReading, ReaderPosition

NEVER = 2**62


def correct_append_times(appends: Sequence[Append], positions: Sequence[ReaderPosition], tries: AttemptColumns) -> None:
    """Sets `at_us` and `check_us` of appends that are in offset order; neither falls from one to the next.

    `tries` are those of followers: consumers see no append before the high watermark has passed it.
    """
    latest = _latest_times(appends, positions)
    had = [position.proven_us for position in positions], [position.offset for position in positions]
    earliest = _EarliestTimes(tries, *had)
    moments_of_tries = tries.at_us.tolist()
    before = 0
    for append, bound in zip(appends, latest, strict=True):
        at = max(append.at_us, min(earliest.after(append.end), append.until_us))
        append.at_us = before = min(max(at, before), bound)
    after = NEVER
    for append, bound in zip(reversed(appends), reversed(latest), strict=True):
        check = _before_next_attempt(append.at_us, max(append.at_us, min(append.check_us, bound)), moments_of_tries)
        # A later append's check finds the earlier one's records too.
        append.check_us = after = min(check, after)


def correct_position_times(
    positions: Sequence[ReaderPosition], sights: Sequence[HighWatermarkReading], tries: AttemptColumns
) -> None:
    """Sets `wake_us` of followers' positions: what they make readable is there for a consumer that comes before the
    wake-up, and was not there for one that asked in vain. `tries` are those of consumers."""
    readable = [position for position in positions if position.replica < 0]
    moments = [*(position.at_us for position in readable), *(sight.until_us for sight in sights)]
    offsets = [*(position.offset for position in readable), *(sight.offset for sight in sights)]
    earliest = _EarliestTimes(tries, moments, offsets)
    moments_of_tries = tries.at_us.tolist()
    for position in positions:
        if position.replica >= 0:
            bound = min(earliest.after(position.offset), position.until_us)
            position.at_us = max(position.at_us, bound)
            wake = max(position.at_us, position.wake_us)
            position.wake_us = _before_next_attempt(position.at_us, wake, moments_of_tries)


def apply_high_watermark_readings(positions: Sequence[ReaderPosition], sights: Sequence[HighWatermarkReading]) -> None:
    """Sets `at_us` and `wake_us` of followers' positions by the high watermarks that answers have shown: at one beyond
    an offset every follower had that offset; at one below it, the last of them had yet to get there."""
    by_offset = sorted(sights, key=lambda sight: sight.offset)
    offsets = [sight.offset for sight in by_offset]
    firsts = [sight.until_us for sight in by_offset]
    for number in range(len(firsts) - 2, -1, -1):
        firsts[number] = min(firsts[number], firsts[number + 1])
    reached = _ReachedOffsets(positions)
    by_time = sorted(sights, key=lambda sight: sight.since_us)
    moments = [sight.since_us for sight in by_time]
    for position in positions:
        if position.replica < 0:
            continue
        shown = bisect_left(offsets, position.offset)
        if shown < len(firsts):
            position.wake_us = min(position.wake_us, max(position.start_us, firsts[shown] - 1))
        within = by_time[bisect_left(moments, position.start_us) : bisect_right(moments, position.until_us)]
        below = [sight.since_us for sight in within if sight.offset < position.offset]
        if below and reached.by_others(position, below[-1]):
            position.wake_us = max(position.wake_us, below[-1] + 1)
        position.at_us = min(position.at_us, position.wake_us)


class _ReachedOffsets:
    """Which followers had reached an offset for sure."""

    def __init__(self, positions: Sequence[ReaderPosition]) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        for position in positions:
            if position.replica >= 0:
                moments, offsets = self._of.setdefault(position.replica, ([], []))
                moments.append(max(position.until_us, moments[-1] if moments else 0))
                offsets.append(max(position.offset, offsets[-1] if offsets else 0))

    def by_others(self, position: ReaderPosition, at_us: int) -> bool:
        for replica, (moments, offsets) in self._of.items():
            if replica != position.replica:
                last = bisect_right(moments, at_us) - 1
                if last < 0 or offsets[last] < position.offset:
                    return False
        return True


def _before_next_attempt(at: int, check: int, tries: Sequence[int]) -> int:
    """The check, or the moment just before the first try between `at` and it."""
    following = bisect_right(tries, at)
    return max(at, tries[following] - 1) if following < len(tries) and tries[following] <= check else check


class _EarliestTimes:
    """The last moment at which a reader was turned away below some offset. At `moments` these `offsets` were there."""

    def __init__(self, tries: AttemptColumns, moments: Sequence[int], offsets: Sequence[int]) -> None:
        at, offset = tries.empty_attempts()
        # A reader that asks for what others had before proves nothing.
        new = offset >= _highest_before(moments, offsets, at)
        at, offset = at[new], offset[new]
        order = np.argsort(offset, kind="stable")
        offset, latest = offset[order], np.maximum.accumulate(at[order])
        last = np.append(offset[1:] != offset[:-1], np.ones(len(offset[:1]), bool))
        self._offsets: list[int] = offset[last].tolist()
        self._moments: list[int] = latest[last].tolist()

    def after(self, end: int) -> int:
        """What ends at `end` was not there yet at this moment (0: nothing is known)."""
        place_of = bisect_left(self._offsets, end) - 1
        return self._moments[place_of] + 1 if place_of >= 0 else 0


def _highest_before(moments: Sequence[int], offsets: Sequence[int], at_us: Integers) -> Integers:
    """Of what was there before each of these moments."""
    when = np.array(moments, np.int64)
    order = np.argsort(when)
    highest = np.maximum.accumulate(np.concatenate([[-1], np.array(offsets, np.int64)[order]]))
    return highest[np.searchsorted(when[order], at_us)]


def _latest_times(appends: Sequence[Append], positions: Iterable[ReaderPosition]) -> list[int]:
    """For each append, the moment just before the first reader that asks for something beyond it; no later than the
    handling of any produce that was appended after it."""
    ends = [append.end for append in appends]
    latest = [NEVER] * len(appends)
    for position in positions:
        # The last append that lies wholly below the offset; the ones before it inherit its bound.
        place_of = bisect_right(ends, position.offset) - 1
        if place_of >= 0:
            latest[place_of] = min(latest[place_of], position.proven_us - 1)
    for number in range(len(latest) - 2, -1, -1):
        following = appends[number + 1]
        handled = following.until_us if following.is_within_handling else NEVER
        latest[number] = min(latest[number], latest[number + 1], handled)
    return latest
