"""Damaged tables in jobs without Spark: a job must not report on incomplete tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs import metrics, report
from purgatory_udf.backend.local_delta import LocalDelta
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.launch.job import Job
from tests.backend.test_replay import run_replay_job
from tests.support.outcome_folder import sample_with_group, write_folder


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with a group, replayed without Spark."""
    out = tmp_path_factory.mktemp("replayed")
    write_folder(out / "given", sample_with_group())
    assert run_replay_job(out / "given" / "events", out) == 0
    return out


def _remove_table(table: Path) -> None:
    shutil.rmtree(table)


def _remove_last_commit(table: Path) -> None:
    """Remove the last commit, which has half of the rows."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    write_deltalake(str(table), rows.slice(0, rows.num_rows // 2), mode="overwrite")
    write_deltalake(str(table), rows.slice(rows.num_rows // 2), mode="append")
    max((table / "_delta_log").glob("*.json")).unlink()


@pytest.mark.parametrize("job", [metrics.main, report.main], ids=["metrics", "report"])
@pytest.mark.parametrize("damage", [_remove_table, _remove_last_commit])
def test_missing_rows_of_finished_run_are_reported(
    job: Job, damage: Callable[[Path], None], replayed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(replayed, out)
    table = out / "expirations"
    rows = DeltaTable(str(table)).to_pyarrow_table().num_rows
    damage(table)
    left = DeltaTable(str(table)).to_pyarrow_table().num_rows if table.exists() else 0
    assert job.status(["--out", str(out)], open_local) == 2
    assert capsys.readouterr().err == (
        f"{job.name}: {table}: {rows - left:,} of {rows:,} rows are missing; restore the table, or rerun the replay "
        "with --overwrite\n"
    )
    assert not (out / "report.html").exists()


def test_empty_commit_needs_spark(replayed: Path, tmp_path: Path) -> None:
    table = tmp_path / "completions"
    shutil.copytree(replayed / "completions", table)
    rows = DeltaTable(str(table)).to_pyarrow_table()
    write_deltalake(str(table), rows, mode="append")
    commit = max((table / "_delta_log").glob("*.json"))
    commit.write_bytes(b"")
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == rows.num_rows > 0
    with pytest.raises(NeedsSparkError, match=f"OSError: {commit}: is empty"):
        LocalDelta().table_at(str(table))


def test_damaged_table_keeps_its_files(replayed: Path, tmp_path: Path) -> None:
    """The run is unfinished, and a table lacks its first log entry."""
    out = tmp_path / "out"
    shutil.copytree(replayed, out)
    max((out / "runs" / "_delta_log").glob("*.json")).unlink()
    watches = DeltaTable(str(out / "watches"))
    write_deltalake(watches, watches.to_pyarrow_table(), mode="append")
    (out / "watches" / "_delta_log" / "00000000000000000000.json").unlink()
    before = sorted((out / "watches").rglob("*"))
    with pytest.raises(NeedsSparkError):
        run_replay_job(replayed / "given" / "events", out)
    assert [path for path in before if not path.exists()] == []
