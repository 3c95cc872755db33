"""`maintain` compacts an output without changing rows, and keeps the working files of a running job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.maintain import main
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.storage.output_folder import output_lock
from tests.support.outcome_folder import sample_with_group, write_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROWN = ("completions",)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Output of a finished replay, with a table of many small files, and working files."""
    folder = tmp_path / "out"
    write_folder(folder, sample_with_group())
    # `maintain` treats these like the other tables.
    for name in ("expirations", "cancellations", "watches", "purgatory_gauges", "group_transitions"):
        shutil.rmtree(folder / name)
    for name in GROWN:
        rows = DeltaTable(str(folder / name)).to_pyarrow_table()
        for at in range(0, rows.num_rows, -(-rows.num_rows // 12)):
            some = rows.slice(at, -(-rows.num_rows // 12))
            write_deltalake(str(folder / name), some, mode="append" if at else "overwrite")
    for file in (
        "_replay/events/part-0.parquet",
        "_replay/groups/part-0.parquet",
        "_replay/checkpoints/partitions/metadata",
    ):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).touch()
    return folder


def everything(out: Path) -> dict[str, list[str]]:
    tables = sorted(log.parent.name for log in out.glob("*/_delta_log"))
    return {name: sorted(map(str, DeltaTable(str(out / name)).to_pyarrow_table().to_pylist())) for name in tables}


def files(out: Path, table: str) -> int:
    return len(DeltaTable(str(out / table)).file_uris())


def maintained(out: Path) -> int:
    """Run `maintain` without Spark, as the command does for local folders."""
    return main.status(["--out", str(out)], open_local)


def test_maintain_keeps_rows_and_deletes_unused_files(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`maintain` runs three times: during a replay, after it, and again on compacted tables."""
    before = everything(out)
    assert {files(out, name) for name in GROWN} == {12}
    with output_lock(str(out), "replay"):
        assert maintained(out) == 0
    assert "deleted" not in capsys.readouterr().out
    assert sorted(path.name for path in (out / "_replay").iterdir()) == ["checkpoints", "events", "groups"]
    assert everything(out) == before
    assert {files(out, name) for name in GROWN} == {1}

    assert maintained(out) == 0
    output = capsys.readouterr().out
    assert [path.name for path in (out / "_replay").iterdir()] == ["checkpoints"]
    assert [line for line in output.splitlines() if line.startswith("deleted")] == [
        f"deleted: {out}/_replay/{name}" for name in sorted(("events", "groups"))
    ]
    assert everything(out) == before

    for name in GROWN:  # The other tables suffice.
        shutil.rmtree(out / name)
    assert maintained(out) == 0
    assert "deleted" not in capsys.readouterr().out
    assert everything(out) == {name: rows for name, rows in before.items() if name not in GROWN}


def test_spark_maintains_the_same(spark: SparkSession, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One table suffices, because Spark takes the same steps for each."""
    for name in ("runs", "group_disagreements", "rejected_events"):
        shutil.rmtree(out / name, ignore_errors=True)
    before = everything(out)
    copy = Path(shutil.copytree(out, out.parent / "copy"))
    assert main.status(["--out", str(out)]) == 0
    by_spark = capsys.readouterr().out
    assert maintained(copy) == 0
    assert _without_sizes(capsys.readouterr().out) == _without_sizes(by_spark)
    assert "12" in by_spark
    assert everything(out) == everything(copy) == before
    assert [files(folder, name) for folder in (out, copy) for name in GROWN] == [1, 1]


def _without_sizes(output: str) -> list[list[str]]:
    """Return the rows without the last column, the size, which depends on the writer."""
    return [line.split()[:-1] for line in output.splitlines()]


def test_folder_without_tables_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert maintained(tmp_path) == 2
    assert (
        capsys.readouterr().err
        == f"maintain: {tmp_path}: has no table of a replay or an import; give the folder of one with --out\n"
    )
