"""Settings of the brokers that a request log reveals, each with the number of requests that show it.

A log contains no settings, but their effects: the first join of an empty group is answered after
`group.initial.rebalance.delay.ms`, and a member of a consumer group that is silent disappears after
`group.consumer.session.timeout.ms`. Each effect bounds a setting:

    joins of a new group      first join ─────────────── 2,001 ms ─────────────── answers         at most 2,002 ms
    a member that is silent   last heartbeat ── 6,871 ms ── epoch 4 ── 1,222 ms ── epoch 5        6,871 to 8,093 ms

The bounds that requests show are intersected. Operators choose round values, so the result is the roundest value
between the bounds. It is certain if no other value is as round, or if the bounds are close together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.contract.value_types import INT32, abbreviated_json
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_facts import leaving_members
from purgatory_udf.sources.request_log.importing.import_rows import RequestRow, from_json, request_rows_in
from purgatory_udf.sources.request_log.logged_request import MALFORMED, Request
from purgatory_udf.storage import run_records as names
from purgatory_udf.storage.run_records import RecordedSetting

# Timers fire late rather than early, within a millisecond; this is how late the earliest of them fires, in ms.
_LATE_MS, _EARLY_MS = 15, 1
# Steps of values that operators choose, and the smallest step at which one observation makes a value certain.
_ROUND = (60_000, 30_000, 10_000, 5_000, 1_000, 500, 100, 50, 10, 5, 1)
_ROUND_ENOUGH = 100
# Bounds that are this close, relative to the value, make any value between them certain.
_CLOSE = 0.02


def roundest(low: float, high: float) -> tuple[int, bool] | None:
    """Return the roundest whole number in [low, high], and whether it is certain; None without one."""
    for step in _ROUND:
        first, last = -int(-low // step) * step, int(high // step) * step
        if first <= last:
            is_only = first == last and step >= _ROUND_ENOUGH
            return first, is_only or high - low <= _CLOSE * high
    return None


def timeout_shown(name: str, waits_ms: Sequence[float]) -> RecordedSetting | None:
    """Return the timeout after which waits ended; None without waits.

    The shortest wait decides. The result is certain if that wait is near a round value or another wait is as short,
    unless most waits are much longer.
    """
    if not waits_ms:
        return None
    ordered = sorted(waits_ms)
    found = roundest(max(0.0, ordered[0] - _LATE_MS), ordered[0] + _EARLY_MS)
    if found is None:
        return None
    value = found[0]
    confirmed = value % _ROUND_ENOUGH == 0 or bisect_right(ordered, ordered[0] + _LATE_MS) > 1
    near = bisect_right(ordered, value + max(100, value // 10))
    high = max(value, round(ordered[0]))
    return RecordedSetting(name, value, high, value, confirmed and near * 2 > len(ordered), len(ordered))


# Joins of classic groups.

# Answers to the joins of a rebalance are at most this far apart.
_SAME_ANSWER_US = 200_000


class _Join(NamedTuple):
    start_us: int
    answered_us: int
    member: str
    rebalance_ms: int


@dataclass
class _ClassicGroup:
    """The joins of a group at a broker in the rebalance that is being read, and the members since the last one.

    Only the first join of a rebalance is kept unless the group was empty before. `is_new` is whether the coordinator is
    that of Kafka 4.0.
    """

    generation: int = -1
    joins: list[_Join] = field(default_factory=list)
    members: set[str] | None = None
    was_empty: bool = False
    is_new: bool = False


@dataclass
class JoinEvidence:
    """What joins show of the settings of classic groups. It reads JOIN_GROUP and LEAVE_GROUP requests in time order."""

    groups: dict[tuple[int, str], _ClassicGroup] = field(default_factory=lambda: defaultdict(_ClassicGroup))
    waits: list[float] = field(default_factory=list)
    accepted: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)

    def read(self, request: Request, is_new: bool) -> None:
        """Read a request; requests of other APIs have no effect. `is_new`: at a group coordinator of Kafka 4.0."""
        if request.api not in ("JOIN_GROUP", "LEAVE_GROUP"):
            return
        try:
            body, answer = request.body, request.answer or {}
            group = self.groups[request.broker, str(body["groupId"])]
            if request.api == "LEAVE_GROUP":
                if not answer.get("errorCode") and group.members is not None:
                    group.members -= set(leaving_members(body, answer))
                return
            code, session_ms = int(answer.get("errorCode", 0)), int(body["sessionTimeoutMs"])
            if code == errors.INVALID_SESSION_TIMEOUT:
                self.refused[session_ms] += 1
            elif code in (errors.NONE, errors.MEMBER_ID_REQUIRED) and request.answer is not None:
                self.accepted[session_ms] += 1
            if code == errors.NONE and request.answer is not None:
                generation = int(answer["generationId"])
                rebalance_ms = int(body.get("rebalanceTimeoutMs", session_ms))
                join = _Join(request.start_us, request.answered_us, str(answer["memberId"]), rebalance_ms)
                self.waits += _add_join(group, generation, join, is_new)
        except MALFORMED:
            # It is rejected when it is converted.
            return

    def settings(self) -> list[RecordedSetting]:
        """Return the settings that the joins read so far show."""
        unfinished = [delay for group in self.groups.values() for delay in _initial_delay(group)]
        delay = timeout_shown(names.INITIAL_DELAY, [*self.waits, *unfinished])
        return [*([delay] if delay else []), *_session_limits(self.accepted, self.refused)]

    def snapshot(self, most: int) -> dict[str, Any]:
        """Return the evidence as JSON values, with at most the latest `most` groups and the first `most` waits."""
        latest = sorted(self.groups.items(), key=lambda item: item[1].joins[-1].answered_us if item[1].joins else 0)
        groups = [
            [*place, each.generation, each.joins, sorted(each.members) if each.members is not None else None,
             each.was_empty, each.is_new]
            for place, each in latest[-most:]
        ]  # fmt: skip
        counted = {name: list(getattr(self, name).items()) for name in ("accepted", "refused")}
        return {"groups": groups, "waits": self.waits[:most], **counted}

    @classmethod
    def resumed(cls, state: Mapping[str, Any]) -> JoinEvidence:
        """Restore the evidence from a `snapshot`."""
        known = cls(waits=state["waits"], accepted=Counter(dict(state["accepted"])))
        known.refused = Counter(dict(state["refused"]))
        for broker, name, generation, joins, members, was_empty, is_new in state["groups"]:
            ids = None if members is None else set(members)
            known.groups[broker, name] = _ClassicGroup(
                generation, [_Join(*each) for each in joins], ids, was_empty, is_new
            )
        return known


def settings_of_joins(requests: Iterable[Request], is_new: Callable[[int], bool]) -> list[RecordedSetting]:
    """Return the settings that joins show.

    Args:
        requests: Requests in time order; only JOIN_GROUP and LEAVE_GROUP matter.
        is_new: Whether a broker has the group coordinator of Kafka 4.0.
    """
    evidence = JoinEvidence()
    for request in requests:
        evidence.read(request, is_new(request.broker))
    return evidence.settings()


def _add_join(group: _ClassicGroup, generation: int, join: _Join, is_new: bool) -> Iterator[float]:
    """Add a join. If it starts another rebalance, yield the initial delay (ms) that the previous rebalance shows.

    `generation` is the one that the join returned; `is_new` is whether the coordinator is that of Kafka 4.0.
    """
    if generation == group.generation:
        if group.was_empty and abs(join.answered_us - group.joins[0].answered_us) <= _SAME_ANSWER_US:
            group.joins.append(join)
        if group.members is not None:
            group.members.add(join.member)
        return
    yield from _initial_delay(group)
    group.was_empty = generation == 1 or (group.members is not None and not group.members)
    group.generation, group.joins, group.members, group.is_new = generation, [join], {join.member}, is_new


def _initial_delay(group: _ClassicGroup) -> Iterator[float]:
    """Yield the initial rebalance delay in ms that the joins of an empty group show, if it is unambiguous."""
    if not group.was_empty or not group.joins:
        return
    first, *later = sorted(group.joins)
    waited_ms = (first.answered_us - first.start_us) / 1000
    joined_ms = [(join.start_us - first.start_us) / 1000 for join in later]
    extends = group.is_new or group.generation == 1
    found = [
        waited_ms / times
        for times in range(1, (len(later) if extends else 0) + 2)
        if abs(_end_of_initial_ms(waited_ms / times, joined_ms, first.rebalance_ms, extends) - waited_ms) < 1
    ]
    if len(found) == 1:
        yield found[0]


def _end_of_initial_ms(delay_ms: float, joined_ms: Sequence[float], rebalance_ms: int, extends: bool) -> float:
    """Return when the join phase of an empty group ends, in milliseconds after its first join (`InitialDelayedJoin`).

    Args:
        delay_ms: The initial rebalance delay.
        joined_ms: Times of the joins, in milliseconds after the first one.
        rebalance_ms: The rebalance timeout, which bounds the phase.
        extends: Whether the coordinator waits for another delay if members have joined during the last one.
    """
    since_ms, end_ms, remaining_ms = 0.0, delay_ms, max(rebalance_ms - delay_ms, 0)
    while extends and remaining_ms > 0 and any(since_ms < at_ms <= end_ms for at_ms in joined_ms):
        more_ms = min(delay_ms, remaining_ms)
        since_ms, end_ms, remaining_ms = end_ms, end_ms + more_ms, remaining_ms - more_ms
    return end_ms


# Kafka's defaults of the limits of a member's session timeout.
_LEAST_SESSION_MS, _MOST_SESSION_MS = 6_000, 1_800_000


def _session_limits(accepted: Counter[int], refused: Counter[int]) -> Iterator[RecordedSetting]:
    """Yield the limits of session timeouts that joins show to differ from the defaults, or that refused joins show.

    Every value between the bounds accepts and refuses the same joins. Both arguments count joins by session timeout.
    """
    if not accepted:
        return
    least, most = min(accepted), max(accepted)
    below = {each: number for each, number in refused.items() if each < least}
    above = {each: number for each, number in refused.items() if each > most}
    if least < _LEAST_SESSION_MS or below:
        low = max(below, default=-1) + 1
        value = _LEAST_SESSION_MS if low <= _LEAST_SESSION_MS <= least else least
        shown = sum(below.values()) + sum(accepted[each] for each in accepted if each < _LEAST_SESSION_MS)
        yield RecordedSetting(names.MIN_SESSION, low, least, value, True, shown)
    if most > _MOST_SESSION_MS or above:
        high = min(above, default=INT32 + 1) - 1
        value = _MOST_SESSION_MS if most <= _MOST_SESSION_MS <= high else most
        shown = sum(above.values()) + sum(accepted[each] for each in accepted if each > _MOST_SESSION_MS)
        yield RecordedSetting(names.MAX_SESSION, most, high, value, True, shown)


# Consumer groups, lookups and commits: evidence from requests that are too many to collect.

CONSUMER_HEARTBEAT, LIST_OFFSETS, OFFSET_COMMIT = "CONSUMER_GROUP_HEARTBEAT", "LIST_OFFSETS", "OFFSET_COMMIT"
# Shorter waits of commits and lookups are not timeouts.
SHORT_US = 100_000

# A bound of a setting in ms, or null, and the number of requests that show it. The times are those of the last
# heartbeat of a removed member, and of the first one without it.
_TIMES = [("since_us", pa.int64()), ("until_us", pa.int64())]
_BOUNDS = [("low", pa.float64()), ("high", pa.float64()), ("requests", pa.int64())]
EVIDENCE = pa.schema([("name", pa.string()), ("group", pa.string()), *_TIMES, *_BOUNDS])


def evidence_in(requests: Dataset) -> Dataset:
    """Return the evidence of settings, rows of EVIDENCE, in the requests of a whole log, rows of REQUESTS."""
    columns = [name for name in ("piece", *RequestRow._fields) if name in requests.schema.names]
    requests = requests.select(*columns)
    heartbeats = requests.where_in("api", [CONSUMER_HEARTBEAT])
    waited = requests.where_in("api", [LIST_OFFSETS, OFFSET_COMMIT]).where_below("remote_us", SHORT_US, below=False)
    order = [name for name in ("start_us", "file", "piece", "line") if name in requests.schema.names]
    return heartbeats.union(waited).map_groups(("broker",), order, _evidence, EVIDENCE)


def _evidence(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield EVIDENCE of REQUESTS rows in the order of broker and start."""
    groups: dict[tuple[int, str], list[HeartbeatLine]] = defaultdict(list)
    intervals: Counter[int] = Counter()
    rows: list[dict[str, Any]] = []
    for row in request_rows_in(batches):
        if row.answer is None:
            continue
        try:
            if row.api == CONSUMER_HEARTBEAT:
                group, heartbeat, interval_ms = heartbeat_of(row)
                groups[row.broker, group].append(heartbeat)
                if heartbeat.code == errors.NONE and heartbeat.sent_epoch >= 0:
                    intervals[interval_ms] += 1
            elif (name := timed_out(row)) is not None:
                rows.append({"name": name, "high": row.remote_us / 1000, "requests": 1})
        except MALFORMED:
            continue
    for interval_ms, number in intervals.items():
        rows.append({"name": names.CONSUMER_INTERVAL, "low": interval_ms, "high": interval_ms, "requests": number})
    longest_ms = max(intervals, default=0)
    for (_, group), heartbeats in groups.items():
        rows += ({"group": group, **bound} for bound in _session_bounds(heartbeats, 2_000 * longest_ms))
    yield pa.RecordBatch.from_pylist(rows, schema=EVIDENCE)


def timed_out(row: RequestRow) -> str | None:
    """Return the setting that limited the wait of a lookup or a commit; None if it did not time out."""
    body, answer = from_json(row.body), from_json(row.answer or "{}")
    listed = [part for topic in answer.get("topics") or [] for part in topic["partitions"]]
    codes = {int(part["errorCode"]) for part in listed}
    if row.api == LIST_OFFSETS:
        has_timeout = int(body.get("timeoutMs") or 0) > 0
        return names.LOOKUP_TIMEOUT if errors.REQUEST_TIMED_OUT in codes and not has_timeout else None
    return names.COMMIT_TIMEOUT if codes & {errors.REQUEST_TIMED_OUT, errors.COORDINATOR_NOT_AVAILABLE} else None


class HeartbeatLine(NamedTuple):
    """A heartbeat of a consumer group. `changes` is whether it may start a rebalance by itself."""

    at_us: int
    member: str
    sent_epoch: int
    epoch: int
    code: int
    changes: bool


def heartbeat_of(row: RequestRow) -> tuple[str, HeartbeatLine, int]:
    """Return the group of a CONSUMER_GROUP_HEARTBEAT, its heartbeat, and the interval in the response, in ms.

    Raises one of `MALFORMED`.
    """
    body, answer = from_json(row.body), from_json(row.answer or "{}")
    code, epoch = int(answer["errorCode"]), int(body["memberEpoch"])
    changes = epoch <= 0 or body.get("subscribedTopicNames") is not None or bool(body.get("subscribedTopicRegex"))
    member = str(body.get("memberId") or answer.get("memberId") or "")
    given = int(answer.get("memberEpoch", -1))
    heartbeat = HeartbeatLine(row.start_us, member, epoch, given, code, changes)
    interval_ms = int(answer.get("heartbeatIntervalMs", 0))
    if abs(interval_ms) > INT32:
        raise ValueError(f"heartbeatIntervalMs is {abbreviated_json(interval_ms)}, expected a 32-bit integer")
    return str(body["groupId"]), heartbeat, interval_ms


@dataclass
class SessionEvidence:
    """What the heartbeats of a group at a broker, read in time order, show of the session timeout.

    A member that was in the epoch of the group and sends no more heartbeats has been removed when the other members get
    another epoch. Its session expired after their last heartbeat in the old epoch, and before their first one in the
    new epoch. A member in another epoch may instead have been removed because it did not give up partitions in time.

    Attributes:
        members: Time of the last heartbeat of each member, and whether it was in the epoch of the group.
        top: The highest epoch of a response.
        unchanged_us: Time of the last heartbeat with this epoch.
        changed_us: Time of the last heartbeat that may have started a rebalance.
        gap_us: Longest time between two heartbeats of a member.
        static_left: Whether a static member has left and may return.
    """

    members: dict[str, tuple[int, bool]] = field(default_factory=dict)
    top: int = 0
    unchanged_us: int = 0
    changed_us: int = 0
    gap_us: int = 0
    static_left: bool = False

    def read(self, each: HeartbeatLine, last_us: Mapping[str, int], silent_us: int) -> Iterator[dict[str, Any]]:
        """Yield the bounds that a heartbeat shows.

        Args:
            each: The heartbeat.
            last_us: Time of the last known heartbeat of each member, also of later ones.
            silent_us: Time without a heartbeat after which a member counts as silent, in microseconds.
        """
        before = self.members.get(each.member)
        if each.code == errors.UNKNOWN_MEMBER_ID and before is not None:
            del self.members[each.member]
            if before[1] and not self.static_left:
                yield _bound(0, each.at_us - before[0])
        if each.code != errors.NONE:
            return
        if before is not None and each.sent_epoch > 0:
            self.gap_us = max(self.gap_us, each.at_us - before[0])
        if each.epoch > self.top and each.sent_epoch > 0 and not each.changes:
            silent = {
                member: (at_us, in_epoch)
                for member, (at_us, in_epoch) in self.members.items()
                if last_us.get(member, at_us) == at_us and at_us < each.at_us - silent_us
            }
            for at_us, in_epoch in silent.values():
                is_only = len(silent) == 1 and in_epoch and not self.static_left
                if is_only and self.changed_us < max(self.unchanged_us, at_us):
                    times = {"since_us": at_us, "until_us": each.at_us}
                    yield {**_bound(max(0, self.unchanged_us - at_us), each.at_us - at_us), **times}
            self.members = {member: known for member, known in self.members.items() if member not in silent}
        elif each.sent_epoch == each.epoch == self.top:
            self.unchanged_us = each.at_us
        if each.changes:
            self.changed_us = each.at_us
        self.top = max(self.top, each.epoch)
        # A static member that leaves (-2) keeps its place until it returns, or its session expires.
        self.static_left = each.sent_epoch == _LEFT_STATIC or (self.static_left and each.sent_epoch != 0)
        if each.sent_epoch < 0:
            self.members.pop(each.member, None)
        else:
            self.members[each.member] = (each.at_us, each.epoch == self.top)

    def gap_bound(self) -> Iterator[dict[str, Any]]:
        """Yield the lower bound that the longest time between two heartbeats of a member shows."""
        if self.gap_us:
            yield {"name": names.CONSUMER_SESSION, "low": self.gap_us / 1000, "requests": 0}


def last_heartbeats(heartbeats: Iterable[HeartbeatLine]) -> dict[str, int]:
    """Return the time of the last accepted heartbeat of each member, given heartbeats in time order."""
    return {each.member: each.at_us for each in heartbeats if each.code == errors.NONE}


def _session_bounds(heartbeats: Sequence[HeartbeatLine], silent_us: int) -> Iterator[dict[str, Any]]:
    """Yield bounds of the session timeout from all heartbeats of a group at a broker, in time order."""
    evidence, last_us = SessionEvidence(), last_heartbeats(heartbeats)
    for each in heartbeats:
        yield from evidence.read(each, last_us, silent_us)
    yield from evidence.gap_bound()


# Epoch of a static member that leaves.
_LEFT_STATIC = -2


def _bound(low_us: int, high_us: int) -> dict[str, Any]:
    return {"name": names.CONSUMER_SESSION, "low": low_us / 1000, "high": high_us / 1000, "requests": 1}


def settings_of_evidence(
    rows: Iterable[Mapping[str, Any]], own_sessions: Container[str], resized_us: Sequence[int]
) -> list[RecordedSetting]:
    """Return the settings of the recorded brokers that rows of evidence show.

    Args:
        rows: Rows with the schema EVIDENCE.
        own_sessions: Groups with a separate session timeout.
        resized_us: Times at which topics were created, enlarged or deleted; each may start a rebalance, too.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        since_us, until_us = row["since_us"], row["until_us"]
        is_resized = since_us is not None and any(since_us < at_us <= until_us for at_us in resized_us)
        if not is_resized and (row["group"] is None or row["group"] not in own_sessions):
            by_name[row["name"]].append(row)
    timeouts = {name: [row["high"] for row in by_name[name]] for name in (names.LOOKUP_TIMEOUT, names.COMMIT_TIMEOUT)}
    intervals = Counter[int]()
    for row in by_name[names.CONSUMER_INTERVAL]:
        intervals[round(row["low"])] += row["requests"]
    found = [
        *(timeout_shown(name, waits) for name, waits in timeouts.items()),
        reported(names.CONSUMER_INTERVAL, intervals) if intervals else None,
        _session(by_name[names.CONSUMER_SESSION]),
    ]
    return [setting for setting in found if setting is not None]


def reported(name: str, counted: Mapping[int, int]) -> RecordedSetting:
    """Return a setting that requests or responses contain: the most frequent of the `counted` values."""
    value = max(sorted(counted), key=lambda each: counted[each])
    return RecordedSetting(name, min(counted), max(counted), value, len(counted) == 1, sum(counted.values()))


def _session(rows: Sequence[Mapping[str, Any]]) -> RecordedSetting | None:
    high = min((row["high"] for row in rows if row["high"] is not None), default=None)
    low = max((row["low"] for row in rows if row["low"] is not None), default=0.0)
    return session_timeout(low, high, sum(row["requests"] for row in rows))


def session_timeout(low: float, high: float | None, requests: int) -> RecordedSetting | None:
    """Return `group.consumer.session.timeout.ms` between bounds in ms; None without an upper bound or a whole number.

    `requests` is the number of members that show the bounds.
    """
    found = roundest(low, high) if high is not None and low <= high else None
    if found is None or high is None:
        return None
    return RecordedSetting(names.CONSUMER_SESSION, round(low), round(high), *found, requests)


def remote_fetch_wait(low_ms: float, median_ms: float, fetches: int) -> RecordedSetting | None:
    """Return `remote.fetch.max.wait.ms`, given the shortest and the median wait of expired fetches, and their number.

    Returns None if no whole number is near the shortest wait. Up to Kafka 3.7 each fetch has its own limit, so that
    waits differ.
    """
    shown = timeout_shown(names.REMOTE_FETCH_WAIT, [low_ms, median_ms])
    return shown and replace(shown, requests=fetches)


def follower_settings(fetches: Mapping[tuple[int, int], int]) -> list[RecordedSetting]:
    """Return the settings of followers; `fetches` counts their fetches by maximum wait and minimum bytes."""
    if not fetches:
        return []
    waits, sizes = Counter[int](), Counter[int]()
    for (wait_ms, size), number in fetches.items():
        waits[wait_ms] += number
        sizes[size] += number
    return [reported(names.FOLLOWER_WAIT, waits), reported(names.FOLLOWER_BYTES, sizes)]
