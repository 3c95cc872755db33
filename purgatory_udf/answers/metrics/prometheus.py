"""The metrics of a replay in Prometheus's text format, for a node exporter's textfile collector.

What Kafka has an MBean for is named as Prometheus's JMX exporter names that, with its tags as labels, and `broker`; as
there, a meter by partition stands beside the sum over all. The rest is named after this product. Counters count from
the trace's beginning; gauges are as last read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.answers.metrics.outcome_metrics import ALL
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.file_system import write_whole

if TYPE_CHECKING:
    from purgatory_udf.answers.metrics.metrics_run import Metrics

_SIZE = "kafka_server_delayedoperationpurgatory_purgatorysize"
_DELAYED = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
_WAITS = "purgatory_replay_wait_seconds"
_QUANTILES = {"0.5": "p50_ms", "0.95": "p95_ms", "0.99": "p99_ms"}
_ENDS = ("on_arrival", "after_a_wait", "expired")


@dataclass
class Family:
    """One metric, with a sample for each set of labels. A summary's samples have a suffix of their own."""

    name: str
    kind: str
    says: str
    samples: list[tuple[str, Mapping[str, object], float]] = field(default_factory=list)

    def add(self, value: float | None, suffix: str = "", **labels: object) -> None:
        """A label that is None is none; a value that is not known is not said."""
        if value is not None:
            self.samples.append((suffix, {name: label for name, label in labels.items() if label is not None}, value))

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escaped(self.says, quotes=False)}"
        yield f"# TYPE {self.name} {self.kind}"
        for suffix, labels, value in self.samples:
            listed = ",".join(f'{name}="{_escaped(str(label))}"' for name, label in labels.items())
            yield f"{self.name}{suffix}{{{listed}}} {value!r}" if listed else f"{self.name}{suffix} {value!r}"


def exposition(metrics: Metrics) -> str:
    """The whole text."""
    families = [*_gauges(metrics), *_meters(metrics), *_operations(metrics), _waits(metrics), *_rest(metrics)]
    return "".join(f"{line}\n" for family in families if family.samples for line in family.lines())


def write_prometheus(metrics: Metrics, file: Path) -> None:
    """The collector that reads it is another user."""
    write_whole(file, exposition(metrics), for_all=True)


def _escaped(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _gauges(metrics: Metrics) -> Iterable[Family]:
    size = Family(_SIZE, "gauge", "Entries of watcher lists, dead ones included (PurgatorySize).")
    delayed = Family(_DELAYED, "gauge", "Operations that a purgatory's timer holds (NumDelayedOperations).")
    dead = Family(
        "purgatory_replay_dead_watches", "gauge", "Entries whose operation has ended, and that nobody cleared."
    )
    purged = Family("purgatory_replay_purged_watches_total", "counter", "Dead entries that purges have cleared.")
    last = ("purgatory_size_last", "num_delayed_last", "dead_watches_last")
    latest = [sf.max_by(name, "window_start").alias(name) for name in last]
    readings = metrics["purgatories"].groupBy("broker", "purgatory").agg(*latest, sf.sum("purged").alias("purged"))
    for row in readings.orderBy("broker", "purgatory").collect():
        labels = {"broker": row.broker, "delayedOperation": row.purgatory}
        for family, value in zip(
            (size, delayed, dead, purged), (*(row[name] for name in last), row.purged), strict=True
        ):
            family.add(value, **labels)
    return size, delayed, dead, purged


def _meters(metrics: Metrics) -> Iterable[Family]:
    families: dict[str, Family] = {}
    whose = sf.regexp_extract("mbean", "type=([^,]+)", 1).alias("type")
    expirations = (
        metrics["expires"]
        .groupBy(whose, "broker", "topic", "partition", "fetcher")
        .agg(sf.sum("expired").alias("expired"))
    )
    for row in expirations.orderBy("type", "broker", "topic", "partition", "fetcher").collect():
        family = families.setdefault(
            row.type,
            Family(f"kafka_server_{row.type.lower()}_expires_total", "counter", f"ExpiresPerSec of {row.type}."),
        )
        labels = {"broker": row.broker, "topic": row.topic, "partition": row.partition, "fetcherType": row.fetcher}
        family.add(row.expired, **labels)
    return families.values()


def _operations(metrics: Metrics) -> Iterable[Family]:
    family = Family("purgatory_replay_operations_total", "counter", "Operations that have ended, by how they did.")
    ends = [sf.sum(name).alias(name) for name in _ENDS]
    for row in metrics["operations"].groupBy("kind", "broker").agg(*ends).orderBy("kind", "broker").collect():
        for end in _ENDS:
            family.add(row[end], broker=row.broker, kind=row.kind, end=end)
    return (family,)


def _waits(metrics: Metrics) -> Family:
    family = Family(_WAITS, "summary", "How long operations waited that had to, over the whole trace.")
    for row in metrics["waits"].where(sf.col("by") == ALL).orderBy("kind").collect():
        for quantile, column in _QUANTILES.items():
            family.add(None if row[column] is None else row[column] / 1000, kind=row.kind, quantile=quantile)
        family.add(row.waited_ms / 1000, "_sum", kind=row.kind)
        family.add(row.waited, "_count", kind=row.kind)
    return family


def _rest(metrics: Metrics) -> Iterable[Family]:
    rebalances = Family("purgatory_replay_rebalances_total", "counter", "Rebalances that began, by how they ended.")
    counted = metrics["rebalances"].groupBy("broker", "group", "ended_as").count()
    for row in counted.orderBy("broker", "group", "ended_as").collect():
        rebalances.add(row["count"], broker=row.broker, group=row.group, ended=row.ended_as)
    counts = metrics.tables.run.counts
    still_open = Family("purgatory_replay_open_operations", "gauge", "Operations that have not ended.")
    still_open.add(counts.get("open"))
    events = Family("purgatory_replay_events_total", "counter", "Events that have been replayed.")
    events.add(counts.get("events"))
    return rebalances, still_open, events
