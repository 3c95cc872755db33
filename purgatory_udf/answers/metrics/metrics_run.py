"""The metrics of one replay: computed from its tables by the queries of `sql/metrics`, written next to them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.metrics_tables import COMMENTED_METRICS, METRICS
from purgatory_udf.rules.purgatory.clock import STEP_MS
from purgatory_udf.storage import delta_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from purgatory_udf.backend.backend import Session

# Dimensions of waits, in addition to the kind of operation.
DIMENSIONS = ("broker", "topic", "partition", "client", "group")

# Memory that an entry of a watcher list keeps alive in a broker: at least the queue's node (24 bytes), the partition's
# status and response (24 + 48), the map's entry and key for them (40 + 48). On a 64-bit JVM with compressed references,
# Kafka 4. Objects that an operation has once (its lock, its callback, the records of the response) are not included.
BYTES_PER_WATCH = 184

# Number of queries that Spark runs at the same time. Most of the time of a small query is planning and committing on
# one core.
PARALLEL_QUERIES = 3


@dataclass(frozen=True)
class MetricsOptions:
    """`by` are the dimensions to count waits by; `top` is the number of rows of each printed table."""

    window_ms: int = 1000
    by: tuple[str, ...] = ("topic", "client", "group")
    bytes_per_watch: int = BYTES_PER_WATCH
    top: int = 10

    def __post_init__(self) -> None:
        unknown = [name for name in self.by if name not in DIMENSIONS]
        if unknown:
            raise UserError(f"--by {unknown[0]}: unknown; expected one of {', '.join(DIMENSIONS)}")


@dataclass(frozen=True)
class Metrics:
    """The written tables, which queries name `metrics_expires`, `metrics_waits`, and so on."""

    tables: RunTables
    options: MetricsOptions

    def sql(self, query: str) -> pa.Table:
        """Return the rows of a query of these tables."""
        return self.tables.database.query(query)

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a query of `sql/`."""
        return self.tables.rows(query, **parameters)


def write_metrics(session: Session, out: str, options: MetricsOptions, folder: str = "") -> Metrics:
    """Compute every table of `METRICS` from the present output of the replay under `out`, and write it to `out`.

    `folder` is a subfolder to write to instead, with a slash at its end.
    """
    tables = RunTables(session, out)
    parameters = {
        "window_ms": options.window_ms,
        "step_ms": STEP_MS,
        "bytes_per_watch": options.bytes_per_watch,
        **{f"by_{dimension}": dimension in options.by for dimension in DIMENSIONS},
    }

    def save(name: str) -> None:
        # The rows are few, so one file keeps them in order; aggregations before it run in parallel.
        tables.save(name, _path(tables, folder, name), COMMENTED_METRICS[name], parameters, single_file=True)

    tables.prepare(*METRICS)
    with ThreadPoolExecutor(PARALLEL_QUERIES) as pool:
        list(pool.map(save, METRICS))
    return _metrics(tables, options, folder)


def read_metrics(session: Session, out: str) -> Metrics:
    """Return the tables that `write_metrics` left in `out`."""
    tables = RunTables(session, out)
    if not all(delta_tables.is_table(session, tables.layout.table(name)) for name in METRICS):
        raise UserError(f"{out}: no metrics; run `metrics --out {out}` first")
    return _metrics(tables, MetricsOptions(), "")


def _metrics(tables: RunTables, options: MetricsOptions, folder: str) -> Metrics:
    for name, schema in METRICS.items():
        tables.add_table(name.replace("/", "_"), _path(tables, folder, name), schema)
    return Metrics(tables, options)


def _path(tables: RunTables, folder: str, name: str) -> str:
    return tables.layout.table(f"{folder}{name}")
