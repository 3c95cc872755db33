"""Data reported by brokers: expirations in readings of their MBeans, and events of groups in their server logs.

A reading is a JSON object by broker id: `{"1": {"mbeans": {NAME: {"Count": 12, "readAtMs": 1795229776260}}}}`. The file
may be compressed. The names are those of JMX; attributes other than `Count` and `readAtMs` are ignored.

The server logs of the brokers (`server.log`, in any log4j layout) contain lines of group coordinators:

    [GroupCoordinator 2]: Preparing to rebalance group g in state PreparingRebalance with old generation 4 (…)
    [GroupCoordinator 2]: Stabilized group g generation 5 (__consumer_offsets-0) with 3 members

The classic coordinator and that of Kafka 4 log the same messages at level INFO.

The events of groups are compared with those of the replay:

    logged    rebalance 0 ── generation 1 ───────── session m ── rebalance 1 ── generation 2
    replayed  rebalance 0 ─── generation 1 ──────── session m ── rebalance 1 ─ generation 2
                          └─ 8 ms later
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from purgatory_udf.common.console import Cell, Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import Transition
from purgatory_udf.sources.request_log.log_files import find_logs, open_text, read_text, timestamp_us

if TYPE_CHECKING:
    from purgatory_udf.answers.run_tables import RunTables

CONSUMERS = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"
FOLLOWERS = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=follower"
PRODUCES = "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec"
REMOTE_FETCHES = "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec"
LIST_OFFSETS = "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec"
SHARE_FETCHES = "kafka.server:type=DelayedShareFetchMetrics,name=ExpiresPerSec"

# The MBean of each kind of operation. The MBeans of produces and list-offsets requests count partitions, the others
# count requests.
COUNTERS = {
    "consumer fetch": CONSUMERS,
    "follower fetch": FOLLOWERS,
    "produce acks=-1": PRODUCES,
    "remote fetch": REMOTE_FETCHES,
    "list_offsets": LIST_OFFSETS,
    "share fetch": SHARE_FETCHES,
}


@dataclass(frozen=True, slots=True)
class ExpirationCount:
    """The number of expirations of `kind` at a broker, after `since_us` and up to `until_us`."""

    broker: int
    kind: str
    count: int
    since_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class _Reading:
    count: int
    at_us: int


def count_expirations(before: str | Path | None, after: str | Path) -> list[ExpirationCount]:
    """Return the increase of each counter between two readings, or since the broker started.

    A broker creates a counter with its first event, so a counter without an earlier reading started at 0.

    Args:
        before: File with the first reading; None to count from the start of the brokers.
        after: File with the last reading.

    Raises:
        UserError: The last reading has no counter of expirations, or a broker was restarted between the readings.
    """
    last = _readings(after)
    if not last:
        raise UserError(
            f"{after}: no ExpiresPerSec of DelayedFetchMetrics or DelayedProduceMetrics found; read these MBeans "
            "from the brokers again"
        )
    first = _readings(before) if before else {}
    first_read_us = _moments(before) if before else {}
    increases = []
    for (broker, kind), reading in sorted(last.items()):
        start = first.get((broker, kind)) or _Reading(0, first_read_us.get(broker, 0))
        if reading.count < start.count:
            raise UserError(
                f"{after}: {kind} of broker {broker}: the counter fell from {start.count} to {reading.count}, so the "
                "broker was restarted between the readings; compare readings without a restart between them"
            )
        increases.append(ExpirationCount(broker, kind, reading.count - start.count, start.at_us, reading.at_us))
    return increases


def _readings(path: str | Path) -> dict[tuple[int, str], _Reading]:
    readings = {}
    for broker, named in _beans(path).items():
        for kind, name in COUNTERS.items():
            if name in named:
                try:
                    count, at_ms = int(named[name]["Count"]), int(named[name]["readAtMs"])
                except (ValueError, KeyError, TypeError):
                    raise UserError(
                        f"{path}: broker {broker}, {name}: Count and readAtMs must be whole numbers"
                    ) from None
                readings[broker, kind] = _Reading(count, at_ms * 1000)
    return readings


def _moments(path: str | Path) -> dict[int, int]:
    """Return the time of each broker's first reading, in microseconds."""
    return {
        broker: min((int(bean.get("readAtMs", 0)) for bean in named.values()), default=0) * 1000
        for broker, named in _beans(path).items()
    }


def _beans(path: str | Path) -> dict[int, dict[str, dict[str, Any]]]:
    try:
        by_broker = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{path}: this is not JSON: {error}") from None
    try:
        return {int(broker): dict(values["mbeans"]) for broker, values in by_broker.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}: expected a JSON object with an object for each broker id, which has the broker's MBeans in the "
            "field mbeans"
        ) from None


# A group prepares to rebalance; a new generation; expiration of a member's session, of joins, of syncs.
REBALANCE, GENERATION, SESSION, JOIN, SYNC = "rebalance", "generation", "session", "join", "sync"
KINDS = (REBALANCE, GENERATION, SESSION, JOIN, SYNC)


class LoggedGroupEvent(NamedTuple):
    """An event of a group, as a coordinator logs it.

    `detail` is the old generation of a rebalance, the number of a new generation, or the member of an expired session.
    """

    broker: int
    group: str
    kind: str
    detail: str
    at_us: int


_BROKER = re.compile(r"\[GroupCoordinator (?:id=)?(\d+)[^]]*\]:? ?")
_SENTENCES = (
    (
        REBALANCE,
        re.compile(r"Preparing to rebalance group (?P<group>.+) in state \w+ with old generation (?P<detail>\d+)"),
    ),
    (GENERATION, re.compile(r"Stabilized group (?P<group>.+) generation (?P<detail>\d+) ")),
    (GENERATION, re.compile(r"Group (?P<group>.+) with generation (?P<detail>\d+) is now empty")),
    (SESSION, re.compile(r"Member (?P<detail>.+) in group (?P<group>.+) has failed, removing it from the group")),
    (
        SESSION,
        re.compile(r"Pending member (?P<detail>.+) in group (?P<group>.+) has been removed after session timeout"),
    ),
    (JOIN, re.compile(r"Group (?P<group>.+) removed dynamic members who haven't joined(?P<detail>):")),
)
_SYNC_EXPIRED = "on pending sync request expiration"


def group_events_in_logs(paths: Sequence[str], zone: tzinfo = UTC) -> list[LoggedGroupEvent]:
    """Return the events of groups in the files, in time order.

    `zone` applies to times without a time zone.

    Raises:
        UserError: No file has a line of a group coordinator.
    """
    events: list[LoggedGroupEvent] = []
    has_coordinator = False
    for file in find_logs(paths):
        with open_text(file.path) as text:
            # A coordinator without classic groups only logs that it started, or which partitions it loaded.
            lines = [line for line in text if _BROKER.search(line)]
        has_coordinator = has_coordinator or bool(lines)
        events += group_events_in(lines, zone)
    if not has_coordinator:
        raise UserError(
            f"{', '.join(paths)}: no line of a group coordinator found; expected a server.log at level INFO"
        )
    return sorted(events, key=lambda event: event.at_us)


def group_events_in(lines: Iterable[str], zone: tzinfo = UTC) -> Iterator[LoggedGroupEvent]:
    """Yield the events in the lines of one log; `zone` applies to times without a time zone."""
    for line in lines:
        coordinator = _BROKER.search(line)
        if coordinator is None:
            continue
        broker, at_us, message = int(coordinator[1]), timestamp_us(line, zone), line[coordinator.end() :]
        if at_us is None:
            continue
        for kind, sentence in _SENTENCES:
            if match := sentence.match(message):
                yield LoggedGroupEvent(broker, match["group"], kind, match["detail"], at_us)
                if kind == REBALANCE and _SYNC_EXPIRED in message:
                    yield LoggedGroupEvent(broker, match["group"], SYNC, "", at_us)
                break


EMPTY, PREPARING, COMPLETING = "Empty", "PreparingRebalance", "CompletingRebalance"
# Maximum delay between an event and its log line.
LATEST_US = 1_000_000
MISSED = " did not rejoin"
HEADS = {
    REBALANCE: "rebalances",
    GENERATION: "generations",
    SESSION: "sessions expired",
    JOIN: "joins expired",
    SYNC: "syncs expired",
}


class ExpiredGroupOperation(NamedTuple):
    """An expired heartbeat, join or sync of the replay. `key` is the group, or `group-member` for a heartbeat."""

    broker: int
    kind: str
    key: str
    at_us: int


class Span(NamedTuple):
    """The times of a broker's first and last recorded request, in microseconds."""

    from_us: int
    to_us: int


@dataclass(slots=True)
class ComparedGroup:
    """The number of logged and replayed events of a group by kind.

    `differences_ms` has the time differences of events on both sides, in milliseconds; positive if the log is later.
    """

    broker: int
    group: str
    logged: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    differences_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def agrees(self) -> bool:
        """Whether log and replay have the same events."""
        return all(self.logged[kind] == self.replayed[kind] == len(self.differences_ms[kind]) for kind in KINDS)


def group_events_of(
    transitions: Iterable[Transition], expired: Iterable[ExpiredGroupOperation]
) -> Iterator[LoggedGroupEvent]:
    """Yield the events that the coordinators would have logged in the replay.

    Args:
        transitions: The state changes of the groups; read completely before the first event is yielded.
        expired: The expired operations of the groups.
    """
    groups: dict[int, set[str]] = defaultdict(set)
    lossy: set[tuple[int, str, int]] = set()
    for transition in transitions:
        groups[transition.broker].add(transition.group)
        if transition.to_state == PREPARING:
            yield LoggedGroupEvent(
                transition.broker, transition.group, REBALANCE, str(transition.generation), transition.at_us
            )
        elif transition.from_state == PREPARING and transition.to_state in (COMPLETING, EMPTY):
            yield LoggedGroupEvent(
                transition.broker, transition.group, GENERATION, str(transition.generation), transition.at_us
            )
            if _has_lost_members(transition):
                lossy.add((transition.broker, transition.group, transition.at_us))
    for end in expired:
        if end.kind == "heartbeat":
            group = _group_of(end.key, groups[end.broker])
            yield LoggedGroupEvent(end.broker, group, SESSION, end.key[len(group) + 1 :], end.at_us)
        elif end.kind == "sync":
            yield LoggedGroupEvent(end.broker, end.key, SYNC, "", end.at_us)
        elif end.kind == "join" and (end.broker, end.key, end.at_us) in lossy:
            yield LoggedGroupEvent(end.broker, end.key, JOIN, "", end.at_us)


def _has_lost_members(generation: Transition) -> bool:
    """Return whether an expired join removed members from the group. Static members that did not rejoin stay."""
    if not generation.reason.endswith(MISSED):
        return generation.to_state == EMPTY
    return not set(generation.reason.removesuffix(MISSED).split(", ")) <= set(generation.members)


def _group_of(key: str, groups: Iterable[str]) -> str:
    return max((group for group in groups if key.startswith(f"{group}-")), key=len, default=key)


def compare(
    logged: Iterable[LoggedGroupEvent], replayed: Iterable[LoggedGroupEvent], spans: Mapping[int, Span]
) -> list[ComparedGroup]:
    """Compare logged and replayed events of each group, within the recorded span of the group's broker.

    A log line is written shortly after its event, so the line of the last request may be after the span.

    Args:
        logged: Events in the coordinators' logs.
        replayed: Events that the coordinators would have logged in the replay.
        spans: By broker id, the times of its first and last recorded request.
    """
    groups: dict[tuple[int, str], ComparedGroup] = {}
    replayed_at = _event_moments(event for event in replayed if _within(event, spans))
    logged_at = _event_moments(event for event in logged if _within(event, spans, LATEST_US))
    logged_at = {
        name: at_us for name, at_us in logged_at.items() if at_us <= spans[name[0].broker].to_us or name in replayed_at
    }
    for side, moments in (("logged", logged_at), ("replayed", replayed_at)):
        for event, _ in moments:
            group = groups.setdefault((event.broker, event.group), ComparedGroup(event.broker, event.group))
            getattr(group, side)[event.kind] += 1
    for name, at_us in logged_at.items():
        if name in replayed_at:
            event, _ = name
            groups[event.broker, event.group].differences_ms[event.kind].append((at_us - replayed_at[name]) / 1000)
    return [groups[place] for place in sorted(groups)]


def _within(event: LoggedGroupEvent, spans: Mapping[int, Span], late_us: int = 0) -> bool:
    span = spans.get(event.broker)
    return span is not None and span.from_us <= event.at_us <= span.to_us + late_us


def _event_moments(events: Iterable[LoggedGroupEvent]) -> dict[tuple[LoggedGroupEvent, int], int]:
    """Return the time of each event in epoch microseconds, by (event without its time, its number among equal ones)."""
    seen: Counter[LoggedGroupEvent] = Counter()
    moments = {}
    for event in sorted(events, key=lambda event: event.at_us):
        timeless = event._replace(at_us=0)
        seen[timeless] += 1
        moments[timeless, seen[timeless]] = event.at_us
    return moments


def table(groups: Iterable[ComparedGroup]) -> Table:
    """Return a table with a row for each group. "matched" counts the events that log and replay both contain."""
    return Table(
        "Events of groups, logged by coordinators / replayed",
        ("group", "broker", *HEADS.values(), "matched", "median difference, ms", "maximum"),
        [(*_row(group),) for group in groups],
    )


def _row(group: ComparedGroup) -> Iterator[Cell]:
    yield from (group.group, str(group.broker))
    yield from (f"{group.logged[kind]:,} / {group.replayed[kind]:,}" for kind in HEADS)
    differences = [abs(ms) for kind in HEADS for ms in group.differences_ms[kind]]
    yield len(differences)
    yield from (round(median(differences), 1), round(max(differences), 1)) if differences else (None, None)


def logged_groups(tables: RunTables, logged: Iterable[LoggedGroupEvent]) -> Table:
    """Compare the replayed groups with the coordinators' logs between the first and last request of each broker.

    `logged` are the events in the logs, in time order.
    """
    spans = {row["broker"]: Span(row["from_us"], row["to_us"]) for row in tables.rows("fidelity/log_spans")}
    expired = (ExpiredGroupOperation(**row) for row in tables.rows("fidelity/group_expirations"))
    return table(compare(logged, group_events_of(_transitions(tables), expired), spans))


def _transitions(tables: RunTables) -> Iterator[Transition]:
    for row in tables.rows("fidelity/transitions"):
        yield Transition(**{**row, "members": tuple(row["members"] or ())})
