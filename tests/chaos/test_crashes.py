"""The short form of `python -m tests.chaos.crashes`: an import that is killed while it makes its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jobs.ingest import main
from tests.chaos.crash_commands import commands
from tests.chaos.killing import Command, Victim, differences, killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.end_to_end


def _import_to_the_end(command: Command, out: Path) -> None:
    """The same command, in the session that is here already."""
    job, *arguments = command.words
    assert job == main.name
    assert main.status([*arguments, "--out", str(out)]) == 0


def test_an_import_that_is_killed_between_its_tables_is_made_whole_by_the_same_command(
    spark: SparkSession, tmp_path: Path
) -> None:
    command, whole, out = commands(tmp_path)["ingest"], tmp_path / "whole", tmp_path / "killed"
    _import_to_the_end(command, whole)
    # The first moment is when all lines are read, the second when the first of the tables is there.
    assert killed(command, out, 2, Victim.DRIVER)
    assert DeltaTable.is_deltatable(str(out / "rejected_events"))
    assert not DeltaTable.is_deltatable(str(out / "events"))
    _import_to_the_end(command, out)
    assert differences(command, whole, out) == []
    assert not (out / "_ingest").exists()
