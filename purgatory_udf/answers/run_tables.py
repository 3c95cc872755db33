"""The tables of one replay as views of a database, and the queries of `sql/` on them.

While a replay is still running, each of its tables is read at the version that it has at its first use.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.backend.backend import backend_of
from purgatory_udf.backend.sql_database import Parameters, SqlDatabase
from purgatory_udf.common.console import report_step
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import ENDS, TABLES
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

_READS = re.compile(r"^-- Reads: +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class SqlFile:
    """A query of `sql/`. `reads` are the tables and views that the `Reads` line of its header names."""

    text: str
    reads: tuple[str, ...]


@cache
def sql_file(name: str) -> SqlFile:
    """Return a query by its path in `sql/` without the suffix, such as `metrics_tables/waits`."""
    text = files("purgatory_udf.answers").joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")
    reads = _READS.search(text)
    return SqlFile(text, tuple(reads[1].split(", ")) if reads else ())


@cache
def _views() -> frozenset[str]:
    folder = files("purgatory_udf.answers").joinpath("sql/views")
    return frozenset(file.name.removesuffix(".sql") for file in folder.iterdir())


class RunTables:
    """The tables of the latest replay under `out`. Several threads may query at the same time.

    Args:
        session: Spark session or backend.
        out: Folder of the replay.
        require_all_rows: Whether a table with fewer rows than the finished run wrote is an error.
        database: A database to use instead of a new one, for queries that read several runs.
        prefix: Prefix of the names of this run's tables and views, also in the text of queries.

    Raises:
        UserError: There is no replay under `out`, or rows are missing.
    """

    def __init__(
        self,
        session: Session,
        out: str,
        *,
        require_all_rows: bool = True,
        database: SqlDatabase | None = None,
        prefix: str = "",
    ) -> None:
        self.session = session
        self.layout = Layout(out)
        run = run_records.load(session, self.layout.table("runs"), "replay")
        if run is None:
            raise UserError(
                f"{out}: no replay is recorded in {self.layout.table('runs')}; run replay with this --out first"
            )
        self.run = run
        self._require_all_rows = require_all_rows
        self.finished = run.status == run_records.FINISHED
        self.database = database or backend_of(session).database()
        self._prefix = prefix
        # Whether the table of each view exists.
        self._added: dict[str, bool] = {}
        self._materialized: set[str] = set()
        self._lock = threading.RLock()

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of tables that queries have read although they do not exist (yet); their views have no rows."""
        return tuple(name for name, exists in self._added.items() if not exists)

    @cached_property
    def events_path(self) -> str:
        """Path of the events that were replayed."""
        return run_records.events_of(self.session, self.layout.out, self.run)

    def has(self, name: str) -> bool:
        """Return whether the table exists."""
        self.add(name)
        return self._added[name]

    def add(self, *names: str) -> None:
        """Make tables and views available to queries."""
        with self._lock:
            for name in names:
                if name in self._materialized:
                    continue
                if name in _views():
                    # Views that it reads may have been released.
                    self.add(*sql_file(f"views/{name}").reads)
                if name in self._added:
                    continue
                if name in _views():
                    self.add_view(name, f"views/{name}")
                else:
                    path = self.events_path if name == "events" else self.layout.table(name)
                    self.add_table(name, path, TABLES[name])

    def add_view(self, name: str, query: str) -> None:
        """Make a query of `sql/` available as `name`."""
        self.database.add_view(f"{self._prefix}{name}", self.text(query))
        self._added[name] = True

    def add_table(self, name: str, path: str, schema: pa.Schema) -> None:
        """Make the table at `path` available as `name`."""
        view = f"{self._prefix}{name}"
        exists = self.database.add_table(view, path, schema, is_growing=not self.finished)
        # A running replay has not counted its rows yet.
        counts = self.run.counts if self.finished and self._require_all_rows else {}
        written = counts.get(name, 0) if name in ENDS else 0
        if written:
            counted = self.database.query(f"SELECT count(*) AS rows FROM {view}")
            _require_all(path, written, counted.column("rows")[0].as_py() if exists else 0)
        self._added[name] = exists

    def add_rows(self, name: str, rows: pa.Table) -> None:
        """Make an Arrow table available as `name`, in place of an earlier one."""
        self.database.add_rows(f"{self._prefix}{name}", rows)
        self._added[name] = True

    @contextmanager
    def materialized(self, *names: str) -> Iterator[None]:
        """Compute these views once for all queries in the `with` block. A view may read the views before it.

        Blocks can be nested; a view of an outer block is not computed again.
        """
        computed = [name for name in names if name not in self._materialized]
        for name in computed:
            report_step(f"computing {name}")
            self.database.keep(f"{self._prefix}{name}", self.text(f"views/{name}"))
            self._added[name] = True
        self._materialized.update(computed)
        try:
            yield
        finally:
            self.release(*reversed(computed))

    def has_rows(self, name: str) -> bool:
        """Return whether a table or view has any rows."""
        self.add(name)
        return self.database.query(f"SELECT 1 AS one FROM {self._prefix}{name} LIMIT 1").num_rows > 0

    @contextmanager
    def without_rows(self, name: str, columns: pa.Schema) -> Iterator[None]:
        """Let a view be empty in the `with` block. DuckDB does not plan its query."""
        view = f"{self._prefix}{name}"
        self.database.add_rows(f"{view}_columns", columns.empty_table())
        self.database.add_view(view, f"SELECT * FROM {view}_columns")
        self._materialized.add(name)
        try:
            yield
        finally:
            self.release(name)

    def release(self, *names: str) -> None:
        """Free the rows of materialized views. Queries that are prepared afterwards compute the views again."""
        with self._lock:
            for name in names:
                self.database.release(f"{self._prefix}{name}")
                self._materialized.discard(name)
                self._added.pop(name, None)

    def prepare(self, *names: str) -> None:
        """Make all tables and views that these queries of `sql/` read available, before threads run the queries."""
        for name in names:
            self.add(*sql_file(name).reads)

    def query(self, name: str, **parameters: Any) -> pa.Table:
        """Return the rows of a query of `sql/`."""
        return self.database.query(self.text(name), parameters)

    def rows(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a query of `sql/` as dictionaries."""
        rows: list[dict[str, Any]] = self.query(name, **parameters).to_pylist()
        return rows

    def save(self, name: str, path: str, schema: pa.Schema, parameters: Parameters, **options: Any) -> None:
        """Write the rows of a query of `sql/` to a Delta table, with the id of the run in each row.

        Args:
            name: Name of the query.
            path: Path of the table.
            schema: Columns of the table.
            parameters: Parameters of the query.
            options: Options of the database's `save`; `constants` are further columns with one value.
        """
        report_step(f"writing {path.rpartition('/')[2]}")
        constants = {"run_id": self.run.run_id, **options.pop("constants", {})}
        self.database.save(self.text(name), path, schema, parameters, constants=constants, **options)

    def text(self, name: str) -> str:
        """Return the text of a query of `sql/`, and make all tables and views that it reads available."""
        file = sql_file(name)
        self.add(*file.reads)
        if not self._prefix:
            return file.text
        return re.sub(rf"\b(FROM|JOIN) ({'|'.join(file.reads)})\b", rf"\1 {self._prefix}\2", file.text)


def _require_all(path: str, written: int, present: int) -> None:
    """Raise UserError if the table at `path` has fewer rows (`present`) than the run has written.

    Delta cannot notice the loss of its last log entries, because the rest is a valid log of a smaller table.
    """
    if present < written:
        raise UserError(
            f"{path}: {written - present:,} of {written:,} rows are missing; restore the table, or rerun "
            "the replay with --overwrite"
        )
