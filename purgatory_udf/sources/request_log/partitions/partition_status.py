"""Where a partition stands at a broker, as the changes said so far have it: does it lead, with whom, in which epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log.assumptions import REPLICA_LAG_TIME_MAX_US, SHUTDOWN_GRACE_US
from purgatory_udf.sources.request_log.cluster.cluster_metadata import NEVER, BrokerStop, BrokerUnfenced
from purgatory_udf.sources.request_log.requests.partition_facts import PartitionFacts

# What each change makes of the status; a change that is not listed leaves it.
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


def status_after(standing: PartitionStatus, change: Mapping[str, Any]) -> PartitionStatus:
    """The standing after a change, given as the contract's fields."""
    status = _STATUS.get(change["change"])
    fields = {name: change[name] for name in _FIELDS if change.get(name) is not None}
    return {**standing, **({"status": status} if status else {}), **fields}


def status_fields(standing: PartitionStatus) -> dict[str, Any]:
    """One change from which the standing follows, whatever was before."""
    status = standing.get("status", "online")
    if status != "online":
        return {"change": status}
    return {"change": "leader", **{name: standing[name] for name in _FIELDS if name in standing}}


# Replicas outside the in-sync set for which the high watermark waits all the same.
#
# The controller takes a broker that it has lost out of all in-sync sets. Once it counts on that broker again, a leader
# waits for the broker's replicas if they were caught up within `replica.lag.time.max.ms`, though they have yet to
# rejoin the set.


class LeadershipState(NamedTuple):
    at_us: int
    fields: dict[str, Any]


class InSyncSet(NamedTuple):
    """From `at_us` on, `leader` had these in sync, in the term of leadership `epoch`."""

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
    """The in-sync set with those added for which the leader waits, from when it does: until the set grows by them.

    `history` is in time order; `applied_us` is how long brokers take to act on the controller's word.
    """
    back = [(unfencing.at_us + applied_us, unfencing.broker) for unfencing in unfenced]
    for before, now, following in zip(history, history[1:], [*history[2:], None], strict=False):
        if now.leader != facts.broker or (now.leader, now.epoch) != (before.leader, before.epoch):
            continue
        # Under the least number of replicas the high watermark stands still: the set must not look larger then.
        if min_isr is not None and len(now.isr) < min_isr:
            continue
        isr = list(now.isr)
        until = following.at_us if following else NEVER
        for at, broker in back:
            lost = broker in before.isr and broker not in now.isr
            away_us = at - facts.follower_attempts.last_us(broker, at)
            if lost and now.at_us < at < until and away_us <= REPLICA_LAG_TIME_MAX_US:
                isr.append(broker)
                yield LeadershipState(at, {"change": "isr", "isr": list(isr)})


# A broker's stop, among the changes of a partition's leadership there.
#
# What was in force when it stopped is in force again when the new process has started, unless something else has been
# said by then: nobody else need have led the partition meanwhile.


STOPPED = "stopped"
_SERVING_CHANGES = ("leader", "online")


def with_broker_stops(
    leadership: Sequence[LeadershipState], stops: Iterable[BrokerStop], broker: int
) -> list[LeadershipState]:
    """`leadership` is in time order; what comes before all of it is not known to be of this partition."""
    states = list(leadership)
    for stop in stops:
        at_us = min(stop.at_us + SHUTDOWN_GRACE_US, stop.started_us)
        before = [state for state in leadership if state.at_us < at_us]
        if stop.broker != broker or not before:
            continue
        states.append(LeadershipState(at_us, {"change": STOPPED}))
        meanwhile = any(at_us <= state.at_us <= stop.started_us for state in leadership)
        last = max(place for place, state in enumerate(before) if state.fields["change"] != "isr" or place == 0)
        if stop.started_us < NEVER and not meanwhile and before[last].fields["change"] in _SERVING_CHANGES:
            # With the in-sync set as it was said last.
            again = [before[last], *before[max(last + 1, len(before) - 1) :]]
            states += [LeadershipState(stop.started_us, state.fields) for state in again]
    return sorted(states, key=lambda state: state.at_us)


# A stretch of time of which the events are said: the whole log's, or as much of a growing one as is settled by now.


class TimeRange(NamedTuple):
    """From `from_us` until just before `until_us`. What was before has been said, as far as it was known."""

    from_us: int
    until_us: int

    def clamp(self, at_us: int) -> int:
        """When to say what happened then: what is found out late, at the beginning."""
        return max(at_us, self.from_us)


ALL_TIME = TimeRange(-NEVER, NEVER)
