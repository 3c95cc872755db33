"""Status of a partition at a broker, given the changes written so far; rejoining replicas; stops of brokers.

A change has the fields of an event of type `partition`. The status has the broker's role (`online` for a leader, or for
a follower that serves consumers), the leader epoch, the replicas and the in-sync set.

The controller removes a fenced broker from all in-sync sets. After it has unfenced the broker, a leader waits for the
broker's replicas again if they were caught up within `replica.lag.time.max.ms`, even before they rejoin the in-sync
set.

When a stopped broker starts again, its leadership from before the stop applies again, unless another change has been
reported by then. This is possible because another broker need not have led the partition in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Return the status after a change, given as fields of the event; fields that the change lacks stay as they are."""
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
