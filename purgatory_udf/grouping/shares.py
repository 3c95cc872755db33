"""Groups of keys by whichever grouping, in one process: what the stream's queries do, batch by batch.

By broker, one group sees all there is of an operation. By TopicPartition or shard, a group decides the operations whose
keys are all its own; its events go on to the broker's group, which decides the others, and reads the gauges of all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from purgatory_udf.compiling.moving import copied
from purgatory_udf.loop.call import Call
from purgatory_udf.loop.state import Decisions
from purgatory_udf.loop.words import Code
from purgatory_udf.loop.world import SOME_HERE


def undecidable(call: Call) -> Call:
    """For a group that sees only a share of some operations: such a fetch never has enough bytes there."""
    apart = (call.events["apart"] > 0) & (call.events["code"] == Code.FETCH)
    if not apart.any():
        return call
    events = copied(call.events)
    events["apart"][apart] = SOME_HERE
    return replace(call, events=events, room=None)


def decided_here(decided: Decisions) -> Decisions:
    """Of a group by TopicPartition or shard: the operations that it has seen whole."""
    return _some(decided, decided.all_operations["apart"] == 0, readings=False)


def decided_apart(decided: Decisions) -> Decisions:
    """Of the broker's group behind such groups: those that none of them has, and all gauges."""
    return _some(decided, decided.all_operations["apart"] > 0, readings=True)


def _some(decided: Decisions, which: np.ndarray, readings: bool) -> Decisions:
    return replace(
        decided,
        completed=decided.completed[which[decided.completed]],
        expired=decided.expired[which[decided.expired]],
        cancelled=decided.cancelled[which[decided.cancelled]],
        readings=decided.readings if readings else decided.readings[:0],
    )
