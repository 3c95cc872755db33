"""Replicas outside the in-sync set for which the high watermark waits all the same.

The controller takes a broker that it has lost out of all in-sync sets. Once it counts on that broker again, a leader
waits for the broker's replicas if they were caught up within `replica.lag.time.max.ms`, though they have yet to rejoin
the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from purgatory_udf.requestlog.cluster.metadata import Unfenced
from purgatory_udf.requestlog.requests.facts import PartitionFacts
from purgatory_udf.requestlog.supposed import LAG_TIME_US

NEVER = 2**62


class LeadershipState(NamedTuple):
    at_us: int
    fields: dict[str, Any]


class InSync(NamedTuple):
    """From `at_us` on, `leader` had these in sync, in the term of leadership `epoch`."""

    at_us: int
    leader: int | None
    epoch: int | None
    isr: tuple[int, ...]


def returning(
    facts: PartitionFacts, history: Sequence[InSync], unfenced: Iterable[Unfenced], applied_us: int, min_isr: int | None
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
            away_us = at - facts.follower_tries.last_us(broker, at)
            if lost and now.at_us < at < until and away_us <= LAG_TIME_US:
                isr.append(broker)
                yield LeadershipState(at, {"change": "isr", "isr": list(isr)})
