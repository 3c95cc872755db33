"""The members of consumer groups and their requests: a function of (seed, group, period); see `group_schedule`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from purgatory_udf.simulation.open_loop.random_streams import Flags, Numbers, Purpose, draw


class MemberAction(IntEnum):
    """A member's request. Requests at the same time are in the order of these values.

    So a heartbeat that reports a rebalance comes after the join or leave that started it.
    """

    JOIN_WITHOUT_ID = 0
    JOIN = 1
    LEAVE = 2
    SYNC = 3
    HEARTBEAT = 4
    COMMIT = 5


@dataclass(frozen=True)
class MemberActions:
    """Requests of members, a row for each.

    `incarnation` counts how often the member has returned, `index` is the place of a periodic request on its grid.
    """

    action: Numbers
    t: Numbers
    group: Numbers
    member: Numbers
    incarnation: Numbers
    generation: Numbers
    leader: Numbers
    leader_incarnation: Numbers
    index: Numbers

    def between(self, begin_us: int, end_us: int) -> MemberActions:
        """Return the requests from `begin_us` on, before `end_us`."""
        inside = (self.t >= begin_us) & (self.t < end_us)
        return MemberActions(*(getattr(self, field.name)[inside] for field in fields(self)))

    def sorted_by_action(self) -> MemberActions:
        order = np.argsort(self.action, kind="stable")
        return MemberActions(*(getattr(self, field.name)[order] for field in fields(self)))


def concatenate(parts: Iterable[MemberActions]) -> MemberActions:
    """Concatenate the requests."""
    parts, none = list(parts), np.zeros(0, dtype=np.int64)
    return MemberActions(
        *(np.concatenate([none, *(getattr(part, field.name) for part in parts)]) for field in fields(MemberActions))
    )


US_PER_MS = 1000
INITIAL_REBALANCE_US = 2 * 3_000 * US_PER_MS
# The longest time between a response and the member's next request.
MAX_REACTION_US = 20 * US_PER_MS
# The margin of a period beyond its session timeout and heartbeats.
PERIOD_MARGIN_US = 1_000 * US_PER_MS


@dataclass(frozen=True)
class GroupPlan:
    """The settings of the consumer groups. In each `period_us` one member of a group leaves or crashes, and returns."""

    seed: int
    groups: int
    # The average size; every group has at least two members.
    members: int
    heartbeat_us: int
    commit_us: int
    session_us: int
    period_us: int
    crash_share: float

    @property
    def starts_within_us(self) -> int:
        """The time in which all groups start, chosen so that joins are as frequent as heartbeats and commits later."""
        return int(2 / (1 / self.heartbeat_us + 1 / self.commit_us))

    @property
    def shortest_period_us(self) -> int:
        """The shortest period in which a member can leave and return."""
        return self.session_us + 3 * self.heartbeat_us + PERIOD_MARGIN_US

    def sizes(self, group: Numbers) -> Numbers:
        """Return the number of members of each group."""
        return 2 + draw(2 * self.members - 3, self.seed, Purpose.GROUP_SIZES, group)

    def start_us(self, group: Numbers) -> Numbers:
        """Return the time of each group's first join."""
        return draw(self.starts_within_us, self.seed, Purpose.GROUP_STARTS, group)

    def period_start_us(self, group: Numbers, number: Numbers | int) -> Numbers:
        """Return the start of each group's period `number`."""
        phase = draw(self.period_us, self.seed, Purpose.INCIDENTS, group)
        return self.start_us(group) + INITIAL_REBALANCE_US + PERIOD_MARGIN_US + phase + number * self.period_us


@dataclass(frozen=True)
class GroupMembers:
    """The members of several groups, each group in one of its periods (-1: before the first), a row for each member.

    `group_index` is the index of the row's group, `first_row` the first row of each group.
    """

    plan: GroupPlan
    group: Numbers
    number: Numbers
    size: Numbers
    group_index: Numbers
    member: Numbers
    first_row: Numbers

    @classmethod
    def of(cls, plan: GroupPlan, group: Numbers, number: Numbers) -> GroupMembers:
        size = plan.sizes(group)
        group_index = np.repeat(np.arange(len(group)), size)
        first_row = np.cumsum(size) - size
        return cls(
            plan,
            group[group_index],
            number[group_index],
            size[group_index],
            group_index,
            np.arange(len(group_index)) - first_row[group_index],
            first_row,
        )

    def draw(self, below: int, purpose: Purpose, index: Numbers | int = 0) -> Numbers:
        """Draw a number in [0, below) for each member."""
        return draw(below, self.plan.seed, purpose, self.group << 20 | self.member, index)

    def reaction_us(self, purpose: Purpose, index: Numbers | int, within_us: int = MAX_REACTION_US) -> Numbers:
        """Draw the time between a response and the next request, at least 1 ms."""
        return US_PER_MS + self.draw(within_us - US_PER_MS, purpose, index)

    def group_max(self, t: Numbers) -> Numbers:
        """Return the maximum over each group, for each of its members."""
        return np.maximum.reduceat(t, self.first_row)[self.group_index] if len(t) else t

    def grid(self, action: MemberAction) -> tuple[Numbers, int]:
        """Return the phase and the interval of each member's heartbeats or commits."""
        step = self.plan.heartbeat_us if action == MemberAction.HEARTBEAT else self.plan.commit_us
        return self.draw(step, Purpose.HEARTBEATS if action == MemberAction.HEARTBEAT else Purpose.COMMITS), step

    def next_heartbeat(self, t: Numbers) -> Numbers:
        """Return the time of each member's first heartbeat at or after `t`."""
        begin, step = self.grid(MemberAction.HEARTBEAT)
        return begin - (begin - t) // step * step

    @property
    def departs(self) -> Flags:
        """Mask of the members that leave or crash in this period: one per group, in turn."""
        return np.asarray(self.member == self.number % self.size)

    @property
    def leader(self) -> Numbers:
        """The leader, as an index in its group.

        The last member leads until it departs in period `size` - 1; then the one before it leads, and so on.
        """
        changes = np.maximum(self.number, 0) // (self.size - 1)
        return np.asarray((self.size - 1 - changes) % self.size)

    def incarnation(self, member: Numbers) -> Numbers:
        """Return how often that member has departed in earlier periods."""
        return np.maximum(0, -((member - self.number) // self.size))
