"""Leadership and in-sync set of a partition at one broker, with the times at which the broker applied each change.

Sources, best first: the metadata log (`--isr`); responses in the log (METADATA, ALTER_PARTITION); without either, every
replica that fetched from the broker is assumed to be in sync.

The metadata log has the time at which the controller made a change, but the broker applies it later. Two requests bound
that time: the last request that the broker refuses because it is no longer, or not yet, the leader, and the first
request that it serves. Without such requests, a fixed propagation time is assumed (`METADATA_PROPAGATION_US`).

Without the metadata log, responses report leaders only while clients request metadata or in-sync sets change; after a
rolling restart, a broker may lead again without any such line. But a broker that serves a follower's fetch is the
leader, in the leader epoch of the fetch, and a broker that answers NOT_LEADER_OR_FOLLOWER is not. This is the
*inferred* leadership.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import (
    ALTER_PARTITION_WINDOW_US,
    COMPLETION_TO_RESPONSE_US,
    ISR_SHRINK_WINDOW_US,
    METADATA_PROPAGATION_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, GRANTED, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.fact_columns import FactColumns
from purgatory_udf.sources.request_log.fact_kinds import Booleans, Integers, ReaderPosition
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import InSyncSet, LeadershipState, rejoining_replicas

NEVER = 2**62

# Whether the broker is the leader after a change; other changes do not matter for it.
LEADS_AFTER = {"leader": True, "online": True, "not_leader": False, "offline": False, "deleted": False}


def with_inferred_leadership(
    states: Sequence[LeadershipState], facts: PartitionFacts, history: Sequence[InSyncSet], min_isr: int | None
) -> list[LeadershipState]:
    """Add inferred leadership to reported changes, and drop reported losses that are already known from a refusal.

    Returns the changes in time order.

    Args:
        states: Reported changes, in time order.
        facts: Facts of the partition at the broker.
        history: In-sync sets in time order, for the fields of inferred leadership.
        min_isr: `min.insync.replicas` of the topic; None if it is unknown.
    """
    served = _Served(facts.positions)
    refused = [(failure.at_us, None) for failure in facts.errors if failure.error == errors.NOT_LEADER_OR_FOLLOWER]
    stated: list[tuple[int, LeadershipState | None]] = [(state.at_us, state) for state in states]
    leadership: list[LeadershipState] = []
    leads: bool | None = None
    before_us, is_refused = -NEVER, False
    for at, what in [*sorted([*stated, *refused], key=lambda entry: entry[0]), (NEVER, None)]:
        # At the same time, a reported change comes before a request that is served, and a refusal after it.
        shown = served.first(before_us, after=is_refused) if leads is False else None
        if shown is not None and (shown[0] < at or (shown[0] == at and what is None)):
            served_us, position = shown
            fields = dict(_leader_fields(position, facts.broker, history, served_us, min_isr))
            leads = True
            leadership.append(LeadershipState(served_us - 1, fields))
        before_us, is_refused = at, what is None
        if isinstance(what, LeadershipState):
            leads_now = LEADS_AFTER.get(what.fields["change"])
            if leads_now is False and leads is False and what.fields["change"] == "not_leader":
                continue
            leads = leads if leads_now is None else leads_now
            leadership.append(what)
        elif leads and at < NEVER:
            leads = False
            leadership.append(LeadershipState(at - 1, {"change": "not_leader"}))
    return sorted(leadership, key=lambda state: state.at_us)


class _Served:
    """The fetches of followers that a broker served, in the order of their start."""

    def __init__(self, positions: FactColumns[ReaderPosition]) -> None:
        start, at = positions.integers("start_us"), positions.integers("at_us")
        served_us = np.where(start > 0, start, at)
        rows = np.flatnonzero(positions.integers("replica") >= 0)
        self._rows = rows[np.argsort(served_us[rows], kind="stable")]
        self._times, self._positions = served_us[self._rows], positions

    def first(self, since_us: int, *, after: bool) -> tuple[int, ReaderPosition] | None:
        """Return the first fetch since a time, or after it, with its time; None if there is no such fetch."""
        place = int(np.searchsorted(self._times, since_us, side="right" if after else "left"))
        if place == len(self._rows):
            return None
        return int(self._times[place]), self._positions[int(self._rows[place])]


def _leader_fields(
    shown_by: ReaderPosition, broker: int, history: Sequence[InSyncSet], at_us: int, min_isr: int | None
) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the known event fields of a leadership that the fetch `shown_by` shows."""
    yield "change", "leader"
    if shown_by.epoch >= 0:
        yield "leader_epoch", shown_by.epoch
    known = [in_sync for in_sync in history if in_sync.at_us <= at_us]
    if known:
        yield "isr", sorted({*known[-1].isr, broker, shown_by.replica})
    if min_isr is not None:
        yield "min_isr", min_isr


# Errors with which a broker shows that it has lost the leadership, that the partition is deleted, or that it has yet to
# apply its own leadership.
LOST_LEADERSHIP = frozenset({errors.NOT_LEADER_OR_FOLLOWER, errors.FENCED_LEADER_EPOCH})
DELETED_PARTITION = frozenset({errors.UNKNOWN_TOPIC_OR_PARTITION})
NOT_YET_LEADER = frozenset(
    {errors.UNKNOWN_TOPIC_OR_PARTITION, errors.NOT_LEADER_OR_FOLLOWER, errors.UNKNOWN_LEADER_EPOCH}
)


def first_leadership_us(facts: PartitionFacts, first_us: int) -> int:
    """Return when the broker first became the leader: just after the last request that it refused before that.

    The result is at least `first_us`.
    """
    served = min(_least(_appended_us(facts)), _least(facts.positions.integers("at_us")))
    early = [
        failure.at_us + 1 for failure in facts.errors if failure.error in NOT_YET_LEADER and failure.at_us < served
    ]
    return max([first_us, *early])


def takeover_us(facts: PartitionFacts, change: PartitionChange) -> int:
    """Return when a broker became the leader by a change that moves the leadership from another broker.

    The result is after the last request that the broker refused, and before the first request that it served.
    """
    appended, read = _appended_us(facts), facts.positions.integers("at_us")[_of_followers(facts)]
    served = min(_least(times[times >= change.at_us]) for times in (appended, read))
    refused = [
        failure.at_us + 1
        for failure in facts.errors
        if failure.error in NOT_YET_LEADER and change.at_us <= failure.at_us < served
    ]
    return min(max([_assumed_propagation_us(change), *refused]), served - 1)


def _appended_us(facts: PartitionFacts) -> Integers:
    """Return the start of each request whose append has a known offset."""
    return facts.appends.integers("start_us")[facts.appends.integers("base") >= 0]


def _of_followers(facts: PartitionFacts) -> Booleans:
    return facts.positions.integers("replica") >= 0


def _least(times: Integers) -> int:
    return int(times.min()) if len(times) else NEVER


def propagated_us(facts: PartitionFacts, change: PartitionChange, codes: Collection[int]) -> int:
    """Return when the broker applied a change: just before the first response with one of the error codes.

    Without a response of this kind, it is the time of the change plus the assumed propagation time. A broker that stood
    still applies the change when it resumes, which may be much later.
    """
    shown = [failure.at_us for failure in facts.errors if failure.error in codes and change.at_us <= failure.at_us]
    return min(shown) - 1 if shown else _assumed_propagation_us(change)


def _isr_shrink_us(facts: PartitionFacts, change: PartitionChange) -> int:
    """Return when a leader applied an in-sync set that the controller had shrunk because it fenced a broker.

    It is after the last produce that timed out because of the removed replica, and before the first response to a
    produce that had waited only for that replica.
    """
    until = change.at_us + ISR_SHRINK_WINDOW_US
    timed_out = [
        failure.at_us + 1
        for failure in facts.errors
        if failure.error == errors.REQUEST_TIMED_OUT and change.at_us <= failure.at_us <= until
    ]
    at = max([_assumed_propagation_us(change), *timed_out])
    start, answered = facts.appends.integers("start_us"), facts.appends.integers("answered_us")
    released = answered[(start < change.at_us) & (change.at_us <= answered) & (answered <= until)]
    return _least(released) - COMPLETION_TO_RESPONSE_US if len(released) else at


def _assumed_propagation_us(change: PartitionChange) -> int:
    """Return the time of a change plus the assumed propagation, which changes from requests do not need."""
    return change.at_us + (METADATA_PROPAGATION_US if change.source == GIVEN else 0)


def isr_change_us(
    facts: PartitionFacts, change: PartitionChange, before: tuple[int, ...] | None, granted: Sequence[PartitionChange]
) -> int:
    """Return when the leader applied a change of the in-sync set.

    An extended set counts from the leader's own request (ALTER_PARTITION) on, a shrunken one from the response on.

    Args:
        facts: Facts of the partition at the leader.
        change: The change.
        before: The in-sync set before the change; None if it is unknown.
        granted: Changes that the controller granted by ALTER_PARTITION.
    """
    grows = set(change.isr or ()) > set(before or ())
    if change.source == GIVEN:
        same = [
            grant
            for grant in granted
            if set(grant.isr or ()) == set(change.isr or ())
            and abs(grant.at_us - change.at_us) <= ALTER_PARTITION_WINDOW_US
        ]
        if not same:
            # The leader requested an extended set before the controller's record; the controller shrinks sets itself.
            return change.at_us if grows else _isr_shrink_us(facts, change)
        change = min(same, key=lambda grant: grant.at_us)
    return change.asked_us if grows and change.source == GRANTED else change.at_us


CHANGE_BY_ERROR = {
    errors.NOT_LEADER_OR_FOLLOWER: "not_leader",
    errors.FENCED_LEADER_EPOCH: "not_leader",
    errors.UNKNOWN_TOPIC_OR_PARTITION: "deleted",
    errors.KAFKA_STORAGE_ERROR: "offline",
}


@dataclass(frozen=True, slots=True)
class _KnownState:
    """State of a partition in the cluster, as far as changes have defined it."""

    leader: int | None = None
    epoch: int | None = None
    replicas: tuple[int, ...] | None = None
    isr: tuple[int, ...] | None = None

    def after(self, change: PartitionChange) -> _KnownState:
        if change.deleted:
            return _KnownState()
        return _KnownState(
            self.leader if change.leader is None else change.leader,
            self.epoch if change.leader_epoch is None else change.leader_epoch,
            change.replicas or self.replicas,
            self.isr if change.isr is None else change.isr,
        )


def leadership_states(
    facts: PartitionFacts,
    changes: Sequence[PartitionChange],
    cluster: ClusterMetadata,
    first_us: int,
    report: Report,
    whole: bool = False,
) -> list[LeadershipState]:
    """Return the leadership changes of a partition at a broker in time order.

    Args:
        facts: Facts of the partition at the broker.
        changes: Changes of the partition in the cluster, in time order.
        cluster: Default of `min.insync.replicas`, and brokers that were unfenced.
        first_us: A time before all facts. The first returned state is not later, so it is known at every fact.
        report: Counts the source of the in-sync set.
        whole: Whether the facts are of the whole log; only then is leadership inferred, because a followed log drops
            older facts.
    """
    min_isr = cluster.min_isr_of(facts.topic)
    given = [change for change in changes if change.source == GIVEN]
    known = given or [change for change in changes if change.isr is not None or change.deleted]
    if not known:
        return _assumed_leadership(facts, min_isr, first_us, report)
    report.count("isr_given" if given else "isr_reported")
    granted = [change for change in changes if change.source == GRANTED]
    leadership: list[LeadershipState] = []
    history: list[InSyncSet] = []
    before = _KnownState()
    applied = 0
    for number, change in enumerate(known):
        now = before.after(change)
        led, leads = before.leader == facts.broker, now.leader == facts.broker
        new_term = (now.leader, now.epoch) != (before.leader, before.epoch)
        if number == 0:
            # The facts may start after the next change.
            begin = min([first_us, *(following.at_us - 1 for following in known[1:2])])
            at = first_leadership_us(facts, begin) if leads else begin
            if at > begin:
                leadership.append(LeadershipState(begin, {"change": "not_leader"}))
            elif not given and not leads and (members := _in_sync_by_fetches(facts, change.at_us)):
                # The earlier leader is not reported, but followers fetched from this broker.
                leadership.append(
                    LeadershipState(begin, _leader_change(_KnownState(facts.broker, None, members, members), min_isr))
                )
                at = propagated_us(facts, change, LOST_LEADERSHIP)
        elif change.deleted:
            at = propagated_us(facts, change, DELETED_PARTITION)
        elif new_term and leads and not led:
            at = takeover_us(facts, change)
        elif new_term:
            at = propagated_us(facts, change, LOST_LEADERSHIP)
        else:
            at = isr_change_us(facts, change, before.isr, granted)
        at = applied = max(at, applied)
        if change.deleted:
            leadership.append(LeadershipState(at, {"change": "deleted"}))
        elif leads and new_term:
            leadership.append(LeadershipState(at, _leader_change(now, min_isr)))
        elif leads and now.isr != before.isr:
            leadership.append(LeadershipState(at, {"change": "isr", "isr": list(now.isr or ())}))
        elif not leads and (led or number == 0):
            leadership.append(LeadershipState(at, {"change": "not_leader"}))
        history.append(InSyncSet(at, now.leader, now.epoch, now.isr or ()))
        before = now
    if whole and not given:
        leadership = with_inferred_leadership(leadership, facts, history, min_isr)
    leadership.extend(rejoining_replicas(facts, history, cluster.unfenced, METADATA_PROPAGATION_US, min_isr))
    return sorted(leadership, key=lambda state: state.at_us)


def _leader_change(now: _KnownState, min_isr: int | None) -> dict[str, Any]:
    """Return the event fields of a change by which the broker becomes the leader, without fields that are unknown."""
    fields = {
        "leader_epoch": now.epoch,
        "replicas": list(now.replicas) if now.replicas else None,
        "isr": list(now.isr) if now.isr is not None else None,
        "min_isr": min_isr,
    }
    return {"change": "leader", **{name: value for name, value in fields.items() if value is not None}}


def _in_sync_by_fetches(facts: PartitionFacts, until_us: int) -> tuple[int, ...]:
    """Return the broker and the followers that fetched from it until `until_us`; empty if none did."""
    is_before = facts.positions.integers("at_us") < until_us
    followers = np.unique(facts.positions.integers("replica")[_of_followers(facts) & is_before]).tolist()
    return (facts.broker, *followers) if followers else ()


def _assumed_leadership(
    facts: PartitionFacts, min_isr: int | None, first_us: int, report: Report
) -> list[LeadershipState]:
    """Return the leadership of a partition for which neither the metadata log nor a response reports any change.

    If followers fetched the partition from the broker, the broker is assumed to lead it from `first_us` on, with all of
    these followers in sync. Later changes follow from errors in responses.
    """
    followers = np.unique(facts.positions.integers("replica")[_of_followers(facts)]).tolist()
    leadership: list[LeadershipState] = []
    if followers:
        report.count("isr_supposed")
        members = (facts.broker, *followers)
        leadership.append(
            LeadershipState(first_us, _leader_change(_KnownState(facts.broker, None, members, members), min_isr))
        )
    return sorted([*leadership, *_leadership_from_responses(facts, report)], key=lambda state: state.at_us)


def _leadership_from_responses(facts: PartitionFacts, report: Report) -> list[LeadershipState]:
    """Return leadership changes that responses show: an error ends the leadership until a request succeeds again."""
    failed = [
        (failure.at_us, CHANGE_BY_ERROR[failure.error]) for failure in facts.errors if failure.error in CHANGE_BY_ERROR
    ]
    if not failed:
        return []
    succeeded = np.sort(np.concatenate([_appended_us(facts), facts.positions.integers("proven_us")]))
    leadership: list[LeadershipState] = []
    now, before_us = "online", -NEVER
    for at, change in [*sorted(failed), (NEVER, "")]:
        # A request that succeeds at the time of an error comes after it.
        place = int(np.searchsorted(succeeded, before_us))
        if now != "online" and place < len(succeeded) and succeeded[place] < at:
            leadership.append(LeadershipState(int(succeeded[place]) - 1, {"change": "online"}))
            report.count("status_reported")
            now = "online"
        if change and change != now:
            leadership.append(LeadershipState(at - 1, {"change": change}))
            report.count("status_reported")
            now = change
        before_us = at
    return leadership
