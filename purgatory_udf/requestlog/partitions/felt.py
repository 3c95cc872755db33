"""When a broker acted on a change of leadership or of an in-sync set, which the metadata log dates at its making."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from purgatory_udf.requestlog.cluster.metadata import GIVEN, GRANTED, Change
from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.requests.facts import PartitionFacts
from purgatory_udf.requestlog.supposed import ANSWER_US, GRANTED_WITHIN_US, METADATA_LAG_US, RELEASES_WITHIN_US

LOST = frozenset({errors.NOT_LEADER_OR_FOLLOWER, errors.FENCED_LEADER_EPOCH})
GONE = frozenset({errors.UNKNOWN_TOPIC_OR_PARTITION})
NOT_READY = frozenset({errors.UNKNOWN_TOPIC_OR_PARTITION, errors.NOT_LEADER_OR_FOLLOWER, errors.UNKNOWN_LEADER_EPOCH})


def ready_us(facts: PartitionFacts, first_us: int) -> int:
    """A new leader turns requests away until the metadata has reached it: it leads from the last of those on."""
    appended = (append.start_us for append in facts.appends if append.base >= 0)
    served = min([*appended, *(position.at_us for position in facts.positions)], default=2**62)
    early = [trouble.at_us + 1 for trouble in facts.troubles if trouble.error in NOT_READY and trouble.at_us < served]
    return max([first_us, *early])


def taken_over_us(facts: PartitionFacts, change: Change) -> int:
    """When a broker began to lead what another had led: after the last request that it still turned away, and before
    the first that it served."""
    appended = (append.start_us for append in facts.appends if append.base >= 0)
    read = (position.at_us for position in facts.positions if position.replica >= 0)
    served = min((moment for moment in (*appended, *read) if moment >= change.at_us), default=2**62)
    refused = [
        trouble.at_us + 1
        for trouble in facts.troubles
        if trouble.error in NOT_READY and change.at_us <= trouble.at_us < served
    ]
    return min(max([_applied_us(change), *refused]), served - 1)


def felt_us(facts: PartitionFacts, change: Change, codes: Collection[int]) -> int:
    """When the broker acted on a change: just before the first answer that shows it, else a little later than it was
    made. A broker that was stopped learns of it when it goes on. What a broker reported itself is already dated."""
    shown = [trouble.at_us for trouble in facts.troubles if trouble.error in codes and change.at_us <= trouble.at_us]
    return min(shown) - 1 if shown else _applied_us(change)


def _shrunk_us(facts: PartitionFacts, change: Change) -> int:
    """When a leader did without the replicas of a broker that the controller had given up: after the last produce that
    waited for them in vain, at the first answer that had waited for nothing else."""
    until = change.at_us + RELEASES_WITHIN_US
    vain = [
        trouble.at_us + 1
        for trouble in facts.troubles
        if trouble.error == errors.REQUEST_TIMED_OUT and change.at_us <= trouble.at_us <= until
    ]
    at = max([_applied_us(change), *vain])
    released = [
        append.answered_us for append in facts.appends if append.start_us < change.at_us <= append.answered_us <= until
    ]
    return min(released) - ANSWER_US if released else at


def _applied_us(change: Change) -> int:
    return change.at_us + (METADATA_LAG_US if change.source == GIVEN else 0)


def granted_us(facts: PartitionFacts, change: Change, before: tuple[int, ...] | None, granted: Sequence[Change]) -> int:
    """When a leader counts with its new in-sync set: one member more from its request, one less from the answer on."""
    grows = set(change.isr or ()) > set(before or ())
    if change.source == GIVEN:
        same = [
            grant
            for grant in granted
            if set(grant.isr or ()) == set(change.isr or ()) and abs(grant.at_us - change.at_us) <= GRANTED_WITHIN_US
        ]
        if not same:
            # The leader asked for the larger set before it was made; the smaller one is the controller's doing.
            return change.at_us if grows else _shrunk_us(facts, change)
        change = min(same, key=lambda grant: grant.at_us)
    return change.asked_us if grows and change.source == GRANTED else change.at_us
