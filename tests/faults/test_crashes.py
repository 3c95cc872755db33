"""The short form of `python -m benchmarks.crashes`: an import that is killed while it makes its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from benchmarks.killing import Victim, commands, differences, killed, run_to_end

pytestmark = [pytest.mark.end_to_end, pytest.mark.spark]


def test_an_import_that_is_killed_between_its_tables_is_made_whole_by_the_same_command(tmp_path: Path) -> None:
    command, out = commands(tmp_path)["ingest"], tmp_path / "killed"
    whole = run_to_end(command, tmp_path / "whole")
    # The first moment is when all lines are read, the second when the first of the tables is there.
    assert killed(command, out, 2, Victim.DRIVER)
    assert DeltaTable.is_deltatable(str(out / "rejected_events"))
    assert not DeltaTable.is_deltatable(str(out / "events"))
    run_to_end(command, out)
    assert differences(command, whole.out, out) == []
    assert not (out / "_ingest").exists()
