"""The state in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from purgatory_udf.streaming.checkpoints import inspect
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.streaming.growing_table import CONFIG, append_events, growing_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.nightly
def test_name_of_inspected_folder_may_need_encoding(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "a b é"
    run_replay(spark, ReplayOptions(append_events(spark, out, growing_trace()), str(out), CONFIG))
    inspected = inspect(spark, str(out), 2)
    assert len(inspected.rows) == 2
    assert inspected.keys > 2
    assert inspected.bytes > 0
