"""A partition's leadership and in-sync set as one broker came to know them, as changes of the contract.

The sources, best first: the metadata log (`--isr`); what answers in the log report (METADATA, ALTER_PARTITION);
nothing, then every replica that ever fetched from this broker is supposed to be in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory_udf.sources.request_log.assumptions import (
    ALTER_PARTITION_WINDOW_US,
    COMPLETION_TO_RESPONSE_US,
    ISR_SHRINK_WINDOW_US,
    METADATA_PROPAGATION_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster.cluster_metadata import GIVEN, GRANTED, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.partitions.partition_status import InSyncSet, LeadershipState, rejoining_replicas
from purgatory_udf.sources.request_log.requests.partition_facts import PartitionFacts, ReaderPosition

# Leadership that nobody reported, as a broker's answers show it.
#
# Without the metadata log, METADATA answers and ALTER_PARTITION lines tell who leads, and much later if nobody asks or
# nothing shrinks: after a rolling restart brokers lead again, and no line may say so. But whoever answers a follower's
# fetch leads, in the epoch that the follower named; and whoever answers NOT_LEADER_OR_FOLLOWER does not.


LEADS_AFTER = {"leader": True, "online": True, "not_leader": False, "offline": False, "deleted": False}


def with_inferred_leadership(
    states: Sequence[LeadershipState], facts: PartitionFacts, history: Sequence[InSyncSet], min_isr: int | None
) -> list[LeadershipState]:
    """The states, those added that answers show, in the order of time; less those that answers have shown before."""
    served = [
        (max(position.start_us, 0) or position.at_us, 1, position)
        for position in facts.positions
        if position.replica >= 0
    ]
    refused = [(trouble.at_us, 1, None) for trouble in facts.errors if trouble.error == errors.NOT_LEADER_OR_FOLLOWER]
    stated: list[tuple[int, int, Any]] = [(state.at_us, 0, state) for state in states]
    leadership: list[LeadershipState] = []
    leads: bool | None = None
    for at, _, what in sorted([*stated, *served, *refused], key=lambda moment: moment[:2]):
        if isinstance(what, LeadershipState):
            says = LEADS_AFTER.get(what.fields["change"])
            if says is False and leads is False and what.fields["change"] == "not_leader":
                continue
            leads = leads if says is None else says
            leadership.append(what)
        elif leads is False and what is not None:
            leads = True
            leadership.append(LeadershipState(at - 1, dict(_leader_fields(what, facts.broker, history, at, min_isr))))
        elif leads and what is None:
            leads = False
            leadership.append(LeadershipState(at - 1, {"change": "not_leader"}))
    return sorted(leadership, key=lambda state: state.at_us)


def _leader_fields(
    shown_by: ReaderPosition, broker: int, history: Sequence[InSyncSet], at_us: int, min_isr: int | None
) -> Iterator[tuple[str, Any]]:
    """As far as it is known, with whom the broker leads."""
    yield "change", "leader"
    if shown_by.epoch >= 0:
        yield "leader_epoch", shown_by.epoch
    known = [in_sync for in_sync in history if in_sync.at_us <= at_us]
    if known:
        yield "isr", sorted({*known[-1].isr, broker, shown_by.replica})
    if min_isr is not None:
        yield "min_isr", min_isr


# When a broker acted on a change of leadership or of an in-sync set, which the metadata log dates at its making.


LOST_LEADERSHIP = frozenset({errors.NOT_LEADER_OR_FOLLOWER, errors.FENCED_LEADER_EPOCH})
DELETED_PARTITION = frozenset({errors.UNKNOWN_TOPIC_OR_PARTITION})
NOT_YET_LEADER = frozenset(
    {errors.UNKNOWN_TOPIC_OR_PARTITION, errors.NOT_LEADER_OR_FOLLOWER, errors.UNKNOWN_LEADER_EPOCH}
)


def first_leadership_us(facts: PartitionFacts, first_us: int) -> int:
    """A new leader turns requests away until the metadata has reached it: it leads from the last of those on."""
    appended = (append.start_us for append in facts.appends if append.base >= 0)
    served = min([*appended, *(position.at_us for position in facts.positions)], default=2**62)
    early = [
        trouble.at_us + 1 for trouble in facts.errors if trouble.error in NOT_YET_LEADER and trouble.at_us < served
    ]
    return max([first_us, *early])


def takeover_us(facts: PartitionFacts, change: PartitionChange) -> int:
    """When a broker began to lead what another had led: after the last request that it still turned away, and before
    the first that it served."""
    appended = (append.start_us for append in facts.appends if append.base >= 0)
    read = (position.at_us for position in facts.positions if position.replica >= 0)
    served = min((moment for moment in (*appended, *read) if moment >= change.at_us), default=2**62)
    refused = [
        trouble.at_us + 1
        for trouble in facts.errors
        if trouble.error in NOT_YET_LEADER and change.at_us <= trouble.at_us < served
    ]
    return min(max([_assumed_propagation_us(change), *refused]), served - 1)


def propagated_us(facts: PartitionFacts, change: PartitionChange, codes: Collection[int]) -> int:
    """When the broker acted on a change: just before the first answer that shows it, else a little later than it was
    made. A broker that was stopped learns of it when it goes on. What a broker reported itself is already dated."""
    shown = [trouble.at_us for trouble in facts.errors if trouble.error in codes and change.at_us <= trouble.at_us]
    return min(shown) - 1 if shown else _assumed_propagation_us(change)


def _isr_shrink_us(facts: PartitionFacts, change: PartitionChange) -> int:
    """When a leader did without the replicas of a broker that the controller had given up: after the last produce that
    waited for them in vain, at the first answer that had waited for nothing else."""
    until = change.at_us + ISR_SHRINK_WINDOW_US
    vain = [
        trouble.at_us + 1
        for trouble in facts.errors
        if trouble.error == errors.REQUEST_TIMED_OUT and change.at_us <= trouble.at_us <= until
    ]
    at = max([_assumed_propagation_us(change), *vain])
    released = [
        append.answered_us for append in facts.appends if append.start_us < change.at_us <= append.answered_us <= until
    ]
    return min(released) - COMPLETION_TO_RESPONSE_US if released else at


def _assumed_propagation_us(change: PartitionChange) -> int:
    return change.at_us + (METADATA_PROPAGATION_US if change.source == GIVEN else 0)


def isr_change_us(
    facts: PartitionFacts, change: PartitionChange, before: tuple[int, ...] | None, granted: Sequence[PartitionChange]
) -> int:
    """When a leader counts with its new in-sync set: one member more from its request, one less from the answer on."""
    grows = set(change.isr or ()) > set(before or ())
    if change.source == GIVEN:
        same = [
            grant
            for grant in granted
            if set(grant.isr or ()) == set(change.isr or ())
            and abs(grant.at_us - change.at_us) <= ALTER_PARTITION_WINDOW_US
        ]
        if not same:
            # The leader asked for the larger set before it was made; the smaller one is the controller's doing.
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
    """In time order; the first stands at or before `first_us`, which is before everything else of the partition.
    `whole`: the facts are those of all the log, so that what answers show is not forgotten again."""
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
    felt = 0
    for number, change in enumerate(known):
        now = before.after(change)
        led, leads = before.leader == facts.broker, now.leader == facts.broker
        anew = (now.leader, now.epoch) != (before.leader, before.epoch)
        if number == 0:
            # What is known of the partition may begin later than its next change.
            begin = min([first_us, *(following.at_us - 1 for following in known[1:2])])
            at = first_leadership_us(facts, begin) if leads else begin
            if at > begin:
                leadership.append(LeadershipState(begin, {"change": "not_leader"}))
            elif not given and not leads and (members := _in_sync_by_fetches(facts, change.at_us)):
                # Nobody has reported who led before; followers came here.
                leadership.append(
                    LeadershipState(begin, _leader_change(_KnownState(facts.broker, None, members, members), min_isr))
                )
                at = propagated_us(facts, change, LOST_LEADERSHIP)
        elif change.deleted:
            at = propagated_us(facts, change, DELETED_PARTITION)
        elif anew and leads and not led:
            at = takeover_us(facts, change)
        elif anew:
            at = propagated_us(facts, change, LOST_LEADERSHIP)
        else:
            at = isr_change_us(facts, change, before.isr, granted)
        at = felt = max(at, felt)
        if change.deleted:
            leadership.append(LeadershipState(at, {"change": "deleted"}))
        elif leads and anew:
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
    fields = {
        "leader_epoch": now.epoch,
        "replicas": list(now.replicas) if now.replicas else None,
        "isr": list(now.isr) if now.isr is not None else None,
        "min_isr": min_isr,
    }
    return {"change": "leader", **{name: value for name, value in fields.items() if value is not None}}


def _in_sync_by_fetches(facts: PartitionFacts, until_us: int) -> tuple[int, ...]:
    """This broker and the followers that fetched from it until then; none if none did."""
    followers = sorted(
        {position.replica for position in facts.positions if position.replica >= 0 and position.at_us < until_us}
    )
    return (facts.broker, *followers) if followers else ()


def _assumed_leadership(
    facts: PartitionFacts, min_isr: int | None, first_us: int, report: Report
) -> list[LeadershipState]:
    followers = sorted({position.replica for position in facts.positions if position.replica >= 0})
    leadership: list[LeadershipState] = []
    if followers:
        report.count("isr_supposed")
        members = (facts.broker, *followers)
        leadership.append(
            LeadershipState(first_us, _leader_change(_KnownState(facts.broker, None, members, members), min_isr))
        )
    return sorted([*leadership, *_leadership_from_responses(facts, report)], key=lambda state: state.at_us)


def _leadership_from_responses(facts: PartitionFacts, report: Report) -> list[LeadershipState]:
    """Leadership as the errors in answers tell it, and its return as the first thing that works again."""
    marks = [(append.start_us, "online") for append in facts.appends if append.base >= 0]
    marks += [(position.proven_us, "online") for position in facts.positions]
    marks += [
        (trouble.at_us, CHANGE_BY_ERROR[trouble.error]) for trouble in facts.errors if trouble.error in CHANGE_BY_ERROR
    ]
    leadership: list[LeadershipState] = []
    now = "online"
    for at, change in sorted(marks):
        if change != now:
            leadership.append(LeadershipState(at - 1, {"change": change}))
            report.count("status_reported")
            now = change
    return leadership
