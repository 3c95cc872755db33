"""Incidents of consumer groups: members that failed, members that were slow to rejoin, and storms of rebalances."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, seconds
from purgatory_udf.answers.diagnosis.trace_facts import Period

if TYPE_CHECKING:
    import pyarrow as pa

    from purgatory_udf.answers.diagnosis.trace_facts import Row, TraceFacts

# A member that leaves and comes back within this time was too slow to poll, or was restarted.
_COMES_BACK_US = 120_000_000
# A shorter absence is part of an ordinary rejoin, unless a member is absent so often within a minute.
_SHORT_ABSENCE_US, _OFTEN_ABSENT, _OFTEN_US = 1_000_000, 3, 60_000_000
# A join that a member delays by this much is slow: members learn of a rebalance from their next heartbeat, by default
# up to 3 s later.
_SLOW_JOIN_MS = 4_000
# This many rebalances of a group within a minute are a storm.
_STORM, _STORM_US = 5, 60_000_000
# A rebalance within this time of the end of a session follows from it.
_AT_ONCE_US = 1_000_000
# Joins are as many as members and rebalances, so not all of their rows are in memory.
_ROWS_AT_A_TIME = 10_000
# What a late member did not do, and what to do about it.
_LATE = {
    "join": (
        "did not rejoin {}, and a rebalance waited for it",
        "A member rejoins at its next poll: let it poll more often, with a lower max.poll.records.",
    ),
    "sync": (
        "did not request its assignment {}, and a rebalance waited for it",
        "A member requests its assignment as soon as it has joined: look at its process at that time.",
    ),
    "reconciliation": (
        "did not give up its partitions {}",
        "A member gives partitions up at its next poll: let it poll more often, with a lower max.poll.records.",
    ),
}
# Incidents of brokers that delay the replication of a group's assignment.
_BROKERS_AT_FAULT = ("broker_frozen", "follower_stalled", "follower_slow", "below_min_isr", "replication_throttled")


def failed_members(facts: TraceFacts) -> Iterator[Finding]:
    """Yield a finding for each member with an expired session, unless its coordinator stood still at that time."""
    # The rebalances of each group, in the order of their starts.
    starts_us: defaultdict[str, list[int]] = defaultdict(list)
    ends_us: defaultdict[str, list[int | None]] = defaultdict(list)
    for each in _rebalances(facts):
        starts_us[each["group"]].append(each["started_us"])
        ends_us[each["group"]].append(each["ended_us"])
    for row in facts.tables.rows("diagnosis/lost_sessions"):
        silence_us = row["end_us"] - row["start_us"]
        is_blocked = facts.stood_still(row["broker"], Period(row["start_us"], row["end_us"]))
        if is_blocked or row["end_us"] >= min(facts.shutdown_us, facts.end_us):
            continue
        of_group = starts_us[row["group"]]
        first = bisect_left(of_group, row["end_us"] - _AT_ONCE_US)
        last = bisect_right(of_group, row["end_us"] + _AT_ONCE_US)
        end_us = max([row["end_us"], *filter(None, ends_us[row["group"]][first:last])])
        client = row["client_id"] or row["member"]
        waited = f" The group then rebalanced for {seconds(end_us - row['end_us'])}." if end_us > row["end_us"] else ""
        yield Finding(
            kind="member_failed",
            start_us=row["start_us"],
            end_us=end_us,
            client_id=row["client_id"],
            group=row["group"],
            member=row["member"],
            operations=1,
            expired=1,
            excess_wait_s=silence_us / 1_000_000,
            confidence=0.95,
            summary=f"Member {client} of group {row['group']} sent nothing after {clock_time(row['start_us'])}; its "
            f"session expired {seconds(silence_us)} later. Until then no other member could read its partitions."
            f"{waited}",
            suggestions=(
                f"Look at {client} at that time: a crash, a kill, a long garbage collection.",
                "A shorter session.timeout.ms detects a failed member earlier; "
                "group.instance.id avoids a rebalance on restart.",
            ),
            clients=(row["client_id"],) if row["client_id"] else (),
            evidence=(row["operation_id"],),
        )


def slow_members(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each member that left a group and returned, or for which a rebalance waited long.

    `found` are the findings so far, which may explain a slow member.
    """
    changes = facts.tables.query("diagnosis/membership").to_batches(max_chunksize=_ROWS_AT_A_TIME)
    seen: list[Finding] = []
    short: dict[tuple[str, str], list[tuple[Row, int]]] = {}
    for row, back_us in _returns(changes):
        is_shutdown = row["time_us"] >= facts.shutdown_us - 5_000_000
        if is_shutdown or facts.stood_still(row["broker"], Period(row["time_us"], back_us)):
            continue
        away_us = back_us - row["time_us"]
        if away_us < _SHORT_ABSENCE_US:
            short.setdefault((row["group"], row["client_id"]), []).append((row, back_us))
            continue
        last = seen[-1] if seen else None
        if last and last.group == row["group"] and last.client_id == row["client_id"] and last.end_us > row["time_us"]:
            continue
        client = row["client_id"] or row["member"]
        seen.append(
            Finding(
                kind="member_slow_to_rejoin",
                start_us=row["time_us"],
                end_us=back_us,
                client_id=row["client_id"],
                group=row["group"],
                member=row["member"],
                operations=2,
                excess_wait_s=away_us / 1_000_000,
                confidence=0.85,
                summary=f"Member {client} left group {row['group']} at {clock_time(row['time_us'])} and rejoined "
                f"{seconds(away_us)} later: it had not polled within max.poll.interval.ms, or was restarted. Both "
                "changes made the group rebalance.",
                suggestions=(
                    f"Lower max.poll.records of {client}, or raise max.poll.interval.ms above its processing time.",
                    "group.instance.id (static membership) avoids the rebalances of a restart.",
                ),
                clients=(row["client_id"],) if row["client_id"] else (),
            )
        )
    seen += [finding for absences in short.values() for finding in _often_absent(absences)]
    yield from seen
    yield from _late_joins(facts, [*found, *seen])


def _often_absent(absences: Sequence[tuple[Row, int]]) -> Iterator[Finding]:
    """Yield a finding if a member left and rejoined its group often within a minute.

    `absences` are its departures, each with the time of its return.
    """
    pairs = zip(absences, absences[_OFTEN_ABSENT - 1 :], strict=False)
    if not any(last[0]["time_us"] - first[0]["time_us"] <= _OFTEN_US for first, last in pairs):
        return
    left, (_, back_us) = absences[0][0], absences[-1]
    client = left["client_id"]
    yield Finding(
        kind="member_slow_to_rejoin",
        start_us=left["time_us"],
        end_us=back_us,
        client_id=client,
        group=left["group"],
        member=left["member"],
        operations=2 * len(absences),
        excess_wait_s=sum(us - left["time_us"] for left, us in absences) / 1_000_000,
        confidence=0.85,
        summary=f"Member {client} left group {left['group']} and rejoined {len(absences)} times from "
        f"{clock_time(left['time_us'])} for {seconds(back_us - left['time_us'])}: it does not poll within "
        "max.poll.interval.ms, or was restarted. Each time the group rebalanced.",
        suggestions=(f"Lower max.poll.records of {client}, or raise max.poll.interval.ms above its processing time.",),
        clients=(client,),
    )


@dataclass
class _Departure:
    """A member's departure from its group: the place and the row in `diagnosis/membership`.

    `has_others` is whether other clients have joined the group before, or rejoined because this one left.
    """

    place: int
    row: Row
    has_others: bool


def _returns(changes: Iterable[pa.RecordBatch]) -> list[tuple[Row, int]]:
    """Return departures from groups that have other members, each with the time of the client's next join.

    Args:
        changes: Joins and departures in time order. A client must join again within `_COMES_BACK_US`.
    """
    known: defaultdict[str, set[str | None]] = defaultdict(set)
    open_departures: dict[str, list[_Departure]] = {}
    found: list[tuple[int, Row, int]] = []
    first = 0
    for batch in changes:
        columns = (batch.column(name).to_pylist() for name in ("group", "client_id", "type", "time_us"))
        for place, (group, client, kind, time_us) in enumerate(zip(*columns, strict=True), first):
            departures = open_departures.pop(group, [])
            if departures:
                departures = [each for each in departures if time_us <= each.row["time_us"] + _COMES_BACK_US]
            if kind != "join_group":
                if client:
                    (row,) = batch.slice(place - first, 1).to_pylist()
                    departures.append(_Departure(place, row, bool(known[group] - {client})))
            elif departures:
                of_client = [each for each in departures if each.row["client_id"] == client]
                found += [(each.place, each.row, time_us) for each in of_client if each.has_others]
                departures = [each for each in departures if each.row["client_id"] != client]
                for each in departures:
                    each.has_others = True
            if departures:
                open_departures[group] = departures
            known[group].add(client)
        first += batch.num_rows
    return [(row, back_us) for _, row, back_us in sorted(found, key=lambda each: each[0])]


def _late_joins(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    rows = facts.tables.rows("diagnosis/late_joins", slow_ms=_SLOW_JOIN_MS)
    at_fault = [each for each in found if each.kind in _BROKERS_AT_FAULT]
    of_group: defaultdict[str | None, list[Finding]] = defaultdict(list)
    for finding in found:
        of_group[finding.group].append(finding)
    for row in rows:
        period = Period(row["start_us"], row["end_us"])
        # Syncs wait until the group's assignment is replicated, too.
        is_blocked = facts.stood_still(row["broker"], period) or (
            row["kind"] == "sync" and _is_blocked(at_fault, period)
        )
        if row["end_us"] >= facts.shutdown_us or is_blocked:
            continue
        # Nothing is known of a member after the end of the trace.
        if facts.end_us - row["start_us"] < _SLOW_JOIN_MS * 1000:
            continue
        if any(each.overlap_us(row["start_us"], row["end_us"]) for each in of_group[row["group"]]):
            continue
        who = f"Member {row['client_id'] or row['member']}" if row["member"] else "A member"
        what, suggestion = _LATE[row["kind"]]
        when = f"for {seconds(row['end_us'] - row['start_us'])} from {clock_time(row['start_us'])}"
        yield Finding(
            kind="member_slow_to_rejoin",
            start_us=row["start_us"],
            end_us=row["end_us"],
            client_id=row["client_id"],
            group=row["group"],
            member=row["member"],
            operations=row["operations"],
            expired=row["expired"],
            excess_wait_s=row["wait_ms"] / 1000,
            confidence=0.85,
            summary=f"{who} of group {row['group']} {what.format(when)}.",
            suggestions=(suggestion,),
            clients=(row["client_id"],) if row["client_id"] else (),
            evidence=(row["operation_id"],),
        )


def rebalance_storms(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each group that rebalanced repeatedly within a minute. `found` are the findings so far."""
    by_group: dict[str, list[Row]] = {}
    for row in _rebalances(facts):
        if row["started_us"] < facts.shutdown_us and not row["after_end"]:
            by_group.setdefault(row["group"], []).append(row)
    for group, rows in sorted(by_group.items()):
        storm: list[Row] = []
        # The first rebalance forms the group.
        for row in rows[1:]:
            if storm and row["started_us"] > storm[-1]["started_us"] + _STORM_US / _STORM * 2:
                yield from _storm(group, storm)
                storm = []
            storm.append(row)
        yield from _storm(group, storm)


def _storm(group: str, rows: Sequence[Row]) -> Iterator[Finding]:
    pairs = zip(rows, rows[_STORM - 1 :], strict=False)
    if not any(last["started_us"] - first["started_us"] <= _STORM_US for first, last in pairs):
        return
    start_us = rows[0]["started_us"]
    end_us = max(row["ended_us"] or row["started_us"] for row in rows)
    busy_us = sum((row["ended_us"] or row["started_us"]) - row["started_us"] for row in rows)
    changed = Counter(member for row in rows for member in [*(row["missing"] or ()), *(row["joined"] or ())])
    last = Counter(row["last_to_join"] for row in rows if row["last_to_join"])
    reasons = Counter(row["reason"] for row in rows)
    member = (changed or last).most_common(1)[0][0] if changed or last else None
    yield Finding(
        kind="rebalance_storm",
        start_us=start_us,
        end_us=end_us,
        group=group,
        member=member,
        operations=len(rows),
        excess_wait_s=busy_us / 1_000_000,
        confidence=0.9,
        summary=f"Group {group} rebalanced {len(rows)} times in {seconds(end_us - start_us)} from "
        f"{clock_time(start_us)} and spent {seconds(busy_us)} in rebalances; "
        f"most frequent reason: {reasons.most_common(1)[0][0]}." + (f" {member} was involved most." if member else ""),
        suggestions=(
            "Look for members that leave and rejoin: max.poll.interval.ms, session.timeout.ms, restarts.",
            "The cooperative assignor and group.instance.id make rebalances cheaper and rarer.",
        ),
    )


def _rebalances(facts: TraceFacts) -> list[Row]:
    return facts.tables.rows("diagnosis/rebalances")


def _is_blocked(at_fault: Sequence[Finding], period: Period) -> bool:
    """Return whether these incidents of brokers explain most of a period in which replication was slow."""
    blocked = sum(each.overlap_us(period.start_us, period.end_us) for each in at_fault)
    return 2 * blocked >= period.length_us > 0
