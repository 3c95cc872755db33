"""Comparison of the events of groups in coordinators' logs with those of the replay.

logged    rebalance 0 ── generation 1 ───────── session m ── rebalance 1 ── generation 2
replayed  rebalance 0 ─── generation 1 ──────── session m ── rebalance 1 ─ generation 2
                      └─ 8 ms later
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from purgatory_udf.answers.broker_readings import (
    GENERATION,
    JOIN,
    KINDS,
    REBALANCE,
    SESSION,
    SYNC,
    LoggedGroupEvent,
)
from purgatory_udf.common.console import Cell, Table
from purgatory_udf.contract.outcome import Transition

if TYPE_CHECKING:
    from purgatory_udf.answers.run_tables import RunTables

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
    replayed_at = _moments(event for event in replayed if _within(event, spans))
    logged_at = _moments(event for event in logged if _within(event, spans, LATEST_US))
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


def _moments(events: Iterable[LoggedGroupEvent]) -> dict[tuple[LoggedGroupEvent, int], int]:
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
