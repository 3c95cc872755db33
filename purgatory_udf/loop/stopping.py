"""A broker's process stops: whoever waits there for the partition, or its topic, ends without an answer (see
`reference.broker`).

Connections are gone, and what was parked in memory; the log stays. The new process knows nothing of followers, leads
nothing until it is told so, and estimates its purgatories by what they hold.
"""

from __future__ import annotations

from purgatory_udf.compiling.compiled import rule
from purgatory_udf.loop import heap, listed
from purgatory_udf.loop import purgatory as lists
from purgatory_udf.loop.tables import World, key_at, link_at, operation_at, part_at, purgatory_at
from purgatory_udf.loop.words import Code, Error, Rule
from purgatory_udf.loop.world import CANCELLED, COUNTED, KINDS, NONE, NOTHING_YET, SETTLED, SETTLING_OTHERS


@rule
def stop(w: World, k: int, t: int) -> None:
    key = key_at(w, k)
    key.news += 1
    for kind in range(COUNTED):
        while heap.first_of(w, k, kind) != NONE:
            _abandon(w, heap.first_of(w, k, kind), t)
    for kind in range(COUNTED, KINDS):
        while listed.first_of(w, k, kind) != NONE:
            _abandon(w, listed.first_of(w, k, kind), t)
    lists.walk_all(w, key)
    _estimate_anew(w, key.broker, False)
    key.standing, key.nodes = Error.NOT_LEADER_OR_FOLLOWER, NONE


@rule
def stop_topic(w: World, k: int, broker: int, t: int) -> None:
    """The topic's heap has who waits at any broker: others are put back."""
    kept = NONE
    while heap.first_of(w, k, SETTLING_OTHERS) != NONE:
        at = heap.first_of(w, k, SETTLING_OTHERS)
        if operation_at(w, part_at(w, at).operation).broker == broker:
            _abandon(w, at, t)
        else:
            heap.remove(w, at, key_at(w, k))
            link_at(w, at).next, kept = kept, at
    while kept != NONE:
        at, kept = kept, link_at(w, kept).next
        heap.push(w, at, SETTLING_OTHERS, part_at(w, at).wants)
    lists.walk_topic(w, key_at(w, k), broker)
    _estimate_anew(w, broker, True)


@rule
def _estimate_anew(w: World, broker: int, of_topics: bool) -> None:
    for p in range(w.purgatories):
        purgatory = purgatory_at(w, p)
        if purgatory.broker == broker and (purgatory.code == Code.CREATE_TOPICS) == of_topics:
            purgatory.estimated = purgatory.delayed


@rule
def _abandon(w: World, by: int, t: int) -> None:
    """The part's operation ends, and is on no list any more."""
    o = part_at(w, by).operation
    operation = operation_at(w, o)
    lists.close(w, o, CANCELLED, Rule.BROKER_STOPPED, t, by)
    w.cancelled += 1
    entries = NOTHING_YET
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        heap.remove(w, at, key)
        entries += 1 - part.again
        if operation.code == Code.FETCH:
            part.news = key.news - part.news
            part.error, part.size = Error.UNANSWERED, 0
        elif part.heap != SETTLED:
            part.error, part.end_t = Error.UNANSWERED, t
    purgatory_at(w, operation.purgatory).watched -= entries
