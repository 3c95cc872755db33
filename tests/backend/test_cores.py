"""Parts of a work that are made by processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context

import pyarrow as pa
import pytest

from purgatory_udf.backend import process_pool
from purgatory_udf.backend.process_pool import side_by_side
from purgatory_udf.common.errors import NeedsSparkError, UserError


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "cores", lambda: 2)


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.int64())})


HERE = os.getpid()
# For whoever waits for another process that never comes: a failure, not a test that hangs.
PATIENCE_SECONDS = 60


class Turn:
    """One process waits until another has come to some point, for parts are taken by whoever is free."""

    def __init__(self) -> None:
        self._come = get_context("fork").Event()

    def come(self) -> None:
        self._come.set()

    def wait(self) -> None:
        assert self._come.wait(PATIENCE_SECONDS)


def by_whom(part: int) -> Iterator[pa.RecordBatch]:
    """As many batches as the part's number."""
    yield from (batch(part, os.getpid()) for _ in range(part))


def test_what_parts_make_comes_back_in_their_order_from_processes_that_are_gone() -> None:
    others, taken = Turn(), count()

    def whoever(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() == HERE:
            others.wait()
        elif next(taken) == 2:
            others.come()
        yield from by_whom(part)

    made = side_by_side(whoever, [2, 0, 1, 3])
    assert [len(part) for part in made] == [2, 0, 1, 3]
    values = [[rows.column(0).to_pylist() for rows in part] for part in made]
    assert [[value for value, _ in rows] for rows in values] == [[2, 2], [], [1], [3, 3, 3]]
    workers = {process for rows in values for _, process in rows}
    assert len(workers) == 2 or os.getpid() not in workers
    for process in workers - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_this_process_takes_parts_as_well() -> None:
    here, taken = Turn(), count()

    def whoever(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() != HERE:
            here.wait()
        elif next(taken) == 4:
            here.come()
        yield from by_whom(part)

    made = side_by_side(whoever, [1] * 8)
    makers = [rows.column(0)[1].as_py() for (rows,) in made]
    assert makers.count(os.getpid()) > 4


def test_there_may_be_more_parts_than_a_pipe_holds_numbers() -> None:
    made = side_by_side(lambda part: iter([batch(part)]), range(10_000))
    assert [rows.column(0)[0].as_py() for (rows,) in made] == list(range(10_000))


def test_a_part_alone_is_made_here() -> None:
    ((made,),) = side_by_side(by_whom, [1])
    assert made.column(0).to_pylist() == [1, os.getpid()]


def test_what_a_part_makes_may_be_more_than_a_pipe_holds() -> None:
    def many(part: int) -> Iterator[pa.RecordBatch]:
        yield batch(*range(part, part + 500_000))

    made = side_by_side(many, [0, 1, 2])
    assert [rows.column(0).to_numpy().sum() for (rows,) in made] == [124_999_750_000, 125_000_250_000, 125_000_750_000]


@pytest.mark.parametrize("here", [True, False], ids=["raised here", "raised there"])
@pytest.mark.parametrize("error", [UserError("a.jsonl: cannot be read"), OSError(28, "No space left on device")])
def test_what_a_part_raises_is_raised_here(error: Exception, here: bool) -> None:
    raising = Turn()

    def fail(part: int) -> Iterator[pa.RecordBatch]:
        if (os.getpid() == HERE) == here:
            raising.come()
            raise error
        raising.wait()
        yield batch(part)

    with pytest.raises(type(error)) as raised:
        side_by_side(fail, range(20_000))
    assert str(raised.value) == str(error)


def test_an_error_that_cannot_be_sent_is_told_with_where_it_was() -> None:
    raising = Turn()

    def fail(part: int) -> Iterator[pa.RecordBatch]:
        yield batch(part)
        if os.getpid() != HERE:
            raising.come()
            raise type("Own", (Exception,), {})(part)
        raising.wait()

    with pytest.raises(RuntimeError, match=r"(?s)in fail.*Own: "):
        side_by_side(fail, [1, 2])


def test_where_a_process_is_killed_all_is_left_to_spark() -> None:
    dying = Turn()

    def killed(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() != HERE:
            dying.come()
            os.kill(os.getpid(), signal.SIGKILL)
        dying.wait()
        yield batch(part)

    with pytest.raises(NeedsSparkError, match="killed"):
        side_by_side(killed, range(4))


def test_nobody_goes_on_for_long_where_a_process_was_killed() -> None:
    dying, made, parts = Turn(), count(), 1_000_000

    def killed(_: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() != HERE:
            dying.come()
            os.kill(os.getpid(), signal.SIGKILL)
        dying.wait()
        next(made)
        yield from ()

    with pytest.raises(NeedsSparkError, match="killed"):
        side_by_side(killed, range(parts))
    assert next(made) < parts // 2
