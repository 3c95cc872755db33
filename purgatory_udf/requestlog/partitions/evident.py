"""Leadership that nobody reported, as a broker's answers show it.

Without the metadata log, METADATA answers and ALTER_PARTITION lines tell who leads, and much later if nobody asks or
nothing shrinks: after a rolling restart brokers lead again, and no line may say so. But whoever answers a follower's
fetch leads, in the epoch that the follower named; and whoever answers NOT_LEADER_OR_FOLLOWER does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.partitions.returning import InSync, LeadershipState
from purgatory_udf.requestlog.requests.facts import PartitionFacts, Position

LEADS = {"leader": True, "online": True, "not_leader": False, "offline": False, "deleted": False}


def with_evident(
    states: Sequence[LeadershipState], facts: PartitionFacts, history: Sequence[InSync], min_isr: int | None
) -> list[LeadershipState]:
    """The states, those added that answers show, in the order of time; less those that answers have shown before."""
    served = [
        (max(position.start_us, 0) or position.at_us, 1, position)
        for position in facts.positions
        if position.replica >= 0
    ]
    refused = [(trouble.at_us, 1, None) for trouble in facts.troubles if trouble.error == errors.NOT_LEADER_OR_FOLLOWER]
    stated: list[tuple[int, int, Any]] = [(state.at_us, 0, state) for state in states]
    leadership: list[LeadershipState] = []
    leads: bool | None = None
    for at, _, what in sorted([*stated, *served, *refused], key=lambda moment: moment[:2]):
        if isinstance(what, LeadershipState):
            says = LEADS.get(what.fields["change"])
            if says is False and leads is False and what.fields["change"] == "not_leader":
                continue
            leads = leads if says is None else says
            leadership.append(what)
        elif leads is False and what is not None:
            leads = True
            leadership.append(LeadershipState(at - 1, dict(_led(what, facts.broker, history, at, min_isr))))
        elif leads and what is None:
            leads = False
            leadership.append(LeadershipState(at - 1, {"change": "not_leader"}))
    return sorted(leadership, key=lambda state: state.at_us)


def _led(
    shown_by: Position, broker: int, history: Sequence[InSync], at_us: int, min_isr: int | None
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
