"""A partition's leadership and in-sync set as one broker came to know them, as changes of the contract.

The sources, best first: the metadata log (`--isr`); what answers in the log report (METADATA, ALTER_PARTITION);
nothing, then every replica that ever fetched from this broker is supposed to be in sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purgatory_udf.requestlog.cluster.metadata import GIVEN, GRANTED, Change, KnownCluster
from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.partitions.evident import with_evident
from purgatory_udf.requestlog.partitions.felt import GONE, LOST, felt_us, granted_us, ready_us, taken_over_us
from purgatory_udf.requestlog.partitions.returning import InSync, LeadershipState, returning
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import PartitionFacts
from purgatory_udf.requestlog.supposed import METADATA_LAG_US

SHOWS = {
    errors.NOT_LEADER_OR_FOLLOWER: "not_leader",
    errors.FENCED_LEADER_EPOCH: "not_leader",
    errors.UNKNOWN_TOPIC_OR_PARTITION: "deleted",
    errors.KAFKA_STORAGE_ERROR: "offline",
}


@dataclass(frozen=True, slots=True)
class _Known:
    leader: int | None = None
    epoch: int | None = None
    replicas: tuple[int, ...] | None = None
    isr: tuple[int, ...] | None = None

    def after(self, change: Change) -> _Known:
        if change.deleted:
            return _Known()
        return _Known(
            self.leader if change.leader is None else change.leader,
            self.epoch if change.leader_epoch is None else change.leader_epoch,
            change.replicas or self.replicas,
            self.isr if change.isr is None else change.isr,
        )


def states(
    facts: PartitionFacts,
    changes: Sequence[Change],
    cluster: KnownCluster,
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
        return _supposed(facts, min_isr, first_us, report)
    report.count("isr_given" if given else "isr_reported")
    granted = [change for change in changes if change.source == GRANTED]
    leadership: list[LeadershipState] = []
    history: list[InSync] = []
    before = _Known()
    felt = 0
    for number, change in enumerate(known):
        now = before.after(change)
        led, leads = before.leader == facts.broker, now.leader == facts.broker
        anew = (now.leader, now.epoch) != (before.leader, before.epoch)
        if number == 0:
            # What is known of the partition may begin later than its next change.
            begin = min([first_us, *(following.at_us - 1 for following in known[1:2])])
            at = ready_us(facts, begin) if leads else begin
            if at > begin:
                leadership.append(LeadershipState(begin, {"change": "not_leader"}))
            elif not given and not leads and (members := _served(facts, change.at_us)):
                # Nobody has reported who led before; followers came here.
                leadership.append(
                    LeadershipState(begin, _leader(_Known(facts.broker, None, members, members), min_isr))
                )
                at = felt_us(facts, change, LOST)
        elif change.deleted:
            at = felt_us(facts, change, GONE)
        elif anew and leads and not led:
            at = taken_over_us(facts, change)
        elif anew:
            at = felt_us(facts, change, LOST)
        else:
            at = granted_us(facts, change, before.isr, granted)
        at = felt = max(at, felt)
        if change.deleted:
            leadership.append(LeadershipState(at, {"change": "deleted"}))
        elif leads and anew:
            leadership.append(LeadershipState(at, _leader(now, min_isr)))
        elif leads and now.isr != before.isr:
            leadership.append(LeadershipState(at, {"change": "isr", "isr": list(now.isr or ())}))
        elif not leads and (led or number == 0):
            leadership.append(LeadershipState(at, {"change": "not_leader"}))
        history.append(InSync(at, now.leader, now.epoch, now.isr or ()))
        before = now
    if whole and not given:
        leadership = with_evident(leadership, facts, history, min_isr)
    leadership.extend(returning(facts, history, cluster.unfenced, METADATA_LAG_US, min_isr))
    return sorted(leadership, key=lambda state: state.at_us)


def _leader(now: _Known, min_isr: int | None) -> dict[str, Any]:
    fields = {
        "leader_epoch": now.epoch,
        "replicas": list(now.replicas) if now.replicas else None,
        "isr": list(now.isr) if now.isr is not None else None,
        "min_isr": min_isr,
    }
    return {"change": "leader", **{name: value for name, value in fields.items() if value is not None}}


def _served(facts: PartitionFacts, until_us: int) -> tuple[int, ...]:
    """This broker and the followers that fetched from it until then; none if none did."""
    followers = sorted(
        {position.replica for position in facts.positions if position.replica >= 0 and position.at_us < until_us}
    )
    return (facts.broker, *followers) if followers else ()


def _supposed(facts: PartitionFacts, min_isr: int | None, first_us: int, report: Report) -> list[LeadershipState]:
    followers = sorted({position.replica for position in facts.positions if position.replica >= 0})
    leadership: list[LeadershipState] = []
    if followers:
        report.count("isr_supposed")
        members = (facts.broker, *followers)
        leadership.append(LeadershipState(first_us, _leader(_Known(facts.broker, None, members, members), min_isr)))
    return sorted([*leadership, *_shown(facts, report)], key=lambda state: state.at_us)


def _shown(facts: PartitionFacts, report: Report) -> list[LeadershipState]:
    """Leadership as the errors in answers tell it, and its return as the first thing that works again."""
    marks = [(append.start_us, "online") for append in facts.appends if append.base >= 0]
    marks += [(position.proven_us, "online") for position in facts.positions]
    marks += [(trouble.at_us, SHOWS[trouble.error]) for trouble in facts.troubles if trouble.error in SHOWS]
    leadership: list[LeadershipState] = []
    now = "online"
    for at, change in sorted(marks):
        if change != now:
            leadership.append(LeadershipState(at - 1, {"change": change}))
            report.count("status_reported")
            now = change
    return leadership
