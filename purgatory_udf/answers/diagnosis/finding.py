"""A finding of a diagnosis, as JSON and as a row of the table `findings`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

# Kinds of findings, in the order of `docs/diagnosis.md`.
KINDS = (
    "broker_frozen",
    "follower_stalled",
    "follower_slow",
    "replication_throttled",
    "below_min_isr",
    "leader_moved",
    "large_batches",
    "timeout_too_short",
    "min_bytes_out_of_reach",
    "member_failed",
    "member_slow_to_rejoin",
    "rebalance_storm",
    "share_worker_slow",
    "remote_read_slow",
    "purge_backlog",
    "host_busy",
)


@dataclass(frozen=True)
class Finding:
    """An incident: its time, its culprit, its effect, and what to do.

    Attributes:
        start_us: Start, in microseconds since the epoch.
        end_us: End, in microseconds since the epoch.
        broker: The broker at fault, or None.
        replica: The broker at fault in its role as a follower, or None.
        operations: Number of operations that waited longer because of it; `expired` of them expired.
        excess_wait_s: Sum of the time that they waited longer than usual, in operation-seconds.
        share: `excess_wait_s` divided by the excess of the whole trace, from 0 to 1.
        confidence: Confidence in the finding, from 0 to 1.
        clients: Clients of these operations, those with the longest waits first.
        evidence: `operation_id` of operations to `explain`, the longest wait first.
    """

    kind: str
    start_us: int
    end_us: int
    broker: int | None = None
    replica: int | None = None
    client_id: str | None = None
    group: str | None = None
    member: str | None = None
    topic: str | None = None
    partition: int | None = None
    operations: int = 0
    expired: int = 0
    excess_wait_s: float = 0.0
    share: float = 0.0
    confidence: float = 1.0
    summary: str = ""
    suggestions: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    evidence: tuple[int, ...] = field(default=())

    def overlap_us(self, start_us: int, end_us: int) -> int:
        """Return the length of the finding's overlap with a period, in microseconds."""
        return max(0, min(self.end_us, end_us) - max(self.start_us, start_us))

    def as_json(self) -> dict[str, Any]:
        """Return the finding as an object of the `findings` in the JSON of `diagnose`."""
        return {
            "kind": self.kind,
            "start": iso_time(self.start_us),
            "end": iso_time(self.end_us),
            "broker": self.broker,
            "replica": self.replica,
            "client_id": self.client_id,
            "group": self.group,
            "member": self.member,
            "topic": self.topic,
            "partition": self.partition,
            "operations": self.operations,
            "expired": self.expired,
            "excess_wait_s": round(self.excess_wait_s, 3),
            "share": round(self.share, 4),
            "confidence": round(self.confidence, 2),
            "summary": self.summary,
            "suggestions": list(self.suggestions),
            "clients": list(self.clients),
            "evidence": list(self.evidence),
        }


def ranked(findings: Iterable[Finding], total_excess_s: float) -> list[Finding]:
    """Return the findings with their shares of `total_excess_s` (operation-seconds), the heaviest first."""
    total = max(total_excess_s, sum(finding.excess_wait_s for finding in findings), 1e-9)
    shared = [replace(finding, share=finding.excess_wait_s / total) for finding in findings]
    return sorted(shared, key=lambda each: (-each.excess_wait_s, each.start_us, each.kind))


def culprit_of(finding: Finding) -> str:
    """Return who was at fault, such as `broker 3` or `member search-2 of search`."""
    member = finding.client_id or finding.member
    if finding.group:
        return f"member {member} of {finding.group}" if member else f"group {finding.group}"
    if finding.client_id:
        return finding.client_id
    return f"broker {finding.broker}" if finding.broker is not None else "several brokers"


def iso_time(time_us: int) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(time_us: int) -> str:
    """Return the time of day in UTC with tenths of a second, as the sentences of findings use it."""
    return datetime.fromtimestamp(time_us // 100_000 / 10, UTC).strftime("%H:%M:%S.%f")[:-5]


def seconds(microseconds: float) -> str:
    """Return a duration such as `19.0 s` or `850 ms`."""
    return f"{microseconds / 1_000_000:,.1f} s" if microseconds >= 1_000_000 else f"{microseconds / 1000:,.0f} ms"


def join_names(names: Iterable[object], most: int = 3) -> str:
    """Return names as text, such as `a, b and c`, or `a, b, c and 4 more` if there are more than `most`."""
    texts = [str(name) for name in names]
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
