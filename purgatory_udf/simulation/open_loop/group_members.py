"""Who is in which group, whose turn it is, who leads: by (seed, group, number of the period), see `groups`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from purgatory_udf.simulation.open_loop.random_streams import Flags, Numbers, Purpose, draw

# What members of consumer groups do, as columns.


class MemberAction(IntEnum):
    """What a member does. In one instant they are in this order: who is told of something is told after it."""

    ASK = 0
    JOIN = 1
    LEAVE = 2
    SYNC = 3
    HEARTBEAT = 4
    COMMIT = 5


@dataclass(frozen=True)
class MemberActions:
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

    def between(self, begin_us: int, end_us: int) -> MemberActions:
        inside = (self.t >= begin_us) & (self.t < end_us)
        return MemberActions(*(getattr(self, field.name)[inside] for field in fields(self)))

    def in_order_of_act(self) -> MemberActions:
        order = np.argsort(self.act, kind="stable")
        return MemberActions(*(getattr(self, field.name)[order] for field in fields(self)))


def concatenate(parts: Iterable[MemberActions]) -> MemberActions:
    parts, none = list(parts), np.zeros(0, dtype=np.int64)
    return MemberActions(
        *(np.concatenate([none, *(getattr(part, field.name) for part in parts)]) for field in fields(MemberActions))
    )


US_PER_MS = 1000
INITIAL_REBALANCE_US = 2 * 3_000 * US_PER_MS
# Between an answer and the request that follows it.
MAX_REACTION_US = 20 * US_PER_MS
# What a period needs beyond a session and heartbeats.
PERIOD_MARGIN_US = 1_000 * US_PER_MS


@dataclass(frozen=True)
class GroupPlan:
    seed: int
    groups: int
    # On average; a group has at least two.
    members: int
    heartbeat_us: int
    commit_us: int
    session_us: int
    period_us: int
    crash_share: float

    @property
    def begin_within_us(self) -> int:
        """Groups begin spread over this time: then asking and joining is as frequent as beating and committing."""
        return int(2 / (1 / self.heartbeat_us + 1 / self.commit_us))

    @property
    def shortest_period_us(self) -> int:
        return self.session_us + 3 * self.heartbeat_us + PERIOD_MARGIN_US

    def sizes(self, group: Numbers) -> Numbers:
        return 2 + draw(2 * self.members - 3, self.seed, Purpose.GROUP_SIZES, group)

    def begins(self, group: Numbers) -> Numbers:
        return draw(self.begin_within_us, self.seed, Purpose.GROUP_BEGINS, group)

    def period_begins(self, group: Numbers, number: Numbers | int) -> Numbers:
        phase = draw(self.period_us, self.seed, Purpose.INCIDENTS, group)
        return self.begins(group) + INITIAL_REBALANCE_US + PERIOD_MARGIN_US + phase + number * self.period_us


@dataclass(frozen=True)
class GroupMembers:
    """The members of some groups, each in one of its periods (-1: before the first), a row for each member.

    `pair` is the row's place among the groups asked for, `first` the row with which each of them begins.
    """

    plan: GroupPlan
    group: Numbers
    number: Numbers
    size: Numbers
    pair: Numbers
    place: Numbers
    first: Numbers

    @classmethod
    def of(cls, plan: GroupPlan, group: Numbers, number: Numbers) -> GroupMembers:
        size = plan.sizes(group)
        pair = np.repeat(np.arange(len(group)), size)
        first = np.cumsum(size) - size
        return cls(plan, group[pair], number[pair], size[pair], pair, np.arange(len(pair)) - first[pair], first)

    def draw(self, below: int, purpose: Purpose, index: Numbers | int = 0) -> Numbers:
        return draw(below, self.plan.seed, purpose, self.group << 20 | self.place, index)

    def soon(self, purpose: Purpose, index: Numbers | int, within_us: int = MAX_REACTION_US) -> Numbers:
        return US_PER_MS + self.draw(within_us - US_PER_MS, purpose, index)

    def latest(self, t: Numbers) -> Numbers:
        """The greatest of each group's, for each of its members."""
        return np.maximum.reduceat(t, self.first)[self.pair] if len(t) else t

    def grid(self, act: MemberAction) -> tuple[Numbers, int]:
        """Where the member's grid begins, and its step."""
        step = self.plan.heartbeat_us if act == MemberAction.HEARTBEAT else self.plan.commit_us
        return self.draw(step, Purpose.HEARTBEATS if act == MemberAction.HEARTBEAT else Purpose.COMMITS), step

    def next_heartbeat(self, t: Numbers) -> Numbers:
        begin, step = self.grid(MemberAction.HEARTBEAT)
        return begin - (begin - t) // step * step

    @property
    def goes(self) -> Flags:
        """Whose turn it is in this period."""
        return np.asarray(self.place == self.number % self.size)

    @property
    def leader(self) -> Numbers:
        """By its place: the last, until its turn comes in period `size` - 1; then the one before it, and so on."""
        changes = np.maximum(self.number, 0) // (self.size - 1)
        return np.asarray((self.size - 1 - changes) % self.size)

    def life(self, place: Numbers) -> Numbers:
        """How often that member has gone in earlier periods."""
        return np.maximum(0, -((place - self.number) // self.size))
