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
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions

from purgatory_udf.local.checksum import write_first
from purgatory_udf.local.cores import side_by_side
from purgatory_udf.local.needing import needing_spark
from purgatory_udf.local.paths import require_here
from purgatory_udf.local.writer import has_taken

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
    place = str(require_here(path))
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
    place = str(require_here(path))
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
