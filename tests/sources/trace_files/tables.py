"""Reads the tables of an import without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

Row = dict[str, Any]


def events_by_file(out: Path) -> list[list[Row]]:
    """Return the rows of each file, in the order of the commit, which is the order of a stream."""
    (commit,) = sorted((out / "events" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    dataset = DeltaTable(out / "events").to_pyarrow_dataset()
    by_name = {Path(fragment.path).name: fragment for fragment in dataset.get_fragments()}
    files = [by_name[action["add"]["path"]] for action in actions if "add" in action]
    return [file.to_table(schema=dataset.schema).to_pylist() for file in files]


def events(out: Path) -> list[Row]:
    """Return all events in order."""
    return [row for rows in events_by_file(out) for row in rows]


def rejected(out: Path) -> list[Row]:
    """Return the rejected lines by source and line."""
    rows: list[Row] = DeltaTable(out / "rejected_events").to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["source"], row["line"]))


def reasons(out: Path) -> list[tuple[int, str]]:
    """Return line and reason of the rejected lines."""
    return [(row["line"], row["reason"]) for row in rejected(out)]
