"""The tables of one replay, read: those that are there, as they were at one moment, while it may still be running."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import ENDS, TABLES
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# What completions and expirations have in common, and what only one of them says.
_COMMON = (
    "run_id", "operation_id", "kind", "broker", "request_id", "client_id", "key", "started_at", "deadline", "wait_ms",
    "watched", "completed_by", "trigger", "bytes", "partitions", "answered_bytes",
)  # fmt: skip


class RunFrames:
    """Every table is read at the version that it had when it was first asked for."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self.spark = spark
        self.layout = Layout(out)
        run = run_records.load(spark, self.layout.table("runs"), "replay")
        if run is None:
            raise UserError(f"{out}: no replay is recorded there (replay --out {out} makes its tables)")
        self.run = run
        self.finished = run.status == run_records.FINISHED
        self._read: dict[str, DataFrame] = {}
        self._missing: list[str] = []

    @property
    def missing(self) -> tuple[str, ...]:
        """Tables that were asked for and are not there (yet)."""
        return tuple(self._missing)

    @cached_property
    def events_path(self) -> str:
        return run_records.events_of(self.spark, self.layout.out, self.run)

    def table(self, name: str) -> DataFrame:
        """The table; one that is not there has no rows."""
        if name not in self._read:
            path = self.events_path if name == "events" else self.layout.table(name)
            self._read[name] = self._load(name, path)
        return self._read[name]

    def has(self, name: str) -> bool:
        self.table(name)
        return name not in self._missing

    def ended(self) -> DataFrame:
        """Completions and expirations in one frame: `ended_at`, told apart by `expired`."""
        completed = self.table("completions").select(
            *_COMMON,
            sf.col("completed_at").alias("ended_at"),
            sf.lit(False).alias("expired"),
            sf.lit(False).alias("after_end"),
            sf.lit(None).cast("string").alias("fetcher"),
        )
        expired = self.table("expirations").select(
            *_COMMON, sf.col("expired_at").alias("ended_at"), sf.lit(True).alias("expired"), "after_end", "fetcher"
        )
        return completed.union(expired)

    def cancelled(self) -> DataFrame:
        """Those whose broker stopped, in the columns of `ended`; nobody was answered."""
        nothing = {"bytes": "long", "answered_bytes": "long"}
        common = (sf.lit(None).cast(nothing[name]).alias(name) if name in nothing else name for name in _COMMON)
        cancellations = self.table("cancellations").withColumn("completed_by", sf.col("reason"))
        return cancellations.select(
            *common,
            sf.col("cancelled_at").alias("ended_at"),
            sf.lit(False).alias("expired"),
            sf.lit(False).alias("after_end"),
            "fetcher",
        )

    def _load(self, name: str, path: str) -> DataFrame:
        # Of a table that still grows, and of events, which may lie elsewhere by now, nobody knows.
        written = self.run.counts.get(name, 0) if self.finished and name in ENDS else 0
        if not delta_tables.is_table(self.spark, path):
            _require_all(path, written, 0)
            self._missing.append(name)
            return self.spark.createDataFrame([], from_arrow_schema(TABLES[name]))
        if not self.finished:
            return delta_tables.as_of_now(self.spark, path)
        rows = self.spark.read.format("delta").load(path)
        if written:
            _require_all(path, written, rows.count())
        return rows


def _require_all(path: str, written: int, there: int) -> None:
    """A log that has lost its end is that of a smaller table, and tells nobody."""
    if there < written:
        raise UserError(
            f"{path}: {written - there:,} of the {written:,} rows are not there that the run has written; put them "
            "back from a copy, or begin anew with --overwrite"
        )


def as_table(frame: DataFrame, schema: pa.Schema, run_id: str, **constants: str) -> DataFrame:
    """The frame's columns in the schema's order and types; every row names its run, and has these constants."""
    named = {"run_id": run_id, **constants}
    return frame.select(
        *(
            (sf.lit(named[field.name]) if field.name in named else sf.col(field.name).cast(field.dataType)).alias(
                field.name
            )
            for field in from_arrow_schema(schema).fields
        )
    )


def window_start(moment: str, window_ms: int) -> Column:
    """The beginning of the window that holds the moment; windows count from the epoch."""
    millis = sf.unix_millis(sf.col(moment))
    return sf.timestamp_millis(millis - sf.pmod(millis, sf.lit(window_ms)))
