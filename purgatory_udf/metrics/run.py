"""The metrics of one replay: worked out from its tables, written beside them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.errors import UserError
from purgatory_udf.metrics.meters import expires
from purgatory_udf.metrics.operations import by_window, causes
from purgatory_udf.metrics.options import SIDE_BY_SIDE, MetricsOptions
from purgatory_udf.metrics.purgatories import purgatories
from purgatory_udf.metrics.rebalances import rebalances
from purgatory_udf.metrics.waits import waits
from purgatory_udf.storage import delta
from purgatory_udf.storage.run_tables import RunTables, as_table
from purgatory_udf.tables.metrics import METRICS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_ORDER = {
    "metrics/expires": ("mbean", "broker", "window_start"),
    "metrics/operations": ("window_start", "kind", "broker"),
    "metrics/causes": ("kind", "expired", "completed_by", "watched"),
    "metrics/waits": ("by", "kind", "value"),
    "metrics/purgatories": ("broker", "purgatory", "window_start"),
    "metrics/rebalances": ("started_at", "broker", "group"),
}


@dataclass(frozen=True)
class Metrics:
    """The written tables, by the names of `METRICS`."""

    tables: RunTables
    options: MetricsOptions
    frames: dict[str, DataFrame]

    def __getitem__(self, name: str) -> DataFrame:
        return self.frames[f"metrics/{name}"]


def write_metrics(spark: SparkSession, out: str, options: MetricsOptions, folder: str = "") -> Metrics:
    """Write every table of `METRICS` anew from what the replay under `out` has written so far; beside its tables, or
    in a folder there."""
    tables = RunTables(spark, out)

    def written(name: str, frame: DataFrame) -> DataFrame:
        path = tables.layout.table(f"{folder}{name}")
        # One file, in order: what is counted is small, but nothing before it may be done by a single task.
        rows = as_table(frame, METRICS[name], tables.run.run_id).repartition(1).sortWithinPartitions(*_ORDER[name])
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
        return spark.read.format("delta").load(path)

    frames = _frames(tables, options)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        made = dict(zip(frames, pool.map(written, frames.keys(), frames.values()), strict=True))
    return Metrics(tables, options, made)


def read_metrics(spark: SparkSession, out: str) -> Metrics:
    """The tables as `write_metrics` left them there."""
    tables = RunTables(spark, out)
    if not all(delta.is_table(spark, tables.layout.table(name)) for name in METRICS):
        raise UserError(f"{out}: no metrics there (metrics --out {out} makes them)")
    return Metrics(
        tables,
        MetricsOptions(),
        {name: spark.read.format("delta").load(tables.layout.table(name)) for name in METRICS},
    )


def _frames(tables: RunTables, options: MetricsOptions) -> dict[str, DataFrame]:
    ended, transitions = tables.ended(), tables.table("group_transitions")
    gauges = tables.table("purgatory_gauges")
    # Without gauges, entries have no list to be dead on.
    of_gauges = ended if tables.has("purgatory_gauges") else ended.limit(0)
    return {
        "metrics/expires": expires(tables.table("expirations"), options.window_ms),
        "metrics/operations": by_window(ended, options.window_ms),
        "metrics/causes": causes(ended),
        "metrics/waits": waits(ended, transitions, options.by),
        "metrics/purgatories": purgatories(gauges, of_gauges, options.window_ms, options.bytes_per_watch),
        "metrics/rebalances": rebalances(transitions, tables.table("events")),
    }
