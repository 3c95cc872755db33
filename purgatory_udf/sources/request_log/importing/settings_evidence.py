"""Settings of the brokers that rows of requests show: those of a followed log, and the replica lag of a whole log.

A step of a followed log has only the requests that are not settled yet, so each step adds what its settled requests
show. Later requests of the step show whether a member is silent. `replica.lag.time.max.ms` is not derived: its evidence
spans many steps. It is derived from a whole log, by the removals of silent followers from in-sync sets:

At a check, a leader removes the followers that lack records and were last caught up longer ago than the setting:

    last two fetches      first append      check            check: removed
    ──┬─────────┬──────────────┬───────────────┬─────────────────┬──
      └────────── more than the setting ─────────────────────────┘
                └──────── at most 1.5 times the setting, or ─────┘
                               └── at most half of the setting ──┘

An append counts only if it shows that the follower lacked records: without one, it would still be in sync.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.contract.value_types import INT32
from purgatory_udf.sources.request_log import inferred_settings as shown
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, GRANTED, PartitionChange
from purgatory_udf.sources.request_log.importing.broker_pauses import BrokerPause
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    RequestRow,
    are_columns,
    from_json,
    produces_in,
    request_rows_in,
)
from purgatory_udf.sources.request_log.inferred_settings import JoinEvidence, SessionEvidence, roundest
from purgatory_udf.sources.request_log.kafka_protocol import topic_of
from purgatory_udf.sources.request_log.logged_request import MALFORMED, Request
from purgatory_udf.sources.request_log.partition_status import TimeRange
from purgatory_udf.storage import run_records as names
from purgatory_udf.storage.run_records import REPLICA_LAG, RecordedSetting

# Groups, and waits of each setting, that are kept between steps.
_MOST = 2_000
_WAITS = (names.LOOKUP_TIMEOUT, names.COMMIT_TIMEOUT, names.REMOTE_FETCH_WAIT)


@dataclass
class FollowedSettings:
    """Evidence of settings from the settled requests of a followed log.

    Attributes:
        joins: Evidence from joins of classic groups.
        sessions: Evidence from heartbeats of consumer groups, by broker and group.
        bounds: Bounds of the session timeout of consumer groups in ms, and the number of members that show them.
        intervals: Number of heartbeats by the interval in their response, in ms.
        waits: The first waits that a setting ended, in ms, by the setting.
        counts: Number of these waits.
        fetches: Number of fetches of followers by maximum wait and minimum bytes.
    """

    joins: JoinEvidence = field(default_factory=JoinEvidence)
    sessions: dict[tuple[int, str], SessionEvidence] = field(default_factory=lambda: defaultdict(SessionEvidence))
    bounds: tuple[float, float | None, int] = (0.0, None, 0)
    intervals: Counter[int] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _WAITS})
    counts: Counter[str] = field(default_factory=Counter)
    fetches: Counter[tuple[int, int]] = field(default_factory=Counter)

    def read(
        self,
        requests: Dataset,
        group_requests: Iterable[Request],
        reads: Dataset | None,
        context: Context,
        span: TimeRange,
        *,
        has_consumer_groups: bool,
    ) -> None:
        """Add what the requests of a step show.

        Args:
            requests: The requests that are not settled yet, rows of REQUESTS.
            group_requests: Joins and leaves among them, in time order; other requests have no effect.
            reads: Remote reads with an event in `span`, or None.
            context: The step's facts about the cluster.
            span: The time that the step settles.
            has_consumer_groups: Whether the log has heartbeats of consumer groups.
        """
        for request in group_requests:
            if request.start_us < span.until_us:
                self.joins.read(request, context.has_new_coordinator(request.broker))
        waited = requests.where_in("api", [shown.LIST_OFFSETS, shown.OFFSET_COMMIT])
        for row in _rows(waited.where_below("remote_us", shown.SHORT_US, below=False), span.until_us):
            name = shown.timed_out(row)
            if name is not None:
                self._add_wait(name, row.remote_us / 1000)
        if has_consumer_groups:
            self._read_heartbeats(requests.where_in("api", [shown.CONSUMER_HEARTBEAT]), context, span)
        if reads is not None:
            for wait_us in _expired_waits(reads):
                self._add_wait(names.REMOTE_FETCH_WAIT, wait_us / 1000)

    def settings(self) -> list[RecordedSetting]:
        """Return the settings that the log has shown so far."""
        low, high, members = self.bounds
        session = shown.session_timeout(low, high, members)
        timeouts = (shown.timeout_shown(name, self.waits[name]) for name in _WAITS[:2])
        found = [*timeouts, session, self._remote_wait()]
        intervals = [shown.reported(names.CONSUMER_INTERVAL, self.intervals)] if self.intervals else []
        return [
            *self.joins.settings(),
            *(setting for setting in found if setting is not None),
            *intervals,
            *shown.follower_settings(self.fetches),
        ]

    def _remote_wait(self) -> RecordedSetting | None:
        ordered = sorted(self.waits[names.REMOTE_FETCH_WAIT])
        if not ordered:
            return None
        low, median = ordered[len(ordered) // 10], ordered[len(ordered) // 2]
        return shown.remote_fetch_wait(low, median, self.counts[names.REMOTE_FETCH_WAIT])

    def _add_wait(self, name: str, wait_ms: float) -> None:
        self.counts[name] += 1
        if len(self.waits[name]) < _MOST:
            self.waits[name].append(wait_ms)

    def _read_heartbeats(self, requests: Dataset, context: Context, span: TimeRange) -> None:
        known: dict[tuple[int, str], list[shown.HeartbeatLine]] = defaultdict(list)
        for row in _rows(requests, None):
            try:
                group, heartbeat, interval_ms = shown.heartbeat_of(row)
            except MALFORMED:
                # It is rejected when it is converted.
                continue
            known[row.broker, group].append(heartbeat)
            if heartbeat.at_us < span.until_us and heartbeat.code == errors.NONE and heartbeat.sent_epoch >= 0:
                self.intervals[interval_ms] += 1
        resized_us = [size.at_us for size in context.topic_sizes]
        silent_us = 2_000 * max(self.intervals, default=0)
        for (broker, group), heartbeats in known.items():
            evidence, last_us = self.sessions[broker, group], shown.last_heartbeats(heartbeats)
            for each in heartbeats:
                if each.at_us < span.until_us:
                    for bound in evidence.read(each, last_us, silent_us):
                        self._add_bound(bound, group, context, resized_us)
            for bound in evidence.gap_bound():
                self._add_bound(bound, group, context, resized_us)

    def _add_bound(self, bound: Mapping[str, Any], group: str, context: Context, resized_us: Sequence[int]) -> None:
        since_us, until_us = bound.get("since_us"), bound.get("until_us", 0)
        is_resized = since_us is not None and any(since_us < at_us <= until_us for at_us in resized_us)
        if is_resized or group in context.group_sessions:
            return
        low, high, members = self.bounds
        highs = [each for each in (high, bound.get("high")) if each is not None]
        self.bounds = max(low, bound["low"]), min(highs, default=None), members + bound["requests"]

    def snapshot(self) -> dict[str, Any]:
        """Return the evidence as JSON values."""
        latest = sorted(self.sessions.items(), key=lambda item: max(item[1].unchanged_us, item[1].changed_us))
        return {
            "joins": self.joins.snapshot(_MOST),
            "sessions": [[*place, vars(each)] for place, each in latest[-_MOST:]],
            "bounds": self.bounds,
            "intervals": list(self.intervals.items()),
            "waits": self.waits,
            "counts": self.counts,
            "fetches": [[*limits, number] for limits, number in self.fetches.items()],
        }

    @classmethod
    def resumed(cls, state: Mapping[str, Any]) -> FollowedSettings:
        """Restore the evidence from a `snapshot`."""
        known = cls(JoinEvidence.resumed(state["joins"]), waits=state["waits"], counts=Counter(state["counts"]))
        known.bounds, known.intervals = tuple(state["bounds"]), Counter(dict(state["intervals"]))
        known.fetches = Counter({(wait_ms, size): number for wait_ms, size, number in state["fetches"]})
        for broker, group, fields in state["sessions"]:
            members = {member: tuple(last) for member, last in fields["members"].items()}
            known.sessions[broker, group] = SessionEvidence(**{**fields, "members": members})
        return known


def _rows(requests: Dataset, until_us: int | None) -> list[RequestRow]:
    """Return the rows in the order of their start, those before `until_us` if it is given."""
    within = requests if until_us is None else requests.where_below("start_us", until_us)
    rows = request_rows_in(within.select(*REQUESTS.names).collect().to_batches())
    return sorted((row for row in rows if row.answer is not None), key=lambda row: (row.start_us, row.file, row.line))


def _expired_waits(reads: Dataset) -> list[int]:
    """Return how long each expired fetch waited for remote storage, in microseconds, shortest first."""
    expired = reads.where_in("expired", [1]).select("file", "line", "waited_us")
    waits = expired.sql(
        "SELECT max(r.waited_us) AS waited_us FROM {rows} AS r GROUP BY r.file, r.line",
        pa.schema([("waited_us", pa.int64())]),
    )
    return sorted(map(int, waits.collect().column("waited_us").to_pylist()))


# A leader checks its followers in intervals of half of `replica.lag.time.max.ms`.
_CHECKS_OF_LAG = 1.5
# A follower counts as silent if it has not fetched for this long; a slow one was not caught up at its last fetch.
_SILENT_US = 2_000_000
# Delays between the leader's check and its request to the controller, in milliseconds.
_CHECK_LATE_MS = 200
# Removals from which the setting is derived, and how long before the first of them fetches are read.
_MOST_REMOVALS, _LONGEST_US = 100, 600_000_000
# Errors of produces with appended records.
_APPENDED = (errors.NONE, errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
_FETCH_TIMES = pa.schema([("broker", pa.int32()), ("replica", pa.int32()), ("start_us", pa.int64())])


class _Removal(NamedTuple):
    """A leader since `leading_us` asked the controller at `asked_us` to remove a replica from the in-sync set."""

    asked_us: int
    leader: int
    replica: int
    leading_us: int
    topic: str
    partition: int


def _removals(topic: str, partition: int, changes: Iterable[PartitionChange]) -> Iterator[_Removal]:
    """Yield the removals that leaders asked for, from the changes of a partition in time order."""
    isr: tuple[int, ...] | None = None
    leader, leading_us = -1, 0
    for change in changes:
        if change.leader is not None and change.leader != leader:
            leader, leading_us = change.leader, change.at_us
        if change.isr is None:
            continue
        if change.source == GRANTED and isr is not None:
            for replica in sorted(set(isr) - set(change.isr)):
                yield _Removal(change.asked_us, leader, replica, leading_us, topic, partition)
        if change.source != GIVEN or isr is None:
            isr = change.isr


def replica_lag_shown(requests: Dataset, context: Context, pauses: Sequence[BrokerPause]) -> list[RecordedSetting]:
    """Return `replica.lag.time.max.ms`, if leaders removed followers that had stopped fetching.

    Args:
        requests: The requests of a whole log, rows of REQUESTS.
        context: The changes of partitions, and names of topics.
        pauses: Pauses of brokers. Leaders that stood still did not check in time.
    """
    removals = sorted(removal for key, changes in context.changes.items() for removal in _removals(*key, changes))
    removals = removals[:_MOST_REMOVALS]
    if not removals:
        return []
    times = _fetch_times(requests, removals[0].asked_us - _LONGEST_US, removals[-1].asked_us)
    low, high, shown = 0.0, float(INT32), set[tuple[int, int, int]]()
    for removal in removals:
        asked_us, leader = removal.asked_us, removal.leader
        fetched = times[leader, removal.replica]
        before = fetched[: bisect_left(fetched, asked_us)][-2:]
        if len(before) < 2 or before[0] < removal.leading_us or asked_us - before[1] < _SILENT_US:
            continue
        if any(pause.broker == leader and pause.resumed_us > before[1] for pause in pauses):
            continue
        high = min(high, (asked_us - before[0]) / 1000)
        appended_us = _first_append(requests, context, removal, before[1])
        since = (asked_us - before[1]) / _CHECKS_OF_LAG, 2 * (asked_us - appended_us)
        low = max(low, min(since) / 1000 - _CHECK_LATE_MS)
        shown.add((leader, removal.replica, asked_us))
    found = roundest(low, high) if 0 < low <= high else None
    if found is None:
        return []
    value, is_certain = found
    return [RecordedSetting(REPLICA_LAG, round(low), round(high), value, is_certain and high < 2 * low, len(shown))]


def _fetch_times(requests: Dataset, from_us: int, until_us: int) -> dict[tuple[int, int], list[int]]:
    """Return the start of each fetch in [from_us, until_us) by (leader, follower), in time order."""
    fetches = requests.where_in("api", ["FETCH"]).select("broker", "client_id", "start_us")
    within = fetches.where_below("start_us", until_us).where_below("start_us", from_us, below=False)
    numbered = within.sql(
        """
        SELECT broker, CAST(regexp_extract(client_id, 'broker-([0-9]+)-fetcher-', 1) AS INT) AS replica, start_us
        FROM {rows} WHERE client_id LIKE 'broker-%-fetcher-%' ORDER BY start_us
        """,
        _FETCH_TIMES,
    )
    times: dict[tuple[int, int], list[int]] = defaultdict(list)
    for broker, replica, start_us in zip(*(column.to_pylist() for column in numbered.collect().columns), strict=True):
        times[broker, replica].append(start_us)
    return times


def _first_append(requests: Dataset, context: Context, removal: _Removal, from_us: int) -> int:
    """Return the start of the first accepted produce to the partition since `from_us`; without one, the removal."""
    produces = requests.where_in("api", ["PRODUCE"]).where_in("broker", [removal.leader])
    within = produces.where_below("start_us", removal.asked_us).where_below("start_us", from_us, below=False)
    found = removal.asked_us
    for batch in within.select(*REQUESTS.names).collect().to_batches():
        as_columns = are_columns(batch)
        of_columns = _appends_in_columns(batch.filter(as_columns), context, removal)
        of_rows = _appends_in_rows(batch.filter(pc.invert(as_columns)), context, removal)
        found = min([found, *of_columns, *of_rows])
    return found


def _appends_in_columns(batch: pa.RecordBatch, context: Context, removal: _Removal) -> list[int]:
    """Return the start of each produce as columns that appended to the partition."""
    produces = produces_in(batch)
    bodies = produces.bodies
    is_named = np.array([context.name(topic) == removal.topic for topic in bodies.topics], bool)
    topic, partition, _, error, _ = bodies.partitions.T
    of_produce = np.repeat(np.arange(len(bodies.limits)), np.diff(bodies.bounds))
    is_answered = bodies.limits[of_produce, 2] == 1
    appended = is_answered & is_named[topic] & (partition == removal.partition) & np.isin(error, _APPENDED)
    starts: list[int] = produces.start_us[of_produce[appended]].tolist()
    return starts


def _appends_in_rows(batch: pa.RecordBatch, context: Context, removal: _Removal) -> Iterator[int]:
    """Yield the start of each produce as JSON that appended to the partition."""
    for row in request_rows_in([batch]):
        try:
            topics = from_json(row.answer or "{}").get("responses") or []
            named = [topic for topic in topics if context.name(topic_of(topic)) == removal.topic]
            parts = [part for topic in named for part in topic["partitionResponses"]]
            if any(part["index"] == removal.partition and part["errorCode"] in _APPENDED for part in parts):
                yield row.start_us
        except MALFORMED:
            # It is rejected when it is converted.
            continue
