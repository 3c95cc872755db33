"""The diagnosis of a replay: writes `blame` and `findings`, and puts the findings into sentences.

Two recordings can be compared: which findings are new or heavier, and which usual waits have become longer. Findings
are waits that are unusual within one recording. A wait that is longer all the time is usual in its recording, so only
the comparison shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.answers.diagnosis.client_incidents import (
    short_timeouts,
    slow_workers,
    unreachable_minimums,
    with_large_batches,
)
from purgatory_udf.answers.diagnosis.cluster_incidents import (
    busy_hosts,
    purge_backlogs,
    slow_remote_reads,
    with_leader_moves,
)
from purgatory_udf.answers.diagnosis.finding import Finding, clock_time, culprit_of, ranked
from purgatory_udf.answers.diagnosis.follower_incidents import replica_incidents
from purgatory_udf.answers.diagnosis.group_incidents import failed_members, rebalance_storms, slow_members
from purgatory_udf.answers.diagnosis.trace_facts import TraceFacts
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.common.console import report_step
from purgatory_udf.contract.tables import COMMENTED_TABLES, TABLES

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

# Findings below this confidence are written to the table, and not reported.
LEAST_CONFIDENCE = 0.5
# Views of groups that several queries read, in the order of their dependencies.
_OF_GROUPS = ("last_event", "group_requests", "member_keys", "unnamed_sessions", "rebalances", "member_waits")
# Columns of the view `replica_waits`.
REPLICA_WAITS = pa.schema(
    [(name, pa.string()) for name in ("kind", "client_id", "topic", "cause")]
    + [(name, pa.int32()) for name in ("broker", "replica")]
    + [(name, pa.int64()) for name in ("operation_id", "start_us", "end_us", "wait_ms")]
    + [("timed_out", pa.bool_())]
)
# Kinds whose excess waiting is not for replicas, so that it is not in the sum of slow waits for them.
_NOT_FOR_REPLICAS = (
    "min_bytes_out_of_reach",
    "remote_read_slow",
    "member_failed",
    "member_slow_to_rejoin",
    "rebalance_storm",
    "share_worker_slow",
)
# Kinds of findings with operations of other findings.
_COUNTED_ELSEWHERE = ("timeout_too_short", "large_batches")
# A finding is heavier if it costs this many times as much waiting per minute of the recording.
_HEAVIER = 1.5
# A usual wait is longer if its 95th percentile is this many times as long, and this many milliseconds longer.
_LONGER, _LEAST_MS, _LEAST_PARTS = 2.0, 5, 20


@dataclass(frozen=True)
class UsualWait:
    """The usual length of one kind of wait in a trace.

    Attributes:
        kind: The kind of operation.
        cause: The cause of the wait, a value of `cause` in the table `blame`.
        broker: The broker at which the operations waited.
        replica: The follower for which they waited, or None.
        parts: Number of waits of this kind.
        p95_ms: 95th percentile of their length, in milliseconds.
    """

    kind: str
    cause: str
    broker: int | None
    replica: int | None
    parts: int
    p95_ms: float

    @property
    def key(self) -> tuple[str, str, int | None, int | None]:
        """The fields that identify the kind of wait within a trace."""
        return self.kind, self.cause, self.broker, self.replica

    @property
    def name(self) -> str:
        """The kind of wait as text, such as `produce at broker 1, follower_behind 3`."""
        replica = "" if self.replica is None else f" {self.replica}"
        return f"{self.kind} at broker {self.broker}, {self.cause}{replica}"


@dataclass(frozen=True)
class Diagnosis:
    """The findings of a replay, the heaviest first.

    Attributes:
        excess_wait_s: Sum of the time that operations waited longer than usual, in operation-seconds.
        waited: Number of operations that were in a purgatory.
        start_us: Time of the first event, in microseconds since the epoch.
        end_us: Time of the last event, in microseconds since the epoch.
        usual_waits: The usual waits, except for data and for timers, which clients set; empty without `blame`.
    """

    run_id: str
    findings: tuple[Finding, ...]
    excess_wait_s: float
    waited: int
    start_us: int
    end_us: int
    usual_waits: tuple[UsualWait, ...] = ()

    @property
    def minutes(self) -> float:
        """Length of the trace in minutes."""
        return max(1, self.end_us - self.start_us) / 60_000_000

    def within(self, from_us: int | None, until_us: int | None) -> Diagnosis:
        """Return the diagnosis with only the findings that overlap the period from `from_us` to `until_us`.

        Both are microseconds since the epoch; None leaves that end of the period open.
        """
        chosen = [
            each
            for each in self.findings
            if (from_us is None or each.end_us >= from_us) and (until_us is None or each.start_us <= until_us)
        ]
        return replace(self, findings=tuple(chosen))

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON; `docs/diagnosis.schema.json` describes it."""
        return {
            "run_id": self.run_id,
            "excess_wait_s": round(self.excess_wait_s, 3),
            "findings": [finding.as_json() for finding in self.findings],
        }


def diagnose(session: Session, out: str) -> Diagnosis:
    """Compute blame and findings from the current output of the replay under `out`, and write both tables there."""
    tables = RunTables(session, out)
    with waits_of_operations(tables, with_blame=True):
        diagnosis = written_findings(tables)
        usual = tables.rows("diagnosis/usual_waits")
    return replace(diagnosis, usual_waits=tuple(UsualWait(**row) for row in usual))


@contextmanager
def waits_of_operations(tables: RunTables, *, with_blame: bool = False) -> Iterator[None]:
    """Keep the views that incidents need in the `with` block.

    Args:
        tables: The tables of the replay.
        with_blame: Whether to write the table `blame` as well. It needs the cause of each wait, incidents only some.
    """
    with ExitStack() as kept:
        kept.enter_context(tables.materialized("in_sync_versions", "in_sync_partitions", *_OF_GROUPS))
        if with_blame or tables.has_rows("in_sync_versions"):
            _keep_conditions(tables, kept)
            if with_blame:
                kept.enter_context(tables.materialized("data_waits"))
            tables.release("fetch_data", "conditions")
            kept.enter_context(tables.materialized("replica_waits"))
            if with_blame:
                tables.save("diagnosis/blame", tables.layout.table("blame"), COMMENTED_TABLES["blame"], {})
                tables.release("data_waits")
                tables.add_table("blame", tables.layout.table("blame"), TABLES["blame"])
            tables.release("met_conditions")
        else:
            # No operation is known to wait for a replica.
            kept.enter_context(tables.without_rows("replica_waits", REPLICA_WAITS))
        kept.enter_context(tables.materialized("produce_sizes"))
        yield


def _keep_conditions(tables: RunTables, kept: ExitStack) -> None:
    """Keep `met_conditions`, and the views that `data_waits` reads, until the end of `kept`.

    Of the other views, each is released when no later one reads it: together, they would not fit in memory.
    """
    with tables.materialized("request_parts"):
        with tables.materialized("appends", "found_data", "unsettled_fetches", "first_data"):
            kept.enter_context(tables.materialized("fetch_data"))
        kept.enter_context(tables.materialized("replica_needs"))
    with tables.materialized("replica_arrivals"):
        kept.enter_context(tables.materialized("conditions"))
    tables.release("replica_needs")
    kept.enter_context(tables.materialized("met_conditions"))


def written_findings(tables: RunTables) -> Diagnosis:
    """Compute the findings of a replay in a block of `waits_of_operations`, and write them."""
    report_step("looking for incidents")
    diagnosis = find_incidents(tables)
    _save(tables, diagnosis.findings)
    return diagnosis


def find_incidents(tables: RunTables) -> Diagnosis:
    """Return the findings of a replay, in a block of `waits_of_operations`."""
    facts = TraceFacts(tables)
    found = with_leader_moves(facts, replica_incidents(facts))
    failed = list(failed_members(facts))
    found += [
        *purge_backlogs(facts),
        *slow_remote_reads(facts),
        *short_timeouts(facts, found),
        *unreachable_minimums(facts),
        *failed,
        *slow_members(facts, [*found, *failed]),
        *rebalance_storms(facts, found),
        *slow_workers(facts, found),
    ]
    found = with_large_batches(facts, found)
    found += busy_hosts(facts, found)
    kept = [finding for finding in found if finding.confidence >= LEAST_CONFIDENCE]
    total = _total_excess_s(facts, kept)
    (waited,) = tables.rows("diagnosis/waited_operations")
    findings = tuple(ranked(kept, total))
    return Diagnosis(tables.run.run_id, findings, total, waited["operations"], facts.start_us, facts.end_us)


def _total_excess_s(facts: TraceFacts, found: Sequence[Finding]) -> float:
    """Return the excess waiting of the trace in operation-seconds.

    It is the excess waiting for replicas plus that of the incidents of clients and groups in `found`.
    """
    slow = sum(
        row["wait_ms"] - row["parts"] * facts.usual_ms.get((row["cause"], row["broker"], row["replica"]), 0.0)
        for row in facts.slow_parts
        if row["start_us"] < facts.shutdown_us
    )
    others = sum(each.excess_wait_s for each in found if each.kind in _NOT_FOR_REPLICAS)
    return slow / 1000 + others


def _save(tables: RunTables, findings: Sequence[Finding]) -> None:
    rows = [
        finding.as_json()
        | {
            "rank": rank,
            "started_at": datetime.fromtimestamp(finding.start_us / 1_000_000, UTC),
            "ended_at": datetime.fromtimestamp(finding.end_us / 1_000_000, UTC),
            "member_id": finding.member,
        }
        for rank, finding in enumerate(findings, 1)
    ]
    schema = pa.schema([field for field in TABLES["findings"] if field.name != "run_id"])
    tables.add_rows("found", pa.Table.from_pylist(rows, schema=schema))
    tables.save("diagnosis/found", tables.layout.table("findings"), COMMENTED_TABLES["findings"], {}, single_file=True)


def sentences(diagnosis: Diagnosis, out: str, top: int) -> list[str]:
    """Return the findings as the lines that `diagnose` prints, at most `top` of them."""
    findings = diagnosis.findings
    if not findings:
        return [
            f"No incident found in {diagnosis.run_id}: {diagnosis.waited:,} operations waited, none of them unusually "
            "long because of a broker, a client or a setting."
        ]
    counts = f"{len(findings)} findings explain" if len(findings) > 1 else "1 finding explains"
    lines = [f"{counts} {explained(diagnosis)} in {diagnosis.run_id}."]
    printed: dict[str, int] = {}
    for rank, finding in enumerate(findings[:top], 1):
        lines += ["", f"{rank}. {title(finding)}", f"   {finding.summary}"]
        again = sorted({printed[each] for each in finding.suggestions if each in printed})
        lines += [f"   - {each}" for each in finding.suggestions if each not in printed]
        lines += [f"   - Further suggestions: see finding {number}." for number in again]
        printed = dict.fromkeys(finding.suggestions, rank) | printed
        if finding.evidence:
            lines.append(f"   explain --out {out} --operation {finding.evidence[0]}")
    if len(findings) > top:
        lines += ["", f"… and {len(findings) - top} more; --top shows more"]
    return lines


def explained(diagnosis: Diagnosis) -> str:
    """Return how much of the excess waiting the findings explain together, as the end of a sentence."""
    return (
        f"{explained_share(diagnosis):.0%} of the {diagnosis.excess_wait_s:,.1f} s for which operations waited longer "
        "than usual"
    )


def explained_share(diagnosis: Diagnosis) -> float:
    """Return the share of the total excess waiting that the findings explain together."""
    return min(1.0, sum(each.share for each in diagnosis.findings if each.kind not in _COUNTED_ELSEWHERE))


def title(finding: Finding) -> str:
    """Return the title of a finding: its kind, culprit, time, and share of the excess waiting."""
    share = f", {finding.share:.0%} of all excess waiting" if finding.share >= 0.005 else ""
    return (
        f"{finding.kind}: {culprit_of(finding)}, {clock_time(finding.start_us)} to {clock_time(finding.end_us)}{share}"
    )


def as_text(diagnosis: Diagnosis, **more: Any) -> str:
    """Return the JSON of a diagnosis as text. `more` are further members of the JSON object."""
    return json.dumps(diagnosis.as_json() | more, indent=2, ensure_ascii=False) + "\n"


def heavier_findings(now: Diagnosis, then: Diagnosis) -> list[tuple[Finding, float]]:
    """Return the findings of `now` that are new or heavier than in `then`, each with its factor; infinity if new.

    The factor compares excess waiting per minute, so the recordings may differ in length. It is at least `_HEAVIER`.
    """
    before: dict[tuple[str, str], float] = {}
    for finding in then.findings:
        key = (finding.kind, culprit_of(finding))
        before[key] = before.get(key, 0.0) + finding.excess_wait_s / then.minutes
    result = []
    for finding in now.findings:
        usual = before.get((finding.kind, culprit_of(finding)))
        rate = finding.excess_wait_s / now.minutes
        factor = float("inf") if usual is None else rate / max(usual, 1e-9)
        if factor >= _HEAVIER:
            result.append((finding, factor))
    return result


def longer_waits(now: Diagnosis, then: Diagnosis) -> list[tuple[UsualWait, UsualWait]]:
    """Return the kinds of waits that are longer now, as pairs of now and then, ordered by the added waiting time."""
    before = {wait.key: wait for wait in then.usual_waits}
    pairs = [(wait, before[wait.key]) for wait in now.usual_waits if wait.key in before]
    longer = [
        (wait, earlier)
        for wait, earlier in pairs
        if min(wait.parts, earlier.parts) >= _LEAST_PARTS
        and wait.p95_ms >= max(_LONGER * earlier.p95_ms, earlier.p95_ms + _LEAST_MS)
    ]
    return sorted(longer, key=lambda pair: (pair[1].p95_ms - pair[0].p95_ms) * pair[0].parts)


def comparison(now: Diagnosis, then: Diagnosis) -> Iterator[str]:
    """Yield the lines that `diagnose --baseline` prints; `then` is the diagnosis of the baseline."""
    heavier, longer = heavier_findings(now, then), longer_waits(now, then)
    yield (
        f"Compared with {then.run_id}: {now.excess_wait_s / now.minutes:,.1f} s of excess waiting per minute, "
        f"{then.excess_wait_s / then.minutes:,.1f} s in the baseline"
    )
    if not heavier and not longer:
        yield "  nothing is worse than in the baseline"
    for finding, factor in heavier:
        more = "new" if factor == float("inf") else f"{factor:,.1f} times as heavy"
        yield f"  {more}: {finding.kind} by {culprit_of(finding)}, {finding.excess_wait_s:,.1f} s of excess waiting"
    for wait, earlier in longer:
        yield f"  longer: {wait.name}, 95th percentile {wait.p95_ms:,.0f} ms, {earlier.p95_ms:,.0f} ms in the baseline"


def as_json(now: Diagnosis, then: Diagnosis) -> dict[str, Any]:
    """Return the comparison as the object `baseline` in the JSON of `diagnose`; `then` is the baseline's diagnosis."""
    return {
        "run_id": then.run_id,
        "excess_wait_s": round(then.excess_wait_s, 3),
        "minutes": round(then.minutes, 3),
        "heavier": [
            {
                "kind": each.kind,
                "culprit": culprit_of(each),
                "factor": None if factor == float("inf") else round(factor, 2),
            }
            for each, factor in heavier_findings(now, then)
        ],
        "longer": [
            {"wait": wait.name, "p95_ms": wait.p95_ms, "baseline_p95_ms": earlier.p95_ms}
            for wait, earlier in longer_waits(now, then)
        ],
    }
