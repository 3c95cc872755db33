"""Incidents of clients: timeouts that are too short, `fetch.min.bytes` that is too large, and large batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, seconds
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
# Large requests, in bytes and as a multiple of the other clients' requests.
_LARGE_BYTES, _LARGE_FACTOR = 50_000, 10
_SLOWER_FACTOR = 2
# It is active for at most this share of the trace.
_BURST_SHARE = 0.6
_SECOND_US = 1_000_000


def short_timeouts(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each producer whose requests time out while requests of other producers only wait longer.

    `found` are the findings at brokers. Timeouts while a broker stood still are not the producer's fault.
    """
    producers = facts.tables.rows("diagnosis/producers")
    expired = facts.tables.rows("diagnosis/timeouts")
    for (client, timeout_ms), rows in groupby(
        sorted(expired, key=lambda row: (row["client_id"] or "", row["timeout_ms"], row["start_us"])),
        lambda row: (row["client_id"], row["timeout_ms"]),
    ):
        others = [row["timeout_ms"] for row in producers if row["client_id"] != client]
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
                f"{clock_time(start_us)} for {seconds(end_us - start_us)}; other producers allow "
                f"{median(others):,.0f} ms and only waited.",
                suggestions=(
                    f"Raise request.timeout.ms of {client}: a retry appends the same records again unless the producer "
                    "is idempotent.",
                    f"what-if --variant longer 'produce.timeout_ms[client_id={client}]={round(median(others))}'",
                ),
                clients=(client or "",),
                evidence=tuple(row["first_id"] for row in group[:5]),
            )


def unreachable_minimums(facts: TraceFacts) -> Iterator[Finding]:
    """Yield a finding for each consumer that seldom gets `fetch.min.bytes` before `fetch.max.wait.ms` ends a fetch."""
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
            f"{row['bytes'] or 0:,} bytes were there.",
            suggestions=(
                f"Lower fetch.min.bytes or fetch.max.wait.ms of {client}.",
                f"what-if --variant smaller 'fetch.min_bytes[client_id={client}]={max(1, (row['bytes'] or 0) // 2)}'",
            ),
            clients=(client or "",),
            evidence=(row["longest_id"],) if row["longest_id"] is not None else (),
        )


def large_batches(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each producer that for a part of the trace sent far larger requests, and waited longer then.

    A producer that sends large requests all the time is normal for the trace. `found` are the findings so far; waits
    for a stalled replica are not the producer's fault.
    """
    producers = facts.tables.rows("diagnosis/producers")
    for row in producers:
        others = [each for each in producers if each["client_id"] != row["client_id"]]
        length_us = row["end_us"] - row["start_us"]
        if not others or length_us > _BURST_SHARE * (facts.end_us - facts.start_us):
            continue
        if (row["bytes"] or 0) < max(_LARGE_BYTES, _LARGE_FACTOR * median(each["bytes"] or 0 for each in others)):
            continue
        usual_ms = max(1, median(each["wait_ms"] for each in others))
        if row["wait_ms"] < _SLOWER_FACTOR * usual_ms:
            continue
        # What a stalled broker adds to its waits is not the producer's fault.
        blocked_us = sum(each.overlap_us(row["start_us"], row["end_us"]) for each in found if each.replica is not None)
        if 2 * blocked_us > length_us:
            continue
        client = row["client_id"]
        yield Finding(
            kind="large_batches",
            start_us=row["start_us"],
            end_us=row["end_us"],
            client_id=client,
            operations=row["requests"],
            expired=row["expired"],
            excess_wait_s=row["requests"] * (row["wait_ms"] - usual_ms) / 1000,
            confidence=0.7,
            summary=f"{client} sent {counted(row['requests'], 'produce')} of about {row['bytes']:,} bytes "
            f"({row['total_bytes'] / max(_SECOND_US, length_us):,.1f} MB/s) from {clock_time(row['start_us'])} for "
            f"{seconds(length_us)}; their median wait was {row['wait_ms']:,} ms, that of others {usual_ms:,.0f} ms.",
            suggestions=(
                f"Lower batch.size or max.request.size of {client}, or compress its records (compression.type).",
                f"Limit it with a quota: producer_byte_rate of client {client}.",
            ),
            clients=(client or "",),
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
