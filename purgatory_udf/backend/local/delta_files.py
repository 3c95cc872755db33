"""Files of a Delta table whose borders are chosen, in one commit that lists them in their order: of a new table, or
added to one."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from purgatory_udf.backend.local.duckdb_connection import needing_spark
from purgatory_udf.backend.process_pool import side_by_side
from purgatory_udf.common.local_paths import require_local_path

# What Delta's own writer leaves beside a commit: what the table is and how much of it there is.
#
# Of a table whose newest commit has it, Spark learns the schema by reading this file; of any other by a query over the
# log, which a job that has just started is seconds about. It is a help alone: nobody misses it where it is not.


_FIRST = f"{0:020}"


def write_first(table: Path) -> None:
    """Beside the commit that has made the table."""
    log = table / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{_FIRST}.json").read_text(encoding="utf-8").splitlines()]
    said = {name: [action[name] for action in actions if name in action] for name in ("metaData", "protocol", "add")}
    (metadata,), (protocol,), files = said["metaData"], said["protocol"], said["add"]
    known = {
        "txnId": str(uuid.uuid4()),
        "tableSizeBytes": sum(file["size"] for file in files),
        "numFiles": len(files),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "metadata": metadata,
        "protocol": protocol,
    }
    (log / f"{_FIRST}.crc").write_text(json.dumps(known), encoding="utf-8")


# Frames become Delta tables, in one commit.


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
        place = require_local_path(path)
        with needing_spark():
            place.mkdir(parents=True)
            pq.write_table(self._rows(), place / "part-0.parquet")

    def save(self, path: str) -> None:
        place, options = str(require_local_path(path)), self._options
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


# A table, or a function that makes it, in the process that writes it.
Part: TypeAlias = pa.Table | Callable[[], pa.Table]


def at_borders(rows: pa.Table, column: str, count: int, width: int) -> Iterator[pa.Table]:
    """About `count` parts of rows that are in the order of the column; whose values lie in one stretch of this width,
    lie in one part."""
    stretches = rows.column(column).to_numpy() // width
    changes = np.flatnonzero(np.diff(stretches)) + 1
    wanted = np.arange(1, count) * (-(-rows.num_rows // count)) if len(changes) else np.arange(0)
    cuts = sorted({0, rows.num_rows, *changes[np.minimum(np.searchsorted(changes, wanted), len(changes) - 1)].tolist()})
    for begin, end in pairwise(cuts):
        yield rows.slice(begin, end - begin)


def write_files(
    parts: Sequence[Part],
    path: str,
    skipped_by: Sequence[str],
    metadata: Mapping[str, str],
    schema: pa.Schema,
    before: Callable[[], None] | None = None,
) -> None:
    """A file a part, by as many processes as there are cores. The log says between which values of these columns each
    file lies, and has no others: whoever reads takes a column that the table is skipped by, and that no file tells of,
    for empty. `before` is done before there is a log."""
    place = str(require_local_path(path))
    with needing_spark():
        Path(place).mkdir(parents=True, exist_ok=True)
        written = _written(parts, place, skipped_by) if before is None else _and(before, parts, place, skipped_by)
        create_table_with_add_actions(
            place,
            Schema.from_arrow(schema),
            written,
            mode="error",
            configuration={"delta.dataSkippingStatsColumns": ",".join(skipped_by)},
            commit_properties=CommitProperties(custom_metadata=dict(metadata)),
        )
        write_first(Path(place))


def add_files(
    parts: Sequence[Part],
    path: str,
    skipped_by: Sequence[str],
    metadata: Mapping[str, str],
    schema: pa.Schema,
    step: Transaction | None,
) -> None:
    """The same, to a table that is there; a step that it has taken already is not taken again."""
    place = str(require_local_path(path))
    with needing_spark():
        if step is not None and has_taken(place, step):
            return
        DeltaTable(place).create_write_transaction(
            [*_written(parts, place, skipped_by)],
            mode="append",
            schema=Schema.from_arrow(schema),
            commit_properties=CommitProperties(
                custom_metadata=dict(metadata), app_transactions=[step] if step is not None else None
            ),
        )


def _and(before: Callable[[], None], parts: Sequence[Part], path: str, skipped_by: Sequence[str]) -> list[AddAction]:
    """A file alone is written meanwhile; while processes are forked for several, no other thread may hold a lock."""
    if len(parts) > 1:
        before()
        return _written(parts, path, skipped_by)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(_written, parts, path, skipped_by)
        before()
        return written.result()


def _written(parts: Sequence[Part], path: str, skipped_by: Sequence[str]) -> list[AddAction]:
    def work(numbered: tuple[int, Part]) -> Iterator[pa.RecordBatch]:
        number, part = numbered
        rows = part() if callable(part) else part
        # A table without rows has a file all the same.
        if rows.num_rows or len(parts) == 1:
            yield _write(rows, number, path, skipped_by)

    made = chain.from_iterable(side_by_side(work, list(enumerate(parts))))
    rows = [row for batch in made for row in batch.to_pylist()]
    now = int(time.time() * 1000)
    return [AddAction(row["name"], row["size"], {}, now, True, row["stats"]) for row in rows]


def _write(rows: pa.Table, number: int, path: str, skipped_by: Sequence[str]) -> pa.RecordBatch:
    """What the log tells of the file."""
    name = f"part-{number:05}-{uuid.uuid4()}.parquet"
    place = os.path.join(path, name)
    pq.write_table(rows, place, compression="snappy")
    ranges = {column: pc.min_max(rows.column(column)) for column in skipped_by}
    stats = {
        "numRecords": rows.num_rows,
        "minValues": {column: _as_json(extremes["min"]) for column, extremes in ranges.items()},
        "maxValues": {column: _as_json(extremes["max"]) for column, extremes in ranges.items()},
        "nullCount": {column: rows.column(column).null_count for column in skipped_by},
    }
    file = {"name": name, "size": os.path.getsize(place), "stats": json.dumps(stats)}
    return pa.RecordBatch.from_pylist([file])


def _as_json(value: pa.Scalar) -> Any:
    """As JSON has it; a moment to the microsecond, for what is cut off would be skipped."""
    plain = value.as_py()
    return plain.isoformat(timespec="microseconds").replace("+00:00", "Z") if isinstance(plain, datetime) else plain
