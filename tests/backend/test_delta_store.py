"""Delta tables behave the same whether Spark or deltalake reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from purgatory_udf.backend.delta_store import (
    Commit,
    Condition,
    DeltaStore,
    FallbackDelta,
    SparkDelta,
    Transaction,
)
from purgatory_udf.backend.local_delta import LocalDelta, append_files
from purgatory_udf.common.errors import NeedsSparkError

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
QUOTED = 'it\'s "a" `b` \\ %'


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, 1, UTC)


def rows(*ids: int) -> pa.Table:
    names = [None if each % 3 == 0 else QUOTED if each % 3 == 1 else "plain" for each in ids]
    return pa.table({"id": [*ids], "name": names, "at": [at(each) for each in ids]}, SCHEMA)


def batches(*ids: int) -> Callable[[], Iterator[pa.RecordBatch]]:
    return lambda: iter(rows(*ids).to_batches(2))


@pytest.fixture(params=[pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.nightly]), "local"])
def store(request: pytest.FixtureRequest) -> DeltaStore:
    return LocalDelta() if request.param == "local" else SparkDelta(request.getfixturevalue("spark"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A folder with characters in its name that need quoting."""
    return str(tmp_path / "a `b' c")


def ids(store: DeltaStore, path: str, *where: Condition) -> list[int]:
    assert store.count(path, where) == store.read(path, where=where).num_rows
    return sorted(store.read(path, ["id"], where)["id"].to_pylist())


def test_created_table_is_empty(store: DeltaStore, path: str) -> None:
    assert not store.is_table(path)
    store.create(path, SCHEMA)
    store.create(path, SCHEMA)
    assert store.is_table(path)
    assert store.columns(path) == store.read(path).schema.names == SCHEMA.names
    assert ids(store, path) == []
    assert store.identity(path)[1:] == (0, 0)


def test_creation_replaces_interrupted_write(store: DeltaStore, path: str) -> None:
    """A killed first write leaves files without a log."""
    (Path(path) / "_delta_log").mkdir(parents=True)
    (Path(path) / "part-0.parquet").write_bytes(b"half")
    assert not store.is_table(path)
    staged = Path(path, "_delta_log", f"{0:020}.json#1")
    staged.touch()
    assert not store.is_table(path)
    staged.unlink()
    store.create(path, SCHEMA)
    assert ids(store, path) == []


def test_read_keeps_conditions(store: DeltaStore, path: str) -> None:
    store.append(path, rows(0, 1, 2, 3, 4, 5))
    assert ids(store, path) == [0, 1, 2, 3, 4, 5]
    assert ids(store, path, Condition("id", "<", 2)) == [0, 1]
    assert ids(store, path, Condition("name", "=", QUOTED)) == [1, 4]
    assert ids(store, path, Condition("at", ">", at(3)), Condition("id", "<", 5)) == [4]
    assert store.read(path, ["at"], [Condition("id", "=", 3)])["at"].to_pylist() == [at(3)]


def test_transaction_is_taken_once(store: DeltaStore, path: str) -> None:
    for version, added in ((0, 1), (0, 1), (1, 2), (0, 1)):
        store.append(path, rows(added), Transaction("query", version))
    store.append(path, rows(1), Transaction("other", 0))
    assert ids(store, path) == [1, 1, 2]


@pytest.mark.parametrize("parts", [[rows(1)], [rows(1), rows(2)]])
def test_files_are_appended_once(parts: list[pa.Table], tmp_path: Path) -> None:
    path, called = tmp_path / "table", list[None]()
    write_deltalake(str(path), rows(0))
    for _ in range(2):
        append_files(parts, str(path), ["id"], {}, SCHEMA, Transaction("query", 0), lambda: called.append(None))
    stored = LocalDelta().read(str(path))
    assert sorted(stored["id"].to_pylist()) == list(range(1 + len(parts)))
    # What is written before the table's transactions are known is removed again.
    assert len(list(path.glob("*.parquet"))) == 1 + len(parts)
    assert len(called) == 2


def test_file_is_removed_if_its_table_cannot_be_prepared(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(str(path), rows(0))

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        append_files([rows(1)], str(path), ["id"], {}, SCHEMA, Transaction("query", 0), fail)
    assert len(list(path.glob("*.parquet"))) == 1


def test_appended_batches_are_taken_once(store: DeltaStore, path: str) -> None:
    for version, added in ((0, 1), (0, 1), (1, 2), (0, 1)):
        store.append_batches(path, SCHEMA, batches(added, 4), Transaction("query", version))
    assert ids(store, path) == [1, 2, 4, 4]
    store.append_batches(path, SCHEMA, batches())
    assert ids(store, path) == [1, 2, 4, 4]


def test_overwrite_replaces_matching_rows(store: DeltaStore, path: str) -> None:
    store.overwrite(path, rows(1, 2, 4))
    store.overwrite(path, rows(7), [Condition("name", "=", QUOTED)])
    assert ids(store, path) == [2, 7]
    store.overwrite(path, rows(9))
    assert ids(store, path) == [9]
    wider = rows(8).append_column("more", pa.array([1], pa.int32()))
    store.overwrite(path, wider, replace_schema=True)
    assert store.read(path).column_names == wider.column_names


def test_delete_keeps_null_rows(store: DeltaStore, path: str) -> None:
    store.append(path, rows(0, 1, 2, 3))
    store.append(path, pa.table({"id": [4], "name": ["x"], "at": [None]}, SCHEMA))
    store.delete(path, [Condition("name", "=", QUOTED)])
    assert ids(store, path) == [0, 2, 3, 4]
    store.delete(path, [Condition("at", "<", at(3))])
    assert ids(store, path) == [3, 4]


def test_history_is_oldest_first(store: DeltaStore, path: str) -> None:
    store.create(path, SCHEMA)
    store.append(path, rows(1))
    store.overwrite(path, rows(2))
    created, *written = store.history(path)
    assert (created.version, created.mode in ("Append", "Overwrite")) == (0, False)
    assert written == [Commit(1, "WRITE", "Append", None), Commit(2, "WRITE", "Overwrite", None)]


def test_compaction_merges_files(store: DeltaStore, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    for each in range(4):
        store.append(path, rows(each))
    before = store.size(path)
    assert before.files == 4 and before.bytes == sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    store.compact(path, 1 << 20, 1 << 23)
    assert store.size(path).files == 1
    assert ids(store, path) == [0, 1, 2, 3]
    store.vacuum(path, 1)
    assert len(list(Path(path).glob("*.parquet"))) == 5


def test_column_comments_are_stored(store: DeltaStore, path: str, spark: SparkSession) -> None:
    commented = pa.schema([field.with_metadata({"comment": f"The {field.name}."}) for field in SCHEMA])
    store.append(path, rows(1).cast(commented))
    stored = spark.read.format("delta").load(path).schema
    assert [field.metadata for field in stored] == [{"comment": f"The {name}."} for name in SCHEMA.names]


def test_refused_table_is_left_to_spark(spark: SparkSession, path: str) -> None:
    """Deltalake refuses a table with an empty commit file; Spark reads it."""
    write_deltalake(path, rows(1))
    (Path(path) / "_delta_log" / f"{1:020}.json").touch()
    with pytest.raises(NeedsSparkError):
        LocalDelta().read(path)
    store = FallbackDelta(LocalDelta(), SparkDelta(spark))
    assert ids(store, path) == [1]
    store.append_batches(path, SCHEMA, batches(2, 3))
    assert ids(store, path) == [1, 2, 3]
