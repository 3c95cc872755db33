"""The metrics of a replay in Prometheus's text format, for the textfile collector of the node exporter.

If Kafka has an MBean for a metric, the metric has the name that Prometheus's JMX exporter gives it, with the MBean's
tags and `broker` as labels. As in Kafka, there is a meter for each partition and one for their sum. Other names start
with `purgatory_replay`. Counters count from the start of the trace; gauges have their last reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.finding import Finding, iso_time
from purgatory_udf.backend.file_system import replace_file

if TYPE_CHECKING:
    from purgatory_udf.answers.metrics import Metrics

_SIZE = "kafka_server_delayedoperationpurgatory_purgatorysize"
_DELAYED = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
_LOCKS = "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total"
_ACKNOWLEDGED = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
_WAITS = "purgatory_replay_wait_seconds"
_TO_STABLE = "purgatory_replay_time_to_stable_seconds"
_QUANTILES = {"0.5": "p50_ms", "0.95": "p95_ms", "0.99": "p99_ms"}
_ENDS = ("on_arrival", "after_a_wait", "expired")


@dataclass
class Family:
    """One metric, with a sample for each set of labels; samples of a summary have a suffix."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Mapping[str, object], float]] = field(default_factory=list)

    def add(self, value: float | None, suffix: str = "", **labels: object) -> None:
        """Add a sample to the metric.

        Args:
            value: The value; None adds no sample.
            suffix: Suffix of the metric's name, for the samples of a summary.
            labels: The labels; those with the value None are omitted.
        """
        if value is not None:
            self.samples.append((suffix, {name: label for name, label in labels.items() if label is not None}, value))

    def lines(self) -> Iterator[str]:
        """Yield the metric's lines in Prometheus's text format: HELP, TYPE, and one line for each sample."""
        yield f"# HELP {self.name} {_escaped(self.help, quotes=False)}"
        yield f"# TYPE {self.name} {self.kind}"
        for suffix, labels, value in self.samples:
            listed = ",".join(f'{name}="{_escaped(str(label))}"' for name, label in labels.items())
            yield f"{self.name}{suffix}{{{listed}}} {value!r}" if listed else f"{self.name}{suffix} {value!r}"


def exposition(metrics: Metrics, findings: Sequence[Finding] = ()) -> str:
    """Return all metrics as text, with a series for each finding of a diagnosis."""
    families = [*_gauges(metrics), *_meters(metrics), *_deliveries(metrics), _operations(metrics), _waits(metrics)]
    families += [*_counts(metrics), *_groups(metrics)]
    families.append(_findings(findings))
    return "".join(f"{line}\n" for family in families if family.samples for line in family.lines())


def write_prometheus(metrics: Metrics, file: Path, findings: Sequence[Finding] = ()) -> None:
    """Write all metrics to a file, atomically. Every user can read the file, because the collector must.

    Args:
        metrics: The metrics.
        file: The file to create or replace.
        findings: Findings of a diagnosis, which become metrics too.
    """
    replace_file(file, exposition(metrics, findings), for_all=True)


def _findings(findings: Sequence[Finding]) -> Family:
    family = Family("purgatory_replay_finding", "gauge", "Excess waiting of an incident, in operation-seconds.")
    for each in findings:
        family.add(
            each.excess_wait_s,
            kind=each.kind,
            broker=each.broker,
            client=each.client_id,
            group=each.group,
            topic=each.topic,
            start=iso_time(each.start_us),
            end=iso_time(each.end_us),
        )
    return family


def _escaped(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _gauges(metrics: Metrics) -> Iterable[Family]:
    families = {
        "size": Family(_SIZE, "gauge", "Entries of watcher lists, dead ones included (PurgatorySize)."),
        "delayed": Family(_DELAYED, "gauge", "Operations in a purgatory's timer (NumDelayedOperations)."),
        "dead": Family("purgatory_replay_dead_watches", "gauge", "Entries of watcher lists of ended operations."),
        "purged": Family("purgatory_replay_purged_watches_total", "counter", "Dead entries that purges have removed."),
    }
    for row in metrics.rows("prometheus/gauges"):
        for name, family in families.items():
            # Kafka's MBeans have the tag `delayedOperation`.
            label = "delayedOperation" if name in ("size", "delayed") else "purgatory"
            family.add(row[name], **{"broker": row["broker"], label: row["purgatory"]})
    return families.values()


def _meters(metrics: Metrics) -> Iterable[Family]:
    families: dict[str, Family] = {}
    for row in metrics.rows("prometheus/meters"):
        bean = row["type"]
        name = f"kafka_server_{bean.lower()}_expires_total"
        family = families.setdefault(bean, Family(name, "counter", f"ExpiresPerSec of {bean}."))
        tags = {"topic": row["topic"], "partition": row["partition"], "fetcherType": row["fetcher"]}
        family.add(row["expired"], broker=row["broker"], **tags)
    return families.values()


def _deliveries(metrics: Metrics) -> Iterable[Family]:
    locks = Family(_LOCKS, "counter", "Records with an expired acquisition lock (AcquisitionLockTimeoutPerSec).")
    acknowledged = Family(_ACKNOWLEDGED, "counter", "Acknowledged records (RecordAcknowledgementsPerSec).")
    by_type: Counter[tuple[int, str]] = Counter()
    for row in metrics.rows("prometheus/deliveries"):
        tags = {name: row[name] for name in ("group", "topic", "partition")}
        locks.add(row["lock_expired"], broker=row["broker"], **tags)
        for kind, name in (("Accept", "accepted"), ("Release", "released"), ("Reject", "rejected")):
            by_type[row["broker"], kind] += row[name]
    for (broker, kind), records in sorted(by_type.items()):
        acknowledged.add(records, broker=broker, ackType=kind)
    return locks, acknowledged


def _operations(metrics: Metrics) -> Family:
    family = Family("purgatory_replay_operations_total", "counter", "Operations that have ended, by how they ended.")
    for row in metrics.rows("prometheus/operations"):
        for end in _ENDS:
            family.add(row[end], broker=row["broker"], kind=row["kind"], end=end)
    return family


def _waits(metrics: Metrics) -> Family:
    family = Family(_WAITS, "summary", "Waits of the operations that had to wait, over the whole trace, in seconds.")
    for row in metrics.rows("metrics_command/kinds"):
        for quantile, column in _QUANTILES.items():
            family.add(None if row[column] is None else row[column] / 1000, kind=row["kind"], quantile=quantile)
        family.add(row["waited_ms"] / 1000, "_sum", kind=row["kind"])
        family.add(row["waited"], "_count", kind=row["kind"])
    return family


def _counts(metrics: Metrics) -> Iterable[Family]:
    rebalances = Family("purgatory_replay_rebalances_total", "counter", "Rebalances, by how they ended.")
    for row in metrics.rows("prometheus/rebalances"):
        rebalances.add(row["rebalances"], broker=row["broker"], group=row["group"], ended=row["ended_as"])
    counts = metrics.tables.run.counts
    still_open = Family("purgatory_replay_open_operations", "gauge", "Operations that have not ended.")
    still_open.add(counts.get("open"))
    events = Family("purgatory_replay_events_total", "counter", "Events that have been replayed.")
    events.add(counts.get("events"))
    return rebalances, still_open, events


def _groups(metrics: Metrics) -> Iterable[Family]:
    stable = Family(
        _TO_STABLE, "summary", "Rebalances after which a group was Stable: their number and lengths in seconds."
    )
    sessions = Family("purgatory_replay_sessions_lost_total", "counter", "Members of groups with an expired session.")
    timeouts = Family("purgatory_replay_rebalance_timeouts_total", "counter", "Expired rebalance timeouts of groups.")
    held = Family(
        "purgatory_replay_held_back_seconds_total", "counter", "Waits for partitions that a client held, in seconds."
    )
    for row in metrics.rows("prometheus/groups"):
        tags = {name: row[name] for name in ("broker", "group", "protocol")}
        stable.add(row["to_stable_ms"] / 1000, "_sum", **tags)
        stable.add(row["stabilized"], "_count", **tags)
        sessions.add(row["sessions_lost"], **tags)
        timeouts.add(row["rebalance_timeouts"], **tags)
    for row in metrics.rows("prometheus/held_back"):
        held.add(row["held_ms"] / 1000, broker=row["broker"], group=row["group"], client=row["client"])
    return stable, sessions, timeouts, held
