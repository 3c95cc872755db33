"""Corrects the assumed times of appends and positions, from the evidence in readers' offsets and in responses.

- A reader does not fetch from an offset before the records below it are appended.
- A reader does not fetch from the same offset twice, or wait for the first byte, if there were records the first time.
  Exceptions are readers after a pause or a reset, so an attempt below an offset that others had before proves nothing.
- The high watermark in a response was current when the broker read the log for it.
- In the replay, an append and the check of waiting fetches are one event. If a fetch was checked between the two, the
  event is dated just before that fetch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from purgatory_udf.sources.request_log.append_offsets import SelectedAppends, places_right
from purgatory_udf.sources.request_log.fact_columns import INTERVAL, MAX_INTERVALS, AttemptColumns, FactColumns
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    Booleans,
    HighWatermarkReading,
    Integers,
    ReaderPosition,
)
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts

NEVER = 2**62


def correct_times(partitions: Sequence[tuple[SelectedAppends, PartitionFacts]]) -> None:
    """Correct the times of appends and positions of partitions, in place.

    Args:
        partitions: The appends of each partition in offset order, and its facts.
    """
    for start in range(0, len(partitions), MAX_INTERVALS):
        some = partitions[start : start + MAX_INTERVALS]
        if len(some) == 1 or not _correct_together(some):
            for appends, facts in some:
                correct_append_times(appends, facts.positions, facts.follower_attempts)
                correct_position_times(facts.positions, facts.high_watermarks, facts.consumer_attempts)
                apply_high_watermark_readings(facts.positions, facts.high_watermarks)


def _correct_together(partitions: Sequence[tuple[SelectedAppends, PartitionFacts]]) -> bool:
    """Correct the times of partitions as those of one (see `INTERVAL`), or return False if this is impossible."""
    all_appends, all_facts = zip(*partitions, strict=True)
    of_appends, of_positions = (_Parts(each) for each in (all_appends, [facts.positions for facts in all_facts]))
    of_readings = _Parts([facts.high_watermarks for facts in all_facts])
    try:
        appends = FactColumns(
            Append,
            {
                **{name: of_appends.moved(name) for name in ("at_us", "check_us", "until_us")},
                "end": of_appends.moved("end", 0),
                "line": of_appends.joined("line"),
                "transaction": np.concatenate([each.facts.values("transaction")[each.rows] for each in all_appends]),
            },
            of_appends.length,
        )
        positions = FactColumns(
            ReaderPosition,
            {
                **{name: of_positions.moved(name) for name in ("at_us", "wake_us", "until_us", "proven_us")},
                "offset": of_positions.moved("offset", 0),
                "start_us": of_positions.moved("start_us", -1),
                "replica": of_positions.joined("replica"),
            },
            of_positions.length,
        )
        readings = FactColumns(
            HighWatermarkReading,
            {
                **{name: of_readings.moved(name) for name in ("since_us", "until_us")},
                "offset": of_readings.moved("offset", 0),
            },
            of_readings.length,
        )
        followers = _joined_attempts([facts.follower_attempts for facts in all_facts])
        consumers = _joined_attempts([facts.consumer_attempts for facts in all_facts])
    except _OutOfIntervalError:
        return False
    ends = appends.integers("end")
    if (ends[1:] < ends[:-1]).any():
        return False
    correct_append_times(SelectedAppends(appends, np.arange(len(appends))), positions, followers)
    correct_position_times(positions, readings, consumers)
    apply_high_watermark_readings(positions, readings, of_positions.numbers)
    for name in ("at_us", "check_us"):
        of_appends.replace(name, appends.integers(name))
    for name in ("at_us", "wake_us"):
        of_positions.replace(name, positions.integers(name))
    return True


class _OutOfIntervalError(Exception):
    """A value is too high or too low to be moved into the interval of its partition."""


class _Parts:
    """Columns of several partitions."""

    def __init__(self, parts: Sequence[FactColumns[Any] | SelectedAppends]) -> None:
        self._parts = parts
        lengths = list(map(len, parts))
        self.length = sum(lengths)
        # The number of each row's partition, and the start of its interval.
        self.numbers = np.repeat(np.arange(len(parts)), lengths)
        self._starts = self.numbers * INTERVAL

    def joined(self, name: str) -> Integers:
        """Return the values of a field of all partitions."""
        return np.concatenate([part.integers(name) for part in self._parts])

    def moved(self, name: str, least: int = 1) -> Integers:
        """Return the values of a field, moved into the interval of their partition; the lowest one may be `least`."""
        return _moved(self.joined(name), self._starts, least)

    def replace(self, name: str, moved: Integers) -> None:
        """Replace the values of a field by moved ones."""
        values, end = moved - self._starts, 0
        for part in self._parts:
            begin, end = end, end + len(part)
            if begin < end:
                part.replace(name, values[begin:end])


def _joined_attempts(parts: Sequence[AttemptColumns]) -> AttemptColumns:
    starts = np.repeat(np.arange(len(parts)) * INTERVAL, list(map(len, parts)))
    at, replica, offset, empty = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("at_us", "replica", "offset", "empty")
    )
    return AttemptColumns(_moved(at, starts, 1), replica, _moved(offset, starts, 0), empty)


def _moved(values: Integers, starts: Integers, least: int) -> Integers:
    if len(values) and not (values.min() >= least and values.max() < INTERVAL - 1):
        raise _OutOfIntervalError
    return values + starts


def correct_append_times(
    appends: SelectedAppends, positions: FactColumns[ReaderPosition], attempts: AttemptColumns
) -> None:
    """Narrow `at_us` and `check_us` of appends by what readers saw.

    An append is later than the last empty fetch below its end, and not later than the first proof that it was read.
    Neither time decreases from one append to the next.

    Args:
        appends: The appends.
        positions: Positions of readers, which prove that the records below them were appended before.
        attempts: Attempts of followers. Those of consumers prove nothing, because consumers see records only below the
            high watermark.
    """
    if not len(appends):
        return
    bound = _latest_times(appends, positions)
    earliest = _EarliestTimes(attempts, positions.integers("proven_us"), positions.integers("offset"))
    possible = np.minimum(earliest.after(appends.integers("end")), appends.integers("until_us"))
    at = np.maximum(appends.integers("at_us"), possible)
    # The bounds do not decrease, so neither do the minimums that the maximum is taken of.
    at = np.maximum.accumulate(np.minimum(at, bound))
    check = np.maximum(at, np.minimum(appends.integers("check_us"), bound))
    check = np.minimum(_before_next_attempt(at, check, attempts.at_us), NEVER)
    appends.replace("at_us", at)
    # The check of a later append finds the records of this one, too.
    appends.replace("check_us", _least_from(check))


def correct_position_times(
    positions: FactColumns[ReaderPosition], readings: FactColumns[HighWatermarkReading], attempts: AttemptColumns
) -> None:
    """Set `at_us` and `wake_us` of followers' positions from the attempts of consumers.

    Records that a position makes readable were not readable in an attempt that was empty, and are readable in an
    attempt between `at_us` and `wake_us`.
    """
    replica, at, offset = (positions.integers(name) for name in ("replica", "at_us", "offset"))
    consumers, followers = replica < 0, replica >= 0
    times = np.concatenate([at[consumers], readings.integers("until_us")])
    earliest = _EarliestTimes(attempts, times, np.concatenate([offset[consumers], readings.integers("offset")]))
    bound = np.minimum(earliest.after(offset[followers]), positions.integers("until_us")[followers])
    at_followers = np.maximum(at[followers], bound)
    wake = np.maximum(at_followers, positions.integers("wake_us")[followers])
    _replace(positions, "at_us", followers, at_followers)
    _replace(positions, "wake_us", followers, _before_next_attempt(at_followers, wake, attempts.at_us))


def apply_high_watermark_readings(
    positions: FactColumns[ReaderPosition],
    readings: FactColumns[HighWatermarkReading],
    partitions: Integers | None = None,
) -> None:
    """Set `at_us` and `wake_us` of followers' positions from the high watermarks in responses.

    If a high watermark is at least an offset, all followers had reached the offset. If it is lower, the last of them
    had not. `partitions` are the numbers of the positions' partitions, if there are several.
    """
    followers = positions.integers("replica") >= 0
    names = ("replica", "offset", "start_us", "until_us", "wake_us")
    replica, offset, start, until, wake = (positions.integers(name)[followers] for name in names)
    if len(readings):
        shown_offsets = readings.integers("offset")
        by_offset = np.argsort(shown_offsets, kind="stable")
        first_times = _least_from(readings.integers("until_us")[by_offset])
        shown = np.searchsorted(shown_offsets[by_offset], offset)
        is_shown = shown < len(first_times)
        first = first_times[np.minimum(shown, len(first_times) - 1)]
        wake = np.where(is_shown, np.minimum(wake, np.maximum(start, first - 1)), wake)
        since = readings.integers("since_us")
        by_time = np.argsort(since, kind="stable")
        since, shown_offsets = since[by_time], shown_offsets[by_time]
        earliest, latest = np.searchsorted(since, start), np.searchsorted(since, until, side="right") - 1
        _find_lower(shown_offsets, offset, earliest, latest)
        below = np.flatnonzero(latest >= earliest)
        since_below = since[latest[below]]
        numbers = np.zeros(len(offset), np.int64) if partitions is None else partitions[followers]
        last = _reached_by_others(replica, offset, until, numbers, below, since_below)
        below, since_below = below[last], since_below[last]
        wake[below] = np.maximum(wake[below], since_below + 1)
    _replace(positions, "wake_us", followers, wake)
    _replace(positions, "at_us", followers, np.minimum(positions.integers("at_us")[followers], wake))


def _find_lower(shown: Integers, offset: Integers, earliest: Integers, latest: Integers) -> None:
    """Decrease each number in `latest` until the reading of that number is lower than the offset, or not wanted.

    Args:
        shown: The offset of each reading.
        offset: The offset of each position.
        earliest: The number of the first reading that is wanted.
        latest: The number of the last reading that is wanted.
    """
    open_ = np.flatnonzero(latest >= earliest)
    while len(open_ := open_[shown[latest[open_]] >= offset[open_]]):
        latest[open_] -= 1
        open_ = open_[latest[open_] >= earliest[open_]]


def _reached_by_others(
    replica: Integers, offset: Integers, until: Integers, partition: Integers, which: Integers, times: Integers
) -> Booleans:
    """Return whether all other followers had certainly reached the offsets of some positions at these times.

    Args:
        replica: The follower of each position, in time order.
        offset: The offset of each position.
        until: The latest time of each position.
        partition: The number of the partition of each position; only its own followers matter.
        which: The numbers of the positions to check.
        times: A time for each of them.
    """
    reached = np.ones(len(which), bool)
    for follower in np.unique(replica).tolist():
        is_its = replica == follower
        # A running maximum, because positions of one follower may be out of order.
        its_times = np.maximum.accumulate(np.maximum(until[is_its], 0))
        its_offsets = np.maximum.accumulate(np.maximum(offset[is_its], 0))
        last = np.searchsorted(its_times, times, side="right") - 1
        has_reached = (last >= 0) & (its_offsets[last] >= offset[which])
        follows = np.bincount(partition[is_its], minlength=int(partition[-1]) + 1) > 0
        reached &= has_reached | (replica[which] == follower) | ~follows[partition[which]]
    return reached


def _replace(positions: FactColumns[ReaderPosition], name: str, which: Booleans, values: Integers) -> None:
    column = positions.integers(name).copy()
    column[which] = values
    positions.replace(name, column)


def _least_from(values: Integers) -> Integers:
    """Return the least of each value and all later ones."""
    return np.minimum.accumulate(values[::-1])[::-1]


def _before_next_attempt(at: Integers, check: Integers, attempts: Integers) -> Integers:
    """Return `check` or, if there is an attempt between `at` and `check`, the time just before the first one.

    The results are at least `at`, the times at which records are in the log. `check` is when the fetches that wait for
    them are checked, and `attempts` are sorted times of fetches. All are microseconds.
    """
    following = np.searchsorted(attempts, at, side="right")
    is_followed = following < len(attempts)
    if not is_followed.any():
        return check
    attempt = attempts[np.minimum(following, len(attempts) - 1)]
    return np.where(is_followed & (attempt <= check), np.maximum(at, attempt - 1), check)


class _EarliestTimes:
    """Earliest possible times of offsets: just after the last empty attempt below them.

    `times` and `offsets` are parallel: at each time, the log had certainly reached the offset.
    """

    def __init__(self, attempts: AttemptColumns, times: Integers, offsets: Integers) -> None:
        at, offset = attempts.empty_attempts()
        # An attempt below an offset that others had before proves nothing.
        new = offset >= _highest_before(times, offsets, at)
        at, offset = at[new], offset[new]
        order = np.argsort(offset, kind="stable")
        offset, latest = offset[order], np.maximum.accumulate(at[order])
        last = np.append(offset[1:] != offset[:-1], np.ones(len(offset[:1]), bool))
        self._offsets, self._times = offset[last], latest[last]

    def after(self, ends: Integers) -> Integers:
        """Return the earliest possible time (µs) of an append that ends at each offset, or 0 if none is known."""
        if not len(self._offsets):
            return np.zeros(len(ends), np.int64)
        place = np.searchsorted(self._offsets, ends) - 1
        return np.where(place >= 0, self._times[place] + 1, 0)


def _highest_before(times: Integers, offsets: Integers, at_us: Integers) -> Integers:
    """Return the highest of the offsets before each of the times `at_us`."""
    # The times are in order, or in few runs that are.
    order = np.argsort(times, kind="stable")
    highest = np.maximum.accumulate(np.concatenate([[-1], offsets[order]]))
    return highest[np.searchsorted(times[order], at_us)]


def _latest_times(appends: SelectedAppends, positions: FactColumns[ReaderPosition]) -> Integers:
    """Return the latest possible time of each append, in microseconds since the epoch.

    It is just before the first fetch from beyond the append, and not after the handling of a later produce.
    """
    latest = np.full(len(appends), NEVER, np.int64)
    # The last append that is completely below the offset; its bound holds for earlier ones, too.
    place = places_right(appends.integers("end"), positions.integers("offset")) - 1
    is_below = place >= 0
    np.minimum.at(latest, place[is_below], positions.integers("proven_us")[is_below] - 1)
    is_handled = (appends.integers("line") >= 0) & appends.facts.is_none("transaction")[appends.rows]
    handled = np.where(is_handled, appends.integers("until_us"), NEVER)
    latest[:-1] = np.minimum(latest[:-1], handled[1:])
    return _least_from(latest)
