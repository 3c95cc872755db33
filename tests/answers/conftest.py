"""One replayed folder for all questions, and its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.outcome_folder import story, write_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.metrics.run import Metrics


@pytest.fixture(scope="session")
def story_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a replay of the sample, with a group beside it, leaves behind."""
    out = tmp_path_factory.mktemp("story") / "out"
    write_folder(out, story())
    return out


@pytest.fixture(scope="session")
def metrics(spark: SparkSession, story_folder: Path) -> Metrics:
    """The metrics of the story, written beside its tables."""
    from purgatory_udf.metrics.options import MetricsOptions
    from purgatory_udf.metrics.run import write_metrics

    by = ("broker", "topic", "partition", "client", "group")
    return write_metrics(spark, str(story_folder), MetricsOptions(by=by, top=3))
