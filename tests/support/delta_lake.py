"""Queries of Delta tables by DuckDB, to check the results of Spark jobs independently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable


class Lake:
    """The tables below a folder, named by their paths: `metrics/waits` becomes `metrics_waits`."""

    def __init__(self, out: Path) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        for log in sorted(out.rglob("_delta_log")):
            name = log.parent.relative_to(out).as_posix()
            if not name.startswith("_"):
                self._connection.register(name.replace("/", "_"), DeltaTable(str(log.parent)).to_pyarrow_dataset())

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()


def commits_to_read(table: Path) -> int:
    """Return the number of commits after the last checkpoint, which a reader of the table has to read."""
    log = table / "_delta_log"
    last_checkpoint = log / "_last_checkpoint"
    checkpoint = json.loads(last_checkpoint.read_text())["version"] if last_checkpoint.exists() else -1
    return sum(file.suffix == ".json" and int(file.stem) > checkpoint for file in log.glob("0*"))
