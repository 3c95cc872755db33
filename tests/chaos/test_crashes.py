"""A short form of `python -m tests.chaos.crashes`: an import is killed while it writes its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jobs.ingest import main
from tests.chaos.crash_commands import commands
from tests.chaos.killed_commands import Command, Victim, differences, kill_at_moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


def _run_import(command: Command, out: Path) -> None:
    """Run the command in the Spark session of this process."""
    job, *arguments = command.words
    assert job == main.name
    assert main.status([*arguments, "--out", str(out)]) == 0


@pytest.mark.nightly
def test_killed_import_is_completed_by_same_command(spark: SparkSession, tmp_path: Path) -> None:
    command, whole, out = commands(tmp_path)["ingest"], tmp_path / "whole", tmp_path / "killed"
    _run_import(command, whole)
    # The first moment is after reading all lines, the second after writing the first table.
    assert kill_at_moment(command, out, 2, Victim.DRIVER)
    assert DeltaTable.is_deltatable(str(out / "rejected_events"))
    assert not DeltaTable.is_deltatable(str(out / "events"))
    _run_import(command, out)
    assert differences(command, whole, out) == []
    assert not (out / "_ingest").exists()
