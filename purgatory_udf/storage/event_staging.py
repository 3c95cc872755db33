"""Writes events in time order, in files of about a given size.

A micro-batch takes whole files in the order of their commits. Files are in time order, and no millisecond is divided
between two files. Each batch is therefore complete up to its last millisecond, and no table depends on the borders of
batches. The last functions find the commits from which a reader gets the current content of a table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, Session, SparkBackend, backend_of
from purgatory_udf.backend.dataset import Dataset, LocalDataset
from purgatory_udf.backend.delta_store import Commit, Transaction, transaction_options, with_column_comments
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.backend.spark_dataset import OrderedDataset, SparkDataset
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, with_comments
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import STAGING, Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from purgatory_udf.backend.local_delta import Part

log = logging.getLogger(__name__)

# Remark in the metadata of a commit of files in time order.
TIME_ORDER = "purgatory-replay: files in time order"
TIME_ORDER_METADATA = {"userMetadata": TIME_ORDER}
# Operations of commits that can add data.
_ADDING = {"WRITE", "STREAMING UPDATE", "MERGE", "UPDATE", "OPTIMIZE", "CREATE TABLE AS SELECT"}
# Columns by which readers skip files; statistics of every column cost a third of an import.
INDEXED = ("event_time", "time_us", "seq")


def require_room(backend: Backend, layout: Layout, names: Iterable[str], overwrite: bool) -> None:
    """Raise `UserError` if the tables of an import exist or cannot be written, or another table is named `runs`.

    Args:
        backend: Backend of the tables.
        layout: The output folder.
        names: Names of the tables, with `events`. Those of an interrupted import may be replaced.
        overwrite: Whether existing tables are replaced.
    """
    files = backend.files
    require_no_file(files, layout.out)
    run_records.exists(backend, layout.table("runs"))
    # This folder shows that an import was interrupted: the tables are its own.
    if files.exists(layout.table(STAGING)):
        return
    for path in map(layout.table, names):
        if files.exists(path) and not backend.delta(path).is_table(path):
            raise UserError(f"{path}: exists, but is not a Delta table; choose another --out or move it away")
    events = layout.table("events")
    if not overwrite and backend.delta(events).is_table(events):
        raise UserError(f"{events}: exists; choose another --out, or replace it with --overwrite")


def write_in_time_order(
    events: DataFrame,
    path: str,
    count: int,
    per_file: int,
    mode: str = "errorifexists",
    transaction: Transaction | None = None,
) -> None:
    """Write events as files in time order. Does nothing if the table already has the transaction.

    Args:
        events: Rows of `events`, in any order.
        path: Folder of the table.
        count: Number of the events.
        per_file: Approximate number of events in a file.
        mode: Spark's save mode.
        transaction: Id of the write; None for a write that is never repeated.
    """
    in_order = partition_by_file(events, count, per_file)
    write_files(in_order, path, mode, **transaction_options(transaction))


def write_dataset(events: Dataset, path: str, count: int, per_file: int) -> None:
    """Write events in time order as a new table.

    Args:
        events: Rows of `events`, in any order.
        path: Folder of the table.
        count: Number of the events.
        per_file: Approximate number of events in a file.
    """
    if isinstance(events, LocalDataset):
        write_parts(parts_in_time_order(sort_by_time(events.collect()), per_file), path, events.schema)
        return
    assert isinstance(events, SparkDataset)
    write_files(_by_file(events, count, per_file), path)


def append_dataset(
    events: Dataset,
    path: str,
    count: int,
    per_file: int,
    transaction: Transaction | None,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Append `count` events in time order. Only calls `before` if the table already has the transaction.

    `before` is called before the commit, possibly while files are written.
    """
    if isinstance(events, LocalDataset):
        append_parts(sort_by_time(events.collect()), path, per_file, transaction, before)
        return
    assert isinstance(events, SparkDataset)
    before()
    write_files(_by_file(events, count, per_file), path, "append", **transaction_options(transaction))


def _by_file(events: SparkDataset, count: int, per_file: int) -> DataFrame:
    """Return the events in time order, with a partition for each file. Ordered events are cut only."""
    if isinstance(events, OrderedDataset):
        return events.partition_by_count(per_file)
    return partition_by_file(events.frame, count, per_file)


def sort_by_time(events: pa.Table) -> pa.Table:
    """Return events in the order of `time_us` and `seq`."""
    times, seqs = (np.diff(events.column(name).to_numpy()) for name in ("time_us", "seq"))
    if np.all((times > 0) | ((times == 0) & (seqs > 0))):
        return events
    return events.take(pc.sort_indices(events, [("time_us", "ascending"), ("seq", "ascending")]))


def parts_in_time_order(events: pa.Table, per_file: int) -> list[pa.Table]:
    """Cut events that are sorted by time into the rows of files, at borders of milliseconds."""
    from purgatory_udf.backend.local_delta import cut_at_intervals

    return list(cut_at_intervals(events, "time_us", max(1, -(-len(events) // per_file)), 1000)) or [events]


def write_parts(parts: Sequence[Part], path: str, schema: pa.Schema) -> None:
    """Write a new local table with one file per part."""
    from purgatory_udf.backend.local_delta import create_with_files

    commented = with_comments(schema, COMMENTED_TABLES["events"])
    create_with_files(parts, path, INDEXED, TIME_ORDER_METADATA, commented)


def append_parts(
    events: pa.Table, path: str, per_file: int, transaction: Transaction | None, before: Callable[[], None]
) -> None:
    """Append sorted events to a local table; see `append_dataset` for `transaction` and `before`."""
    from purgatory_udf.backend.local_delta import append_files

    parts = parts_in_time_order(events, per_file)
    append_files(parts, path, INDEXED, TIME_ORDER_METADATA, events.schema, transaction, before)


def partition_by_file(events: DataFrame, count: int, per_file: int) -> DataFrame:
    """Range-partition events by whole millisecond, so that each millisecond is in one file, in order.

    `count` is the number of events, `per_file` the number that a file should have.
    """
    from pyspark.sql import functions as sf

    files = max(1, -(-count // per_file))
    ranges = events.withColumn("_ms", sf.expr("time_us div 1000")).repartitionByRange(files, "_ms")
    return ranges.sortWithinPartitions("time_us", "seq").drop("_ms")


def write_files(events: DataFrame, path: str, mode: str = "errorifexists", **options: str | int) -> None:
    """Write one file per partition of a DataFrame that is in time order; `options` are those of Delta's writer."""
    (
        with_column_comments(events, COMMENTED_TABLES["events"])
        .write.format("delta")
        .mode(mode)
        .option("userMetadata", TIME_ORDER)
        .option("delta.dataSkippingStatsColumns", ",".join(INDEXED))
        .options(**options)
        .save(path)
    )


def is_in_time_order(session: Session, path: str) -> bool:
    """Return whether every commit that added data wrote it in time order, and all of these commits still exist."""
    commits = content_commits(session, path)
    return bool(commits) and all(each.metadata == TIME_ORDER for each in commits if each.operation in _ADDING)


def stage_events(
    backend: SparkBackend, events: str, layout: Layout, count: int, files: int, per_batch: int
) -> tuple[str, int]:
    """Return the path of the table to stream, and the number of its files per micro-batch.

    If the files of the given table are too large or not in time order, a staged copy is written.

    Args:
        backend: The backend.
        events: Folder of the events.
        layout: The run's tables.
        count: Number of the events.
        files: Number of the table's files.
        per_batch: Approximate number of events in a micro-batch.
    """
    each = max(1, count // max(files, 1))
    if is_in_time_order(backend, events) and each <= 2 * per_batch:
        return events, max(1, round(per_batch / each))
    if not backend.delta(layout.staged).is_table(layout.staged):
        log.info("sorting %s events into files of about %s events each", f"{count:,}", f"{per_batch:,}")
        write_in_time_order(backend.spark.read.format("delta").load(events), layout.staged, count, per_batch)
    return layout.staged, 1


def content_version(session: Session, path: str) -> int:
    """Return the first version of the current content: the last to replace all rows, or the table's first."""
    return _first_of(backend_of(session).delta(path).history(path))


def content_commits(session: Session, path: str) -> list[Commit]:
    """Return the commits that together contain all current rows, in the order in which they were written.

    The result is empty if the first of these commits, or the files that it added, no longer exist.
    """
    backend = backend_of(session)
    known = backend.delta(path).history(path)
    first = _first_of(known)
    since = [commit for commit in known if commit.version >= first]
    if since and since[0].version != first:
        return []
    # Only files that were compacted since are ever deleted, the oldest first.
    if any(commit.operation == "OPTIMIZE" for commit in since) and not _has_first_files(backend, path, since):
        return []
    return since


def _first_of(known: Sequence[Commit]) -> int:
    return max((commit.version for commit in known if commit.mode == "Overwrite"), default=0)


def _has_first_files(backend: Backend, path: str, known: Sequence[Commit]) -> bool:
    """Return whether the files of the first commit that added files still exist."""
    for commit in known:
        lines = (backend.files.read(f"{path}/_delta_log/{commit.version:020}.json") or b"").splitlines()
        added = [unquote(action["add"]["path"]) for line in lines if "add" in (action := json.loads(line))]
        if added:
            return all(backend.files.exists(f"{path}/{file}") for file in added)
    return True
