"""Groups as their coordinators logged them, held against the replay's.

logged    rebalance 0 ── generation 1 ───────── session m ── rebalance 1 ── generation 2
replayed  rebalance 0 ─── generation 1 ──────── session m ── rebalance 1 ─ generation 2
                      └─ 8 ms apart
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from purgatory_udf.answers.fidelity.broker_readings import GENERATION, JOIN, KINDS, REBALANCE, SESSION, SYNC, Fact
from purgatory_udf.answers.fidelity.group_answers import COMPLETING, EMPTY, PREPARING
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.console import Cell, Table
from purgatory_udf.contract.outcome import Transition
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# How much later than its cause a line may be written.
LATEST_US = 1_000_000
MISSED = " did not rejoin"
HEADS = {
    REBALANCE: "rebalances",
    GENERATION: "generations",
    SESSION: "sessions expired",
    JOIN: "joins expired",
    SYNC: "syncs expired",
}


class Expired(NamedTuple):
    """A heartbeat, join or sync that expired; the key is the group, a heartbeat's the group and the member."""

    broker: int
    kind: str
    key: str
    at_us: int


class Span(NamedTuple):
    from_us: int
    to_us: int


@dataclass(slots=True)
class ComparedGroup:
    """One group: how often each kind of fact was logged and replayed, and how far those on both sides lie apart, in ms
    (above 0: it was logged later than replayed)."""

    broker: int
    group: str
    logged: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    apart_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def agrees(self) -> bool:
        """Whether every fact is on both sides."""
        return all(self.logged[kind] == self.replayed[kind] == len(self.apart_ms[kind]) for kind in KINDS)


def facts_of(transitions: Iterable[Transition], expired: Iterable[Expired]) -> Iterator[Fact]:
    """What a coordinator would have logged of the replay."""
    groups: dict[int, set[str]] = defaultdict(set)
    lossy: set[tuple[int, str, int]] = set()
    for transition in transitions:
        groups[transition.broker].add(transition.group)
        if transition.to_state == PREPARING:
            yield Fact(transition.broker, transition.group, REBALANCE, str(transition.generation), transition.at_us)
        elif transition.from_state == PREPARING and transition.to_state in (COMPLETING, EMPTY):
            yield Fact(transition.broker, transition.group, GENERATION, str(transition.generation), transition.at_us)
            if _loses(transition):
                lossy.add((transition.broker, transition.group, transition.at_us))
    for end in expired:
        if end.kind == "heartbeat":
            group = _group_of(end.key, groups[end.broker])
            yield Fact(end.broker, group, SESSION, end.key[len(group) + 1 :], end.at_us)
        elif end.kind == "sync":
            yield Fact(end.broker, end.key, SYNC, "", end.at_us)
        elif end.kind == "join" and (end.broker, end.key, end.at_us) in lossy:
            yield Fact(end.broker, end.key, JOIN, "", end.at_us)


def _loses(generation: Transition) -> bool:
    """Whether an expired join has cost members: static ones that were missing stay."""
    if not generation.reason.endswith(MISSED):
        return generation.to_state == EMPTY
    return not set(generation.reason.removesuffix(MISSED).split(", ")) <= set(generation.members)


def _group_of(key: str, groups: Iterable[str]) -> str:
    return max((group for group in groups if key.startswith(f"{group}-")), key=len, default=key)


def compare(logged: Iterable[Fact], replayed: Iterable[Fact], spans: Mapping[int, Span]) -> list[ComparedGroup]:
    """By broker and group, of what was replayed within the broker's span: from its first recorded request to its last.

    A line is written a little after what it tells, so that of the last request may be later.
    """
    groups: dict[tuple[int, str], ComparedGroup] = {}
    replayed_at = _moments(fact for fact in replayed if _within(fact, spans))
    logged_at = _moments(fact for fact in logged if _within(fact, spans, LATEST_US))
    logged_at = {
        name: at_us for name, at_us in logged_at.items() if at_us <= spans[name[0].broker].to_us or name in replayed_at
    }
    for side, moments in (("logged", logged_at), ("replayed", replayed_at)):
        for fact, _ in moments:
            group = groups.setdefault((fact.broker, fact.group), ComparedGroup(fact.broker, fact.group))
            getattr(group, side)[fact.kind] += 1
    for name, at_us in logged_at.items():
        if name in replayed_at:
            fact, _ = name
            groups[fact.broker, fact.group].apart_ms[fact.kind].append((at_us - replayed_at[name]) / 1000)
    return [groups[place] for place in sorted(groups)]


def _within(fact: Fact, spans: Mapping[int, Span], late_us: int = 0) -> bool:
    span = spans.get(fact.broker)
    return span is not None and span.from_us <= fact.at_us <= span.to_us + late_us


def _moments(facts: Iterable[Fact]) -> dict[tuple[Fact, int], int]:
    """When each fact happened, for the how manieth time."""
    seen: Counter[Fact] = Counter()
    moments = {}
    for fact in sorted(facts, key=lambda fact: fact.at_us):
        timeless = fact._replace(at_us=0)
        seen[timeless] += 1
        moments[timeless, seen[timeless]] = fact.at_us
    return moments


def table(groups: Iterable[ComparedGroup]) -> Table:
    """A row a group; "found again" counts what is on both sides, with the same generation or member."""
    return Table(
        "Groups, as their coordinators logged them / as replayed",
        ("group", "broker", *HEADS.values(), "found again", "median ms apart", "worst"),
        [(*_row(group),) for group in groups],
    )


def _row(group: ComparedGroup) -> Iterator[Cell]:
    yield from (group.group, str(group.broker))
    yield from (f"{group.logged[kind]:,} / {group.replayed[kind]:,}" for kind in HEADS)
    apart = [abs(ms) for kind in HEADS for ms in group.apart_ms[kind]]
    yield len(apart)
    yield from (round(median(apart), 1), round(max(apart), 1)) if apart else (None, None)


# A replay's groups from its tables, held against what their coordinators logged.


OPERATION_KINDS = ("heartbeat", "join", "sync")


def logged_groups(spark: SparkSession, layout: Layout, logged: Iterable[Fact]) -> Table:
    """Of what comes after a broker's last request the broker had other news."""
    started = sf.unix_micros("started_at")
    requests = _load(spark, layout, "recorded").groupBy("broker")
    ends = requests.agg(sf.min(started).alias("first"), sf.max(started).alias("last")).collect()
    spans = {row["broker"]: Span(row["first"], row["last"]) for row in ends}
    replayed = facts_of(_transitions(_load(spark, layout, "group_transitions")), _expired(spark, layout))
    return table(compare(logged, replayed, spans))


def _transitions(rows: DataFrame) -> Iterator[Transition]:
    for row in rows.withColumn("at_us", sf.unix_micros("at")).toLocalIterator():
        yield Transition(
            row["group"],
            row["broker"],
            row["at_us"],
            row["from_state"],
            row["to_state"],
            row["reason"],
            row["generation"],
            tuple(row["members"] or ()),
        )


def _expired(spark: SparkSession, layout: Layout) -> Iterator[Expired]:
    rows = _load(spark, layout, "expirations").where(sf.col("kind").isin(*OPERATION_KINDS) & ~sf.col("after_end"))
    for row in rows.select("broker", "kind", "key", sf.unix_micros("expired_at").alias("at_us")).toLocalIterator():
        yield Expired(row["broker"], row["kind"], row["key"], row["at_us"])


def _load(spark: SparkSession, layout: Layout, name: str) -> DataFrame:
    return spark.read.format("delta").load(layout.table(name))
