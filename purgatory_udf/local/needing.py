"""Whatever fails here is asked of Spark: it reads more, and what its errors mean to a user is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError

from purgatory_udf.errors import NeedsSparkError


@contextmanager
def needing_spark() -> Iterator[None]:
    """Raises `NeedsSparkError` in the place of what DuckDB, Arrow, the tables or the disk have against it."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, DeltaError, OSError) as error:
        raise NeedsSparkError(f"{type(error).__name__}: {error}") from error
