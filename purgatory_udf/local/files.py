"""A new Delta table of files whose borders are chosen, in one commit that lists them in their order."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from purgatory_udf.local.needing import needing_spark


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
    parts: Sequence[pa.Table],
    path: str,
    ordered_by: Sequence[str],
    configuration: Mapping[str, str],
    metadata: Mapping[str, str],
) -> None:
    """A file a part; of the columns that all is ordered by, the log says what each file holds."""
    with needing_spark():
        Path(path).mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            path,
            Schema.from_arrow(parts[0].schema),
            [_written(part, number, path, ordered_by) for number, part in enumerate(parts)],
            mode="error",
            configuration=configuration,
            commit_properties=CommitProperties(custom_metadata=dict(metadata)),
        )


def _written(rows: pa.Table, number: int, path: str, ordered_by: Sequence[str]) -> AddAction:
    name = f"part-{number:05}-{uuid.uuid4()}.parquet"
    place = os.path.join(path, name)
    pq.write_table(rows, place, compression="snappy")
    first, last = ({one: rows.column(one)[at].as_py() for one in ordered_by} for at in (0, -1)) if rows else ({}, {})
    stats = {"numRecords": rows.num_rows, "minValues": first, "maxValues": last, "nullCount": dict.fromkeys(first, 0)}
    return AddAction(name, os.path.getsize(place), {}, int(time.time() * 1000), True, json.dumps(stats))
