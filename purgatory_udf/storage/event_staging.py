"""Events in time order, in files that a micro-batch can take: about as many as asked, never half a millisecond."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import functions as sf

from purgatory_udf.backend.dialect import is_local, local
from purgatory_udf.backend.file_system import files_of
from purgatory_udf.contract.tables import COMMENTED_TABLES, with_comments
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.delta_tables import since_began
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from purgatory_udf.backend.local.delta_files import Part


log = logging.getLogger(__name__)

# Put on every commit whose files this product wrote in time order.
IN_TIME_ORDER = "purgatory-replay: files in time order"
# Operations that a commit with data in it may be of.
_ADDING = {"WRITE", "STREAMING UPDATE", "MERGE", "UPDATE", "OPTIMIZE", "CREATE TABLE AS SELECT"}
_SKIPPED_BY = ("event_time", "time_us", "seq")
_COMMENTED = COMMENTED_TABLES["events"]


def write_in_time_order(
    events: DataFrame, path: str, count: int, per_file: int, mode: str = "errorifexists", **options: str | int
) -> None:
    """`count` is how many events there are; `options` are Delta's own, for the writer."""
    if is_local():
        _write_rows_here(events.sortWithinPartitions("time_us", "seq").toArrow(), path, per_file, mode, options)
        return
    write_files(in_files(events, count, per_file), path, mode, **options)


def write_last_in_time_order(
    events: DataFrame, path: str, count: int, per_file: int, before: Callable[[], None]
) -> None:
    """A table that is not there until `before` is done."""
    if is_local():
        rows = events.sortWithinPartitions("time_us", "seq").toArrow()
        write_parts_here(_parts_of(rows, per_file), path, rows.schema, before)
        return
    before()
    write_files(in_files(events, count, per_file), path)


def _write_rows_here(events: pa.Table, path: str, per_file: int, mode: str, options: Mapping[str, Any]) -> None:
    from purgatory_udf.backend.local.delta_files import add_files, step_of

    parts = _parts_of(events, per_file)
    if mode == "append":
        commit_info = {"userMetadata": IN_TIME_ORDER}
        add_files(parts, path, _SKIPPED_BY, commit_info, events.schema, step_of(options))
    else:
        write_parts_here(parts, path, events.schema)


def _parts_of(events: pa.Table, per_file: int) -> list[pa.Table]:
    from purgatory_udf.backend.local.delta_files import at_borders

    return list(at_borders(events, "time_us", max(1, -(-len(events) // per_file)), 1000)) or [events]


def write_parts_here(
    parts: Sequence[Part], path: str, schema: pa.Schema, before: Callable[[], None] | None = None
) -> None:
    """A table in one process or some of this machine: parts in time order, each one file. There is no table until
    `before` is done."""
    from purgatory_udf.backend.local import delta_files

    commented = with_comments(schema, _COMMENTED)
    delta_files.write_files(parts, path, _SKIPPED_BY, {"userMetadata": IN_TIME_ORDER}, commented, before)


def in_files(events: DataFrame, count: int, per_file: int) -> DataFrame:
    """Range-partitioned by whole millisecond: what happened in one millisecond lies in one file, in order."""
    files = max(1, -(-count // per_file))
    ranges = events.withColumn("_ms", sf.expr("time_us div 1000")).repartitionByRange(files, "_ms")
    return ranges.sortWithinPartitions("time_us", "seq").drop("_ms")


def write_files(events: DataFrame, path: str, mode: str = "errorifexists", **options: str | int) -> None:
    """A file for each partition of a frame that is in time order."""
    (
        delta_tables.commented_writer(events, _COMMENTED)
        .format("delta")
        .mode(mode)
        .option("userMetadata", IN_TIME_ORDER)
        # What is ever skipped by; statistics of all columns cost a third of an ingest.
        .option("delta.dataSkippingStatsColumns", ",".join(_SKIPPED_BY))
        .options(**options)
        .save(path)
    )


def in_time_order(spark: SparkSession, path: str) -> bool:
    """Whether every commit that added data says so, and all of them are there."""
    since = since_began(spark, path)
    return bool(since) and all(commit.said == IN_TIME_ORDER for commit in since if commit.operation in _ADDING)


def staged(spark: SparkSession, events: str, layout: Layout, count: int, per_batch: int) -> tuple[str, int]:
    """The table to stream and how many of its files make a batch; a staged copy where the table itself will not do."""
    files = delta_tables.identity(spark, events)["files"]
    each = max(1, count // max(files, 1))
    if in_time_order(spark, events) and each <= 2 * per_batch:
        return events, max(1, round(per_batch / each))
    if not delta_tables.is_table(spark, layout.staged):
        log.info("arranging %s events in files of about %s", f"{count:,}", f"{per_batch:,}")
        write_in_time_order(spark.read.format("delta").load(events), layout.staged, count, per_batch)
    return layout.staged, 1


# Events on their way from groups that see a share of some operations to their brokers' groups: a table between two
# queries, of which nobody needs what the second has taken.
#
# Each batch of the first query is a commit, in a partition of its own, named by the latest millisecond in it. Batches
# come in the order of time; so all partitions before the watermark of a batch that the second query has done went
# through it.


UNTIL = "until_ms"
# Whose checkpoint tells what was taken.
BEHIND = "brokers"


def create_relay(spark: SparkSession, layout: Layout, packed: pa.Schema) -> None:
    """The empty table, unless it is there."""
    delta_tables.create(spark, layout.relay, packed.append(pa.field(UNTIL, pa.int64())), (UNTIL,))


def clean_relay(spark: SparkSession, layout: Layout) -> int:
    """Take away what was taken, also while both queries run; how many batches of the first that was."""
    if not delta_tables.is_table(spark, layout.relay):
        return 0
    done_ms = _done_ms(spark, layout)
    batches = (name for name in files_of(spark).names(layout.relay) if name.startswith(f"{UNTIL}="))
    gone = [name for name in batches if _until(name) < done_ms]
    if gone:
        # First for whoever reads the table, then for the disk: a reader takes no file that the table had lost before.
        _delete(spark, layout.relay, f"{UNTIL} < {done_ms}")
    for name in gone:
        files_of(spark).remove(f"{layout.relay}/{name}")
    return len(gone)


def _delete(spark: SparkSession, path: str, which: str) -> None:
    """Whole partitions, of which no row has to be read."""
    here = local(spark)
    if here:
        here.delete(path, which)
    else:
        DeltaTable.forPath(spark, path).delete(which)


def _until(folder: str) -> int:
    return int(folder.removeprefix(f"{UNTIL}="))


def _done_ms(spark: SparkSession, layout: Layout) -> int:
    """The watermark with which the second query began the last batch that it has done; 0 before there is one."""
    checkpoint = layout.checkpoint(BEHIND)
    done = [int(name) for name in files_of(spark).names(f"{checkpoint}/commits") if name.isdigit()]
    said = files_of(spark).read(f"{checkpoint}/offsets/{max(done)}") if done else None
    # A version, what holds for the batch, then the offset of each source.
    return int(json.loads(said.decode().splitlines()[1])["batchWatermarkMs"]) if said else 0
