"""Small queries by DuckDB over tables of this process, in the SQL that Spark shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from purgatory_udf.common.errors import NeedsSparkError

# Queries read the given tables only, so access to files and the network is disabled.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
}
# Functions under their names in Spark SQL.
_MACROS = """
SET TimeZone = 'UTC';
CREATE TEMP MACRO explode(items) AS unnest(items);
CREATE TEMP MACRO size(items) AS len(items);
CREATE TEMP MACRO collect_list(item) AS list(item);
CREATE TEMP MACRO timestamp_micros(us) AS make_timestamptz(us);
"""


def query(text: str, tables: Mapping[str, Any]) -> pa.Table:
    """Return the rows of a query.

    Args:
        text: The SQL, with `{name}` for each table.
        tables: Arrow tables or datasets by name.

    Raises:
        NeedsSparkError: If DuckDB or Arrow cannot execute it.
    """
    connection = duckdb.connect(config=_CONFIG)
    try:
        connection.execute(_MACROS)
        for name, table in tables.items():
            connection.register(f"t_{name}", table)
        rows = connection.sql(text.format_map({name: f"t_{name}" for name in tables})).to_arrow_table()
        return rows.cast(pa.schema([field.with_type(_plain(field.type)) for field in rows.schema]))
    except (duckdb.Error, pa.ArrowException) as error:
        raise NeedsSparkError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark would return: sums are no wider than 64 bits, times are microseconds in UTC."""
    if pa.types.is_decimal(kind):
        return pa.int64()
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind
