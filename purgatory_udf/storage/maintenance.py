"""An output kept small: tables in few files, nothing of what was replaced long ago, no working files of what is done.

Each step is safe while a replay or an import goes on in the folder: small files are put together in a commit of
their own, beside which others append; what no version of a table needs any more is deleted only when it is older than
any reader or writer at work can be; working files are taken away of a run that is finished, and of one that still goes
on what its next batches do not need any more.

`events` that an import goes on adding to are put together as well: whoever follows them goes by commits, and finds the
files of each for as long as they are kept. Those that were imported at once stay as they are, a batch to a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from delta.tables import DeltaTable

from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.file_system import files_of
from purgatory_udf.backend.local.compaction import LocalUpkeep, Size
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.storage import delta_tables, event_staging, run_records
from purgatory_udf.storage.output_folder import Layout, is_held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACTED = (
    "completions", "expirations", "cancellations", "watches", "purgatory_gauges", "group_transitions",
    "group_disagreements", "rejected_events", "recorded", "runs",
)  # fmt: skip
# A replay's working files; its checkpoints stay, for `inspect`.
_CHECKPOINTS = "checkpoints"
# What an ingest that was stopped has left, and nobody goes on with once another has made the tables.
_LEFT = ("_ingest", "_messages")

EVENTS = "events"
# Files are put together until they are as large as the first of these, and never larger than the second: what is
# large enough already is not written again each time.
_LARGE_ENOUGH, _LARGEST = 32 << 20, 128 << 20

# Delta's own: longer than any reader or writer is expected to take.
KEEP_HOURS = 168
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
# Into how many tasks Delta cuts the listing of a folder: Spark's ten thousand are for more folders than a table has.
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@dataclass(frozen=True)
class Maintained:
    """A table before and after."""

    name: str
    before: Size
    after: Size


class Upkeep(Protocol):
    """What is done for one table."""

    def size(self) -> Size: ...

    def compact(self) -> None:
        """Small files are put together."""

    def vacuum(self, keep_hours: int) -> None:
        """Files are deleted that no version needs which is younger than this."""


def maintain(spark: SparkSession, out: str, keep_hours: int = KEEP_HOURS) -> tuple[list[Maintained], list[str]]:
    """What became of each table, and which working files were taken away."""
    layout = Layout(out)
    tables = [name for name in COMPACTED if delta_tables.is_table(spark, layout.table(name))]
    if _grows(spark, layout):
        tables.append(EVENTS)
    if not tables:
        raise UserError(f"{out}: no table of a replay or an import is there")
    with _upkeep(spark, keep_hours) as of:
        kept = [_kept(of(layout.table(name)), name, keep_hours) for name in tables]
    return kept, list(_taken_away(spark, layout))


def _grows(spark: SparkSession, layout: Layout) -> bool:
    """Whether the folder's events are those of an import that follows."""
    if not delta_tables.is_table(spark, layout.table(EVENTS)):
        return False
    ingest = run_records.load(spark, layout.table("runs"), "ingest")
    return ingest is not None and ingest.status == run_records.RUNNING and "kafka" in ingest.trace


def report(kept: list[Maintained], gone: list[str]) -> list[str]:
    """What was done, to read."""
    rows = [(each.name, each.before.files, each.after.files, round(each.after.bytes / 1e6, 1)) for each in kept]
    lines = Table("Tables", ("table", "files before", "files now", "MB now"), rows).lines()
    return [*lines, *(f"taken away: {path}" for path in gone)]


def _kept(upkeep: Upkeep, name: str, keep_hours: int) -> Maintained:
    before = upkeep.size()
    if before.files > 1:
        upkeep.compact()
    upkeep.vacuum(keep_hours)
    return Maintained(name, before, upkeep.size())


@contextmanager
def _upkeep(spark: SparkSession, keep_hours: int) -> Iterator[Callable[[str], Upkeep]]:
    """Whose a table is, by its path: this process's, or Spark's."""
    here = local(spark)
    if here:
        yield lambda path: LocalUpkeep(here, path, _LARGE_ENOUGH)
        return
    settings = {
        # Delta asks for a week at least; whoever gives less has chosen so.
        _CHECK: "false" if keep_hours < KEEP_HOURS else "true",
        _LISTING: "8",
        "spark.databricks.delta.optimize.minFileSize": str(_LARGE_ENOUGH),
        "spark.databricks.delta.optimize.maxFileSize": str(_LARGEST),
    }
    with _set(spark, settings):
        yield lambda path: _SparkUpkeep(DeltaTable.forPath(spark, path))


@dataclass(frozen=True)
class _SparkUpkeep:
    table: DeltaTable

    def size(self) -> Size:
        detail = self.table.detail().select("numFiles", "sizeInBytes").first()
        assert detail is not None
        return Size(detail.numFiles, detail.sizeInBytes)

    def compact(self) -> None:
        self.table.optimize().executeCompaction()

    def vacuum(self, keep_hours: int) -> None:
        self.table.vacuum(keep_hours)


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session's settings, otherwise for a while."""
    usual = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, before in usual.items():
            if before is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, before)


def _taken_away(spark: SparkSession, layout: Layout) -> Iterator[str]:
    run = (
        run_records.load(spark, layout.table("runs"), "replay")
        if delta_tables.is_table(spark, layout.table("runs"))
        else None
    )
    if run is not None and run.status == run_records.FINISHED and not is_held(layout.out, "replay"):
        for name in sorted(files_of(spark).names(layout.machinery)):
            if name != _CHECKPOINTS:
                files_of(spark).remove(f"{layout.machinery}/{name}")
                yield f"{layout.machinery}/{name}"
    elif batches := event_staging.clean_relay(spark, layout):
        yield f"{layout.relay}: what went through, {batches} of its batches"
    if not is_held(layout.out, "ingest") and not is_held(layout.out, "replay"):
        for name in _LEFT:
            path = layout.table(name)
            # Without a whole table of events, what is staged says that an ingest has to be done anew.
            if (
                files_of(spark).exists(path)
                and delta_tables.is_table(spark, layout.table("events"))
                and _on_record(spark, layout)
            ):
                files_of(spark).remove(path)
                yield path


def _on_record(spark: SparkSession, layout: Layout) -> bool:
    """Whether the ingest that made the events was finished."""
    ingest = run_records.load(spark, layout.table("runs"), "ingest")
    first = spark.read.format("delta").load(layout.table("events")).select("run_id").first()
    return ingest is not None and first is not None and ingest.run_id == first.run_id
