"""`--json`: the answers of jobs for scripts."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs import audit, explain, metrics, replay
from purgatory_udf.answers.metrics import Metrics
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.launch.job import CHECK_FAILED, USER_ERROR, Job
from tests.docs import pages
from tests.support.outcome_folder import sample_with_group, write_folder

JOBS = [(audit.main, []), (metrics.main, []), (explain.main, ["--operation", "885"])]


@pytest.fixture(scope="module")
def folder(story_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the story's folder: `metrics` replaces tables that other tests read."""
    return Path(shutil.copytree(story_folder, tmp_path_factory.mktemp("copy") / "out"))


def _printed(job: Job, words: list[str], capsys: pytest.CaptureFixture[str], status: int = 0) -> dict[str, Any]:
    """Run the job with `--json -`, and return what it printed, which must be one JSON object."""
    capsys.readouterr()
    assert job.status([*words, "--json", "-"], open_local) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(("job", "words"), JOBS)
def test_file_has_what_is_printed(
    job: Job, words: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", str(folder), *words]
    printed = _printed(job, words, capsys)
    file = tmp_path / "new folder" / "answer.json"
    assert job.status([*words, "--json", str(file)], open_local) == 0
    assert capsys.readouterr().out.count("\n") > 5, "the text is printed too"
    assert json.loads(file.read_text(encoding="utf-8")) == printed


@pytest.mark.parametrize(("job", "words"), JOBS)
def test_folder_is_refused(
    job: Job, words: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.check(["--out", str(folder), *words, "--json", str(tmp_path)]) == USER_ERROR
    assert capsys.readouterr().err == f"{job.name}: {tmp_path}: is a folder; --json names a file\n"


def test_metrics_have_rows_of_their_queries(metrics: Metrics, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = _printed(JOBS[1][0], ["--out", str(folder), "--top", "3"], capsys)
    kinds = metrics.rows("metrics_command/kinds")
    assert told["kinds"] == kinds
    assert told["operations"] == sum(row["operations"] for row in kinds)
    assert told["expired"] >= told["failed"] > 0 and told["finished"]
    fullest = [datetime.fromisoformat(row["fullest_at"]) for row in told["purgatories"]]
    assert fullest == [row["fullest_at"] for row in metrics.rows("metrics_command/purgatories", top=3)]
    assert told["waits"].keys() == {"topic", "client", "group"}
    assert [row["value"] for row in told["waits"]["topic"]] == [
        row["value"] for row in metrics.rows("metrics_command/waits", by="topic", top=3)
    ]


def test_replay_prints_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(pages.ROOT / "docs" / "traces" / "fetch.jsonl")
    told = _printed(replay.main, ["--trace", trace, "--out", str(tmp_path)], capsys)
    assert told["counts"]["operations"] == sum(row["operations"] for row in told["causes"]) > 0
    assert told["counts"]["open"] == 0
    assert ("b-2", 200, True) in [(row["request_id"], row["wait_ms"], row["expired"]) for row in told["slowest"]]
    assert (told["out"], told["settings"]) == (str(tmp_path), [])


def test_violations_keep_their_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    write_folder(out, sample_with_group()[:200])
    _repeat_fetch(out / "completions")
    told = _printed(audit.main, ["--out", str(out)], capsys, CHECK_FAILED)
    violated = {row["invariant"]: row["examples"] for row in told["invariants"] if row["violations"]}
    assert told["violated"] == len(violated) > 0
    assert violated["each operation of the trace ended at most once"]


def _repeat_fetch(table: Path) -> None:
    fetches = DeltaTable(str(table)).to_pyarrow_table(filters=[("kind", "=", "fetch")])
    write_deltalake(str(table), fetches.slice(0, 1), mode="append")
