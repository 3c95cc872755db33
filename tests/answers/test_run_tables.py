"""Views of a replay's tables that are computed once for several queries."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import UserError


def _groups(tables: RunTables) -> list[str]:
    tables.add("rebalances")
    rows = tables.database.query("SELECT DISTINCT r.group AS group_id FROM rebalances r")
    return rows.column("group_id").to_pylist()


def _computed(tables: RunTables) -> list[str]:
    rows = tables.database.query("SELECT table_name FROM duckdb_tables() ORDER BY table_name")
    return rows.column("table_name").to_pylist()


def test_view_of_outer_block_is_kept(story_folder: Path) -> None:
    tables = RunTables(LocalBackend(), str(story_folder))
    with tables.materialized("rebalances"):
        with tables.materialized("rebalances", "in_sync_versions"):
            inside = _computed(tables)
        assert (inside, _computed(tables)) == (["in_sync_versions_rows", "rebalances_rows"], ["rebalances_rows"])
    assert _computed(tables) == []


def test_released_view_is_computed_again(story_folder: Path) -> None:
    """A released view returns the same rows, also to the views that read it."""
    tables = RunTables(LocalBackend(), str(story_folder))
    with tables.materialized("rebalances", "in_sync_versions"):
        before = tables.rows("diagnosis/rebalances")
        tables.add("in_sync_members")
        members = tables.database.query("SELECT count(*) FROM in_sync_members").to_pylist()
    tables.add("in_sync_members")
    assert tables.database.query("SELECT count(*) FROM in_sync_members").to_pylist() == members
    assert (tables.rows("diagnosis/rebalances"), _groups(tables)) == (before, ["g"])


def test_other_table_named_runs_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "runs"), pa.table({"run_id": ["monday"], "job": ["replay"], "state": ["finished"]}))
    with pytest.raises(UserError, match="/runs: not a table of runs: it has no column status; restore the table"):
        RunTables(LocalBackend(), str(tmp_path))
