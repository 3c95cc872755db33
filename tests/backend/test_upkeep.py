"""What keeps a table small takes nothing that anybody may still need."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from purgatory_udf.backend.local.compaction import LocalUpkeep
from purgatory_udf.backend.local.session import LocalSession
from purgatory_udf.common.errors import NeedsSparkError

HOUR_S = 3600


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Six files of two rows, all of them old."""
    path = tmp_path / "table"
    for number in range(6):
        write_deltalake(str(path), pa.table({"number": [number, number]}), mode="append")
    for file in path.glob("*.parquet"):
        aged(file, 5)
    return path


def aged(file: Path, hours: float) -> Path:
    then = time.time() - hours * HOUR_S
    os.utime(file, (then, then))
    return file


def write(file: Path) -> Path:
    file.write_bytes(b"left")
    return file


def upkeep(table: Path, large_enough: int = 1 << 20) -> LocalUpkeep:
    return LocalUpkeep(LocalSession(), str(table), large_enough)


def in_use(table: Path) -> set[str]:
    return {Path(file).name for file in DeltaTable(str(table)).file_uris()}


def on_disk(table: Path) -> set[str]:
    return {file.name for file in table.iterdir() if file.is_file()}


def test_files_become_one_and_what_they_were_before_is_kept_for_its_time(table: Path) -> None:
    before = in_use(table)
    upkeep(table).compact()
    assert upkeep(table).size() == (1, sum((table / name).stat().st_size for name in in_use(table)))
    # However old the files are, somebody may have begun to read them a moment ago.
    upkeep(table).vacuum(1)
    assert on_disk(table) == before | in_use(table)
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["number"].to_pylist()) == sorted([*range(6)] * 2)


def test_files_that_are_large_enough_are_left_as_they_are(table: Path) -> None:
    before = in_use(table)
    upkeep(table, large_enough=100).compact()
    assert in_use(table) == before


def test_what_a_kill_has_left_goes_when_nobody_can_be_about_to_commit_it(table: Path) -> None:
    left, beside = table / "part-left.parquet", table / ".part-left.parquet.crc"
    for file in (left, beside):
        aged(write(file), 2)
    write(table / "part-to-be-committed.parquet")
    version = DeltaTable(str(table)).version()
    upkeep(table).vacuum(3)
    assert left.exists()
    upkeep(table).vacuum(1)
    assert on_disk(table) == in_use(table) | {"part-to-be-committed.parquet"}
    assert DeltaTable(str(table)).version() == version


def test_no_file_elsewhere_is_deleted_whatever_the_log_says(table: Path) -> None:
    elsewhere, within = table.parent / "mine.parquet", table / "gone.parquet"
    for file in (elsewhere, within):
        aged(write(file), 5)
    for path in ("../mine.parquet", str(elsewhere), elsewhere.as_uri(), within.name):
        named = {"path": path, "partitionValues": {}, "size": 4, "dataChange": True}
        for action in (
            {"add": named | {"modificationTime": 1}},
            {"remove": named | {"deletionTimestamp": 1, "extendedFileMetadata": True}},
        ):
            version = DeltaTable(str(table)).version() + 1
            (table / "_delta_log" / f"{version:020}.json").write_text(json.dumps(action) + "\n")
    upkeep(table).vacuum(1)
    assert (elsewhere.exists(), within.exists()) == (True, False)


def test_others_that_change_the_table_meanwhile_are_waited_for_and_at_last_left_alone(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table that was read before their commit is of no use; it is read again."""
    changes = 1
    stale: list[DeltaTable] = []
    usual = LocalSession.table_at

    def table_at(session: LocalSession, path: str) -> DeltaTable:
        read = usual(session, path)
        assert read is not None and len(read.file_uris()) > 1
        if len(stale) < changes:
            stale.append(read)
            write_deltalake(path, pa.table({"number": [7, 7]}), mode="overwrite")
            write_deltalake(path, pa.table({"number": [8, 8]}), mode="append")
        return read

    monkeypatch.setattr(LocalSession, "table_at", table_at)
    upkeep(table).compact()
    assert len(in_use(table)) == 1
    write_deltalake(str(table), pa.table({"number": [9, 9]}), mode="append")
    changes = 100
    upkeep(table).compact()
    assert (len(in_use(table)), len(stale)) == (2, 4)
    with pytest.raises(CommitFailedError):
        stale[-1].optimize.compact()


def test_a_table_that_cannot_be_read_here_is_sparks(table: Path) -> None:
    (table / "_delta_log" / f"{9:020}.json").touch()
    with pytest.raises(NeedsSparkError):
        upkeep(table).vacuum(1)
