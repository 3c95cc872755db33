"""Compaction and vacuum of Delta tables delete no file that a reader or writer may need."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from purgatory_udf.backend.delta_store import Size
from purgatory_udf.backend.local_delta import LocalDelta
from purgatory_udf.common.errors import NeedsSparkError

HOUR_S = 3600


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of six files with two rows each, five hours old."""
    path = tmp_path / "table"
    for number in range(6):
        write_deltalake(str(path), pa.table({"number": [number, number]}), mode="append")
    for file in path.glob("*.parquet"):
        set_age(file, 5)
    return path


def set_age(file: Path, hours: float) -> Path:
    then = time.time() - hours * HOUR_S
    os.utime(file, (then, then))
    return file


def write(file: Path) -> Path:
    file.write_bytes(b"left")
    return file


def compact(table: Path, large_enough: int = 1 << 20) -> None:
    LocalDelta().compact(str(table), large_enough, largest=8 * large_enough)


def vacuum(table: Path, keep_hours: int) -> None:
    LocalDelta().vacuum(str(table), keep_hours)


def in_use(table: Path) -> set[str]:
    return {Path(file).name for file in DeltaTable(str(table)).file_uris()}


def on_disk(table: Path) -> set[str]:
    return {file.name for file in table.iterdir() if file.is_file()}


def test_compaction_keeps_replaced_files(table: Path) -> None:
    before = in_use(table)
    compact(table)
    assert LocalDelta().size(str(table)) == Size(1, sum((table / name).stat().st_size for name in in_use(table)))
    # The files are old, but a reader may have opened the previous version just now.
    vacuum(table, 1)
    assert on_disk(table) == before | in_use(table)
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["number"].to_pylist()) == sorted([*range(6)] * 2)


def test_compaction_leaves_large_files(table: Path) -> None:
    before = in_use(table)
    compact(table, large_enough=100)
    assert in_use(table) == before


def test_vacuum_deletes_old_uncommitted_files(table: Path) -> None:
    left, checksum = table / "part-left.parquet", table / ".part-left.parquet.crc"
    for file in (left, checksum):
        set_age(write(file), 2)
    write(table / "part-to-be-committed.parquet")
    version = DeltaTable(str(table)).version()
    vacuum(table, 3)
    assert left.exists()
    vacuum(table, 1)
    assert on_disk(table) == in_use(table) | {"part-to-be-committed.parquet"}
    assert DeltaTable(str(table)).version() == version


def test_vacuum_deletes_no_file_outside_table(table: Path) -> None:
    outside, within = table.parent / "mine.parquet", table / "gone.parquet"
    for file in (outside, within):
        set_age(write(file), 5)
    for path in ("../mine.parquet", str(outside), outside.as_uri(), within.name):
        named = {"path": path, "partitionValues": {}, "size": 4, "dataChange": True}
        for action in (
            {"add": named | {"modificationTime": 1}},
            {"remove": named | {"deletionTimestamp": 1, "extendedFileMetadata": True}},
        ):
            version = DeltaTable(str(table)).version() + 1
            (table / "_delta_log" / f"{version:020}.json").write_text(json.dumps(action) + "\n")
    vacuum(table, 1)
    assert (outside.exists(), within.exists()) == (True, False)


def test_compaction_retries_after_concurrent_commits(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a commit of another writer it reads the table again, and gives up after three conflicts."""
    changes = 1
    stale: list[DeltaTable] = []
    usual = LocalDelta.table_at

    def table_at(store: LocalDelta, path: str) -> DeltaTable:
        read = usual(store, path)
        assert read is not None and len(read.file_uris()) > 1
        if len(stale) < changes:
            stale.append(read)
            write_deltalake(path, pa.table({"number": [7, 7]}), mode="overwrite")
            write_deltalake(path, pa.table({"number": [8, 8]}), mode="append")
        return read

    monkeypatch.setattr(LocalDelta, "table_at", table_at)
    compact(table)
    assert len(in_use(table)) == 1
    write_deltalake(str(table), pa.table({"number": [9, 9]}), mode="append")
    changes = 100
    compact(table)
    assert (len(in_use(table)), len(stale)) == (2, 4)
    with pytest.raises(CommitFailedError):
        stale[-1].optimize.compact()


def test_unreadable_table_needs_spark(table: Path) -> None:
    (table / "_delta_log" / f"{9:020}.json").touch()
    with pytest.raises(NeedsSparkError):
        vacuum(table, 1)
