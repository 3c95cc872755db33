"""The schedule of consumer groups: their members, and the members' requests in any interval of time.

In an open loop no member reacts to a response, so the requests follow a schedule that the coordinator always accepts.
Each request is a function of (seed, group, period). Heartbeats and commits of a member are on a grid with a fixed
interval.

- A group starts: its members join without a member id, then with the assigned id, within the 3 s for which the
  coordinator delays the initial rebalance. Because members join, it extends the delay once. The members sync in
  generation 1. After a time that differs by group, its periods start.
- In each period one member departs, one member after the other. It leaves, or it crashes and its session expires. The
  others receive REBALANCE_IN_PROGRESS with their next heartbeat, join and sync. Then the member returns with a new id,
  and the others rebalance again. So period k starts in generation 2k+1 and finishes in 2k+3:

    a   ●  ●  ● (its last)                   new id, joins ┄┄┄┄┄┄┄┄ syncs ●  ●  ●
    b  ●  ●  ●  ●  ● notified, joins ┄┄ syncs  ●  ●  ●  ● notified, joins  syncs ●  ●
    c ●  ●  ●  ●  ●  ● notified, joins ┄ syncs ●  ●  ●  ●  ● notified, joins syncs   ●  ●
             session expires │         generation 2k+2     │                2k+3

- A notified member sends no heartbeats or commits until it has synced.
- The leader remains until it departs. Its successor is the member that returned last.

The schedule assumes Kafka's default `group.initial.rebalance.delay.ms` of 3 s. Times are microseconds since the start
of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from purgatory_udf.simulation.open_loop import Flags, Numbers, Purpose, draw

US_PER_MS = 1000
INITIAL_REBALANCE_US = 2 * 3_000 * US_PER_MS
# The longest time between a response and the member's next request.
MAX_REACTION_US = 20 * US_PER_MS
# The margin of a period beyond its session timeout and heartbeats.
PERIOD_MARGIN_US = 1_000 * US_PER_MS
# All members join for the first time within 2 s; the leader joins at least 30 ms before the others.
FIRST_JOINS_WITHIN_US, LEADER_HEAD_START_US = 2_000 * US_PER_MS, 30 * US_PER_MS
# All members sync within 50 ms after the rebalance completes.
SYNC_WITHIN_US = 50 * US_PER_MS
# The number of (group, period) pairs that are computed together.
PERIODS_PER_CHUNK = 20_000


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


PERIODIC_ACTIONS = (MemberAction.HEARTBEAT, MemberAction.COMMIT)


@dataclass(frozen=True)
class MemberActions:
    """Requests of members, a row for each.

    `incarnation` is the number of times that the member has returned; `index` is the number of a periodic request on
    its grid.
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
    """Return the requests of all parts as one, in the order of the parts; possibly none."""
    parts, none = list(parts), np.zeros(0, dtype=np.int64)
    return MemberActions(
        *(np.concatenate([none, *(getattr(part, field.name) for part in parts)]) for field in fields(MemberActions))
    )


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
    """The members of several groups, a row for each member. Each group is in period `number`; -1: before the first.

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
        """Draw a number in [0, below) for each member, a different one for each purpose and `index`."""
        return draw(below, self.plan.seed, purpose, self.group << 20 | self.member, index)

    def reaction_us(self, purpose: Purpose, index: Numbers | int, within_us: int = MAX_REACTION_US) -> Numbers:
        """Draw the time between a response and the next request, from 1 ms to below `within_us`.

        `index` distinguishes the reactions of a member.
        """
        return US_PER_MS + self.draw(within_us - US_PER_MS, purpose, index)

    def group_max(self, t: Numbers) -> Numbers:
        """Return for each member the maximum of `t` over all members of its group."""
        return np.maximum.reduceat(t, self.first_row)[self.group_index] if len(t) else t

    def grid(self, action: MemberAction) -> tuple[Numbers, int]:
        """Return the start of each member's grid of heartbeats or commits, and its interval, in microseconds."""
        step = self.plan.heartbeat_us if action == MemberAction.HEARTBEAT else self.plan.commit_us
        return self.draw(step, Purpose.HEARTBEATS if action == MemberAction.HEARTBEAT else Purpose.COMMITS), step

    def next_heartbeat(self, t: Numbers) -> Numbers:
        """Return the time, in microseconds, of each member's first heartbeat at or after its time `t`."""
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
        """Return how often `member`, an index in each row's group, has departed in earlier periods."""
        return np.maximum(0, -((member - self.number) // self.size))


def count_actions_before(plan: GroupPlan, end_us: int) -> int:
    """Count the groups' requests before `end_us` without building them."""
    return sum(
        int(np.count_nonzero(actions.t < end_us))
        + sum(int(_grid_counts(grid, spans, 0, end_us).sum()) for grid in PERIODIC_ACTIONS)
        for actions, spans in _group_periods(plan, 0, end_us)
    )


def member_actions_between(plan: GroupPlan, begin_us: int, end_us: int) -> MemberActions:
    """Return all requests of the members from `begin_us` on, before `end_us`, ordered by `MemberAction`."""
    parts = []
    for actions, spans in _group_periods(plan, begin_us, end_us):
        parts.append(actions.between(begin_us, end_us))
        parts += [_periodic_actions(grid, spans, begin_us, end_us) for grid in PERIODIC_ACTIONS]
    return concatenate(parts).sorted_by_action()


@dataclass(frozen=True)
class StableSpans:
    """Spans of time in which a member sends heartbeats and commits, all of them in one generation.

    A span is from `since` on, before `until`; `row` is the row of the member in `members`.
    """

    members: GroupMembers
    row: Numbers
    incarnation: Numbers
    generation: Numbers
    since: Numbers
    until: Numbers


def _group_periods(plan: GroupPlan, begin_us: int, end_us: int) -> Iterator[tuple[MemberActions, StableSpans]]:
    """Yield the requests of the periods that overlap the interval, including some outside it."""
    group = np.arange(plan.groups)
    group = group[plan.start_us(group) < end_us]
    zero = plan.period_start_us(group, 0)
    low = np.maximum((begin_us - zero) // plan.period_us, -1)
    high = np.maximum((end_us - 1 - zero) // plan.period_us, -1)
    starting = low == -1
    if starting.any():
        yield _group_starts(GroupMembers.of(plan, group[starting], low[starting]))
    low = np.maximum(low, 0)
    count = np.maximum(0, high - low + 1)
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)
    group = np.repeat(group, count)
    for at in range(0, len(group), PERIODS_PER_CHUNK):
        some = slice(at, at + PERIODS_PER_CHUNK)
        yield _incidents(GroupMembers.of(plan, group[some], number[some]))


def _group_starts(members: GroupMembers) -> tuple[MemberActions, StableSpans]:
    """Return the requests by which groups start, and the spans of their members up to the first period."""
    plan, is_leader = members.plan, members.member == members.leader
    start = plan.start_us(members.group)
    delay = LEADER_HEAD_START_US + members.draw(FIRST_JOINS_WITHIN_US, Purpose.FIRST_JOINS)
    first_joins = start + np.where(is_leader, 0, delay)
    rejoined = first_joins + members.reaction_us(Purpose.JOINS, -1)
    rebalanced = members.group_max(np.where(is_leader, rejoined // US_PER_MS * US_PER_MS, 0)) + INITIAL_REBALANCE_US
    all_rows = np.arange(len(first_joins))
    incarnation, generation = np.zeros_like(first_joins), np.ones_like(first_joins)
    actions = [
        _actions(members, MemberAction.JOIN_WITHOUT_ID, all_rows, first_joins, incarnation, generation),
        _actions(members, MemberAction.JOIN, all_rows, rejoined, incarnation, generation),
        _actions(
            members,
            MemberAction.SYNC,
            all_rows,
            rebalanced + members.reaction_us(Purpose.SYNCS, -1, SYNC_WITHIN_US),
            incarnation,
            generation,
        ),
    ]
    until = plan.period_start_us(members.group, 0)
    spans = StableSpans(members, all_rows, incarnation, generation, rebalanced + SYNC_WITHIN_US, until)
    return concatenate(actions), spans


def _incidents(members: GroupMembers) -> tuple[MemberActions, StableSpans]:
    """Return the requests of one period of each group apart from heartbeats and commits, and the spans of the latter.

    A member departs within one heartbeat interval of the period's start, and is removed a session timeout later at
    most. After two more heartbeat intervals the others are in the next generation. Then the member returns, which takes
    one heartbeat interval.
    """
    plan, number, departs = members.plan, members.number, members.departs
    start = plan.period_start_us(members.group, number)
    departed, stays = np.flatnonzero(departs), np.flatnonzero(~departs)
    incarnation, generation = members.incarnation(members.member), 2 * number + 1

    last = members.group_max(np.where(departs, members.next_heartbeat(start), 0))
    crashes = draw(1 << 20, plan.seed, Purpose.CRASHES, members.group, number) < plan.crash_share * (1 << 20)
    leaves = members.group_max(np.where(departs, last + members.reaction_us(Purpose.LEAVES, number), 0))
    removed = np.where(crashes, last // US_PER_MS * US_PER_MS + plan.session_us, leaves)
    notified = np.where(departs, last, members.next_heartbeat(removed))
    rejoins = notified + members.reaction_us(Purpose.JOINS, 2 * number)
    rebalanced = members.group_max(np.where(departs, 0, rejoins))
    syncs = rebalanced + members.reaction_us(Purpose.SYNCS, 2 * number, SYNC_WITHIN_US)

    first_joins = start + plan.session_us + 2 * plan.heartbeat_us + PERIOD_MARGIN_US // 2
    returned = members.group_max(np.where(departs, first_joins + members.reaction_us(Purpose.FIRST_JOINS, number), 0))
    notified_again = members.next_heartbeat(returned)
    rejoined = np.where(departs, returned, notified_again + members.reaction_us(Purpose.JOINS, 2 * number + 1))
    rebalanced_again = members.group_max(rejoined)
    resynced = rebalanced_again + members.reaction_us(Purpose.SYNCS, 2 * number + 1, SYNC_WITHIN_US)
    next_incarnation = incarnation + departs

    left = departed[~crashes[departed]]
    all_rows = np.arange(len(start))
    actions = [
        _actions(members, MemberAction.LEAVE, left, leaves[left], incarnation, generation),
        _actions(members, MemberAction.JOIN, stays, rejoins[stays], incarnation, generation + 1),
        _actions(members, MemberAction.SYNC, stays, syncs[stays], incarnation, generation + 1),
        _actions(
            members, MemberAction.JOIN_WITHOUT_ID, departed, first_joins[departed], next_incarnation, generation + 2
        ),
        _actions(members, MemberAction.JOIN, all_rows, rejoined, next_incarnation, generation + 2),
        _actions(members, MemberAction.SYNC, all_rows, resynced, next_incarnation, generation + 2),
    ]
    spans = StableSpans(
        members,
        np.concatenate([all_rows, stays, all_rows]),
        np.concatenate([incarnation, incarnation[stays], next_incarnation]),
        np.concatenate([generation, generation[stays] + 1, generation + 2]),
        np.concatenate([start, rebalanced[stays] + SYNC_WITHIN_US, rebalanced_again + SYNC_WITHIN_US]),
        np.concatenate([notified + 1, notified_again[stays] + 1, start + plan.period_us]),
    )
    return concatenate(actions), spans


def _actions(
    members: GroupMembers, action: MemberAction, row: Numbers, t: Numbers, incarnation: Numbers, generation: Numbers
) -> MemberActions:
    """Return requests for the given rows; `incarnation` and `generation` have a value for each member."""
    leader = members.leader[row]
    leader_incarnation = members.incarnation(members.leader)[row]
    zeros = np.zeros_like(row)
    return MemberActions(
        zeros + action,
        t,
        members.group[row],
        members.member[row],
        incarnation[row],
        generation[row],
        leader,
        leader_incarnation,
        zeros,
    )


def _grid_indexes(action: MemberAction, spans: StableSpans, begin_us: int, end_us: int) -> tuple[Numbers, Numbers]:
    """Return the range of indices on the member's grid that are in each span and in the interval.

    Both are arrays with an entry per span: the first index, and the index after the last.
    """
    begin, step = spans.members.grid(action)
    begin = begin[spans.row]
    low = -((begin - np.maximum(spans.since, begin_us)) // step)
    high = -((begin - np.minimum(spans.until, end_us)) // step)
    return low, np.maximum(low, high)


def _grid_counts(action: MemberAction, spans: StableSpans, begin_us: int, end_us: int) -> Numbers:
    low, high = _grid_indexes(action, spans, begin_us, end_us)
    return high - low


def _periodic_actions(action: MemberAction, spans: StableSpans, begin_us: int, end_us: int) -> MemberActions:
    low, high = _grid_indexes(action, spans, begin_us, end_us)
    span = np.repeat(np.arange(len(low)), high - low)
    index = np.arange(len(span)) - np.repeat(np.cumsum(high - low) - high, high - low)
    begin, step = spans.members.grid(action)
    row, zeros = spans.row[span], np.zeros_like(index)
    return MemberActions(
        zeros + action,
        begin[row] + index * step,
        spans.members.group[row],
        spans.members.member[row],
        spans.incarnation[span],
        spans.generation[span],
        zeros,
        zeros,
        index,
    )
