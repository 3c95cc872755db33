"""A replayed folder for the tests of answers, and its metrics.

Most tests run without Spark, which is faster; `test_without_spark` compares the answers with those of Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from purgatory_udf.backend.backend import LocalBackend
from tests.support.outcome_folder import sample_with_group, write_folder

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis
    from purgatory_udf.answers.metrics import Metrics


@pytest.fixture(scope="session")
def story_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a replay of the sample with an added group."""
    out = tmp_path_factory.mktemp("story") / "out"
    write_folder(out, sample_with_group())
    return out


@pytest.fixture(scope="session")
def metrics(story_folder: Path) -> Metrics:
    """The metrics of `story_folder`, written next to its tables."""
    from purgatory_udf.answers.metrics import MetricsOptions, write_metrics

    by = ("broker", "topic", "partition", "client", "group")
    return write_metrics(LocalBackend(), str(story_folder), MetricsOptions(by=by, top=3))


@pytest.fixture(scope="session")
def diagnosis(story_folder: Path) -> Diagnosis:
    """The diagnosis of `story_folder`, with the tables `blame` and `findings` next to the others."""
    from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose

    return diagnose(LocalBackend(), str(story_folder))
