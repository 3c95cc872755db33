"""Serves the status of a followed replay to Prometheus: `top --serve`. Every scrape reads the status files.

Metrics that Kafka has as MBeans have the names of Prometheus's JMX exporter, as in `metrics --prometheus`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory_udf.common.errors import UserError
from purgatory_udf.storage.output_folder import is_locked
from purgatory_udf.streaming.top_screen import as_json, read_status

DEFAULT_HOST = "127.0.0.1"
# No limit on the number of groups: alerts must not miss one.
_ALL = 1 << 31

# The labels of Kafka's MBeans, and of other metrics by purgatory.
_MBEAN_LABELS, _LABELS = ("broker", "delayedOperation"), ("broker", "purgatory")


class StatusCollector(Collector):
    """The metrics of a followed replay.

    Args:
        out: Output folder of the replay.
        now: The wall clock, in seconds.
    """

    def __init__(self, out: str, now: Callable[[], float] = time.time) -> None:
        self._out = out
        self._now = now

    def collect(self) -> Iterable[Metric]:
        """Read the status files and return all metrics; only `purgatory_replay_running` if there is no status."""
        try:
            statuses, ended = read_status(self._out)
        except UserError:
            # A replay that starts writes the files after its first batch.
            running = int(is_locked(self._out, "replay"))
            return [_gauge("purgatory_replay_running", "1 while the replay runs, 0 after its end.", running)]
        now_ms = int(self._now() * 1000)
        status = as_json(statuses, _ALL, now_ms, ended)
        counts = {name: sum(each.counts.get(name, 0) for each in statuses.values()) for name in ("events", *_ENDS)}
        return [
            _gauge("purgatory_replay_running", "1 while the replay runs, 0 after its end.", int(not ended)),
            _gauge(
                "purgatory_replay_trace_time_seconds",
                "Time of the trace up to which the replay has decided, in seconds since 1970.",
                _seconds(status["time"]),
            ),
            _gauge(
                "purgatory_replay_status_age_seconds",
                "Time since the last batch, by the wall clock, in seconds.",
                status["age_ms"] / 1000,
            ),
            CounterMetricFamily("purgatory_replay_events", "Replayed events.", counts["events"]),
            _labeled(
                CounterMetricFamily("purgatory_replay_ended_operations", "Operations that ended.", labels=["end"]),
                [([end], counts[table]) for table, end in _ENDS.items()],
            ),
            _gauge("purgatory_replay_open_operations", "Operations that have not ended.", status["open"]),
            *_purgatories(status["purgatories"]),
            _labeled(
                GaugeMetricFamily(
                    "purgatory_replay_lagging_replica_seconds",
                    "Time that the oldest produce has waited for this follower, in seconds.",
                    labels=["replica"],
                ),
                [([str(row["replica"])], row["waited_ms"] / 1000) for row in status["lagging_replicas"]],
            ),
            _labeled(
                GaugeMetricFamily(
                    "purgatory_replay_rebalance_seconds",
                    "Time since a rebalance of this group began, in seconds; 0 if its start is unknown.",
                    labels=["broker", "group", "state"],
                ),
                [
                    ([str(row["broker"]), row["group"], row["state"]], (row["since_ms"] or 0) / 1000)
                    for row in status["rebalances"]
                ],
            ),
        ]


# Tables of outcomes, and the values of the label `end`.
_ENDS = {"completions": "completed", "expirations": "expired", "cancellations": "cancelled"}


def _purgatories(rows: list[dict[str, Any]]) -> list[Metric]:
    families = {
        "watched": GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Entries of watcher lists, dead ones included (PurgatorySize).",
            labels=_MBEAN_LABELS,
        ),
        "delayed": GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_numdelayedoperations",
            "Operations in a purgatory's timer (NumDelayedOperations).",
            labels=_MBEAN_LABELS,
        ),
        "expired_per_s": GaugeMetricFamily(
            "purgatory_replay_expirations_per_second",
            "Expirations per second: mean of the last 10 s of the trace.",
            labels=_LABELS,
        ),
        "longest_wait_ms": GaugeMetricFamily(
            "purgatory_replay_longest_wait_seconds",
            "Time that the oldest operation of a purgatory has waited, in seconds; 0 if none waits.",
            labels=_LABELS,
        ),
    }
    for row in rows:
        for name, family in families.items():
            value = row[name] or 0
            family.add_metric([str(row["broker"]), row["purgatory"]], value / 1000 if name.endswith("_ms") else value)
    return list(families.values())


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value)


def _labeled(family: GaugeMetricFamily | CounterMetricFamily, samples: list[tuple[list[str], float]]) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _seconds(moment: datetime) -> float:
    return moment.timestamp()


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `PORT`. An IPv6 address is written in brackets.

    Raises:
        UserError: The port is not a number from 0 to 65535.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise UserError(f"--serve {text}: expected HOST:PORT, such as {DEFAULT_HOST}:9408, or a port")
    return host.strip("[]") or DEFAULT_HOST, int(port)


def serve(out: str, address: str, started: Callable[[str], None] = print) -> None:
    """Serve `/metrics` until SIGINT or SIGTERM, also after the end of the replay.

    Args:
        out: Output folder of the replay.
        address: `HOST:PORT` or `PORT`; port 0 stands for any free one.
        started: Called with a sentence that has the URL.

    Raises:
        UserError: No replay runs in `out`, and no followed one has written to it; or the address cannot be used.
    """
    host, port = parse_address(address)
    if not is_locked(out, "replay"):
        read_status(out)
    registry = CollectorRegistry()
    registry.register(StatusCollector(out))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise UserError(f"--serve {address}: {error}") from None
    stopped = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        shown = f"[{host}]" if ":" in host else host
        started(f"Metrics of {out}: http://{shown}:{server.server_port}/metrics")
        stopped.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        server.shutdown()
        server.server_close()
        thread.join()
