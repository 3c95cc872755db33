"""One replayed folder for all questions, and its metrics.

Most are asked without Spark, which is quicker: `test_without_spark` holds every answer to Spark's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from purgatory_udf.backend.backend import LocalBackend
from tests.support.outcome_folder import sample_with_group, write_folder

if TYPE_CHECKING:
    from purgatory_udf.answers.metrics.metrics_run import Metrics


@pytest.fixture(scope="session")
def story_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a replay of the sample, with a group beside it, leaves behind."""
    out = tmp_path_factory.mktemp("story") / "out"
    write_folder(out, sample_with_group())
    return out


@pytest.fixture(scope="session")
def metrics(story_folder: Path) -> Metrics:
    """The metrics of the story, written beside its tables."""
    from purgatory_udf.answers.metrics.metrics_run import MetricsOptions, write_metrics

    by = ("broker", "topic", "partition", "client", "group")
    return write_metrics(LocalBackend(), str(story_folder), MetricsOptions(by=by, top=3))
