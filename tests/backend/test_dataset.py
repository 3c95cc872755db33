"""Datasets of this process and of Spark have the same rows after every operation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from purgatory_udf.backend import dataset, process_pool, spark_dataset
from purgatory_udf.backend.backend import Backend, LocalBackend, SparkBackend
from purgatory_udf.backend.dataset import Dataset, Step
from purgatory_udf.backend.spark_dataset import OrderedDataset, SparkDataset, Unpack

SCHEMA = pa.schema([("key", pa.string()), ("place", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
ROWS = pa.table(
    {
        "key": ["b", None, "a", "b", "a", "c", None],
        "place": [5, 1, None, 3, 2, 4, 0],
        "at": [1, 2, None, 4, 5, 6, 7],
    },
    pa.schema([("key", pa.string()), ("place", pa.int64()), ("at", pa.int64())]),
).cast(SCHEMA)
OTHERS = pa.table({"key": ["a", "d"], "more": [1, 2]}, pa.schema([("key", pa.string()), ("more", pa.int32())]))
COUNTED = pa.schema([("key", pa.string()), ("rows", pa.int64())])


@pytest.fixture
def backends(spark: SparkSession) -> list[Backend]:
    return [LocalBackend(), SparkBackend(spark)]


def _firsts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return every key with the place of its first row and the number of its rows."""
    found: dict[str | None, list[int | None]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            found.setdefault(row["key"], []).append(row["place"])
    rows = [{"key": key, "first": places[0], "rows": len(places)} for key, places in found.items()]
    yield pa.RecordBatch.from_pylist(rows, FIRSTS)


def _running_sum(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    total = 0
    for batch in batches:
        rows = []
        for place in batch.column("place").to_pylist():
            total += place
            rows.append({"place": place, "total": total})
        yield pa.RecordBatch.from_pylist(rows, SUMS)


def _doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        places = batch.column("place")
        yield pa.RecordBatch.from_arrays([places, pc.add(places, places)], schema=SUMS)


FIRSTS = pa.schema([("key", pa.string()), ("first", pa.int64()), ("rows", pa.int64())])
SUMS = pa.schema([("place", pa.int64()), ("total", pa.int64())])

OPERATIONS: dict[str, Callable[[Dataset, Dataset], Dataset]] = {
    "select": lambda rows, _: rows.select("place", "key"),
    "rename": lambda rows, _: rows.rename("key", "name"),
    "where_in": lambda rows, _: rows.where_in("key", ["a", "c"]),
    "where_null": lambda rows, _: rows.where_null("key"),
    "where_not_null": lambda rows, _: rows.where_null("place", null=False),
    "where_below": lambda rows, _: rows.where_below("place", 3),
    "where_not_below": lambda rows, _: rows.where_below("place", 3, below=False),
    "union": lambda rows, others: rows.union(others),
    "union_before_step": lambda rows, others: rows.union(others).map_groups(["key"], ["place"], _firsts, FIRSTS),
    "map_groups": lambda rows, _: rows.map_groups(["key"], ["place"], _firsts, FIRSTS),
    "map_columns": lambda rows, _: rows.where_null("place", null=False).map_columns(_doubled, SUMS),
    "sql": lambda rows, _: rows.sql("SELECT key, count(*) AS rows FROM {rows} GROUP BY key", COUNTED),
    "sql_join": lambda rows, others: rows.sql(
        "SELECT r.key, count(*) AS rows FROM {rows} r JOIN {others} o ON r.key = o.key GROUP BY r.key",
        COUNTED,
        others=others,
    ),
}


def _sorted(rows: pa.Table) -> list[dict[str, object]]:
    return sorted(rows.to_pylist(), key=repr)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_agree(operation: str, backends: list[Backend]) -> None:
    made = [OPERATIONS[operation](each.dataset_of(ROWS), each.dataset_of(OTHERS)) for each in backends]
    local, remote = (each.collect() for each in made)
    assert local.num_rows
    assert local.schema == remote.schema == made[0].schema
    assert _sorted(local) == _sorted(remote)
    assert [each.count() for each in made] == [local.num_rows] * 2


@pytest.mark.parametrize("keys", [list("abcde"), ["a", None, "b", "c", "d"]])
@pytest.mark.parametrize("count", range(6))
def test_rows_with_any_of_several_values_are_chosen(keys: list[str | None], count: int) -> None:
    rows, wanted = LocalBackend().dataset_of(pa.table({"key": pa.array(keys, pa.string())})), "abcde"[:count]
    chosen = [rows.where_in("key", wanted, within).collect()["key"].to_pylist() for within in (True, False)]
    assert chosen == [[key for key in keys if ((key or "-") in wanted) is within] for within in (True, False)]


def test_groups_are_sorted_nulls_first() -> None:
    firsts = LocalBackend().dataset_of(ROWS).map_groups(["key"], ["place"], _firsts, FIRSTS).collect()
    assert firsts.to_pylist() == [
        {"key": None, "first": 0, "rows": 2},
        {"key": "a", "first": None, "rows": 2},
        {"key": "b", "first": 3, "rows": 2},
        {"key": "c", "first": 4, "rows": 1},
    ]


@pytest.mark.parametrize("places", [[], [5], [9, 0, 9], [3, 4, 2], [8, 1, 6, 0, 4, 9]])
def test_rows_at_places_are_those_of_take(places: list[int]) -> None:
    """Columns may be in different chunks, of which some are empty."""
    numbers = pa.chunked_array([[0, 1, 2], [3], [], [4, 5, 6, 7], [8, 9]], pa.int64())
    lists = pa.chunked_array([[[number] * number for number in range(10)]], pa.list_(pa.int64()))
    rows, wanted = pa.table({"number": numbers, "list": lists}), np.array(places, np.uint64)
    assert dataset.rows_at(rows, wanted).equals(rows.take(wanted))


@pytest.mark.parametrize(("most_alone", "processes"), [(1 << 20, 1), (0, 2)])
def test_large_steps_are_done_by_two_processes(
    most_alone: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No group is divided between them."""
    monkeypatch.setattr(dataset, "_MOST_ALONE_BYTES", most_alone)
    monkeypatch.setattr(dataset, "_LEAST_BYTES", 1)
    for module in (dataset, process_pool):
        monkeypatch.setattr(module, "cores", lambda: 2)
    forks, fork = 0, os.fork

    def count_and_fork() -> int:
        nonlocal forks
        forks += 1
        return fork()

    monkeypatch.setattr(os, "fork", count_and_fork)
    numbers = pa.table({"key": [str(number % 50) for number in range(1_000)], "place": range(1_000)})
    firsts = LocalBackend().dataset_of(numbers).map_groups(["key"], ["place"], _firsts, FIRSTS).collect()
    assert _sorted(firsts) == _sorted(
        pa.table({"key": map(str, range(50)), "first": range(50), "rows": [20] * 50}, FIRSTS)
    )
    assert 1 + forks == processes


def test_total_order_is_kept_across_tasks(backends: list[Backend]) -> None:
    """Each task sums its range of rows; the ranges are in the order of the task numbers."""
    numbers = pa.table({"place": [(7 * number) % 1000 for number in range(1000)]})
    for backend in backends:
        made = backend.dataset_of(numbers).map_in_order(["place"], _running_sum, SUMS, task="task").collect()
        rows = sorted(made.to_pylist(), key=lambda row: (row["task"], row["total"], row["place"]))
        assert [row["place"] for row in rows] == [*range(1000)]
        assert sum(row["place"] for row in rows) == 499_500


TASKS = pa.schema([("first", pa.int64()), ("places", pa.list_(pa.int64()))])


def _task_of(first: int) -> Step:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = [place for batch in batches for place in batch.column("place").to_pylist()]
        yield pa.record_batch([pa.array([first]), pa.array([places])], TASKS)

    return work


def test_tasks_of_total_order_know_rows_before(
    backends: list[Backend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Spark, ranges of about 300 rows; no interval of 100 values is divided."""
    monkeypatch.setattr(spark_dataset, "_RANGE_ROWS", 300)
    numbers = pa.table({"place": [(7 * number) % 1000 for number in range(1000)]})
    for number, backend in enumerate(backends):
        folder = str(tmp_path / str(number))
        made = backend.dataset_of(numbers).map_numbered(["place"], _task_of, TASKS, 100, folder).collect()
        tasks = sorted(made.to_pylist(), key=lambda task: int(task["first"]))
        assert [place for task in tasks for place in task["places"]] == [*range(1000)]
        assert [task["first"] for task in tasks] == [task["places"][0] for task in tasks]
        assert [task["first"] % 100 for task in tasks] == [0] * len(tasks)
    assert len(tasks) in (3, 4)


def test_no_rows_have_no_results(spark: SparkSession, tmp_path: Path) -> None:
    rows = SparkBackend(spark).dataset_of(ROWS.slice(0, 0)).keep(str(tmp_path / "kept"))
    results = [
        rows.map_groups(["key"], [], lambda batches: batches, SCHEMA),
        rows.map_in_order(["place"], lambda batches: batches, SCHEMA, "task"),
        rows.map_numbered(["place"], _task_of, TASKS, 1, str(tmp_path / "ordered")),
    ]
    assert [each.collect().num_rows for each in results] == [0, 0, 0]


def test_name_of_folder_is_no_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / r"[a] {b} c\d*")
    backend = SparkBackend(spark)
    backend.write_rows(backend.dataset_of(ROWS), folder)
    assert backend.read_rows(folder, SCHEMA).collect().num_rows == ROWS.num_rows
    assert backend.dataset_of(ROWS).keep(f"{folder}/kept").collect().num_rows == ROWS.num_rows


def test_chunks_are_read_with_needed_columns_only(spark: SparkSession, tmp_path: Path) -> None:
    kept = SparkBackend(spark).dataset_of(ROWS).keep(str(tmp_path))
    chosen = kept.where_in("key", ["a", "b"]).rename("place", "number").select("number", "at").union(kept.select("key"))
    assert isinstance(chosen, SparkDataset)
    steps = [branch.step for branch in chosen._branches]
    assert [step.columns for step in steps if isinstance(step, Unpack)] == [
        (("place", "number"), ("at", "at")),
        (("key", "key"),),
    ]
    assert sorted(chosen.collect().to_pylist(), key=repr)[:2] == [
        {"number": 2, "at": ROWS.column("at")[4].as_py(), "key": None},
        {"number": 3, "at": ROWS.column("at")[3].as_py(), "key": None},
    ]


def test_large_groups_and_many_buckets_stay_whole(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are distributed to buckets every few bytes, so each group is in many chunks."""
    monkeypatch.setattr(spark_dataset, "_DISTRIBUTED_BYTES", 1_000)
    keys = ["large"] * 2_000 + [f"{number % 100}" for number in range(1_000)]
    table = pa.table({"key": keys, "place": [*range(3_000)][::-1]})
    firsts = SparkBackend(spark).dataset_of(table).map_groups(["key"], ["place"], _firsts, FIRSTS).collect()
    expected = [{"key": "large", "first": 1_000, "rows": 2_000}]
    expected += [{"key": f"{number}", "first": 99 - number, "rows": 10} for number in range(100)]
    assert _sorted(firsts) == sorted(expected, key=repr)


def _ordered(backend: Backend, folder: Path, numbers: pa.Table) -> Dataset:
    """Return numbers in their order, kept; a task adds them up."""
    return backend.dataset_of(numbers).map_in_order(["place"], _running_sum, SUMS, "task").keep(str(folder))


ORDERED_OPERATIONS: dict[str, Callable[[Dataset], Dataset]] = {
    "unchanged": lambda rows: rows.select("place"),
    "rename": lambda rows: rows.rename("place", "at").select("at"),
    "where_in": lambda rows: rows.where_in("place", [7, 4_003]).select("place"),
    "where_null": lambda rows: rows.where_null("place").select("place"),
    "where_not_null": lambda rows: rows.where_null("place", null=False).select("place"),
    "where_below": lambda rows: rows.where_below("place", 3).select("place"),
    "map": lambda rows: rows.select("place").map(_doubled, SUMS).where_below("total", 9_000, below=False),
    "union": lambda rows: rows.select("place").union(rows.where_below("place", 10).select("place")),
    "sql": lambda rows: rows.sql("SELECT sum(place) AS place FROM {rows}", pa.schema([("place", pa.int64())])),
}


@pytest.mark.parametrize("operation", ORDERED_OPERATIONS)
def test_operations_on_ordered_rows_agree(operation: str, backends: list[Backend], tmp_path: Path) -> None:
    numbers = pa.table({"place": [(7 * number) % 5_000 for number in range(5_000)]})
    made = [
        ORDERED_OPERATIONS[operation](_ordered(each, tmp_path / str(number), numbers))
        for number, each in enumerate(backends)
    ]
    local, remote = (each.collect() for each in made)
    assert local.schema == remote.schema
    assert _sorted(local) == _sorted(remote)


def test_ordered_rows_are_partitioned_between_milliseconds(spark: SparkSession, tmp_path: Path) -> None:
    """Chunks of at least 2,000 rows hold 300 rows of each millisecond; three of them reach 5,000 rows."""
    numbers = pa.table({"place": [number * 1_000 // 300 for number in range(20_000)]})
    ordered = _ordered(SparkBackend(spark), tmp_path, numbers)
    assert isinstance(ordered, OrderedDataset)
    partitions = ordered.partition_by_count(5_000)
    rows = partitions.selectExpr("spark_partition_id() AS part", "place").toArrow().sort_by("place").to_pydict()
    assert rows["place"] == numbers["place"].to_pylist()
    assert rows["part"] == sorted(rows["part"])
    borders = [at for at in range(1, 20_000) if rows["part"][at] != rows["part"][at - 1]]
    assert [at % 300 for at in borders] == [0] * len(borders)
    sizes = [end - begin for begin, end in pairwise([0, *borders, 20_000])]
    assert len(sizes) in (3, 4)
    assert [5_000 <= size <= 7_500 for size in sizes[:-1]] == [True] * (len(sizes) - 1)


@pytest.mark.parametrize(
    ("firsts", "lasts", "partitions"),
    [
        ([0, 1_000, 2_000, 3_000], [900, 1_900, 2_900, 3_900], [0, 0, 1, 1]),
        # Two tasks share the millisecond from 1,000 on.
        ([0, 500, 1_800, 3_000], [400, 1_700, 2_900, 3_900], [0, 0, 0, 1]),
    ],
)
def test_partitions_end_with_millisecond(firsts: list[int], lasts: list[int], partitions: list[int]) -> None:
    assert spark_dataset.partitions_of_chunks([10, 10, 10, 10], firsts, lasts, rows=20) == partitions


def test_no_rows_have_no_partition() -> None:
    assert spark_dataset.partitions_of_chunks([], [], [], rows=20) == []


def test_kept_rows_are_computed_once(backends: list[Backend], tmp_path: Path) -> None:
    for number, backend in enumerate(backends):
        stored = backend.dataset_of(ROWS).keep(str(tmp_path / str(number)))
        assert _sorted(stored.collect()) == _sorted(ROWS)


def test_saved_tables_agree(backends: list[Backend], tmp_path: Path) -> None:
    commented = pa.schema([field.with_metadata({"comment": f"The {field.name}."}) for field in SCHEMA])
    for number, backend in enumerate(backends):
        path = str(tmp_path / str(number))
        for _ in range(2):
            backend.dataset_of(ROWS).save(path, commented)
        stored = backend.delta(path).read(path)
        assert stored.num_rows == 2 * ROWS.num_rows
        assert _sorted(stored.select(SCHEMA.names).cast(SCHEMA)) == _sorted(pa.concat_tables([ROWS, ROWS]))
