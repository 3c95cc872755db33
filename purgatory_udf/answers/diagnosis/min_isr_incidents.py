"""Incidents of in-sync sets: partitions with fewer in-sync replicas than `min.insync.replicas`, and refused produces.

A replica that is out of sync cannot rejoin while a replication quota throttles it. Produces that are refused in this
time are an incident of kind `replication_throttled`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, join_names, seconds
from purgatory_udf.answers.diagnosis.trace_facts import SAME_INCIDENT_US, in_groups
from purgatory_udf.common.console import counted

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.trace_facts import Row, TraceFacts

_TOO_FEW = ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
# Refused produces and throttled fetches this close to a period belong to it: a fetch takes up to 0.5 s.
_SLACK_US = 1_000_000
_MOST_EVIDENCE = 5


def periods_below_minimum(facts: TraceFacts, broker: int, start_us: int, end_us: int) -> list[Row]:
    """Return the periods in which partitions were below `min.insync.replicas` because this broker was missing."""
    return [
        row
        for row in facts.below_minimum
        if broker in (row["missing"] or ())
        and row["since_us"] < end_us
        and (row["until_us"] or facts.end_us) > start_us
        and row["since_us"] < facts.shutdown_us
    ]


def refused_produces(facts: TraceFacts, low: Sequence[Row], throttled: bool) -> list[Row]:
    """Return the produces that were refused in these periods because of too few in-sync replicas.

    Args:
        facts: Figures of the trace.
        low: Periods of partitions below their minimum.
        throttled: Whether to return those refused while a missing replica was throttled, or the others.
    """
    return [
        row
        for row in _refusals(facts)
        if any(_is_within(facts, row, period) for period in low)
        and bool(_throttled_replicas(facts, row, low)) == throttled
    ]


def _refusals(facts: TraceFacts) -> list[Row]:
    return [row for row in facts.refusals if row["error"] in _TOO_FEW]


def _is_within(facts: TraceFacts, row: Row, period: Row) -> bool:
    """Return whether a produce was refused within a period of its partition below the minimum."""
    end_us = period["until_us"] or facts.end_us
    is_same = (row["topic"], row["partition"]) == (period["topic"], period["partition"])
    return is_same and bool(period["since_us"] - _SLACK_US <= row["time_us"] <= end_us + _SLACK_US)


def _throttled_replicas(facts: TraceFacts, row: Row, low: Sequence[Row]) -> set[int]:
    """Return the missing replicas of a refused produce that a quota throttled at that time."""
    missing = {replica for period in low if _is_within(facts, row, period) for replica in period["missing"] or ()}
    return {
        replica
        for (replica, _, topic, partition), throttles in facts.throttles.items()
        if replica in missing and (topic, partition) == (row["topic"], row["partition"])
        for each in throttles
        if each.start_us - _SLACK_US <= row["time_us"] <= each.end_us + _SLACK_US
    }


def is_affected(row: Row, topics: Sequence[str], refused: Sequence[Row]) -> bool:
    """Return whether the topic of a period below the minimum is one of `topics`, or had refused produces."""
    return row["topic"] in topics or any(each["topic"] == row["topic"] for each in refused)


def below_minimum_clause(low: Sequence[Row], topics: Sequence[str], refused: Sequence[Row]) -> str:
    """Return the end of the sentence on a broker out of the in-sync set: what followed."""
    since, minimum = min(row["since_us"] for row in low), max(row["min_isr"] for row in low)
    ends = [row["until_us"] for row in low]
    lasted = "" if None in ends else f" for {seconds(max(ends) - since)}"
    count = sum(row["operations"] for row in refused)
    errors = f"; {counted(count, 'produce')} got {refused[0]['error']}" if refused else ""
    return (
        f"and {join_names(topics) or 'partitions'} had fewer in-sync replicas than min.insync.replicas={minimum}"
        f"{lasted}{errors}."
    )


def unexplained_refusals(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the refused produces, for lack of in-sync replicas, that no other incident explains."""
    periods = facts.below_minimum
    for kind in ("below_min_isr", "replication_throttled"):
        explained = [finding for finding in found if finding.kind == kind]
        rest = [
            row
            for row in _refusals(facts)
            if bool(_throttled_replicas(facts, row, periods)) == (kind == "replication_throttled")
            and not any(each.start_us <= row["time_us"] <= each.end_us + SAME_INCIDENT_US for each in explained)
            and row["time_us"] < facts.shutdown_us
        ]
        for group in in_groups(rest, SAME_INCIDENT_US * 3):
            yield _refusal_finding(facts, kind, group, [row for row in periods if _overlaps(facts, row, group)])


def _overlaps(facts: TraceFacts, period: Row, refused: Sequence[Row]) -> bool:
    """Return whether a period below the minimum overlaps refused produces of its partition."""
    return (
        any((row["topic"], row["partition"]) == (period["topic"], period["partition"]) for row in refused)
        and period["since_us"] <= refused[-1]["time_us"]
        and (period["until_us"] or facts.end_us) >= refused[0]["time_us"]
    )


def _refusal_finding(facts: TraceFacts, kind: str, refused: Sequence[Row], low: Sequence[Row]) -> Finding:
    """Return the finding of some refused produces; `low` are the periods below the minimum."""
    start_us, end_us = refused[0]["time_us"], refused[-1]["last_us"]
    missing = Counter(replica for row in low for replica in row["missing"] or ())
    text = "; broker {} was out of sync."
    if kind == "replication_throttled":
        missing = Counter(replica for row in refused for replica in _throttled_replicas(facts, row, low))
        text = "; a replication quota throttled broker {}, so that it stayed out of sync."
    else:
        start_us = min([start_us, *(row["since_us"] for row in low)])
        end_us = max([end_us, *(row["until_us"] or facts.end_us for row in low)])
    broker = missing.most_common(1)[0][0] if missing else None
    topics = sorted({row["topic"] for row in refused})
    count = sum(row["operations"] for row in refused)
    return Finding(
        kind=kind,
        start_us=start_us,
        end_us=end_us,
        broker=broker,
        replica=broker,
        topic=topics[0] if len(topics) == 1 else None,
        operations=count,
        confidence=0.9,
        summary=f"{counted(count, 'produce')} to {join_names(topics)} got {refused[0]['error']} from "
        f"{clock_time(refused[0]['time_us'])}: fewer in-sync replicas than min.insync.replicas"
        + (text.format(broker) if broker is not None else "."),
        suggestions=suggestions_for(kind, broker, topics[0]),
        clients=tuple(sorted({row["client_id"] or "" for row in refused})),
        evidence=tuple(row["first_id"] for row in refused[:_MOST_EVIDENCE]),
    )


def suggestions_for(kind: str, broker: int | None, topic: str | None) -> tuple[str, ...]:
    """Return what to look at or change after an incident of a replica."""
    match kind:
        case "broker_frozen" | "follower_stalled":
            return (
                f"Look at broker {broker} at that time: garbage collection, a paused virtual machine, a stalled disk.",
                f"With a lower replica.lag.time.max.ms, broker {broker} leaves the in-sync set earlier and "
                "producers wait less.",
            )
        case "follower_slow":
            return (
                f"Look at the load, disk and network of broker {broker}; num.replica.fetchers adds fetcher threads.",
            )
        case "replication_throttled":
            return (
                f"Until broker {broker} has caught up, raise or remove leader.replication.throttled.rate and "
                "follower.replication.throttled.rate.",
            )
        case "below_min_isr":
            return (
                f"Bring broker {broker} back; it is missing from the in-sync set.",
                f"Check min.insync.replicas of {topic or 'the topics'}: it must be lower than the replication factor.",
            )
    return ()
