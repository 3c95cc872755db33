"""Frames become Delta tables, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from purgatory_udf.local.needing import needing_spark
from purgatory_udf.local.paths import require_here


class Writer:
    def __init__(self, rows: Callable[[], pa.Table]) -> None:
        self._rows = rows
        self._mode = "error"
        self._options: dict[str, Any] = {}

    def format(self, name: str) -> Writer:
        if name != "delta":
            raise NotImplementedError(f"{name}: only Delta tables are written here")
        return self

    def mode(self, mode: str) -> Writer:
        self._mode = mode
        return self

    def option(self, name: str, value: Any) -> Writer:
        self._options[name] = value
        return self

    def partitionBy(self, *columns: str) -> Writer:  # noqa: N802
        if columns:
            raise NotImplementedError(f"partitioned by {columns}")
        return self

    def options(self, **options: Any) -> Writer:
        self._options |= options
        return self

    def parquet(self, path: str) -> None:
        """One file in a folder that is not there yet, with no log of it."""
        place = require_here(path)
        with needing_spark():
            place.mkdir(parents=True)
            pq.write_table(self._rows(), place / "part-0.parquet")

    def save(self, path: str) -> None:
        place, options = str(require_here(path)), self._options
        step = step_of(options)
        with needing_spark():
            if step is not None and has_taken(place, step):
                return
        rows = self._rows()
        given: dict[str, Any] = {
            "configuration": {name: value for name, value in options.items() if name.startswith("delta.")} or None,
            "commit_properties": CommitProperties(
                custom_metadata={name: options[name] for name in ("userMetadata",) if name in options},
                app_transactions=[step] if step is not None else None,
            ),
        }
        with needing_spark():
            if self._mode == "overwrite":
                renewed = options.get("overwriteSchema") == "true"
                write_deltalake(
                    place,
                    rows,
                    mode="overwrite",
                    schema_mode="overwrite" if renewed else None,
                    predicate=options.get("replaceWhere"),
                    **given,
                )
            else:
                write_deltalake(place, rows, mode="append" if self._mode == "append" else "error", **given)


def step_of(options: Mapping[str, Any]) -> Transaction | None:
    """Which step of whom these options of Delta's writer name, if they do."""
    return Transaction(options["txnAppId"], options["txnVersion"]) if "txnAppId" in options else None


def has_taken(path: str, step: Transaction) -> bool:
    """Whether the table has taken this step already, as a kill may leave it."""
    try:
        known = DeltaTable(path).transaction_version(step.app_id)
    except TableNotFoundError:
        return False
    return known is not None and known >= step.version
