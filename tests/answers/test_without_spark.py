"""Answers without Spark equal those with Spark: printed text and tables.

`test_sql_on_both_engines` compares every query; here two jobs print and write what they return.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs import explain, metrics
from purgatory_udf.launch.job import Job
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
