"""Tables carry the column comments of their schemas, whichever way they are created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.backend import Backend, backend_of
from purgatory_udf.backend.delta_store import SparkDelta, with_column_comments
from purgatory_udf.backend.local_delta import LocalDelta
from purgatory_udf.contract.tables import COMMENT, COMMENTED_TABLES, COMPLETIONS, with_comments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMENTED = COMMENTED_TABLES["completions"]


def _fields(schema: pa.Schema | pa.StructType) -> Iterator[pa.Field]:
    for field in schema:
        yield field
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            yield from _fields(field.type.value_type)


EXPECTED = [(field.name, field.metadata[COMMENT.encode()].decode()) for field in _fields(COMMENTED)]
TOP_LEVEL = [(field.name, field.metadata[COMMENT.encode()].decode()) for field in COMMENTED]


def _comments(fields: list[dict[str, Any]]) -> Iterator[tuple[str, str | None]]:
    for field in fields:
        yield field["name"], field["metadata"].get(COMMENT)
        if isinstance(field["type"], dict) and isinstance(field["type"]["elementType"], dict):
            yield from _comments(field["type"]["elementType"]["fields"])


def _stored(path: Path) -> list[tuple[str, str | None]]:
    return list(_comments(json.loads(DeltaTable(str(path)).schema().to_json())["fields"]))


def _stored_columns(path: Path) -> list[tuple[str, str | None]]:
    fields = json.loads(DeltaTable(str(path)).schema().to_json())["fields"]
    return [(field["name"], field["metadata"].get(COMMENT)) for field in fields]


def test_spark_creates_commented_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Delta's table builder creates the table, or an empty write if the path has a backtick."""
    for name in ("plain", "back`tick"):
        SparkDelta(spark).create(str(tmp_path / name), COMMENTED)
        assert _stored(tmp_path / name) == EXPECTED


def test_local_session_creates_commented_columns(without_spark: Backend, tmp_path: Path) -> None:
    backend_of(without_spark).delta(str(tmp_path / "table")).create(str(tmp_path / "table"), COMMENTED)
    assert _stored(tmp_path / "table") == EXPECTED


def test_spark_write_creates_commented_columns(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([], from_arrow_schema(COMPLETIONS))
    path = str(tmp_path / "table")
    with_column_comments(rows, COMMENTED).write.format("delta").save(path)
    assert _stored_columns(tmp_path / "table") == TOP_LEVEL
    rows.write.format("delta").mode("overwrite").save(path)
    assert _stored_columns(tmp_path / "table") == TOP_LEVEL


def test_local_write_creates_commented_columns(tmp_path: Path) -> None:
    rows, path = COMPLETIONS.empty_table(), str(tmp_path / "table")
    LocalDelta().append(path, rows.cast(with_comments(rows.schema, COMMENTED)))
    assert _stored_columns(tmp_path / "table") == TOP_LEVEL
    LocalDelta().overwrite(path, rows)
    assert _stored_columns(tmp_path / "table") == TOP_LEVEL


def test_unknown_columns_stay_without_comment(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'r' AS run_id, 1 AS `o``d.d`")
    with_column_comments(rows, COMMENTED).write.format("delta").save(str(tmp_path / "table"))
    assert _stored_columns(tmp_path / "table") == [TOP_LEVEL[0], ("o`d.d", None)]
