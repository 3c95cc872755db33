"""Frames become Delta tables, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from purgatory_udf.local.needing import needing_spark


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

    def options(self, **options: Any) -> Writer:
        self._options |= options
        return self

    def save(self, path: str) -> None:
        place, rows, options = path.removeprefix("file://"), self._rows(), self._options
        given: dict[str, Any] = {
            "configuration": {name: value for name, value in options.items() if name.startswith("delta.")} or None,
            "commit_properties": CommitProperties(
                custom_metadata={name: options[name] for name in ("userMetadata",) if name in options}
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
                write_deltalake(place, rows, mode="error", **given)
