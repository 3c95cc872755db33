"""Incidents of replicas: followers that stopped or lagged, frozen brokers, and too few in-sync replicas.

Slow waits for one replica within a short time are an incident of this replica. The activity of the replica in that time
decides the kind of incident:

- it was busy before, but then handled no request and sent no fetch: `broker_frozen`
- it sent no fetch for most of the time: `follower_stalled`
- a replication quota throttled it: `replication_throttled`
- otherwise (it fetched with interruptions or too slowly): `follower_slow`

If it left the in-sync set, and a partition then had fewer in-sync replicas than its minimum, the incident is
`below_min_isr`; see `min_isr_incidents`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.cluster_incidents import START_US
from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, join_names, seconds
from purgatory_udf.answers.diagnosis.min_isr_incidents import (
    below_minimum_clause,
    is_affected,
    periods_below_minimum,
    refused_produces,
    suggestions_for,
    unexplained_refusals,
)
from purgatory_udf.answers.diagnosis.trace_facts import SAME_INCIDENT_US, Period, Row, merged
from purgatory_udf.common.console import counted

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.trace_facts import TraceFacts

# An incident has at least this many slow waits and this much excess waiting. If it has few waits, they must be long: a
# single slow append delays as many produces as are in flight.
_LEAST_PARTS, _LEAST_EXCESS_S = 3, 3.0
_FEW_PARTS, _EXCESS_OF_FEW_S = 5, 10.0
# A silent broker without slow produces is reported from this length on.
_LEAST_SILENCE_US = 2_000_000
# A pause counts as the whole incident if it covers this share of it, or lasts this long.
_MOST_OF_IT, _LONG_STALL_US = 0.5, 4_000_000
_MOST_EVIDENCE = 5


@dataclass
class _Cluster:
    """Slow waits for one replica within a short time.

    Attributes:
        replica: The replica at fault.
        blamed: The replica that the table `blame` names. If several are out of sync, it names the one with the lowest
            ID, although another one is throttled.
        throttled: Whether these are waits while a quota throttled the replica at fault.
    """

    replica: int
    blamed: int
    throttled: bool
    start_us: int
    end_us: int
    parts: int = 0
    excess_ms: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)
    leaders: set[int] = field(default_factory=set)

    def add(self, row: Row, usual_ms: float) -> None:
        self.end_us = max(self.end_us, row["end_us"])
        self.parts += row["parts"]
        self.excess_ms += row["wait_ms"] - row["parts"] * usual_ms
        self.causes[row["cause"]] += row["wait_ms"]
        self.leaders.add(row["broker"])


@dataclass(frozen=True)
class _Effect:
    """The operations that an incident delayed, and their longest wait."""

    operations: int
    expired: int
    clients: tuple[str, ...]
    topics: tuple[str, ...]
    longest_ms: int
    produces: int
    fetches: int


def replica_incidents(facts: TraceFacts) -> list[Finding]:
    """Return the incidents of replicas, of silent brokers, and of too few in-sync replicas."""
    clusters = [cluster for cluster in _clusters(facts) if _is_large(cluster)]
    found = _without_common_cause(facts, [_finding(facts, cluster) for cluster in clusters])
    return [*found, *_silent_brokers(facts, found), *unexplained_refusals(facts, found)]


def _clusters(facts: TraceFacts) -> list[_Cluster]:
    """Return the slow waits, grouped by culprit and time. The culprit is the leader if it stood still itself."""
    rows = []
    for row in facts.slow_parts:
        period = Period(row["start_us"], row["end_us"])
        culprit = row["broker"] if facts.is_silent(row["broker"], period) else row["replica"]
        throttled = facts.throttled_replica(row["broker"], row["topic"], period)
        # Any replica that comes back ends a wait for the minimum; a throttled one is kept from it.
        is_throttled = throttled is not None and (row["cause"] == "below_min_isr" or throttled == culprit)
        culprit = throttled if is_throttled else culprit
        if culprit is not None and row["start_us"] < facts.shutdown_us:
            rows.append((culprit, is_throttled, row))
    clusters: list[_Cluster] = []
    for culprit, throttled, row in sorted(rows, key=lambda each: (*each[:2], each[2]["start_us"])):
        last = clusters[-1] if clusters else None
        is_next = last is not None and (last.replica, last.throttled) == (culprit, throttled)
        if last is None or not is_next or row["start_us"] > last.end_us + SAME_INCIDENT_US:
            blamed = row["replica"] if throttled else culprit
            last = _Cluster(culprit, blamed, throttled, row["start_us"], row["end_us"])
            clusters.append(last)
        last.add(row, facts.usual_ms.get((row["cause"], row["broker"], row["replica"]), 0.0))
    return clusters


def _is_large(cluster: _Cluster) -> bool:
    least_s = _EXCESS_OF_FEW_S if cluster.parts < _FEW_PARTS else _LEAST_EXCESS_S
    return cluster.parts >= _LEAST_PARTS and cluster.excess_ms >= least_s * 1000


def _finding(facts: TraceFacts, cluster: _Cluster) -> Finding:
    broker = cluster.replica
    around = Period(cluster.start_us - 1_000_000, cluster.end_us + 1_000_000)
    stalls = [
        stall
        for leader in cluster.leaders
        for stall in facts.stalls.get((broker, leader), [])
        if stall.overlap_us(around.start_us, around.end_us)
    ]
    silences = [gap for gap in facts.standstills.get(broker, []) if gap.overlap_us(around.start_us, around.end_us)]
    pauses = merged([*stalls, *silences])
    start_us = min([cluster.start_us, *(pause.start_us for pause in pauses)])
    end_us = max([cluster.end_us, *(pause.end_us for pause in pauses)]) if pauses else cluster.end_us
    longest = max(pauses, key=lambda pause: pause.length_us, default=None)
    kind = _kind(cluster, longest, end_us - start_us, silences)
    if longest and kind in ("broker_frozen", "follower_stalled"):
        start_us, end_us = pauses[0].start_us, pauses[-1].end_us
    effect = _effect(facts, cluster.blamed, start_us, max(end_us, cluster.end_us))
    low = periods_below_minimum(facts, broker, start_us, end_us)
    refused = refused_produces(facts, low, cluster.throttled)
    summary = _summary(facts, kind, broker, Period(start_us, end_us), pauses, effect)
    topic = None
    if low and (cluster.causes["below_min_isr"] or refused):
        kind = "replication_throttled" if cluster.throttled else "below_min_isr"
        topics = sorted({row["topic"] for row in low if is_affected(row, effect.topics, refused)})
        topic = topics[0] if len(topics) == 1 else None
        since = clock_time(min(row["since_us"] for row in low))
        left = "It stayed out of" if cluster.throttled else f"At {since} it left"
        summary += f" {left} the in-sync set, {below_minimum_clause(low, topics, refused)}"
    return Finding(
        kind=kind,
        start_us=start_us,
        end_us=end_us,
        broker=broker,
        replica=broker,
        topic=topic,
        operations=effect.operations + sum(row["operations"] for row in refused),
        expired=effect.expired,
        excess_wait_s=cluster.excess_ms / 1000,
        confidence=0.95 if pauses else 0.75,
        summary=summary,
        suggestions=suggestions_for(kind, broker, topic),
        clients=effect.clients,
        evidence=_evidence(facts, cluster.blamed, start_us, max(end_us, cluster.end_us)),
    )


def _without_common_cause(facts: TraceFacts, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with several followers that were slow at the same time replaced by one `host_busy`."""
    slow = sorted((each for each in found if each.kind == "follower_slow"), key=lambda each: each.start_us)
    result = [each for each in found if each.kind != "follower_slow"]
    while slow:
        together = [
            each for each in slow if 2 * each.overlap_us(slow[0].start_us, slow[0].end_us) > _shorter_us(each, slow[0])
        ]
        slow = [each for each in slow if each not in together]
        if len({each.broker for each in together}) == 1:
            result += together
            continue
        start_us, end_us = min(each.start_us for each in together), max(each.end_us for each in together)
        result.append(
            Finding(
                kind="host_busy",
                start_us=start_us,
                end_us=end_us,
                operations=sum(each.operations for each in together),
                expired=sum(each.expired for each in together),
                excess_wait_s=sum(each.excess_wait_s for each in together),
                # Connections, caches and compiled code are cold at the start of a cluster.
                confidence=0.4 if start_us < facts.start_us + START_US else 0.6,
                summary=f"Brokers {join_names(sorted({each.broker for each in together}, key=str))} all "
                f"replicated slowly from {clock_time(start_us)} for {seconds(end_us - start_us)}: no single broker is "
                "at fault, but something shared, such as a host, a disk or the network.",
                suggestions=("Look at what these brokers share: host, storage, network, a burst of load.",),
                clients=together[0].clients,
                evidence=together[0].evidence,
            )
        )
    return result


def _shorter_us(first: Finding, second: Finding) -> int:
    return min(first.end_us - first.start_us, second.end_us - second.start_us)


def _kind(cluster: _Cluster, longest: Period | None, length_us: int, silences: Sequence[Period]) -> str:
    if cluster.throttled:
        return "replication_throttled"
    if longest is None or (longest.length_us < _MOST_OF_IT * length_us and longest.length_us < _LONG_STALL_US):
        return "follower_slow"
    silent = sum(gap.overlap_us(longest.start_us, longest.end_us) for gap in silences)
    return "broker_frozen" if 2 * silent >= longest.length_us else "follower_stalled"


def _effect(facts: TraceFacts, broker: int, from_us: int, until_us: int) -> _Effect:
    rows = facts.tables.rows(
        "diagnosis/affected",
        replica=broker,
        from_us=from_us,
        until_us=until_us,
        slow_ms=facts.slow_ms,
        last_us=facts.end_us,
    )
    waits: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    for row in rows:
        waits[row["client_id"] or "unnamed clients"] += row["wait_ms"]
        topics[row["topic"]] += row["wait_ms"]
    return _Effect(
        operations=sum(row["operations"] for row in rows),
        expired=sum(row["expired"] for row in rows if row["kind"] == "produce"),
        clients=tuple(client for client, _ in waits.most_common()),
        topics=tuple(topic for topic, _ in topics.most_common()),
        longest_ms=max((row["longest_ms"] for row in rows), default=0),
        produces=sum(row["operations"] for row in rows if row["kind"] == "produce"),
        fetches=sum(row["operations"] for row in rows if row["kind"] == "fetch"),
    )


def _evidence(facts: TraceFacts, broker: int, from_us: int, until_us: int) -> tuple[int, ...]:
    rows = facts.tables.rows(
        "diagnosis/evidence", replica=broker, from_us=from_us, until_us=until_us, top=_MOST_EVIDENCE
    )
    return tuple(row["operation_id"] for row in rows)


def _summary(
    facts: TraceFacts, kind: str, broker: int, period: Period, pauses: Sequence[Period], effect: _Effect
) -> str:
    when = clock_time(period.start_us)
    match kind:
        case "broker_frozen":
            text = _silence_sentence(facts, broker, pauses)
        case "follower_stalled":
            leaders = _stalled_leaders(facts, broker, period)
            text = f"Broker {broker} did not fetch from {leaders} {_lengths(pauses)} from {when}."
        case "replication_throttled":
            text = f"A replication quota throttled broker {broker} from {when} for {seconds(period.length_us)}."
        case _ if pauses:
            longest = max(pause.length_us for pause in pauses)
            text = (
                f"Broker {broker} replicated slowly from {when} for {seconds(period.length_us)}: it paused "
                f"{counted(len(pauses), 'time')}, up to {seconds(longest)} each."
            )
        case _:
            text = (
                f"Broker {broker} replicated slowly from {when} for {seconds(period.length_us)}: it kept "
                "fetching, but lagged behind the leaders."
            )
    return text + _effect_sentence(effect) + _delay_sentence(facts, kind, broker, pauses)


def _stalled_leaders(facts: TraceFacts, replica: int, period: Period) -> str:
    """Return the leaders from which a replica did not fetch; it may have fetched from others meanwhile."""
    around = Period(period.start_us - 5_000_000, period.end_us)
    every = {
        row["broker"]
        for row in facts.replication
        if row["replica"] == replica and around.start_us <= row["second"] * 1_000_000 <= around.end_us
    }
    stalled = {
        leader
        for (follower, leader), stalls in facts.stalls.items()
        if follower == replica and any(stall.overlap_us(period.start_us, period.end_us) for stall in stalls)
    }
    return f"leader {min(stalled)}" if len(stalled) == 1 and every - stalled else "the leaders"


def _silence_sentence(facts: TraceFacts, broker: int, silences: Sequence[Period]) -> str:
    when = f"{_lengths(silences)} from {clock_time(silences[0].start_us)}"
    if facts.was_paused(broker, silences):
        return f"Broker {broker} stood still {when}: it neither fetched nor answered, and its timers did not run."
    return f"Broker {broker} neither fetched nor answered {when}."


def _lengths(pauses: Sequence[Period]) -> str:
    lengths = [seconds(pause.length_us) for pause in pauses]
    return f"for {lengths[0]}" if len(lengths) == 1 else f"{len(lengths)} times ({join_names(lengths, 6)})"


def _effect_sentence(effect: _Effect) -> str:
    what = [counted(effect.produces, "produce")] if effect.produces else []
    what += [counted(effect.fetches, "consumer fetch")] if effect.fetches else []
    if not what:
        return ""
    expired = f"; {counted(effect.expired, 'produce')} timed out" if effect.expired else ""
    return (
        f" {' and '.join(what)} of {join_names(effect.clients)} waited for its replicas, up to "
        f"{seconds(effect.longest_ms * 1000)}{expired}."
    )


def _delay_sentence(facts: TraceFacts, kind: str, broker: int, pauses: Sequence[Period]) -> str:
    if kind != "broker_frozen" or not facts.tables.has("recorded"):
        return ""
    delayed, longest_ms = 0, 0.0
    for pause in pauses:
        rows = facts.tables.rows(
            "diagnosis/delayed_requests", broker=broker, from_us=pause.start_us, until_us=pause.end_us
        )
        delayed += sum(row["requests"] for row in rows)
        longest_ms = max([longest_ms, *(row["longest_ms"] for row in rows)])
    if not delayed:
        return ""
    return f" {counted(delayed, 'request')} at broker {broker} took up to {seconds(longest_ms * 1000)}."


def _silent_brokers(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each time that a broker stood still without delaying produces at other brokers."""
    for broker, silences in facts.standstills.items():
        for period in silences:
            known = any(each.broker == broker and each.overlap_us(period.start_us, period.end_us) for each in found)
            if known or period.length_us < _LEAST_SILENCE_US or period.start_us >= facts.shutdown_us - 10_000_000:
                continue
            delay = _delay_sentence(facts, "broker_frozen", broker, [period])
            yield Finding(
                kind="broker_frozen",
                start_us=period.start_us,
                end_us=period.end_us,
                broker=broker,
                confidence=0.9 if delay else 0.6,
                summary=f"{_silence_sentence(facts, broker, [period])}{delay}",
                suggestions=suggestions_for("broker_frozen", broker, None),
            )
