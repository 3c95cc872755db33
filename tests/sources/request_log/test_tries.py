"""Tries in runs tell what tries one by one tell."""

from __future__ import annotations

from array import array

import pytest

from purgatory_udf.sources.request_log.requests.fetch_sessions import Attempts, Repeated, Tries, Try


def run(offset: int, *moments: int, replica: int = 2, barren: bool = False) -> Tries:
    return Tries(replica, offset, barren, array("q", moments).tobytes())


def each(tries: Attempts) -> list[tuple[int, int, int, bool]]:
    columns = (tries.at_us, tries.replica, tries.offset, tries.barren)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_tries_of_some_readers_come_in_the_order_of_time() -> None:
    """Of a run all but the last were barren."""
    tries = Attempts.of([run(7, 10, 20, 30), Try(25, 3, 5), run(9, 25, replica=1, barren=True)])
    assert each(tries) == [
        (10, 2, 7, True),
        (20, 2, 7, True),
        (25, 1, 9, True),
        (25, 3, 5, False),
        (30, 2, 7, False),
    ]
    assert [column.tolist() for column in tries.in_vain()] == [[10, 20, 25], [7, 7, 9]]
    assert [tries.last_us(2, until) for until in (9, 10, 29, 99)] == [0, 10, 20, 30]
    assert (len(Attempts.of([])), each(Attempts.of([]))) == (0, [])


@pytest.mark.parametrize(
    ("since", "kept"),
    [
        (10, [run(7, 10, 20, 30)]),
        (11, [Try(10, 2, 7, True), run(7, 20, 30)]),
        (25, [Try(20, 2, 7, True), run(7, 30)]),
        (31, [Try(30, 2, 7, False)]),
    ],
)
def test_of_what_was_before_the_last_is_kept(since: int, kept: list[Try | Tries]) -> None:
    assert list(run(7, 10, 20, 30).since(since)) == kept


def test_moments_need_not_rise() -> None:
    assert list(run(7, 30, 10, barren=True).since(20)) == [Try(10, 2, 7, True), run(7, 30, barren=True)]
    assert list(run(7, 30, 10).since(20)) == [Try(10, 2, 7, False), run(7, 30, barren=True)]


def test_of_a_run_that_goes_on_the_last_try_waits() -> None:
    going = Repeated(10, 2, 7, False)
    assert going.tries_but_the_last() is None
    going.moments.extend((20, 30))
    assert going.tries_but_the_last() == run(7, 10, 20, barren=True)
    assert (going.last, going.tries()) == (Try(30, 2, 7), run(7, 30))
