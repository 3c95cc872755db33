"""`run_parallel`: parts of a job are computed by forked processes and by this one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from multiprocessing import get_context
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.backend import process_pool
from purgatory_udf.backend.call_transfer import CallWriter, nulls, read_call
from purgatory_udf.backend.process_pool import kept_processes, run_parallel
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


def processes_of_parts(code: Sequence[str] = ()) -> set[int]:
    """Compute parts in both processes by a function that refers to `code`, and return the processes."""
    here, there = Signal(), Signal()

    def compute(part: int) -> Iterator[pa.RecordBatch]:
        own, other = (here, there) if os.getpid() == THIS_PROCESS else (there, here)
        own.set()
        # Otherwise one process might take all parts.
        other.wait()
        yield batch(part, os.getpid(), len(code))

    rows = [rows.column(0).to_pylist() for (rows,) in run_parallel(compute, range(4))]
    assert {size for *_, size in rows} == {len(code)}
    return {process for _, process, _ in rows}


def test_kept_process_computes_further_calls() -> None:
    def sums_of(column: pa.Array) -> Callable[[int], Iterator[pa.RecordBatch]]:
        return lambda part: iter([batch(sum(column.to_pylist()), part, os.getpid())])

    with kept_processes():
        first = processes_of_parts()
        (made,), (other,) = run_parallel(lambda _: iter([batch(*range(1_000))]), [0, 1])
        written = pa.array(range(1_000))
        for column in (written, written[10:], made.column(0), other.column(0)[:5], pa.array([7])):
            parts = run_parallel(sums_of(column), range(100))
            rows = [rows.column(0).to_pylist() for (rows,) in parts]
            assert [row[:2] for row in rows] == [[sum(column.to_pylist()), part] for part in range(100)]
            assert {process for *_, process in rows} <= first


def test_kept_process_gets_chunks_of_nulls() -> None:
    nested = pa.struct([("values", pa.list_(pa.int64())), ("name", pa.string())])
    chunks = [[None] * 3, [{"values": [1, None], "name": "a"}, None], [], [None] * 20_000]
    column = pa.chunked_array([pa.array(chunk, nested) for chunk in chunks])
    code = CallWriter().serialized(column)
    assert code is not None and len(code) < 2_000

    def rows(_: int) -> Iterator[pa.RecordBatch]:
        process = pa.repeat(os.getpid(), len(column))
        return iter(pa.table({"column": column, "process": process}).to_batches())

    with kept_processes():
        first = processes_of_parts()
        made = [pa.Table.from_batches(batches) for batches in run_parallel(rows, range(100))]
    for table in made:
        assert table.column("column").equals(column)
        assert set(table.column("process").unique().to_pylist()) <= first


def test_columns_of_all_types_are_pickled() -> None:
    nested = pa.struct([("values", pa.list_(pa.struct([("name", pa.string())]))), ("is_set", pa.bool_())])
    rows: list[Any] = [
        {"values": [{"name": "é"}, None, {"name": None}], "is_set": True},
        None,
        {"values": None},
        {"values": []},
    ]
    arrays = [
        pa.array(rows * 100, nested),
        pa.array([[b"x", None], None, []] * 100, pa.list_(pa.binary())),
        pa.array([1, None, 3] * 100, pa.timestamp("us", "UTC")),
        pa.array(["a", "b", None] * 100).dictionary_encode(),
        pa.array([[1, 2], None, [3]] * 100, pa.large_list(pa.int64())),
        pa.array([None, "a"] * 100, pa.large_string()),
        pa.nulls(5),
    ]
    for array in arrays:
        columns = [pa.chunked_array([array, array[1:], array[7:7], array[3:200]]), pa.chunked_array([], array.type)]
        writer = CallWriter()
        code = writer.serialized(columns)
        assert code is not None
        read = read_call(code, [writer.inputs])
        assert read == columns
        for column in read:
            column.validate(full=True)


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


def test_large_code_is_inherited_by_new_process() -> None:
    large = ["x" * 100 + str(number) for number in range(20_000)]
    with kept_processes():
        first = processes_of_parts()
        assert first & processes_of_parts(large) == {THIS_PROCESS}


def test_kept_process_ends_with_context() -> None:
    with kept_processes():
        workers = processes_of_parts()
    for thread in threading.enumerate():
        if thread.name == process_pool.EXIT:
            thread.join()
    for process in workers - {THIS_PROCESS}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_killed_kept_process_raises_needs_spark() -> None:
    with kept_processes():
        workers = processes_of_parts()
        (worker,) = workers - {THIS_PROCESS}
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(NeedsSparkError, match="killed"):
            run_parallel(lambda part: iter([batch(part)]), [1, 2])


def test_error_in_further_call_is_raised() -> None:
    def fail(part: int) -> Iterator[pa.RecordBatch]:
        raise UserError(f"part {part}")

    with kept_processes():
        processes_of_parts()
        with pytest.raises(UserError, match="part"):
            run_parallel(fail, [1, 1])
        made = run_parallel(lambda part: iter([batch(part)]), [1, 2])
    assert [rows.column(0).to_pylist() for (rows,) in made] == [[1], [2]]
