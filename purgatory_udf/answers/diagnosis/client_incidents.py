"""Incidents of clients: too short timeouts, too large `fetch.min.bytes`, large batches, slow workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, seconds
from purgatory_udf.answers.diagnosis.trace_facts import in_groups
from purgatory_udf.common.console import counted

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.trace_facts import Row, TraceFacts

# A request timeout is short if it is below both: this many milliseconds, and this share of other clients' timeouts.
_SHORT_TIMEOUT_MS, _SHORT_SHARE = 3_000, 0.25
_LEAST_TIMEOUTS = 3
# A longer timeout than this is not to blame if a broker stood still at that time.
_OUTLASTED_MS, _STOOD_STILL = 1_000, ("broker_frozen", "follower_stalled", "below_min_isr", "leader_moved")
_SAME_INCIDENT_US = 5_000_000
# Of a client's waiting fetches, this share expires, with at most this share of `fetch.min.bytes` readable.
_EXPIRED_SHARE, _REACHED_SHARE = 0.9, 0.5
_LEAST_FETCHES, _LEAST_EXCESS_S = 3, 3.0
# Kafka's default of `fetch.max.wait.ms`: a consumer that waits no longer loses little.
_USUAL_MAX_WAIT_MS = 500
# Large requests, in bytes and as a multiple of the median over clients. A burst has at least this many, which wait at
# least this many times as long as usual.
_LARGE_BYTES, _LARGE_FACTOR = 50_000, 10
_LEAST_LARGE, _SLOWER_FACTOR = 3, 2
# Large requests are unusual in at most this share of the trace. Those with at most this distance are one burst.
_BURST_SHARE, _SAME_BURST_US = 0.6, 5_000_000
# A slow follower is due to a burst if this share of it is within the burst.
_INSIDE_SHARE = 0.8
# A worker whose locks expire this often is slow. Expirations with at most this distance are one incident.
_LEAST_LOST_LOCKS, _SAME_WORK_US = 3, 30_000_000
_SECOND_US = 1_000_000
_MOST_EVIDENCE = 5


def short_timeouts(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each producer with requests that time out while those of other producers only wait longer.

    `found` are the findings at brokers. Timeouts while a broker stood still are not the producer's fault.
    """
    expired = facts.tables.rows("diagnosis/timeouts")
    for (client, timeout_ms), rows in groupby(
        sorted(expired, key=lambda row: (row["client_id"] or "", row["timeout_ms"], row["start_us"])),
        lambda row: (row["client_id"], row["timeout_ms"]),
    ):
        others = [row["timeout_ms"] for row in facts.producers if row["client_id"] != client]
        if not others or timeout_ms > min(_SHORT_TIMEOUT_MS, _SHORT_SHARE * median(others)):
            continue
        for group in _in_groups(list(rows)):
            count = sum(row["operations"] for row in group)
            if count < _LEAST_TIMEOUTS:
                continue
            start_us, end_us = group[0]["start_us"], max(row["end_us"] for row in group)
            still_us = sum(each.overlap_us(start_us, end_us) for each in found if each.kind in _STOOD_STILL)
            if timeout_ms > _OUTLASTED_MS and 2 * still_us >= end_us - start_us:
                continue
            yield Finding(
                kind="timeout_too_short",
                start_us=start_us,
                end_us=end_us,
                client_id=client,
                operations=count,
                expired=count,
                excess_wait_s=sum(row["wait_ms"] for row in group) / 1000,
                confidence=0.9,
                summary=f"{counted(count, 'produce')} of {client} timed out after request.timeout.ms={timeout_ms} from "
                f"{clock_time(start_us)} for {seconds(end_us - start_us)}; other producers, "
                f"with a median timeout of {median(others):,.0f} ms, only waited.",
                suggestions=(
                    f"Raise request.timeout.ms of {client}: a retry appends the same records again unless the producer "
                    "is idempotent.",
                    f"what-if --variant longer 'produce.timeout_ms[client_id={client}]={round(median(others))}'",
                ),
                clients=(client or "",),
                evidence=tuple(row["first_id"] for row in group[:5]),
            )


def unreachable_minimums(facts: TraceFacts) -> Iterator[Finding]:
    """Yield a finding for each consumer that seldom gets `fetch.min.bytes` within `fetch.max.wait.ms`."""
    for row in facts.tables.rows("diagnosis/consumers"):
        excess_s = row["expired"] * max(0, row["max_wait_ms"] - _USUAL_MAX_WAIT_MS) / 1000
        if (
            row["short"] < _LEAST_FETCHES
            or row["expired"] < _EXPIRED_SHARE * row["fetches"]
            or (row["bytes"] or 0) > _REACHED_SHARE * row["min_bytes"]
            or excess_s < _LEAST_EXCESS_S
        ):
            continue
        client = row["client_id"]
        yield Finding(
            kind="min_bytes_out_of_reach",
            start_us=row["start_us"],
            end_us=row["end_us"],
            client_id=client,
            operations=row["fetches"],
            expired=row["expired"],
            excess_wait_s=excess_s,
            confidence=0.95,
            summary=f"{row['expired']:,} of {counted(row['fetches'], 'fetch')} of {client} waited for the whole "
            f"fetch.max.wait.ms={row['max_wait_ms']:,}: fetch.min.bytes={row['min_bytes']:,} is out of reach, at most "
            f"{row['bytes'] or 0:,} bytes were readable.",
            suggestions=(
                f"Lower fetch.min.bytes or fetch.max.wait.ms of {client}.",
                f"what-if --variant smaller 'fetch.min_bytes[client_id={client}]={max(1, (row['bytes'] or 0) // 2)}'",
            ),
            clients=(client or "",),
            evidence=(row["longest_id"],) if row["longest_id"] is not None else (),
        )


def with_large_batches(facts: TraceFacts, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings so far, `found`, together with the bursts of large produces that made produces wait.

    Followers append large batches more slowly, so `follower_slow` and `host_busy` within a burst count as a part of it.
    """
    bursts = list(_large_batches(facts, found))
    result = []
    for finding in found:
        place = next((at for at, burst in enumerate(bursts) if _is_due_to(finding, burst)), None)
        if place is None:
            result.append(finding)
            continue
        burst = bursts[place]
        bursts[place] = replace(
            burst,
            operations=max(burst.operations, finding.operations),
            expired=max(burst.expired, finding.expired),
            excess_wait_s=max(burst.excess_wait_s, finding.excess_wait_s),
            evidence=(*burst.evidence, *finding.evidence)[:_MOST_EVIDENCE],
        )
    return [*result, *bursts]


def _is_due_to(finding: Finding, burst: Finding) -> bool:
    """Return whether a slow follower or host is an effect of a burst of large produces."""
    if finding.kind not in ("follower_slow", "host_busy"):
        return False
    inside = finding.overlap_us(burst.start_us - _SECOND_US, burst.end_us + _SECOND_US)
    return inside >= _INSIDE_SHARE * (finding.end_us - finding.start_us)


def _large_batches(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each burst of a producer: far larger requests than usual, which waited longer.

    A producer that sends large requests most of the time is normal for the trace. Waits during incidents of brokers
    are not the producer's fault.
    """
    producers = facts.producers
    if not producers:
        return
    typical_bytes = median(row["bytes"] or 0 for row in producers)
    rows = facts.tables.rows(
        "diagnosis/large_requests", large_bytes=max(_LARGE_BYTES, round(_LARGE_FACTOR * typical_bytes))
    )
    usual_ms = max(1.0, median(row["wait_ms"] for row in producers))
    for client, of_client in groupby(rows, lambda row: row["client_id"]):
        every = list(of_client)
        # The length of the trace in which the client sent large requests, by second.
        if len(every) * _SECOND_US > _BURST_SHARE * (facts.end_us - facts.start_us):
            continue
        for group in in_groups(every, _SAME_BURST_US):
            burst = [row for row in group if not _is_blamed(row, found)]
            requests = sum(row["requests"] for row in burst)
            if requests < _LEAST_LARGE or median(row["p50_ms"] for row in burst) < _SLOWER_FACTOR * usual_ms:
                continue
            yield _burst_finding(facts, client, group, usual_ms)


def _is_blamed(row: Row, found: Sequence[Finding]) -> bool:
    """Return whether a broker's incident overlaps the requests of a second."""
    return any(each.kind in _STOOD_STILL and each.overlap_us(row["time_us"], row["end_us"]) for each in found)


def _burst_finding(facts: TraceFacts, client: str | None, burst: Sequence[Row], usual_ms: float) -> Finding:
    start_us, end_us = burst[0]["time_us"], max(row["end_us"] for row in burst)
    requests, length_us = sum(row["requests"] for row in burst), end_us - start_us
    total_bytes, waited_ms = sum(row["total_bytes"] for row in burst), median(row["p50_ms"] for row in burst)
    return Finding(
        kind="large_batches",
        start_us=start_us,
        end_us=end_us,
        client_id=client,
        operations=requests,
        expired=sum(row["expired"] for row in burst),
        excess_wait_s=max(0.0, sum(row["wait_ms"] - row["requests"] * usual_ms for row in burst)) / 1000,
        confidence=0.7,
        summary=f"{client} sent {counted(requests, 'produce')} of about {median(row['bytes'] for row in burst):,.0f} "
        f"bytes ({total_bytes / max(_SECOND_US, length_us):,.1f} MB/s) from {clock_time(start_us)} for "
        f"{seconds(length_us)}; their median wait was {waited_ms:,.0f} ms, the usual one is {usual_ms:,.0f} ms.",
        suggestions=(
            f"Lower batch.size or max.request.size of {client}, or compress its records (compression.type).",
            f"Limit {client} with a quota (producer_byte_rate).",
        ),
        clients=(client or "",),
        evidence=tuple(row["longest_id"] for row in sorted(burst, key=lambda row: -row["wait_ms"])[:_MOST_EVIDENCE]),
    )


def slow_workers(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each worker of a share group that often held records until their acquisition locks expired.

    `found` are the findings at brokers. A worker is not at fault for locks that expired while a broker stood still.
    """
    rows = facts.tables.rows("diagnosis/lost_locks")
    for (group, client, member), of_worker in groupby(
        rows, lambda row: (row["group_id"], row["client_id"], row["member"])
    ):
        for lost in in_groups([row for row in of_worker if not _is_blamed(row, found)], _SAME_WORK_US):
            if len(lost) < _LEAST_LOST_LOCKS:
                continue
            start_us, end_us = lost[0]["time_us"], max(row["end_us"] for row in lost)
            records, archived = (sum(row[name] for row in lost) for name in ("records", "archived"))
            lock_ms = max(row["held_ms"] for row in lost)
            then = f"{archived:,} of them were archived after their last delivery, the others" if archived else "they"
            yield Finding(
                kind="share_worker_slow",
                start_us=start_us,
                end_us=end_us,
                client_id=client,
                group=group,
                member=member,
                topic=lost[0]["topic"],
                operations=len(lost),
                excess_wait_s=sum(row["held_ms"] for row in lost) / 1000,
                confidence=0.9,
                summary=f"{client or member} of share group {group} held {counted(records, 'record')} of "
                f"{counted(len(lost), 'fetch')} until their acquisition locks of {seconds(lock_ms * 1000)} expired, "
                f"from {clock_time(start_us)} for {seconds(end_us - start_us)}; {then} became available again.",
                suggestions=(
                    f"Let {client or member} fetch fewer records at a time (max.poll.records), or renew their locks.",
                    "Raise share.record.lock.duration.ms of the group above the longest processing time of a fetch: "
                    f"what-if --variant longer 'share.record_lock_duration_ms[group={group}]=x2'",
                ),
                clients=(client,) if client else (),
                evidence=tuple(row["operation_id"] for row in sorted(lost, key=lambda row: -row["records"])[:5]),
            )


def _in_groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    for row in rows:
        if group and row["start_us"] > group[-1]["end_us"] + _SAME_INCIDENT_US:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
