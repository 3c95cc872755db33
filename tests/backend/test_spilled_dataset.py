"""Rows in files have the same results as rows in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from purgatory_udf.backend import dataset, process_pool, spilled_dataset
from purgatory_udf.backend.backend import Backend, LocalBackend
from purgatory_udf.backend.dataset import LocalDataset, Step
from purgatory_udf.backend.spilled_dataset import Spill, SpilledDataset, StoredRows
from tests.backend.test_dataset import OPERATIONS, OTHERS, ROWS, SUMS, _running_sum, _sorted

TASKS = pa.schema([("first", pa.int64()), ("times", pa.list_(pa.int64()))])
KEYED = pa.schema([("key", pa.string()), ("rows", pa.int64())])


@pytest.fixture(params=["compressed", pytest.param("as they are", marks=pytest.mark.nightly)])
def spilling(tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    """A backend whose rows are in files, which are compressed, or not."""
    return LocalBackend(Spill(str(tmp_path / "spilled"), is_compressed=request.param == "compressed"))


@pytest.fixture(params=["in memory", "by DuckDB"])
def small_files(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make files and buckets small; buckets are sorted in memory, and then by DuckDB."""
    monkeypatch.setattr(spilled_dataset, "_FILE_BYTES", 1)
    monkeypatch.setattr(spilled_dataset, "_BATCH_BYTES", 40)
    if request.param == "by DuckDB":
        monkeypatch.setattr(spilled_dataset, "_SORTED_BYTES", 0)
        # DuckDB opens a database for each bucket.
        monkeypatch.setattr(spilled_dataset, "_MOST_BUCKETS", 12)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_agree(operation: str, spilling: Backend, tmp_path: Path) -> None:
    rows = [
        OPERATIONS[operation](each.dataset_of(ROWS).keep(str(tmp_path / "kept")), each.dataset_of(OTHERS))
        for each in (LocalBackend(), spilling)
    ]
    in_memory, in_files = (each.collect() for each in rows)
    assert in_files.schema == in_memory.schema == rows[1].schema
    assert _sorted(in_files) == _sorted(in_memory)
    assert rows[1].count() == in_memory.num_rows
    for number, each in enumerate(rows):
        each.save(str(tmp_path / f"table-{number}"), each.schema)
    saved = [DeltaTable(str(tmp_path / f"table-{number}")).to_pyarrow_table() for number in (0, 1)]
    assert _sorted(saved[0]) == _sorted(saved[1])


@pytest.mark.usefixtures("small_files")
def test_total_order_is_kept_across_files(spilling: Backend) -> None:
    numbers = pa.table({"place": [(7 * number) % 1000 for number in range(1000)]})
    made = spilling.dataset_of(numbers).map_in_order(["place"], _running_sum, SUMS, task="task").collect().to_pylist()
    assert [row["place"] for row in sorted(made, key=lambda row: (row["task"], row["total"], row["place"]))] == [
        *range(1000)
    ]
    assert len({row["task"] for row in made}) > (50 if spilled_dataset._SORTED_BYTES else 10)


@pytest.mark.usefixtures("small_files")
def test_no_group_is_divided(spilling: Backend) -> None:
    """Groups longer than a file, and shorter than a batch."""
    keys = [f"long-{number % 3}" for number in range(300)] + [f"short-{number}" for number in range(50)] + [None] * 4
    table = pa.table({"key": keys})

    def count(batches: Any) -> Any:
        rows = [key for batch in batches for key in batch.column("key").to_pylist()]
        found = [{"key": key, "rows": rows.count(key)} for key in dict.fromkeys(rows)]
        yield pa.RecordBatch.from_pylist(found, KEYED)

    counted = spilling.dataset_of(table).map_groups(["key"], (), count, KEYED).collect().to_pylist()
    assert len(counted) == 54
    assert {row["key"]: row["rows"] for row in counted} == {key: keys.count(key) for key in keys}


@pytest.mark.usefixtures("small_files")
def test_equal_rows_keep_order(spilling: Backend) -> None:
    """In groups and in a total order, nulls first, with rows of several tasks."""
    size = 600
    places = [None if number % 11 == 0 else number % 5 for number in range(size)]
    table = pa.table({"key": [f"{number % 3}" for number in range(size)], "place": places, "row": [*range(size)]})
    schema = table.schema.append(pa.field("task", pa.int32()))
    rows = spilling.run_tasks(
        [[start] for start in range(0, size, 100)], lambda at: iter(table[at : at + 100].to_batches()), table.schema
    )
    expected = sorted(table.to_pylist(), key=lambda row: (row["place"] is not None, row["place"], row["row"]))

    ordered = rows.map_in_order(["place"], lambda batches: batches, table.schema, "task").collect()
    assert ordered.schema == schema
    assert ordered.drop_columns(["task"]).to_pylist() == expected
    assert ordered.column("task").to_pylist() == sorted(ordered.column("task").to_pylist())
    grouped = rows.map_groups(["key"], ["place"], lambda batches: batches, table.schema).collect().to_pylist()
    for key in "012":
        assert [row for row in grouped if row["key"] == key] == [row for row in expected if row["key"] == key]


def test_large_bucket_is_sorted_by_duckdb(spilling: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large group is sorted by DuckDB, and the other groups in memory."""
    sorted_rows: list[int] = []
    by_duckdb = SpilledDataset._sorted_by_duckdb

    def counted(self: SpilledDataset, *given: Any) -> SpilledDataset:
        sorted_rows.append(self.count())
        return by_duckdb(self, *given)

    monkeypatch.setattr(SpilledDataset, "_sorted_by_duckdb", counted)
    monkeypatch.setattr(spilled_dataset, "_FILE_BYTES", 1_000)
    monkeypatch.setattr(spilled_dataset, "_SORTED_BYTES", 8_000)
    keys = ["large"] * 1_000 + [f"{number}" for number in range(100)]
    table = pa.table({"key": keys, "row": [*range(1_100)][::-1]})
    rows = spilling.dataset_of(table).map_groups(["key"], ["row"], lambda batches: batches, table.schema).collect()
    assert [row["row"] for row in rows.to_pylist() if row["key"] == "large"] == [*range(100, 1_100)]
    assert _sorted(rows) == _sorted(table)
    assert len(sorted_rows) == 1 and 1_000 <= sorted_rows[0] < 1_100


@pytest.mark.usefixtures("small_files")
def test_selection_reads_needed_columns_only(spilling: Backend, tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3, 4], "b": ["x", "x", "y", None], "c": [5, 6, 7, 8]})
    rows = spilling.dataset_of(table).keep(str(tmp_path / "kept"))
    chosen = rows.where_in("b", ["x", "y"]).where_null("a", null=False).select("c", "a")
    assert chosen.collect().to_pydict() == {"c": [5, 7], "a": [1, 3]}
    assert chosen.select("c").where_below("c", 6).collect().to_pydict() == {"c": [5]}
    assert isinstance(chosen, SpilledDataset)
    assert {tuple(part.columns) for part in chosen._parts if isinstance(part, StoredRows)} == {("c", "a")}


@pytest.mark.usefixtures("small_files")
def test_intervals_stay_in_one_task(spilling: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """In files and in memory, each task gets the number of rows before its own."""
    monkeypatch.setattr(dataset, "_MOST_IN_ONE_THREAD", 0)
    monkeypatch.setattr(dataset, "_LEAST_BYTES", 1)
    for module in (dataset, process_pool):
        monkeypatch.setattr(module, "cores", lambda: 3)
    times = [(7 * number) % 1000 for number in range(1000)]

    def step(first: int) -> Step:
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = [time for batch in batches for time in batch.column("at").to_pylist()]
            yield pa.record_batch([pa.array([first]), pa.array([found])], TASKS)

        return work

    for backend in (spilling, LocalBackend()):
        rows = backend.dataset_of(pa.table({"at": times}))
        assert isinstance(rows, LocalDataset)
        tasks = rows.map_numbered(["at"], step, TASKS, 100, "").collect().to_pylist()
        assert [time for task in tasks for time in task["times"]] == [*range(1000)]
        assert [task["first"] for task in tasks] == [task["times"][0] for task in tasks]
        assert all(task["first"] % 100 == 0 for task in tasks)
        assert len(tasks) > 1


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(("most", "in_memory"), [(1 << 20, True), (20_000, False), (-1, False)])
def test_small_rows_stay_in_memory(most: int, in_memory: bool, spilling: LocalBackend, tmp_path: Path) -> None:
    """Larger ones are in files, in the same order, with those that were in memory before."""
    schema = pa.schema([("number", pa.int64())])

    def work(first: int) -> Iterator[pa.RecordBatch]:
        for start in range(first, first + 1_000, 100):
            yield pa.record_batch([pa.array(range(start, start + 100), pa.int64())], schema)

    rows = spilling.run_tasks([[first] for first in range(0, 10_000, 1_000)], work, schema)
    assert isinstance(rows, SpilledDataset)
    kept = rows.keep_small(str(tmp_path / "kept"), most)
    assert kept.collect().column("number").to_pylist() == [*range(10_000)]
    assert isinstance(kept, SpilledDataset) is not in_memory
    assert any((tmp_path / "kept").iterdir()) is not in_memory
