"""Fetch attempts in runs and as columns."""

from __future__ import annotations

from array import array

import pytest

from purgatory_udf.sources.request_log.partition_facts import AttemptColumns, AttemptRun, FetchAttempt, OpenRun


def run(offset: int, *times: int, replica: int = 2, empty: bool = False) -> AttemptRun:
    return AttemptRun(replica, offset, empty, array("q", times).tobytes())


def each(attempts: AttemptColumns) -> list[tuple[int, int, int, bool]]:
    columns = (attempts.at_us, attempts.replica, attempts.offset, attempts.empty)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_attempts_are_in_time_order() -> None:
    """All attempts of a run but the last are empty."""
    attempts = AttemptColumns.of([run(7, 10, 20, 30), FetchAttempt(25, 3, 5), run(9, 25, replica=1, empty=True)])
    assert each(attempts) == [
        (10, 2, 7, True),
        (20, 2, 7, True),
        (25, 1, 9, True),
        (25, 3, 5, False),
        (30, 2, 7, False),
    ]
    assert [column.tolist() for column in attempts.empty_attempts()] == [[10, 20, 25], [7, 7, 9]]
    assert [attempts.last_us(2, until) for until in (9, 10, 29, 99)] == [0, 10, 20, 30]
    assert (len(AttemptColumns.of([])), each(AttemptColumns.of([]))) == (0, [])


@pytest.mark.parametrize(
    ("since", "kept"),
    [
        (10, [run(7, 10, 20, 30)]),
        (11, [FetchAttempt(10, 2, 7, True), run(7, 20, 30)]),
        (25, [FetchAttempt(20, 2, 7, True), run(7, 30)]),
        (31, [FetchAttempt(30, 2, 7, False)]),
    ],
)
def test_since_keeps_latest_earlier_attempt(since: int, kept: list[FetchAttempt | AttemptRun]) -> None:
    assert list(run(7, 10, 20, 30).since(since)) == kept


def test_attempt_times_need_not_rise() -> None:
    assert list(run(7, 30, 10, empty=True).since(20)) == [FetchAttempt(10, 2, 7, True), run(7, 30, empty=True)]
    assert list(run(7, 30, 10).since(20)) == [FetchAttempt(10, 2, 7, False), run(7, 30, empty=True)]


def test_open_run_keeps_its_last_attempt() -> None:
    open_run = OpenRun(10, 2, 7, False)
    assert open_run.take_all_but_last() is None
    open_run.times.extend((20, 30))
    assert open_run.take_all_but_last() == run(7, 10, 20, empty=True)
    assert (open_run.last, open_run.to_run()) == (FetchAttempt(30, 2, 7), run(7, 30))
