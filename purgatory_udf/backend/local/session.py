"""The session of this process: Delta tables of this machine's disk, and what queries them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from pyarrow.dataset import dataset

from purgatory_udf.backend.local.column import type_of
from purgatory_udf.backend.local.duckdb_connection import Asking, needing_spark
from purgatory_udf.backend.local.frame import LocalFrame, frame_of
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.common.local_paths import require_local_path

_ARROW = {"VARCHAR": pa.string(), "INTEGER": pa.int32(), "BIGINT": pa.int64()}


class LocalSession:
    """In place of a SparkSession, for who asks tables and writes what they are told."""

    def __init__(self) -> None:
        self._asking = Asking()

    @property
    def read(self) -> _Reader:
        return _Reader(self, self._asking)

    def createDataFrame(self, rows: Sequence[Sequence[Any]], schema: Any) -> LocalFrame:  # noqa: N802
        """`schema` is pyspark's, or names and types of Spark's."""
        arrow = _schema_of(schema) if isinstance(schema, str) else _arrow_schema(schema)
        columns = zip(*rows, strict=True) if rows else [[] for _ in arrow]
        made = [pa.array(list(values), field.type) for values, field in zip(columns, arrow, strict=True)]
        return frame_of(self._asking, pa.Table.from_arrays(made, schema=arrow))

    def frame_of(self, rows: pa.Table) -> Any:
        return frame_of(self._asking, rows)

    def table_at(self, path: str) -> DeltaTable | None:
        """The table as it is now; None if there is none."""
        with needing_spark():
            try:
                table = DeltaTable(str(require_local_path(path)))
            except TableNotFoundError:
                return None
            _require_whole_log(require_local_path(path))
            return table

    def create_table(
        self, path: str, schema: pa.Schema, properties: Mapping[str, str], partitioned_by: Sequence[str] = ()
    ) -> None:
        """Without rows, and told from a write: its log says that a table was created."""
        with needing_spark():
            DeltaTable.create(
                str(require_local_path(path)),
                Schema.from_arrow(schema),
                mode="error",
                partition_by=[*partitioned_by],
                configuration=dict(properties),
            )

    def delete(self, path: str, which: str) -> None:
        """The rows of which this holds."""
        with needing_spark():
            table = self.table_at(path)
            assert table is not None
            table.delete(which)


class _Reader:
    def __init__(self, session: LocalSession, asking: Asking) -> None:
        self._session, self._asking = session, asking

    def format(self, name: str) -> _Reader:
        if name != "delta":
            raise NeedsSparkError(f"{name}: only Delta tables are read here")
        return self

    def parquet(self, path: str) -> LocalFrame:
        with needing_spark():
            return frame_of(self._asking, pq.read_table(str(require_local_path(path))))

    def load(self, path: str) -> LocalFrame:
        table = self._session.table_at(path)
        if table is None:
            raise NeedsSparkError(f"{path}: no table that can be read here")
        with needing_spark():
            return frame_of(self._asking, _whole(table))


def _require_whole_log(table: Path) -> None:
    """An empty commit would be read as one that changed nothing."""
    for commit in (table / "_delta_log").glob("*.json"):
        if not commit.stat().st_size:
            raise OSError(f"{commit}: is empty")


def _whole(table: DeltaTable) -> Any:
    """All of its rows, whatever its log tells of its files: to skip some of so few would gain nothing, and who wrote
    the log may have cut a moment's microseconds off."""
    stored = table.to_pyarrow_dataset()
    if table.metadata().partition_columns:
        return stored
    if not stored.files:
        return stored.schema.empty_table()
    return dataset(stored.files, schema=stored.schema, format="parquet", filesystem=stored.filesystem)


def _schema_of(said: str) -> pa.Schema:
    words: Iterable[list[str]] = (field.split() for field in said.split(","))
    return pa.schema([(name, _ARROW[type_of(kind)]) for name, kind in words])


def _arrow_schema(schema: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
