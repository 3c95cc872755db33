"""The metrics of a replay, computed from its tables, written as tables (queries in `sql/metrics_tables`).

The main figures are also returned as small tables to print, with the largest values first (`sql/metrics_command`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.operation_story import LATE_MS
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import backend_of
from purgatory_udf.common.console import Cell, Table, counted
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.metrics_tables import COMMENTED_METRICS, METRICS
from purgatory_udf.rules.purgatory.clock import STEP_MS

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
    """Options of the metrics.

    Attributes:
        window_ms: Length of a window of the meters, in milliseconds.
        by: Dimensions by which waits are grouped.
        bytes_per_watch: Heap bytes of a broker for each watcher list entry.
        top: Maximum number of rows to print in each table.
    """

    window_ms: int = 1000
    by: tuple[str, ...] = ("topic", "client", "group")
    bytes_per_watch: int = BYTES_PER_WATCH
    top: int = 10

    def __post_init__(self) -> None:
        unknown = [name for name in self.by if name not in DIMENSIONS]
        if unknown:
            raise UserError(f"--by {unknown[0]}: unknown dimension; expected one of {', '.join(DIMENSIONS)}")


@dataclass(frozen=True)
class Metrics:
    """The metrics of a replay, as tables that queries can read: `metrics_expires`, `metrics_waits`, and so on."""

    tables: RunTables
    options: MetricsOptions

    def sql(self, query: str) -> pa.Table:
        """Return the rows of an SQL query of the metrics' tables."""
        return self.tables.database.query(query)

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a query of `sql/`, given by its path without the suffix, as dictionaries."""
        return self.tables.rows(query, **parameters)


def write_metrics(session: Session, out: str, options: MetricsOptions) -> Metrics:
    """Compute every table of `METRICS` from the current output of the replay under `out`, and write it.

    Args:
        session: Spark session or backend.
        out: Folder of the replay.
        options: Options of the metrics.
    """
    return metrics_of_tables(RunTables(session, out), options)


def metrics_of_tables(tables: RunTables, options: MetricsOptions, folder: str = "") -> Metrics:
    """Compute every table of `METRICS` from the tables of a replay, and write it.

    Args:
        tables: Tables of the replay.
        options: Options of the metrics.
        folder: Subfolder for the metrics, with a slash at its end; by default the folder of the replay.
    """
    parameters = {
        "window_ms": options.window_ms,
        "step_ms": STEP_MS,
        "bytes_per_watch": options.bytes_per_watch,
        **{f"by_{dimension}": dimension in options.by for dimension in DIMENSIONS},
    }

    def save(name: str) -> None:
        # The rows are few, so one file keeps them in order; aggregations before it run in parallel.
        tables.save(_query(name), _path(tables, folder, name), COMMENTED_METRICS[name], parameters, single_file=True)

    tables.prepare(*map(_query, METRICS))
    # The table of groups reads rebalances and waits for partitions, too.
    shared = tables.materialized("last_event", "rebalances", "member_changes", "held_back")
    with shared, ThreadPoolExecutor(PARALLEL_QUERIES) as pool:
        list(pool.map(save, METRICS))
    return _metrics(tables, options, folder)


def read_metrics(session: Session, out: str) -> Metrics:
    """Return the tables that `write_metrics` wrote to `out`. Raises UserError if there are none."""
    tables = RunTables(session, out)
    store = backend_of(session).delta(out)
    if not all(store.is_table(tables.layout.table(name)) for name in METRICS):
        raise UserError(f"{out}: no metrics; run `metrics --out {out}` first")
    return _metrics(tables, MetricsOptions(), "")


def _metrics(tables: RunTables, options: MetricsOptions, folder: str) -> Metrics:
    for name, schema in METRICS.items():
        tables.add_table(name.replace("/", "_"), _path(tables, folder, name), schema)
    return Metrics(tables, options)


def _query(table: str) -> str:
    """Return the query that computes a table of metrics."""
    return table.replace("metrics/", "metrics_tables/")


def _path(tables: RunTables, folder: str, name: str) -> str:
    return tables.layout.table(f"{folder}{name}")


Row = dict[str, Any]


@dataclass(frozen=True)
class Totals:
    """Sums over all operations that ended.

    Attributes:
        kinds: The sums by kind of operation.
        recorded: The waits that brokers recorded, by kind and broker.
        first: Start of the first window.
        last: End of the last window.
        seconds: Length of the trace in seconds.
        after_end: Number of operations that ended after the trace.
    """

    kinds: list[Row]
    recorded: list[Row]
    first: str
    last: str
    seconds: float
    after_end: int

    @property
    def operations(self) -> int:
        """Number of operations."""
        return sum(row["operations"] for row in self.kinds)

    @property
    def waited(self) -> int:
        """Number of operations that had to wait."""
        return sum(row["waited"] for row in self.kinds)

    @property
    def expired(self) -> int:
        """Number of operations that expired."""
        return sum(row["expired"] for row in self.kinds)

    @property
    def failed(self) -> int:
        """Number of expired operations that failed by expiring, unlike a fetch."""
        return sum(row["failed"] for row in self.kinds)

    @property
    def as_intended(self) -> int:
        """Number of fetches, share fetches and initial joins that ended at their deadline."""
        return self.expired - self.failed - self.after_end

    @property
    def waited_percent(self) -> float:
        """Percentage of the operations that had to wait."""
        return percent(self.waited / self.operations) if self.operations else 0.0


def totals(metrics: Metrics) -> Totals:
    """Return the sums; `seconds` is the time from the start of the first window to the end of the last one."""
    (row,) = metrics.rows("metrics_command/totals")
    first, last, seconds = row["first"], row["last"], metrics.options.window_ms / 1000
    if first is not None:
        seconds += (last - first).total_seconds()
    kinds, recorded = metrics.rows("metrics_command/kinds"), metrics.rows("metrics_command/recorded", late_ms=LATE_MS)
    return Totals(kinds, recorded, _text(first, _MOMENT), _text(last, _MOMENT), seconds, row["after_end"] or 0)


_MOMENT, _TIME = "%Y-%m-%d %H:%M:%S", "%H:%M:%S"


def overview(metrics: Metrics, totals: Totals) -> list[Table]:
    """Return the summary's tables, each with at most `top` rows, possibly none. `totals` are those of `metrics`."""
    top = metrics.options.top
    rows = [(row["kind"], *_wait(row)) for row in totals.kinds]
    return [
        Table("Waits (quantiles of operations that had to wait)", ("kind", *_WAITS), rows),
        _recorded(totals.recorded),
        _meters(metrics.rows("metrics_command/meters", top=top), totals.seconds, metrics.options.window_ms),
        _purgatories(metrics.rows("metrics_command/purgatories", top=top)),
        _causes(metrics.rows("metrics_command/causes")),
        *(_by(metrics.rows("metrics_command/waits", by=by, top=top), by) for by in metrics.options.by),
        _expirations(metrics.rows("metrics_command/most_expirations", top=top), totals.kinds),
        _groups(metrics.rows("metrics_command/groups", top=top)),
        _rebalances(metrics.rows("metrics_command/rebalances", top=top)),
        _consumer_rebalances(metrics.rows("metrics_command/consumer_rebalances", top=top)),
        _held_back(metrics.rows("metrics_command/held_back", top=top)),
        _share_fetches(metrics.rows("metrics_command/share_fetches", top=top)),
        _deliveries(metrics.rows("metrics_command/deliveries", top=top)),
    ]


_WAITS = (
    "operations",
    "waited",
    "waited %",
    "expired",
    "failed",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "max ms",
    "waited s in all",
)


def _wait(row: Row) -> tuple[Cell, ...]:
    quantiles = (_rounded(row[name]) for name in ("p50_ms", "p95_ms", "p99_ms"))
    share, seconds = percent(row["waited_share"]), _rounded(row["waited_ms"] / 1000)
    counts = row["operations"], row["waited"], share, row["expired"], row["failed"]
    return (*counts, *quantiles, row["max_ms"], seconds)


def _recorded(kinds: list[Row]) -> Table:
    rows = [
        (
            row["kind"],
            row["broker"],
            row["operations"],
            *(_rounded(row[name] / 1000) for name in ("recorded_ms", "replayed_ms")),
            *(_rounded(row[name]) for name in ("recorded_max_ms", "replayed_max_ms")),
            row["late"],
        )
        for row in kinds
    ]
    columns = ("recorded s in all", "replayed s", "recorded max ms", "replayed max ms", "late")
    return Table("Recorded waits next to replayed ones", ("kind", "broker", "operations", *columns), rows)


def warnings(totals: Totals) -> list[str]:
    """Return a sentence for each broker that answered late: clients may have waited longer than the replay shows."""
    brokers = sorted({row["broker"] for row in totals.recorded if row["late"]})
    return [_warning(broker, [row for row in totals.recorded if row["broker"] == broker]) for broker in brokers]


def _warning(broker: int, rows: list[Row]) -> str:
    late, shown = sum(row["late"] for row in rows), sum(row["shown"] for row in rows)
    latest_s = max(row["latest_ms"] or 0 for row in rows) / 1000
    rest = "them" if not shown else f"{late - shown:,} of them"
    at_deadline = f"A replay ends {rest} at their deadlines, so clients waited longer than it shows."
    return (
        f"Warning: broker {broker} was late: {counted(late, 'operation')} waited up to {latest_s:,.1f} s longer than "
        f"their deadlines allow. {at_deadline if shown < late else 'The replay shows these waits as well.'}"
    )


def _meters(meters: list[Row], seconds: float, window_ms: int) -> Table:
    """Return the expiration meters: total, mean rate over all windows, and rate in the busiest window."""
    rows = [
        (
            row["mbean"],
            row["broker"],
            row["total"],
            round(row["total"] / seconds, 2),
            _rounded(row["busiest"]),
            _text(row["busiest_at"], _TIME),
        )
        for row in meters
    ]
    return Table(
        "Kafka's meters",
        ("mbean", "broker", "total", "per second", f"in the busiest {window_ms / 1000:g} s", "at"),
        rows,
    )


def _purgatories(readings: list[Row]) -> Table:
    rows = [
        (
            row["purgatory"],
            row["broker"],
            row["size"],
            _text(row["fullest_at"], _TIME),
            row["delayed"],
            row["dead"],
            row["dead_bytes"],
            row["purged"],
        )
        for row in readings
    ]
    columns = ("purgatory", "broker", "PurgatorySize, most", "at", "NumDelayedOperations, most")
    return Table("Purgatories", (*columns, "dead entries, most", "bytes held", "purged"), rows)


def _causes(causes: list[Row]) -> Table:
    rows = [
        (
            row["kind"],
            "expired" if row["expired"] else "completed" if row["watched"] else "completed on arrival",
            row["completed_by"],
            row["operations"],
            _rounded(row["waited_ms"] / 1000),
            _rounded(row["p50_ms"]),
            _rounded(row["p99_ms"]),
            row["max_ms"],
        )
        for row in causes
    ]
    return Table("Causes", ("kind", "end", "by", "operations", "waited s in all", "p50 ms", "p99 ms", "max ms"), rows)


def _by(longest: list[Row], by: str) -> Table:
    rows = [(row["value"], row["kind"], *_wait(row)) for row in longest]
    return Table(f"Waits by {by}", (by, "kind", *_WAITS), rows)


def _expirations(worst: list[Row], kinds: list[Row]) -> Table:
    of_kind = {row["kind"]: row["expired"] for row in kinds}
    rows = [
        (
            row["by"],
            row["value"],
            row["kind"],
            row["expired"],
            row["failed"],
            percent(row["expired"] / of_kind[row["kind"]]),
            _rounded(row["expired_max_ms"]),
        )
        for row in worst
    ]
    return Table(
        "Most expirations", ("by", "value", "kind", "expired", "failed", "% of the kind's", "longest ms"), rows
    )


def _groups(groups: list[Row]) -> Table:
    names = ("sessions_lost", "rebalance_timeouts", "held_back", "held_back_ms")
    rows = [
        (
            *(row[name] for name in ("group", "broker", "protocol", "rebalances")),
            _rounded(row["mean_to_stable_ms"]),
            row["max_to_stable_ms"],
            *(row[name] for name in names),
        )
        for row in groups
    ]
    columns = ("group", "broker", "protocol", "rebalances", "mean ms to Stable", "max ms to Stable", "sessions lost")
    return Table("Groups", (*columns, "rebalance timeouts", "held back", "held back ms"), rows)


def _rebalances(longest: list[Row]) -> Table:
    rows = [
        (*_rebalance_start(row), row["joined_because"], _rebalance_end(row), row["last_to_join"], _missing(row))
        for row in longest
    ]
    columns = ("group", "broker", "generation", "started", "ms", "because", "joined as", "ended", "last to join")
    return Table("Rebalances", (*columns, "missing"), rows)


def _consumer_rebalances(longest: list[Row]) -> Table:
    rows = [(*_rebalance_start(row), _rebalance_end(row), _missing(row)) for row in longest]
    columns = ("group", "broker", "group epoch", "started", "ms", "because", "ended", "missing")
    return Table("Rebalances of consumer groups (KIP-848)", columns, rows)


def _rebalance_start(row: Row) -> tuple[Cell, ...]:
    started = _text(row["started_at"], f"{_TIME}.%f")[:-3]
    return row["group"], row["broker"], row["generation"], started, row["length_ms"], row["reason"]


def _rebalance_end(row: Row) -> str:
    return f"{row['ended_as']} after the trace's end" if row["after_end"] else str(row["ended_as"])


def _missing(row: Row) -> str | None:
    return ", ".join(row["missing"] or []) or None


def _held_back(longest: list[Row]) -> Table:
    rows = [
        (
            row["group"],
            row["broker"],
            row["member"],
            row["partitions"],
            row["waiting"],
            _text(row["started_at"], f"{_TIME}.%f")[:-3],
            row["held_ms"],
            row["ended_by"],
        )
        for row in longest
    ]
    columns = ("group", "broker", "member", "partitions", "waiting member", "since", "ms", "ended by")
    return Table("Members that held partitions back", columns, rows)


def _share_fetches(fetches: list[Row]) -> Table:
    """Return the ends of share fetches. Kafka's meter counts expired ones even if they were answered with records."""
    names = ("group", "broker", "operations", "on_arrival", "after_a_wait", "expired", "with_records", "unwoken")
    rows = [
        (*(row[name] for name in names), row["after_leader_loss"], _rounded(row["waited_ms"] / 1000)) for row in fetches
    ]
    columns = ("group", "broker", "fetches", "on arrival", "after a wait", "expired", "with records", "not woken")
    return Table("Share fetches", (*columns, "after leader loss", "waited s in all"), rows)


def _deliveries(deliveries: list[Row]) -> Table:
    ends = ("records", "accepted", "released", "rejected", "lock_expired", "session_ended", "archived")
    rows = [
        (
            row["group"],
            row["delivery_count"],
            *(row[name] for name in ends),
            _rounded(row["mean_held_ms"]),
            row["max_held_ms"],
        )
        for row in deliveries
    ]
    columns = ("group", "delivery", "records", "accepted", "released", "rejected", "lock expired", "session ended")
    return Table("Records delivered to share groups", (*columns, "archived", "mean held ms", "max held ms"), rows)


def percent(share: float) -> float:
    """Convert a share between 0 and 1 to a percentage, rounded to one decimal."""
    return round(100 * share, 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _text(moment: datetime | None, pattern: str) -> str:
    return "-" if moment is None else f"{moment:{pattern}}"


_WITHOUT = {
    "purgatory_gauges": "purgatory sizes (no gauge has been read)",
    "group_transitions": "rebalances (the trace has no groups, or none has been replayed yet)",
    "events": "the last member to join (the replayed events were moved or deleted)",
}


def summary(metrics: Metrics) -> list[str]:
    """Return the metrics as lines of text: totals, all tables with rows, and the names of missing inputs."""
    sums = totals(metrics)
    blocks = [[_head(metrics, sums), *warnings(sums)]]
    blocks += [table.lines() for table in overview(metrics, sums) if table.rows]
    missing = [_WITHOUT[name] for name in metrics.tables.missing if name in _WITHOUT]
    blocks += [[f"Not available: {'; '.join(missing)}"]] if missing else []
    blocks.append([f"Tables: {', '.join(sorted(METRICS))} in {metrics.tables.layout.out}"])
    return [line for block in blocks for line in ["", *block]][1:]


def as_json(metrics: Metrics) -> dict[str, Any]:
    """Return the figures of the summary as JSON: rows of `sql/metrics_command`, each list with `top` rows."""
    sums, top, tables = totals(metrics), metrics.options.top, metrics.tables
    of_groups = ("groups", "rebalances", "consumer_rebalances", "held_back", "share_fetches", "deliveries")
    of_operations = {"meters": "meters", "purgatories": "purgatories", "expirations": "most_expirations"}
    ranked = of_operations | {name: name for name in of_groups}
    return {
        "run_id": tables.run.run_id,
        "finished": tables.finished,
        "operations": sums.operations,
        "waited": sums.waited,
        "expired": sums.expired,
        "failed": sums.failed,
        "seconds": sums.seconds,
        "warnings": warnings(sums),
        "kinds": sums.kinds,
        "recorded": sums.recorded,
        "causes": metrics.rows("metrics_command/causes"),
        **{name: metrics.rows(f"metrics_command/{query}", top=top) for name, query in ranked.items()},
        "waits": {by: metrics.rows("metrics_command/waits", by=by, top=top) for by in metrics.options.by},
    }


def _head(metrics: Metrics, totals: Totals) -> str:
    tables = metrics.tables
    state = "" if tables.finished else " (still running or interrupted; its output so far)"
    ends = {"failed": totals.failed, "as intended": totals.as_intended, "after the trace's end": totals.after_end}
    share = f"{totals.waited_percent} % had to wait"
    how = ", ".join(f"{count:,} {end}" for end, count in ends.items() if count)
    expired = f"{totals.expired:,} expired" + (f" ({how})" if how else "")
    return f"Run {tables.run.run_id}{state}: {totals.operations:,} operations, {share}, {expired}"
