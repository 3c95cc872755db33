"""Incidents that are not due to a single follower: moved leaders, busy hosts, slow remote reads, overdue purges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, join_names, seconds
from purgatory_udf.answers.diagnosis.trace_facts import Period, Row, in_groups, merged
from purgatory_udf.answers.metrics import BYTES_PER_WATCH
from purgatory_udf.common.console import counted
from purgatory_udf.rules.purgatory.clock import STEP_MS

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.trace_facts import TraceFacts

# Leaders that move within this time belong to one incident; refused requests follow within the second time. A short lag
# of a follower this close to a move is a part of the move.
_SAME_MOVE_US, _AFTER_MOVE_US, _NEAR_MOVE_US = 15_000_000, 5_000_000, 2_000_000
_SHORT_LAG_US, _BEFORE_MOVE_US = 4_000_000, 500_000
# A stop of a broker precedes the moves of its leaders by up to this: the controller has to notice it first.
_AFTER_STOP_US = 15_000_000
_MOVED = ("NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "REPLICA_NOT_AVAILABLE")
_MOST_EVIDENCE = 5
# A busy host is reported from this length and this excess waiting on, and not while the cluster starts.
_LEAST_BUSY_US, _LEAST_BUSY_MS, START_US = 3_000_000, 250, 15_000_000
# Its waits are at least this many times as long as usual; those of other brokers at most this many.
_BUSY_FACTOR, _QUIET_FACTOR = 3.0, 2.0
# Fewer entries of ended operations do no harm: they hold 4 MB of a broker's heap.
_LEAST_DEAD_WATCHES = 20_000
# Reads of remote storage are slow if this many fetches, and this share of them, expired while they waited for one; or
# if as many, and this share, waited for this multiple of the usual wait, and this many milliseconds longer.
_LEAST_SLOW_READS, _EXPIRED_READ_SHARE = 5, 0.1
_SLOW_READ_SHARE, _SLOW_READ_FACTOR, _SLOW_READ_MS = 0.5, 3.0, 100
_SAME_READS_US = 3_000_000
_GAUGE_PARAMETERS = {"window_ms": 1000, "step_ms": STEP_MS, "bytes_per_watch": BYTES_PER_WATCH}


def with_leader_moves(facts: TraceFacts, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings at replicas, `found`, together with the moves of leaders.

    A short lag of a follower close to a move is counted as a part of the move.
    """
    moves = list(_leader_moves(facts))
    result = []
    for finding in found:
        is_short = finding.kind.startswith("follower_") and finding.end_us - finding.start_us < _SHORT_LAG_US
        nearby = [place for place, move in enumerate(moves) if is_short and _is_near(finding, move)]
        if not nearby:
            result.append(finding)
            continue
        move = moves[nearby[0]]
        moves[nearby[0]] = replace(
            move,
            end_us=max(move.end_us, finding.end_us),
            operations=move.operations + finding.operations,
            excess_wait_s=move.excess_wait_s + finding.excess_wait_s,
            evidence=(*finding.evidence, *move.evidence)[:_MOST_EVIDENCE],
        )
    return [*result, *moves]


def _is_near(finding: Finding, move: Finding) -> bool:
    """Return whether a follower's lag may be due to a move of leaders.

    It must be close to the move, and must be a lag of the former leader or not start long before the move.
    """
    is_due = finding.broker == move.broker or finding.start_us >= move.start_us - _BEFORE_MOVE_US
    return is_due and bool(finding.overlap_us(move.start_us - _NEAR_MOVE_US, move.end_us + _NEAR_MOVE_US))


def _leader_moves(facts: TraceFacts) -> Iterator[Finding]:
    """Yield a finding for each time that leaders moved and requests therefore failed or got no response."""
    moves = [
        row for row in facts.tables.rows("diagnosis/leader_moves") if row["time_us"] < facts.shutdown_us - 10_000_000
    ]
    refusals = [row for row in facts.refusals if row["error"] in _MOVED]
    cancellations = facts.tables.rows("diagnosis/cancellations")
    for group in in_groups(moves, _SAME_MOVE_US):
        start_us, end_us = group[0]["time_us"], group[-1]["time_us"]
        places = sorted({(row["topic"], row["partition"]) for row in group})
        refused = [
            row
            for row in refusals
            if (row["topic"], row["partition"]) in places
            and start_us - 1_000_000 <= row["time_us"] <= end_us + _AFTER_MOVE_US
        ]
        former = Counter(row["former"] for row in group).most_common(1)[0][0]
        topics = sorted({topic for topic, _ in places})
        stopped = any(
            row["broker"] == former and start_us - 60_000_000 < row["time_us"] < end_us + 60_000_000
            for row in facts.stops
        )
        cancelled = [
            row
            for row in cancellations
            if row["broker"] == former and start_us - _AFTER_STOP_US <= row["time_us"] <= end_us + _AFTER_MOVE_US
        ]
        # The requests of a broker that stopped end before its partitions get another leader.
        start_us = min([start_us, *(row["time_us"] for row in cancelled)])
        ended = [*refused, *cancelled]
        count = sum(row["operations"] for row in ended)
        if not count:
            continue
        clients = sorted({row["client_id"] or "" for row in ended})
        how = f"ended with {refused[0]['error']}" if refused else "waited there and got no response"
        names = [f"{topic}-{partition}" for topic, partition in places]
        why = f", because broker {former} stopped" if stopped else ""
        back = len({(row["topic"], row["partition"], row["leader"]) for row in group}) > len(places)
        yield Finding(
            kind="leader_moved",
            start_us=start_us,
            end_us=max([end_us, *(row["last_us"] for row in refused)]),
            broker=former,
            topic=topics[0] if len(topics) == 1 else None,
            partition=places[0][1] if len(places) == 1 else None,
            operations=count,
            confidence=0.95,
            summary=f"{'The leaders' if len(names) > 1 else 'The leader'} of {join_names(names)} moved from broker "
            f"{former} to {join_names(sorted({row['leader'] for row in group} - {former}))} at {clock_time(start_us)}"
            f"{why}{', and back' if back else ''}. {counted(count, 'request')} of {join_names(clients)} {how}.",
            suggestions=(
                f"Clients retry these requests. If the stop was not planned, look at the log of broker {former}."
                if stopped
                else "Clients retry these requests; look for the reason of the move: a reassignment, an election.",
            ),
            clients=tuple(clients),
            evidence=tuple(row["first_id"] for row in ended[:_MOST_EVIDENCE]),
        )


def busy_hosts(facts: TraceFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each broker that was slow for some seconds, as leader and follower, but did not stand still.

    `found` are the findings so far; the seconds around them are ignored.
    """
    rows = [
        row
        for row in facts.replication
        if not any(
            each.overlap_us(row["second"] * 1_000_000 - 2_000_000, row["second"] * 1_000_000 + 3_000_000)
            for each in found
        )
    ]
    usual: dict[tuple[int, int], float] = {}
    for pair in {(row["broker"], row["replica"]) for row in rows}:
        usual[pair] = max(1.0, median(row["p90_ms"] for row in rows if (row["broker"], row["replica"]) == pair))
    by_second: dict[int, list[Row]] = {}
    for row in rows:
        by_second.setdefault(row["second"], []).append(row)
    for broker in sorted({each for pair in usual for each in pair if each is not None}):
        busy = [
            Period(second * 1_000_000, (second + 1) * 1_000_000)
            for second, each in sorted(by_second.items())
            if _is_busy(each, usual, broker)
        ]
        for period in merged(busy, 1_500_000):
            inside = [
                row for row in rows if period.overlap_us(row["second"] * 1_000_000, (row["second"] + 1) * 1_000_000)
            ]
            excess_ms = sum(
                row["wait_ms"]
                - row["parts"] * facts.usual_ms.get(("follower_behind", row["broker"], row["replica"]), 0)
                for row in inside
                if broker in (row["broker"], row["replica"])
            )
            if (
                period.length_us < _LEAST_BUSY_US
                or excess_ms < _LEAST_BUSY_MS
                or period.start_us < facts.start_us + START_US
            ):
                continue
            yield Finding(
                kind="host_busy",
                start_us=period.start_us,
                end_us=period.end_us,
                broker=broker,
                operations=sum(row["parts"] for row in inside),
                excess_wait_s=excess_ms / 1000,
                confidence=0.5,
                summary=f"Everything at broker {broker} was slower from {clock_time(period.start_us)} for "
                f"{seconds(period.length_us)}, as leader and as follower, but nothing stood still: its host was "
                "probably busy.",
                suggestions=(
                    f"Look at the CPU of broker {broker} and at its request handler idle ratio (num.io.threads).",
                ),
            )


def _is_busy(rows: Sequence[Row], usual: dict[tuple[int, int], float], broker: int) -> bool:
    """Return whether produces are slow with the broker as leader and as follower, and only there.

    `rows` are the waits of one second by pair, and `usual` their usual length.
    """
    with_it: list[float] = []
    without_it: list[float] = []
    if len({row["broker"] == broker for row in rows if broker in (row["broker"], row["replica"])}) < 2:
        return False
    for row in rows:
        pair = (row["broker"], row["replica"])
        (with_it if broker in pair else without_it).append(row["p90_ms"] / usual[pair])
    if median(with_it) < _BUSY_FACTOR:
        return False
    return not without_it or median(without_it) < _QUIET_FACTOR


def slow_remote_reads(facts: TraceFacts) -> Iterator[Finding]:
    """Yield findings about periods in which many fetches of a broker waited unusually long for remote storage."""
    usual = [row["p50_ms"] for row in facts.tables.rows("diagnosis/usual_remote_wait") if row["p50_ms"] is not None]
    # One broker may have been slow all the time.
    usual_ms = min(usual, default=0)
    slow_ms = max(_SLOW_READ_FACTOR * usual_ms, usual_ms + _SLOW_READ_MS)
    rows = facts.tables.rows("diagnosis/remote_waits", slow_ms=round(slow_ms))
    for broker in sorted({row["broker"] for row in rows}):
        every = [row for row in rows if row["broker"] == broker]
        for group in in_groups([row for row in every if _has_slow_reads(row)], _SAME_READS_US):
            seconds_of_it = range(group[0]["second"], group[-1]["second"] + 1)
            fetches = sum(row["fetches"] for row in every if row["second"] in seconds_of_it)
            slow, expired = (sum(row[name] for row in group) for name in ("slow", "expired"))
            many_expired = expired >= max(_LEAST_SLOW_READS, _EXPIRED_READ_SHARE * fetches)
            if not many_expired and slow < max(_LEAST_SLOW_READS, _SLOW_READ_SHARE * fetches):
                continue
            worst = max(group, key=lambda row: row["longest_ms"])
            start_us, end_us = group[0]["time_us"], max(row["end_us"] for row in group)
            yield Finding(
                kind="remote_read_slow",
                start_us=start_us,
                end_us=end_us,
                broker=broker,
                operations=slow,
                expired=expired,
                excess_wait_s=sum(row["wait_ms"] - row["slow"] * usual_ms for row in group) / 1000,
                confidence=0.8,
                summary=f"From {clock_time(start_us)} for {seconds(end_us - start_us)}, "
                f"{_slow_reads(broker, fetches, slow, expired)}; the longest wait was "
                f"{seconds(worst['longest_ms'] * 1000)}.",
                suggestions=(
                    "Look at the latency of the remote storage and at RemoteLogReaderTaskQueueSize; "
                    "remote.log.reader.threads is the maximum number of concurrent reads.",
                    "Raise remote.fetch.max.wait.ms.",
                    "what-if --variant longer remote_fetch.max_wait_ms=2000",
                ),
                evidence=(worst["longest_id"],),
            )


def _slow_reads(broker: int, fetches: int, slow: int, expired: int) -> str:
    of_all = f"of {fetches:,} fetches of tiered data at broker {broker}"
    if expired == slow:
        return f"{expired:,} {of_all} expired before their reads of remote storage ended"
    more = f", and {expired:,} of these expired before their reads ended" if expired else ""
    return f"{slow:,} {of_all} waited much longer than usual for remote storage{more}"


def _has_slow_reads(row: Row) -> bool:
    """Return whether fetches of a second expired, or most of them waited unusually long."""
    return bool(row["expired"] or row["slow"] > _SLOW_READ_SHARE * row["fetches"])


def purge_backlogs(facts: TraceFacts) -> Iterator[Finding]:
    """Yield a finding for each purgatory that holds many watcher list entries of operations that have ended."""
    facts.tables.add("purgatory_gauges")
    fullest = (
        facts.tables.database.query("SELECT max(watched) AS watched FROM purgatory_gauges").column("watched")[0].as_py()
    )
    # A purgatory without that many entries has fewer dead ones.
    if (fullest or 0) < _LEAST_DEAD_WATCHES:
        return
    windows: dict[tuple[int, str], list[Row]] = {}
    for row in facts.tables.rows("metrics_tables/purgatories", **_GAUGE_PARAMETERS):
        dead, size = row["dead_watches_max"] or 0, row["purgatory_size_max"] or 0
        if dead >= max(_LEAST_DEAD_WATCHES, size / 2):
            windows.setdefault((row["broker"], row["purgatory"]), []).append(row)
    for (broker, purgatory), rows in sorted(windows.items()):
        worst = max(rows, key=lambda row: row["dead_watches_max"])
        dead = worst["dead_watches_max"]
        setting = _PURGE_SETTINGS.get(purgatory, "the purge interval")
        yield Finding(
            kind="purge_backlog",
            start_us=_microseconds(rows[0]["window_start"]),
            end_us=_microseconds(rows[-1]["window_start"]) + 1_000_000,
            broker=broker,
            confidence=0.8,
            summary=f"Watcher lists of the purgatory {purgatory} at broker {broker} held up to {dead:,} entries of "
            f"ended operations, about {dead * BYTES_PER_WATCH / 1e6:,.0f} MB of heap, and "
            f"{worst['purgatory_size_max'] - dead:,} entries of waiting operations.",
            suggestions=(f"Lower {setting}: a purge removes these entries after that many ended operations.",),
        )


def _microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


_PURGE_SETTINGS = {
    "Produce": "producer.purgatory.purge.interval.requests",
    "Fetch": "fetch.purgatory.purge.interval.requests",
    "DeleteRecords": "delete.records.purgatory.purge.interval.requests",
}
