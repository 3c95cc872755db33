"""Status of a partition at a broker, given the changes written so far, and its log; rejoining replicas; broker stops.

A change has the fields of an event of type `partition`. The status has the broker's role (`online` for a leader, or for
a follower that serves consumers), the leader epoch, the replicas and the in-sync set. The log has its end, the high
watermark and the last stable offset (`TrackedReplica`).

The controller removes a fenced broker from all in-sync sets. After it has unfenced the broker, a leader waits for the
broker's replicas again if they were caught up within `replica.lag.time.max.ms`, even before they rejoin the in-sync
set.

When a stopped broker starts again, its leadership from before the stop applies again, unless another change has been
reported by then. This is possible because another broker need not have led the partition in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log.assumptions import REPLICA_LAG_TIME_MAX_US, SHUTDOWN_GRACE_US
from purgatory_udf.sources.request_log.cluster_metadata import NEVER, BrokerStop, BrokerUnfenced
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts

# Status after each kind of change; all other changes leave the status as it was.
_STATUS = {
    "leader": "online",
    "online": "online",
    "not_leader": "not_leader",
    "offline": "offline",
    "deleted": "deleted",
    "stopped": "not_leader",
}
_FIELDS = ("leader_epoch", "replicas", "isr", "min_isr")

PartitionStatus = Mapping[str, Any]

UNKNOWN_STATUS: PartitionStatus = {}


def status_after(status: PartitionStatus, change: Mapping[str, Any]) -> PartitionStatus:
    """Return the status after a change, given as fields of the event; fields that the change lacks remain unchanged."""
    role = _STATUS.get(change["change"])
    fields = {name: change[name] for name in _FIELDS if change.get(name) is not None}
    return {**status, **({"status": role} if role else {}), **fields}


def status_fields(status: PartitionStatus) -> dict[str, Any]:
    """Return one change that leads to this status from any other."""
    role = status.get("status", "online")
    if role != "online":
        return {"change": role}
    return {"change": "leader", **{name: status[name] for name in _FIELDS if name in status}}


class LeadershipState(NamedTuple):
    """A change of leadership or in-sync set at `at_us`, with the fields of the event."""

    at_us: int
    fields: dict[str, Any]


class InSyncSet(NamedTuple):
    """From `at_us` on, these replicas were in sync with `leader`, in the leader epoch `epoch`."""

    at_us: int
    leader: int | None
    epoch: int | None
    isr: tuple[int, ...]


def rejoining_replicas(
    facts: PartitionFacts,
    history: Sequence[InSyncSet],
    unfenced: Iterable[BrokerUnfenced],
    applied_us: int,
    min_isr: int | None,
) -> Iterator[LeadershipState]:
    """Yield in-sync sets extended by unfenced replicas that have yet to rejoin. The leader already waits for these.

    Args:
        facts: Facts of the partition.
        history: In-sync sets in time order.
        unfenced: Unfencing of brokers by the controller.
        applied_us: How long brokers take to apply new metadata.
        min_isr: `min.insync.replicas` of the topic; None: unknown.
    """
    unfenced_at = [(unfencing.at_us + applied_us, unfencing.broker) for unfencing in unfenced]
    for before, now, following in zip(history, history[1:], [*history[2:], None], strict=False):
        if now.leader != facts.broker or (now.leader, now.epoch) != (before.leader, before.epoch):
            continue
        # Below `min.insync.replicas` the high watermark does not move, so the set must not be extended.
        if min_isr is not None and len(now.isr) < min_isr:
            continue
        isr = list(now.isr)
        until = following.at_us if following else NEVER
        for at, broker in unfenced_at:
            lost = broker in before.isr and broker not in now.isr
            away_us = at - facts.follower_attempts.last_us(broker, at)
            if lost and now.at_us < at < until and away_us <= REPLICA_LAG_TIME_MAX_US:
                isr.append(broker)
                yield LeadershipState(at, {"change": "isr", "isr": list(isr)})


STOPPED = "stopped"
_SERVING_CHANGES = ("leader", "online")


def with_broker_stops(
    leadership: Sequence[LeadershipState], stops: Iterable[BrokerStop], broker: int
) -> list[LeadershipState]:
    """Add the broker's stops and restarts to its leadership changes, both in time order.

    Stops before the first change are ignored, because the broker may not have had the partition then.
    """
    states = list(leadership)
    for stop in stops:
        at_us = min(stop.at_us + SHUTDOWN_GRACE_US, stop.started_us)
        before = [state for state in leadership if state.at_us < at_us]
        if stop.broker != broker or not before:
            continue
        states.append(LeadershipState(at_us, {"change": STOPPED}))
        changed = any(at_us <= state.at_us <= stop.started_us for state in leadership)
        last = max(place for place, state in enumerate(before) if state.fields["change"] != "isr" or place == 0)
        if stop.started_us < NEVER and not changed and before[last].fields["change"] in _SERVING_CHANGES:
            # Repeat the latest in-sync set as well.
            again = [before[last], *before[max(last + 1, len(before) - 1) :]]
            states += [LeadershipState(stop.started_us, state.fields) for state in again]
    return sorted(states, key=lambda state: state.at_us)


class TimeRange(NamedTuple):
    """Time range of the events to write, from `from_us` until just before `until_us`.

    A whole log has one range, `ALL_TIME`. A followed log has one for each step: earlier events that were known in time
    are already written.
    """

    from_us: int
    until_us: int

    def has(self, at_us: int) -> bool:
        """Return whether a time is in this range."""
        return self.from_us <= at_us < self.until_us

    def clamp(self, at_us: int) -> int:
        """Return the time of an event in this range. An event that was found too late gets the start of the range."""
        return max(at_us, self.from_us)


ALL_TIME = TimeRange(-NEVER, NEVER)


@dataclass(slots=True)
class TrackedReplica:
    """Log of a partition at its leader, with the high watermark that the replay derives.

    The high watermark is the lowest log end offset of the in-sync replicas, or the highest one in an event, if greater.

    Attributes:
        broker: The broker that has the log.
        end: Log end offset; None: unknown.
        high_watermark: High watermark; None: unknown.
        isr: In-sync set; None: unknown.
        min_isr: `min.insync.replicas`; None: unknown.
        ends: Log end offset by follower.
        open_transactions: First offset of each open transaction by transactional id.
        records: First and last offset of each append of an open transaction, by transactional id.
        ended: (first offset, end of the marker) of transactions with a marker that may not be replicated yet.
        aborted: First and last offset of appends of aborted transactions that are not readable yet.
    """

    broker: int
    end: int | None = None
    high_watermark: int | None = None
    isr: tuple[int, ...] | None = None
    min_isr: int | None = None
    ends: dict[int, int] = field(default_factory=dict)
    open_transactions: dict[str, int] = field(default_factory=dict)
    records: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values, from which `resumed` restores it."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**values, "ends": list(map(list, self.ends.items()))}

    @classmethod
    def resumed(cls, broker: int, state: dict[str, Any]) -> TrackedReplica:
        """Restore the state from a `snapshot`."""
        isr = tuple(state["isr"]) if state["isr"] is not None else None
        ended = [(first, marker) for first, marker in state["ended"]]
        aborted = [(first, last) for first, last in state.get("aborted", ())]
        records = {name: [(first, last) for first, last in listed] for name, listed in state.get("records", {}).items()}
        known = {"broker": broker, "isr": isr, "ends": dict(state["ends"])}
        return cls(**{**state, **known, "records": records, "ended": ended, "aborted": aborted})

    def append(self, end: int) -> bool:
        """Move the log end offset to `end`; return whether the log grew."""
        if self.end is not None and end <= self.end:
            return False
        self.end = end
        self.derive_high_watermark()
        return True

    def advance_follower(self, replica: int, offset: int) -> bool:
        """Move a follower's log end offset; return whether it is higher than before."""
        if offset <= self.ends.get(replica, -1):
            return False
        self.ends[replica] = offset
        self.derive_high_watermark()
        return True

    def derive_high_watermark(self) -> None:
        """Raise the high watermark to the lowest log end offset of the in-sync replicas.

        It does not change while one of these is unknown, or while the set is smaller than `min.insync.replicas`.
        """
        if self.isr is None or self.end is None or (self.min_isr is not None and len(self.isr) < self.min_isr):
            return
        least = self.end
        for member in self.isr:
            if member == self.broker:
                continue
            if member not in self.ends:
                return
            least = min(least, self.ends[member])
        self.raise_high_watermark(least)

    def raise_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`; return whether it is higher than before."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def append_to_transaction(self, transaction: str, first: int, end: int) -> None:
        """Record offsets of a transaction, from `first` to before `end`."""
        self.open_transactions.setdefault(transaction, first)
        self.records.setdefault(transaction, []).append((first, end - 1))

    def end_transaction(self, transaction: str, marker_end: int, aborts: bool) -> bool:
        """Close a transaction by its marker; its records remain unstable until the marker is replicated.

        Returns False if the transaction is unknown, and then closes the oldest open transaction instead.
        """
        first = self.open_transactions.pop(transaction, None)
        known = first is not None
        if first is None:
            if not self.open_transactions:
                return False
            oldest = min(self.open_transactions, key=lambda name: self.open_transactions[name])
            first = self.open_transactions.pop(oldest)
            transaction = oldest
        self.ended.append((first, marker_end))
        records = self.records.pop(transaction, [])
        self.aborted += records if aborts and known else []
        return known

    def take_aborted(self, stable: int) -> list[tuple[int, int]]:
        """Remove and return the aborted records before the last stable offset, in order."""
        readable = sorted(records for records in self.aborted if records[1] < stable)
        self.aborted = [records for records in self.aborted if records[1] >= stable]
        return readable

    def last_stable(self) -> int | None:
        """Return the last stable offset, or None if it is unknown.

        It is the lowest of the high watermark and the first offsets of transactions that are open or not replicated.
        """
        if self.high_watermark is None:
            return None
        mark = self.high_watermark
        self.ended = [transaction for transaction in self.ended if transaction[1] > mark]
        return min([mark, *self.open_transactions.values(), *(first for first, _ in self.ended)])
