"""Settings of the brokers that a followed log has shown so far.

A step has only the requests that are not settled yet, so each step adds what its settled requests show. Later requests
of the step show whether a member is silent. `replica.lag.time.max.ms` is not derived: its evidence spans many steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.sources.request_log import inferred_settings as shown
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS, RequestRow, request_rows_in
from purgatory_udf.sources.request_log.inferred_settings import JoinEvidence, SessionEvidence
from purgatory_udf.sources.request_log.log_line import MALFORMED, Request
from purgatory_udf.sources.request_log.partition_status import TimeRange
from purgatory_udf.storage import run_records as names
from purgatory_udf.storage.run_records import RecordedSetting

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
    """Return how long each expired fetch waited for remote storage, in microseconds."""
    expired = reads.where_in("expired", [1]).select("file", "line", "waited_us")
    waits = expired.sql(
        "SELECT max(r.waited_us) AS waited_us FROM {rows} AS r GROUP BY r.file, r.line",
        pa.schema([("waited_us", pa.int64())]),
    )
    return [int(wait_us) for wait_us in waits.collect().column("waited_us").to_pylist()]
