"""The metrics of one replay: worked out from its tables, written beside them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.answers.metrics.group_rebalances import rebalances
from purgatory_udf.answers.metrics.outcome_metrics import by_window, causes, expires, waits
from purgatory_udf.answers.metrics.purgatory_sizes import purgatories
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.metrics_tables import COMMENTED_METRICS, METRICS
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.run_tables import RunFrames, as_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What a user may choose about the figures.


# What an operation's wait can be counted under, beside its kind.
DIMENSIONS = ("broker", "topic", "partition", "client", "group")

# What an entry that a watcher list still holds keeps alive in a broker, at the least: the queue's node (24 bytes), its
# partition's status and answer (24 + 48), the map's entry and key for them (40 + 48). A 64-bit JVM with compressed
# references, Kafka 4. What an operation has once (its lock, its callback, the answer's records) comes on top.
BYTES_PER_WATCH = 184

# Of small tables a query is planning and committing, most of which leave a core to others.
SIDE_BY_SIDE = 3


@dataclass(frozen=True)
class MetricsOptions:
    window_ms: int = 1000
    by: tuple[str, ...] = ("topic", "client", "group")
    bytes_per_watch: int = BYTES_PER_WATCH
    top: int = 10

    def __post_init__(self) -> None:
        unknown = [name for name in self.by if name not in DIMENSIONS]
        if unknown:
            raise UserError(f"--by {unknown[0]}: unknown (there are {', '.join(DIMENSIONS)})")


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

    tables: RunFrames
    options: MetricsOptions
    frames: dict[str, DataFrame]

    def __getitem__(self, name: str) -> DataFrame:
        return self.frames[f"metrics/{name}"]


def write_metrics(spark: SparkSession, out: str, options: MetricsOptions, folder: str = "") -> Metrics:
    """Write every table of `METRICS` anew from what the replay under `out` has written so far; beside its tables, or
    in a folder there."""
    tables = RunFrames(spark, out)

    def written(name: str, frame: DataFrame) -> DataFrame:
        path = tables.layout.table(f"{folder}{name}")
        # One file, in order: what is counted is small, but nothing before it may be done by a single task.
        rows = as_table(frame, METRICS[name], tables.run.run_id).repartition(1).sortWithinPartitions(*_ORDER[name])
        writer = delta_tables.commented_writer(rows, COMMENTED_METRICS[name]).format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").save(path)
        return spark.read.format("delta").load(path)

    frames = _frames(tables, options)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        made = dict(zip(frames, pool.map(written, frames.keys(), frames.values()), strict=True))
    return Metrics(tables, options, made)


def read_metrics(spark: SparkSession, out: str) -> Metrics:
    """The tables as `write_metrics` left them there."""
    tables = RunFrames(spark, out)
    if not all(delta_tables.is_table(spark, tables.layout.table(name)) for name in METRICS):
        raise UserError(f"{out}: no metrics there (metrics --out {out} makes them)")
    return Metrics(
        tables,
        MetricsOptions(),
        {name: spark.read.format("delta").load(tables.layout.table(name)) for name in METRICS},
    )


def _frames(tables: RunFrames, options: MetricsOptions) -> dict[str, DataFrame]:
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
