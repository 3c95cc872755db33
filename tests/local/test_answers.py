"""Every answer without Spark is Spark's: what it prints, its page, its tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs import audit, explain, fidelity, metrics, report
from purgatory_udf.cli import Job
from purgatory_udf.query import locally
from tests.answers.conftest import story_folder as story_folder
from tests.answers.test_hostile_names import folder as folder
from tests.requestlog.conftest import piece as piece
from tests.requestlog.conftest import replayed as replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.requestlog.conftest import Replayed

QUESTIONS: dict[str, tuple[Job, list[str]]] = {
    "metrics": (metrics.main, ["--by", "broker,topic,partition,client,group", "--window-ms", "500"]),
    "metrics for a collector": (metrics.main, ["--prometheus", "OUT/metrics.prom"]),
    "audit": (audit.main, []),
    "report": (report.main, ["--top", "20"]),
    "a request": (explain.main, ["--request-id", "checkout-web-672"]),
    "an operation": (explain.main, ["--operation", "885"]),
    "a group": (explain.main, ["--group", "g"]),
}


class Answer:
    def __init__(self, out: Path, job: Job, arguments: list[str], said: pytest.CaptureFixture[str]) -> None:
        words = [word.replace("OUT", str(out)) for word in arguments]
        assert job.status(["--out", str(out), *words]) == 0
        self.said = said.readouterr().out
        self.files = {file.name: file.read_text() for file in [*out.glob("*.html"), *out.glob("*.prom")]}
        self.tables = dict(_made(out))


def _made(out: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Tables of answers. Only that of fidelity has no order."""
    for log in sorted(out.rglob("_delta_log")):
        name = log.parent.relative_to(out).as_posix()
        rows = DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()
        yield name, sorted(rows, key=repr) if name == "fidelity" else rows


def asked_twice(out: Path, place: Path, job: Job, words: list[str], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Each time of the same tables, in the same place."""
    answers = []
    for how in (nullcontext(), locally()):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(out, place, ignore=shutil.ignore_patterns("metrics", "_report", "fidelity", "*.html", "*.prom"))
        capsys.readouterr()
        with how:
            answers.append(Answer(place, job, words, capsys))
    theirs, ours = answers
    assert ours.said == theirs.said and ours.said
    assert ours.files == theirs.files
    assert ours.tables == theirs.tables
    return ours


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_to_a_trace_is_answered_alike(
    spark: SparkSession, story_folder: Path, tmp_path: Path, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job, words = QUESTIONS[question]
    asked_twice(story_folder, tmp_path / "out", job, words, capsys)


def test_names_stay_names(
    spark: SparkSession, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in (metrics.main, report.main):
        asked_twice(folder, tmp_path / 'it\'s 100% "ours"; --', job, [], capsys)


def test_a_recording_is_held_against_its_replay_alike(
    replayed: Replayed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked_twice(replayed.out, tmp_path / "out", fidelity.main, [], capsys)
    assert len(answer.tables["fidelity"]) > 1_000 and "fidelity.html" in answer.files


def test_a_recordings_report_is_the_same(
    replayed: Replayed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_twice(replayed.out, tmp_path / "out", report.main, [], capsys)
