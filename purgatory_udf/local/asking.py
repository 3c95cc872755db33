"""One DuckDB, which is asked by one thread at a time, and works with as many as the machine has."""

from __future__ import annotations

import itertools
import re
import threading
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from purgatory_udf.local import exact
from purgatory_udf.local.needing import needing_spark
from purgatory_udf.local.rows import plain

_NAME = re.compile(r"\brows\d+\b")

# It is handed all that it reads: no query of it has business with files or the network.
_ALONE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
}


class Asking:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._alone = threading.Lock()
        # What has been named, and no query has asked for yet.
        self._waiting: dict[str, Any] = {}

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """Made when something is asked: whether there is a table, say, its log tells."""
        connection = duckdb.connect(config=_ALONE)
        exact.register(connection)
        return connection

    def named(self, rows: Any) -> str:
        """A name for a table or a dataset of Arrow's."""
        with self._alone:
            name = f"rows{next(self._numbers)}"
            self._waiting[name] = rows
        return name

    def run(self, sql: str) -> pa.Table:
        with self._alone, needing_spark():
            for name in self._waiting.keys() & set(_NAME.findall(sql)):
                self._connection.register(name, self._waiting.pop(name))
            return plain(self._connection.sql(sql).to_arrow_table())
