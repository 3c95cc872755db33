"""Delta tables asked without Spark: an opinion of its own on what a Spark job counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable


class Lake:
    """The tables under a folder, by their paths: `metrics/waits` is called `metrics_waits`."""

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
    """How many have to be read to know what a table consists of: those since the last that were summed up."""
    log = table / "_delta_log"
    last = log / "_last_checkpoint"
    summed_up = json.loads(last.read_text())["version"] if last.exists() else -1
    return sum(file.suffix == ".json" and int(file.stem) > summed_up for file in log.glob("0*"))
