"""`run_parallel`: parts of a job are computed by forked processes and by this one, or by threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context

import pyarrow as pa
import pytest

from purgatory_udf.backend import process_pool
from purgatory_udf.backend.dataset import nulls
from purgatory_udf.backend.process_pool import run_parallel
from purgatory_udf.common.errors import NeedsSparkError, UserError


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "cores", lambda: 2)


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.int64())})


THIS_PROCESS = os.getpid()
# A test fails, instead of hanging, if another process does not signal in this time.
TIMEOUT_SECONDS = 60


class Signal:
    """Lets a process wait until another has reached some point. Any free process may take the next part."""

    def __init__(self) -> None:
        self._event = get_context("fork").Event()

    def set(self) -> None:
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(TIMEOUT_SECONDS)


def batches_with_process(part: int) -> Iterator[pa.RecordBatch]:
    """Yield as many batches as the part's number, with the process that made them."""
    yield from (batch(part, os.getpid()) for _ in range(part))


def test_results_are_in_order_of_parts() -> None:
    """Afterwards, no forked process is left."""
    others, taken_parts = Signal(), count()

    def compute(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() == THIS_PROCESS:
            others.wait()
        elif next(taken_parts) == 2:
            others.set()
        yield from batches_with_process(part)

    made = run_parallel(compute, [2, 0, 1, 3])
    assert [len(part) for part in made] == [2, 0, 1, 3]
    values = [[rows.column(0).to_pylist() for rows in part] for part in made]
    assert [[value for value, _ in rows] for rows in values] == [[2, 2], [], [1], [3, 3, 3]]
    workers = {process for rows in values for _, process in rows}
    assert len(workers) == 2 or os.getpid() not in workers
    for thread in threading.enumerate():
        if thread.name == process_pool.EXIT:
            thread.join()
    for process in workers - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_this_process_computes_parts() -> None:
    this_process, taken_parts = Signal(), count()

    def compute(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() != THIS_PROCESS:
            this_process.wait()
        elif next(taken_parts) == 4:
            this_process.set()
        yield from batches_with_process(part)

    made = run_parallel(compute, [1] * 8)
    makers = [rows.column(0)[1].as_py() for (rows,) in made]
    assert makers.count(os.getpid()) > 4


def test_part_numbers_may_exceed_pipe_buffer() -> None:
    made = run_parallel(lambda part: iter([batch(part)]), range(10_000))
    assert [rows.column(0)[0].as_py() for (rows,) in made] == list(range(10_000))


def test_single_part_is_computed_in_this_process() -> None:
    ((made,),) = run_parallel(batches_with_process, [1])
    assert made.column(0).to_pylist() == [1, os.getpid()]


def test_result_may_exceed_pipe_buffer() -> None:
    def many(part: int) -> Iterator[pa.RecordBatch]:
        yield batch(*range(part, part + 500_000))

    made = run_parallel(many, [0, 1, 2])
    assert [rows.column(0).to_numpy().sum() for (rows,) in made] == [124_999_750_000, 125_000_250_000, 125_000_750_000]


@pytest.mark.parametrize("local", [True, False], ids=["in this process", "in another process"])
@pytest.mark.parametrize("error", [UserError("a.jsonl: cannot be read"), OSError(28, "No space left on device")])
def test_error_of_part_is_raised(error: Exception, local: bool) -> None:
    raising = Signal()

    def fail(part: int) -> Iterator[pa.RecordBatch]:
        if (os.getpid() == THIS_PROCESS) == local:
            raising.set()
            raise error
        raising.wait()
        yield batch(part)

    with pytest.raises(type(error)) as raised:
        run_parallel(fail, range(20_000))
    assert str(raised.value) == str(error)


def test_unpicklable_error_keeps_traceback() -> None:
    raising = Signal()

    def fail(part: int) -> Iterator[pa.RecordBatch]:
        yield batch(part)
        if os.getpid() != THIS_PROCESS:
            raising.set()
            raise type("Own", (Exception,), {})(part)
        raising.wait()

    with pytest.raises(RuntimeError, match=r"(?s)in fail.*Own: "):
        run_parallel(fail, [1, 2])


def test_killed_process_raises_needs_spark() -> None:
    dying = Signal()

    def killed(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() != THIS_PROCESS:
            dying.set()
            os.kill(os.getpid(), signal.SIGKILL)
        dying.wait()
        yield batch(part)

    with pytest.raises(NeedsSparkError, match="killed"):
        run_parallel(killed, range(4))


def test_killed_process_stops_others() -> None:
    dying, made, parts = Signal(), count(), 1_000_000

    def killed(_: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() != THIS_PROCESS:
            dying.set()
            os.kill(os.getpid(), signal.SIGKILL)
        dying.wait()
        next(made)
        yield from ()

    with pytest.raises(NeedsSparkError, match="killed"):
        run_parallel(killed, range(parts))
    assert next(made) < parts // 2


def test_threads_compute_parts_in_their_order() -> None:
    both = threading.Barrier(2, timeout=TIMEOUT_SECONDS)

    def compute(part: int) -> Iterator[pa.RecordBatch]:
        if part < 2:
            # Only two threads at the same time pass this.
            both.wait()
        yield from (batch(part, threading.get_ident(), os.getpid()) for _ in range(part))

    made = run_parallel(compute, range(10), in_threads=True)
    rows = [[rows.column(0).to_pylist() for rows in part] for part in made]
    assert [[value for value, *_ in part] for part in rows] == [[part] * part for part in range(10)]
    assert {process for part in rows for *_, process in part} == {THIS_PROCESS}


@pytest.mark.parametrize("is_main", [True, False], ids=["in the main thread", "in another thread"])
@pytest.mark.parametrize("error", [UserError("a.jsonl: cannot be read"), KeyboardInterrupt()])
def test_error_in_thread_stops_others(error: BaseException, is_main: bool) -> None:
    both, computed, parts = threading.Barrier(2, timeout=TIMEOUT_SECONDS), count(), 1_000_000

    def fail(part: int) -> Iterator[pa.RecordBatch]:
        if part < 2:
            both.wait()
            if (threading.current_thread() is threading.main_thread()) == is_main:
                raise error
        next(computed)
        yield from ()

    with pytest.raises(type(error)) as raised:
        run_parallel(fail, range(parts), in_threads=True)
    assert raised.value is error
    assert next(computed) < parts // 2


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.int32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.timestamp("us", "UTC"), pa.null()),
        *(pa.list_(pa.string()), pa.large_string(), pa.dictionary(pa.int32(), pa.string())),
        pa.struct([("values", pa.list_(pa.struct([("name", pa.string())]))), ("is_set", pa.bool_())]),
    ],
)
def test_shared_nulls_are_those_of_arrow(type_: pa.DataType) -> None:
    for length in (0, 5, 1 << 17, (1 << 17) + 1):
        made = nulls(length, type_)
        made.validate(full=True)
        assert made.type == type_ and made.null_count == length and made.equals(pa.nulls(length, type_))
    assert pa.concat_arrays([nulls(3, type_), nulls(2, type_)]).equals(pa.nulls(5, type_))
