"""Corrects the assumed times of appends and positions, from the evidence in readers' offsets and in responses.

- A reader does not fetch from an offset before the records below it are appended.
- A reader does not fetch from the same offset twice, or wait for the first byte, if there were records the first time.
  Exceptions are readers after a pause or a reset, so an attempt below an offset that others had before proves nothing.
- The high watermark in a response was current when the broker read the log for it.
- In the replay, an append and the check of waiting fetches are one event. If a fetch was checked between the two, the
  event is dated just before that fetch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from purgatory_udf.sources.request_log.partition_facts import (
    Append,
    AttemptColumns,
    HighWatermarkReading,
    Integers,
    ReaderPosition,
)

NEVER = 2**62


def correct_append_times(
    appends: Sequence[Append], positions: Sequence[ReaderPosition], attempts: AttemptColumns
) -> None:
    """Narrow `at_us` and `check_us` of appends, which are in offset order, by what readers saw.

    An append is later than the last empty fetch below its end, and not later than the first proof that it was read.
    Neither time decreases from one append to the next.

    Args:
        appends: The appends.
        positions: Positions of readers, which prove that the records below them were appended before.
        attempts: Attempts of followers. Those of consumers prove nothing, because consumers see records only below the
            high watermark.
    """
    latest = _latest_times(appends, positions)
    known = [position.proven_us for position in positions], [position.offset for position in positions]
    earliest = _EarliestTimes(attempts, *known)
    attempt_times = attempts.at_us.tolist()
    before = 0
    for append, bound in zip(appends, latest, strict=True):
        at = max(append.at_us, min(earliest.after(append.end), append.until_us))
        append.at_us = before = min(max(at, before), bound)
    after = NEVER
    for append, bound in zip(reversed(appends), reversed(latest), strict=True):
        check = _before_next_attempt(append.at_us, max(append.at_us, min(append.check_us, bound)), attempt_times)
        # The check of a later append finds the records of this one, too.
        append.check_us = after = min(check, after)


def correct_position_times(
    positions: Sequence[ReaderPosition], readings: Sequence[HighWatermarkReading], attempts: AttemptColumns
) -> None:
    """Set `at_us` and `wake_us` of followers' positions from the attempts of consumers.

    Records that a position makes readable were not readable in an attempt that was empty, and are readable in an
    attempt between `at_us` and `wake_us`.
    """
    readable = [position for position in positions if position.replica < 0]
    times = [*(position.at_us for position in readable), *(reading.until_us for reading in readings)]
    offsets = [*(position.offset for position in readable), *(reading.offset for reading in readings)]
    earliest = _EarliestTimes(attempts, times, offsets)
    attempt_times = attempts.at_us.tolist()
    for position in positions:
        if position.replica >= 0:
            bound = min(earliest.after(position.offset), position.until_us)
            position.at_us = max(position.at_us, bound)
            wake = max(position.at_us, position.wake_us)
            position.wake_us = _before_next_attempt(position.at_us, wake, attempt_times)


def apply_high_watermark_readings(
    positions: Sequence[ReaderPosition], readings: Sequence[HighWatermarkReading]
) -> None:
    """Set `at_us` and `wake_us` of followers' positions from the high watermarks in responses.

    If a high watermark is at least an offset, all followers had reached the offset. If it is lower, the last of them
    had not.
    """
    by_offset = sorted(readings, key=lambda reading: reading.offset)
    offsets = [reading.offset for reading in by_offset]
    first_times = [reading.until_us for reading in by_offset]
    for number in range(len(first_times) - 2, -1, -1):
        first_times[number] = min(first_times[number], first_times[number + 1])
    reached = _ReachedOffsets(positions)
    by_time = sorted(readings, key=lambda reading: reading.since_us)
    times = [reading.since_us for reading in by_time]
    for position in positions:
        if position.replica < 0:
            continue
        shown = bisect_left(offsets, position.offset)
        if shown < len(first_times):
            position.wake_us = min(position.wake_us, max(position.start_us, first_times[shown] - 1))
        within = by_time[bisect_left(times, position.start_us) : bisect_right(times, position.until_us)]
        below = [reading.since_us for reading in within if reading.offset < position.offset]
        if below and reached.by_others(position, below[-1]):
            position.wake_us = max(position.wake_us, below[-1] + 1)
        position.at_us = min(position.at_us, position.wake_us)


class _ReachedOffsets:
    """Offsets that followers had certainly reached, by follower and time."""

    def __init__(self, positions: Sequence[ReaderPosition]) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        for position in positions:
            if position.replica >= 0:
                times, offsets = self._of.setdefault(position.replica, ([], []))
                times.append(max(position.until_us, times[-1] if times else 0))
                offsets.append(max(position.offset, offsets[-1] if offsets else 0))

    def by_others(self, position: ReaderPosition, at_us: int) -> bool:
        """Return whether all other followers had reached the offset of the position by `at_us`."""
        for replica, (times, offsets) in self._of.items():
            if replica != position.replica:
                last = bisect_right(times, at_us) - 1
                if last < 0 or offsets[last] < position.offset:
                    return False
        return True


def _before_next_attempt(at: int, check: int, attempts: Sequence[int]) -> int:
    """Return `check` or, if there is an attempt between `at` and `check`, the time just before the first one.

    The result is at least `at`, the time at which records are in the log. `check` is when the fetches that wait for
    them are checked, and `attempts` are sorted times of fetches. All are microseconds.
    """
    following = bisect_right(attempts, at)
    return max(at, attempts[following] - 1) if following < len(attempts) and attempts[following] <= check else check


class _EarliestTimes:
    """Earliest possible times of offsets: just after the last empty attempt below them.

    `times` and `offsets` are parallel: at each time, the log had certainly reached the offset.
    """

    def __init__(self, attempts: AttemptColumns, times: Sequence[int], offsets: Sequence[int]) -> None:
        at, offset = attempts.empty_attempts()
        # An attempt below an offset that others had before proves nothing.
        new = offset >= _highest_before(times, offsets, at)
        at, offset = at[new], offset[new]
        order = np.argsort(offset, kind="stable")
        offset, latest = offset[order], np.maximum.accumulate(at[order])
        last = np.append(offset[1:] != offset[:-1], np.ones(len(offset[:1]), bool))
        self._offsets: list[int] = offset[last].tolist()
        self._times: list[int] = latest[last].tolist()

    def after(self, end: int) -> int:
        """Return the earliest possible time (µs) of an append that ends at the offset `end`, or 0 if none is known."""
        place = bisect_left(self._offsets, end) - 1
        return self._times[place] + 1 if place >= 0 else 0


def _highest_before(times: Sequence[int], offsets: Sequence[int], at_us: Integers) -> Integers:
    """Return the highest of the offsets before each of the times `at_us`."""
    moments = np.array(times, np.int64)
    order = np.argsort(moments)
    highest = np.maximum.accumulate(np.concatenate([[-1], np.array(offsets, np.int64)[order]]))
    return highest[np.searchsorted(moments[order], at_us)]


def _latest_times(appends: Sequence[Append], positions: Iterable[ReaderPosition]) -> list[int]:
    """Return the latest possible time of each append, in microseconds since the epoch.

    It is just before the first fetch from beyond the append, and not after the handling of a later produce.
    """
    ends = [append.end for append in appends]
    latest = [NEVER] * len(appends)
    for position in positions:
        # The last append that is completely below the offset; the loop below extends its bound to earlier ones.
        place = bisect_right(ends, position.offset) - 1
        if place >= 0:
            latest[place] = min(latest[place], position.proven_us - 1)
    for number in range(len(latest) - 2, -1, -1):
        following = appends[number + 1]
        handled = following.until_us if following.is_within_handling else NEVER
        latest[number] = min(latest[number], latest[number + 1], handled)
    return latest
