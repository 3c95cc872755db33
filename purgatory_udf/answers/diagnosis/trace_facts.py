"""The figures of one trace that detectors read: usual waits, periods without fetches or requests, stops of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory_udf.answers.run_tables import RunTables

Row = dict[str, Any]

# A wait counts as slow from this many milliseconds on, and from this multiple of its usual 95th percentile.
SLOW_MS, SLOW_FACTOR = 50, 5
# How much later than allowed a follower's next fetch may come before it counts as missing, in milliseconds.
FETCH_SLACK_MS = 250
# Slow waits with at most this distance belong to one incident, in microseconds.
SAME_INCIDENT_US = 3_000_000
# A silence means that the broker stood still if it was busy: at least this many requests were expected in this time. If
# requests arrive at random, such a silence happens by chance once in 150 times.
_EXPECTED_REQUESTS = 5
# The assumed distance of an unrecorded shutdown from the end of the trace: further than any detector looks back.
NEVER_US = 3_600_000_000


@dataclass(frozen=True)
class Period:
    """A period from `start_us` to `end_us`, in microseconds since the epoch."""

    start_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        """The length in microseconds."""
        return self.end_us - self.start_us

    def overlap_us(self, start_us: int, end_us: int) -> int:
        """Return the length of the overlap with another period, in microseconds."""
        return max(0, min(self.end_us, end_us) - max(self.start_us, start_us))


def merged(periods: Iterable[Period], apart_us: int = 0) -> list[Period]:
    """Return the union of periods; periods with a gap of at most `apart_us` are merged."""
    result: list[Period] = []
    for period in sorted(periods, key=lambda each: each.start_us):
        if result and period.start_us <= result[-1].end_us + apart_us:
            result[-1] = Period(result[-1].start_us, max(result[-1].end_us, period.end_us))
        else:
            result.append(period)
    return result


def in_groups(rows: Sequence[Row], apart_us: int) -> Iterator[list[Row]]:
    """Yield groups of consecutive rows. A new group starts where `time_us` grows by more than `apart_us`."""
    group: list[Row] = []
    for row in rows:
        if group and row["time_us"] > group[-1]["time_us"] + apart_us:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


class TraceFacts:
    """Figures of the trace and of its waits, each queried on first use."""

    def __init__(self, tables: RunTables) -> None:
        self.tables = tables
        (span,) = tables.rows("diagnosis/span")
        self.start_us: int = span["start_us"] or 0
        self.end_us: int = span["end_us"] or 0
        self.fetch_wait_ms: int = span["max_wait_ms"] or 500

    @cached_property
    def replication(self) -> list[Row]:
        """The waits of produces by leader, follower and second, without those that were open at the end."""
        return self.tables.rows("diagnosis/replication", last_us=self.end_us)

    @cached_property
    def slow_ms(self) -> int:
        """The shortest wait for a follower that counts as slow, in milliseconds.

        It is based on the 95th percentile of a typical second of a leader and a follower, so incidents of less than
        half of the trace do not change it.
        """
        usual = [row["p95_ms"] for row in self.replication]
        return max(SLOW_MS, round(SLOW_FACTOR * median(usual))) if usual else SLOW_MS

    @cached_property
    def slow_parts(self) -> list[Row]:
        """The waits for replicas that are slow (`slow_ms`) and end within the trace."""
        return self.tables.rows("diagnosis/slow_parts", slow_ms=self.slow_ms, last_us=self.end_us)

    @cached_property
    def usual_ms(self) -> dict[tuple[str, int | None, int | None], float]:
        """The median wait for replicas in milliseconds, by cause, leader and replica."""
        usual = self.tables.rows("diagnosis/usual_replica_waits")
        return {
            (cause, broker, replica): median(row["p50_ms"] for row in rows)
            for (cause, broker, replica), rows in _grouped(usual, "cause", "broker", "replica")
        }

    @cached_property
    def _gaps(self) -> list[Row]:
        longest_ms = self.fetch_wait_ms + FETCH_SLACK_MS
        rows = self.tables.rows("diagnosis/broker_gaps", longest_ms=longest_ms, expected=_EXPECTED_REQUESTS)
        return [row for row in rows if not row["stopped"]]

    @cached_property
    def silences(self) -> dict[int, list[Period]]:
        """By broker, the periods in which it handled no request although its process was running."""
        return {
            broker: [Period(row["start_us"], row["end_us"]) for row in found]
            for (broker,), found in _grouped(self._gaps, "broker")
        }

    @cached_property
    def standstills(self) -> dict[int, list[Period]]:
        """By broker, the silences in which it stood still: it was busy before and did not fetch either, or was paused.

        A broker that leads no partition is often silent, because it gets few requests.
        """
        found: dict[int, list[Period]] = {}
        for row in self._gaps:
            gap = Period(row["start_us"], row["end_us"])
            if (row["busy"] and not row["fetched"]) or self.was_paused(row["broker"], [gap]):
                found.setdefault(row["broker"], []).append(gap)
        return found

    @cached_property
    def pauses(self) -> dict[int, list[Period]]:
        """By broker, the periods in which it stood still, as the events record them."""
        return {
            broker: [Period(row["paused_us"], row["resumed_us"]) for row in found]
            for (broker,), found in _grouped(self.tables.rows("explain/pauses"), "broker")
        }

    @cached_property
    def stalls(self) -> dict[tuple[int, int], list[Period]]:
        """By replica and leader, the periods without a fetch of the replica while the leader handled requests."""
        found: dict[tuple[int, int], list[Period]] = {}
        for row in self.tables.rows("diagnosis/replica_gaps", slack_ms=FETCH_SLACK_MS):
            gap, pair = Period(row["start_us"], row["end_us"]), (row["replica"], row["broker"])
            if not self.is_silent(row["broker"], gap) and not any(self.is_down(broker, gap) for broker in pair):
                found.setdefault(pair, []).append(gap)
        return found

    @cached_property
    def throttles(self) -> dict[tuple[int, int, str, int], list[Period]]:
        """By replica, leader, topic and partition, the periods in which a replication quota throttled the replica."""
        rows = self.tables.rows("diagnosis/throttles", last_us=self.end_us)
        return {
            place: merged((Period(row["start_us"], row["end_us"]) for row in found), SAME_INCIDENT_US)
            for place, found in _grouped(rows, "replica", "broker", "topic", "partition")
        }

    def throttled_replica(self, leader: int, topic: str, period: Period) -> int | None:
        """Return the replica of a topic that the leader throttled for most of a period, or None."""
        overlaps: dict[int, int] = {}
        for (replica, broker, name, _), periods in self.throttles.items():
            if (broker, name) == (leader, topic):
                overlap_us = sum(each.overlap_us(period.start_us, period.end_us) for each in periods)
                overlaps[replica] = max(overlap_us, overlaps.get(replica, 0))
        throttled = [each for each, overlap_us in overlaps.items() if 2 * overlap_us >= period.length_us > 0]
        return max(throttled, key=overlaps.__getitem__, default=None)

    @cached_property
    def below_minimum(self) -> list[Row]:
        """The periods in which partitions had fewer in-sync replicas than `min.insync.replicas`."""
        self.tables.add("below_min_isr")
        rows: list[Row] = self.tables.database.query("SELECT * FROM below_min_isr").to_pylist()
        return rows

    @cached_property
    def refusals(self) -> list[Row]:
        """Produces and fetches that ended with an error of a partition, by error, partition and second."""
        return self.tables.rows("diagnosis/refusals")

    @cached_property
    def producers(self) -> list[Row]:
        """The timeouts, sizes and waits of produces with acks=all, by client."""
        return self.tables.rows("diagnosis/producers")

    @cached_property
    def stops(self) -> list[Row]:
        """The times at which brokers' processes ended, each with the time of the broker's next request, or None."""
        return self.tables.rows("diagnosis/stops")

    @cached_property
    def shutdown_us(self) -> int:
        """The time at which the whole cluster shut down at the end of the trace; far in the future if it did not."""
        last = {row["broker"]: row["time_us"] for row in self.stops if row["next_us"] is None}
        if last and {row["broker"] for row in self.tables.rows("diagnosis/waiting_brokers")} <= last.keys():
            return min(last.values())
        return self.end_us + NEVER_US

    def is_silent(self, broker: int, period: Period) -> bool:
        """Return whether the broker handled no request for most of the period."""
        return _covers(self.silences.get(broker, ()), period)

    def stood_still(self, broker: int, period: Period) -> bool:
        """Return whether the broker stood still for most of the period; see `standstills`."""
        return _covers(self.standstills.get(broker, ()), period)

    def was_paused(self, broker: int, silences: Iterable[Period]) -> bool:
        """Return whether the events record that the broker stood still for most of each period."""
        pauses = self.pauses.get(broker, [])
        return all(
            2 * sum(pause.overlap_us(each.start_us, each.end_us) for pause in pauses) > each.length_us
            for each in silences
        )

    def is_down(self, broker: int, period: Period) -> bool:
        """Return whether the broker's process was stopped at some time in the period."""
        return any(
            row["broker"] == broker and period.start_us - 1_000_000 <= row["time_us"] <= period.end_us
            for row in self.stops
        )


def _covers(periods: Iterable[Period], period: Period) -> bool:
    return 2 * sum(each.overlap_us(period.start_us, period.end_us) for each in periods) >= period.length_us


def _grouped(rows: Iterable[Row], *keys: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    def order(row: Row) -> tuple[Any, ...]:
        return tuple((value is None, value) for value in key(row))

    for _, found in groupby(sorted(rows, key=order), order):
        group = list(found)
        yield key(group[0]), group
