"""A partition's leadership and in-sync set as one broker came to know them, as changes of the contract.

The sources, best first: the metadata log (`--isr`); what answers in the log report (METADATA, ALTER_PARTITION);
nothing, then every replica that ever fetched from this broker is supposed to be in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from purgatory_udf.requestlog import error_codes as errors
from purgatory_udf.requestlog.cluster import GIVEN, GRANTED, Change
from purgatory_udf.requestlog.facts import PartitionFacts
from purgatory_udf.requestlog.report import Report

# From a metadata record's time until a broker acts on it: written, replicated, committed, applied.
METADATA_LAG_US = 60_000
# An answer this long after a change of leader belongs to it.
SHOWN_WITHIN_US = 2_000_000
# A leader learns of its new in-sync set by the answer to ALTER_PARTITION, before the metadata log brings it.
GRANTED_WITHIN_US = 5_000_000

LOST = frozenset({errors.NOT_LEADER_OR_FOLLOWER, errors.FENCED_LEADER_EPOCH})
GONE = frozenset({errors.UNKNOWN_TOPIC_OR_PARTITION})
NOT_READY = frozenset({errors.UNKNOWN_TOPIC_OR_PARTITION, errors.NOT_LEADER_OR_FOLLOWER, errors.UNKNOWN_LEADER_EPOCH})
SHOWS = {
    errors.NOT_LEADER_OR_FOLLOWER: "not_leader",
    errors.FENCED_LEADER_EPOCH: "not_leader",
    errors.UNKNOWN_TOPIC_OR_PARTITION: "deleted",
    errors.KAFKA_STORAGE_ERROR: "offline",
}


class State(NamedTuple):
    at_us: int
    fields: dict[str, Any]


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
    facts: PartitionFacts, changes: Sequence[Change], min_isr: int | None, first_us: int, report: Report
) -> list[State]:
    """In time order; the first stands at `first_us`, before everything else of the partition."""
    given = [one for one in changes if one.source == GIVEN]
    known = given or [one for one in changes if one.isr is not None or one.deleted]
    if not known:
        return _supposed(facts, min_isr, first_us, report)
    report.count("isr_given" if given else "isr_reported")
    granted = [one for one in changes if one.source == GRANTED]
    found: list[State] = []
    before = _Known()
    for number, change in enumerate(known):
        now = before.after(change)
        led, leads = before.leader == facts.broker, now.leader == facts.broker
        anew = (now.leader, now.epoch) != (before.leader, before.epoch)
        if number == 0:
            at = _ready_us(facts, first_us) if leads else first_us
            if at > first_us:
                found.append(State(first_us, {"change": "not_leader"}))
        elif change.deleted:
            at = _felt_us(facts, change, GONE)
        elif anew:
            at = _felt_us(facts, change, LOST)
        else:
            at = _granted_us(change, before.isr, granted)
        if change.deleted:
            found.append(State(at, {"change": "deleted"}))
        elif leads and anew:
            found.append(State(at, _leader(now, min_isr)))
        elif leads and now.isr != before.isr:
            found.append(State(at, {"change": "isr", "isr": list(now.isr or ())}))
        elif not leads and (led or number == 0):
            found.append(State(at, {"change": "not_leader"}))
        before = now
    return sorted(found, key=lambda one: one.at_us)


def _leader(now: _Known, min_isr: int | None) -> dict[str, Any]:
    fields = {
        "leader_epoch": now.epoch,
        "replicas": list(now.replicas) if now.replicas else None,
        "isr": list(now.isr) if now.isr is not None else None,
        "min_isr": min_isr,
    }
    return {"change": "leader", **{name: value for name, value in fields.items() if value is not None}}


def _ready_us(facts: PartitionFacts, first_us: int) -> int:
    """A new leader turns requests away until the metadata has reached it: it leads from the last of those on."""
    appended = (one.start_us for one in facts.appends if one.base >= 0)
    served = min([*appended, *(one.at_us for one in facts.positions)], default=2**62)
    early = [one.at_us + 1 for one in facts.troubles if one.error in NOT_READY and one.at_us < served]
    return max([first_us, *early])


def _felt_us(facts: PartitionFacts, change: Change, codes: Collection[int]) -> int:
    """When the broker acted on a change: just before the first answer that shows it, else a little later than it was
    made. What a broker reported itself is already dated."""
    until = change.at_us + SHOWN_WITHIN_US
    shown = [one.at_us for one in facts.troubles if one.error in codes and change.at_us <= one.at_us <= until]
    if shown:
        return min(shown) - 1
    return change.at_us + (METADATA_LAG_US if change.source == GIVEN else 0)


def _granted_us(change: Change, before: tuple[int, ...] | None, granted: Sequence[Change]) -> int:
    """When a leader counts with its new in-sync set: one member more from its request, one less from the answer on."""
    if change.source == GIVEN:
        same = [
            one
            for one in granted
            if set(one.isr or ()) == set(change.isr or ()) and abs(one.at_us - change.at_us) <= GRANTED_WITHIN_US
        ]
        if not same:
            return change.at_us + METADATA_LAG_US
        change = min(same, key=lambda one: one.at_us)
    grows = set(change.isr or ()) > set(before or ())
    return change.asked_us if grows and change.source == GRANTED else change.at_us


def _supposed(facts: PartitionFacts, min_isr: int | None, first_us: int, report: Report) -> list[State]:
    followers = sorted({one.replica for one in facts.positions if one.replica >= 0})
    found: list[State] = []
    if followers:
        report.count("isr_supposed")
        members = (facts.broker, *followers)
        found.append(State(first_us, _leader(_Known(facts.broker, None, members, members), min_isr)))
    return sorted([*found, *_shown(facts, report)], key=lambda one: one.at_us)


def _shown(facts: PartitionFacts, report: Report) -> list[State]:
    """Leadership as the errors in answers tell it, and its return as the first thing that works again."""
    marks = [(one.start_us, "online") for one in facts.appends if one.base >= 0]
    marks += [(one.proven_us, "online") for one in facts.positions]
    marks += [(one.at_us, SHOWS[one.error]) for one in facts.troubles if one.error in SHOWS]
    found: list[State] = []
    now = "online"
    for at, change in sorted(marks):
        if change != now:
            found.append(State(at - 1, {"change": change}))
            report.count("status_reported")
            now = change
    return found
