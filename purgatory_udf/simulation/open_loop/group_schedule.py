"""What the members of consumer groups do, and when: told for any stretch of time by itself.

Nobody reacts in an open loop, so groups live by a plan that is such that the coordinator has nothing to object to. All
of it follows from (seed, group, number of the period), and a member's heartbeats and commits are on grids of its own:

- A group begins: its members ask for an id and join with it, all within the 3 s that the coordinator waits for more of
  them, twice, as more have come. They sync: generation 1. After a while, another for each group, its periods begin.
- In each period one member goes, each in its turn: it leaves, or it crashes, and is out when its session is over. The
  others are told by the answer to their next heartbeat, join and sync. Then it comes back under a new id, and the
  others are told once more. So period k begins in generation 2k+1 and ends in 2k+3:

    a   ●  ●  ● (its last)                   asks, joins ┄┄┄┄┄┄┄┄┄┄┄ syncs ●  ●  ●
    b  ●  ●  ●  ●  ● told, joins ┄┄┄ syncs  ●  ●  ●  ● told, joins ┄ syncs ●  ●
    c ●  ●  ●  ●  ●  ● told, joins ┄ syncs ●  ●  ●  ●  ● told, joins syncs   ●  ●
              session over │         generation 2k+2     │                 2k+3

- A member that is told does nothing but join and sync until the round is over.
- The leader stays until its own turn to go; then it is the member that came back last.

It holds with an initial rebalance delay of 3 s, as Kafka's is. Times count in microseconds from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from purgatory_udf.simulation.open_loop.group_members import (
    INITIAL_REBALANCE_US,
    PERIOD_MARGIN_US,
    US_PER_MS,
    GroupMembers,
    GroupPlan,
    MemberAction,
    MemberActions,
    concatenate,
)
from purgatory_udf.simulation.open_loop.random_streams import Numbers, Purpose, draw

PERIODIC_ACTIONS = (MemberAction.HEARTBEAT, MemberAction.COMMIT)
# Members ask within this long; whoever leads is the first to join.
FIRST_JOINS_WITHIN_US, LEADER_HEAD_START_US = 2_000 * US_PER_MS, 30 * US_PER_MS
# From the end of a round until all have synced.
SYNC_WITHIN_US = 50 * US_PER_MS
# How many groups' periods are looked at together.
PERIODS_PER_CHUNK = 20_000


def count_actions_before(plan: GroupPlan, end_us: int) -> int:
    """How many requests all groups make before that time, without making them."""
    return sum(
        int(np.count_nonzero(steps.t < end_us))
        + sum(int(_grid_counts(grid, spells, 0, end_us).sum()) for grid in PERIODIC_ACTIONS)
        for steps, spells in _group_periods(plan, 0, end_us)
    )


def member_actions_between(plan: GroupPlan, begin_us: int, end_us: int) -> MemberActions:
    """All that the members do from `begin_us` on, before `end_us`, in the order of `Act`."""
    parts = []
    for steps, spells in _group_periods(plan, begin_us, end_us):
        parts.append(steps.between(begin_us, end_us))
        parts += [_periodic_actions(grid, spells, begin_us, end_us) for grid in PERIODIC_ACTIONS]
    return concatenate(parts).in_order_of_act()


@dataclass(frozen=True)
class StableSpans:
    """When members beat and commit: in a generation, from `since` on, before `until`."""

    crew: GroupMembers
    row: Numbers
    life: Numbers
    generation: Numbers
    since: Numbers
    until: Numbers


def _group_periods(plan: GroupPlan, begin_us: int, end_us: int) -> Iterator[tuple[MemberActions, StableSpans]]:
    """What may happen in that time (and what else happens in the same periods)."""
    group = np.arange(plan.groups)
    group = group[plan.begins(group) < end_us]
    zero = plan.period_begins(group, 0)
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


def _group_starts(crew: GroupMembers) -> tuple[MemberActions, StableSpans]:
    plan, leads = crew.plan, crew.place == crew.leader
    begins = plan.begins(crew.group)
    later = LEADER_HEAD_START_US + crew.draw(FIRST_JOINS_WITHIN_US, Purpose.ASKS)
    asks = begins + np.where(leads, 0, later)
    joins = asks + crew.soon(Purpose.JOINS, -1)
    over = crew.latest(np.where(leads, joins // US_PER_MS * US_PER_MS, 0)) + INITIAL_REBALANCE_US
    everyone, nobody_before, generation = np.arange(len(asks)), np.zeros_like(asks), np.ones_like(asks)
    steps = [
        _actions(crew, MemberAction.ASK, everyone, asks, nobody_before, generation),
        _actions(crew, MemberAction.JOIN, everyone, joins, nobody_before, generation),
        _actions(
            crew,
            MemberAction.SYNC,
            everyone,
            over + crew.soon(Purpose.SYNCS, -1, SYNC_WITHIN_US),
            nobody_before,
            generation,
        ),
    ]
    until = plan.period_begins(crew.group, 0)
    return concatenate(steps), StableSpans(crew, everyone, nobody_before, generation, over + SYNC_WITHIN_US, until)


def _incidents(crew: GroupMembers) -> tuple[MemberActions, StableSpans]:
    """A member goes within one heartbeat of the period's begin, and is out a session later at the latest; two more
    heartbeats later the others are in the next generation. Then it comes back, and that takes one heartbeat."""
    plan, number, goes = crew.plan, crew.number, crew.goes
    begins = plan.period_begins(crew.group, number)
    gone, stays = np.flatnonzero(goes), np.flatnonzero(~goes)
    life, generation = crew.life(crew.place), 2 * number + 1

    last = crew.latest(np.where(goes, crew.next_heartbeat(begins), 0))
    crashes = draw(1 << 20, plan.seed, Purpose.FATES, crew.group, number) < plan.crash_share * (1 << 20)
    leaves = crew.latest(np.where(goes, last + crew.soon(Purpose.LEAVES, number), 0))
    out = np.where(crashes, last // US_PER_MS * US_PER_MS + plan.session_us, leaves)
    noticed = np.where(goes, last, crew.next_heartbeat(out))
    rejoins = noticed + crew.soon(Purpose.JOINS, 2 * number)
    over = crew.latest(np.where(goes, 0, rejoins))
    syncs = over + crew.soon(Purpose.SYNCS, 2 * number, SYNC_WITHIN_US)

    asks = begins + plan.session_us + 2 * plan.heartbeat_us + PERIOD_MARGIN_US // 2
    back = crew.latest(np.where(goes, asks + crew.soon(Purpose.ASKS, number), 0))
    noticed_again = crew.next_heartbeat(back)
    joins = np.where(goes, back, noticed_again + crew.soon(Purpose.JOINS, 2 * number + 1))
    over_again = crew.latest(joins)
    syncs_again = over_again + crew.soon(Purpose.SYNCS, 2 * number + 1, SYNC_WITHIN_US)
    life_again = life + goes

    left = gone[~crashes[gone]]
    everyone = np.arange(len(begins))
    steps = [
        _actions(crew, MemberAction.LEAVE, left, leaves[left], life, generation),
        _actions(crew, MemberAction.JOIN, stays, rejoins[stays], life, generation + 1),
        _actions(crew, MemberAction.SYNC, stays, syncs[stays], life, generation + 1),
        _actions(crew, MemberAction.ASK, gone, asks[gone], life_again, generation + 2),
        _actions(crew, MemberAction.JOIN, everyone, joins, life_again, generation + 2),
        _actions(crew, MemberAction.SYNC, everyone, syncs_again, life_again, generation + 2),
    ]
    spells = StableSpans(
        crew,
        np.concatenate([everyone, stays, everyone]),
        np.concatenate([life, life[stays], life_again]),
        np.concatenate([generation, generation[stays] + 1, generation + 2]),
        np.concatenate([begins, over[stays] + SYNC_WITHIN_US, over_again + SYNC_WITHIN_US]),
        np.concatenate([noticed + 1, noticed_again[stays] + 1, begins + plan.period_us]),
    )
    return concatenate(steps), spells


def _actions(
    crew: GroupMembers, act: MemberAction, row: Numbers, t: Numbers, life: Numbers, generation: Numbers
) -> MemberActions:
    """`row`: whose act it is, each; `life` and `generation` are those of all rows."""
    leader = crew.leader[row]
    leader_life = crew.life(crew.leader)[row]
    nothing = np.zeros_like(row)
    return MemberActions(
        nothing + act, t, crew.group[row], crew.place[row], life[row], generation[row], leader, leader_life, nothing
    )


# Grids.


def _grid_indexes(act: MemberAction, spells: StableSpans, begin_us: int, end_us: int) -> tuple[Numbers, Numbers]:
    """The first place on its grid in each spell, and the first after it, of those in that time."""
    begin, step = spells.crew.grid(act)
    begin = begin[spells.row]
    low = -((begin - np.maximum(spells.since, begin_us)) // step)
    high = -((begin - np.minimum(spells.until, end_us)) // step)
    return low, np.maximum(low, high)


def _grid_counts(act: MemberAction, spells: StableSpans, begin_us: int, end_us: int) -> Numbers:
    low, high = _grid_indexes(act, spells, begin_us, end_us)
    return high - low


def _periodic_actions(act: MemberAction, spells: StableSpans, begin_us: int, end_us: int) -> MemberActions:
    low, high = _grid_indexes(act, spells, begin_us, end_us)
    spell = np.repeat(np.arange(len(low)), high - low)
    index = np.arange(len(spell)) - np.repeat(np.cumsum(high - low) - high, high - low)
    begin, step = spells.crew.grid(act)
    row, nothing = spells.row[spell], np.zeros_like(index)
    return MemberActions(
        nothing + act,
        begin[row] + index * step,
        spells.crew.group[row],
        spells.crew.place[row],
        spells.life[spell],
        spells.generation[spell],
        nothing,
        nothing,
        index,
    )
