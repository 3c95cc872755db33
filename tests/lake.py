"""Delta tables asked without Spark: an opinion of its own on what a Spark job counted."""

from __future__ import annotations

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
