"""What members of consumer groups do, as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from purgatory_udf.simulate.open_loop.streams import Numbers


class Act(IntEnum):
    """What a member does. In one instant they are in this order: who is told of something is told after it."""

    ASK = 0
    JOIN = 1
    LEAVE = 2
    SYNC = 3
    HEARTBEAT = 4
    COMMIT = 5


@dataclass(frozen=True)
class Acts:
    """A row for each request. `life`: how often the member has come back; `index`: the place on its grid."""

    act: Numbers
    t: Numbers
    group: Numbers
    place: Numbers
    life: Numbers
    generation: Numbers
    leader: Numbers
    leader_life: Numbers
    index: Numbers

    def between(self, begin_us: int, end_us: int) -> Acts:
        inside = (self.t >= begin_us) & (self.t < end_us)
        return Acts(*(getattr(self, field.name)[inside] for field in fields(self)))

    def in_order_of_act(self) -> Acts:
        order = np.argsort(self.act, kind="stable")
        return Acts(*(getattr(self, field.name)[order] for field in fields(self)))


def together(parts: Iterable[Acts]) -> Acts:
    parts, none = list(parts), np.zeros(0, dtype=np.int64)
    return Acts(*(np.concatenate([none, *(getattr(part, field.name) for part in parts)]) for field in fields(Acts)))
