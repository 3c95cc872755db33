"""Every answer without Spark is Spark's: what it prints, its page, its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs import audit, explain, metrics, report
from purgatory_udf.cli import Job
from tests.answers.test_hostile_names import folder as folder
from tests.twice import asked_twice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTIONS: dict[str, tuple[Job, list[str]]] = {
    "metrics": (metrics.main, ["--by", "broker,topic,partition,client,group", "--window-ms", "500"]),
    "metrics for a collector": (metrics.main, ["--prometheus", "OUT/metrics.prom"]),
    "audit": (audit.main, []),
    "report": (report.main, ["--top", "20"]),
    "a request": (explain.main, ["--request-id", "checkout-web-672"]),
    "an operation": (explain.main, ["--operation", "885"]),
    "a group": (explain.main, ["--group", "g"]),
}


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
