"""Answers without Spark equal those with Spark: printed text and tables.

`test_sql_on_both_engines` compares every query; here two jobs print and write what they return.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs import explain, metrics
from purgatory_udf.answers.replay_summary import as_json
from purgatory_udf.backend.backend import LocalBackend, SparkBackend
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch.job import Job
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from tests.answers.test_hostile_names import EVIL
from tests.answers.test_hostile_names import folder as folder
from tests.support.run_twice import answer_twice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY = ["--by", "broker,topic,partition,client,group", "--window-ms", "500"]
QUESTIONS: dict[str, tuple[Job, list[str]]] = {
    "metrics": (metrics.main, BY),
    "a request": (explain.main, ["--request-id", f"{EVIL}checkout-web-672"]),
}


@pytest.mark.nightly
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_equal_those_of_spark(
    spark: SparkSession, folder: Path, tmp_path: Path, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job, words = QUESTIONS[question]
    answer_twice(folder, tmp_path / 'it\'s 100% "ours"; --', job, words, capsys)


@pytest.mark.spark
def test_session_reads_local_summary_by_duckdb(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If DuckDB cannot read the tables, Spark does."""
    run = run_records.load(LocalBackend(), Layout(str(folder)).table("runs"), "replay")
    assert run is not None
    expected = as_json(LocalBackend(), str(folder), run)
    assert expected["causes"]
    with monkeypatch.context() as patch:
        patch.setattr(SparkBackend, "database", None)
        assert as_json(spark, str(folder), run) == expected

    def refuse(*_: object) -> None:
        raise NeedsSparkError("refused")

    monkeypatch.setattr(LocalBackend, "database", refuse)
    assert as_json(spark, str(folder), run) == expected
