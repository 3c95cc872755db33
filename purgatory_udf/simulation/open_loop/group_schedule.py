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
    INITIAL_ROUND_US,
    MS,
    SPARE_US,
    Act,
    Acts,
    Crew,
    CrewPlan,
    together,
)
from purgatory_udf.simulation.open_loop.random_streams import Numbers, Purpose, draw

GRIDS = (Act.HEARTBEAT, Act.COMMIT)
# Members ask within this long; whoever leads is the first to join.
ASK_WITHIN_US, FIRST_ALONE_US = 2_000 * MS, 30 * MS
# From the end of a round until all have synced.
SYNCED_US = 50 * MS
# How many groups' periods are looked at together.
PAIRS_AT_ONCE = 20_000


def count_before(plan: CrewPlan, end_us: int) -> int:
    """How many requests all groups make before that time, without making them."""
    return sum(
        int(np.count_nonzero(steps.t < end_us))
        + sum(int(_grid_counts(grid, spells, 0, end_us).sum()) for grid in GRIDS)
        for steps, spells in _lives(plan, 0, end_us)
    )


def acts_between(plan: CrewPlan, begin_us: int, end_us: int) -> Acts:
    """All that the members do from `begin_us` on, before `end_us`, in the order of `Act`."""
    parts = []
    for steps, spells in _lives(plan, begin_us, end_us):
        parts.append(steps.between(begin_us, end_us))
        parts += [_on_grid(grid, spells, begin_us, end_us) for grid in GRIDS]
    return together(parts).in_order_of_act()


@dataclass(frozen=True)
class Spells:
    """When members beat and commit: in a generation, from `since` on, before `until`."""

    crew: Crew
    row: Numbers
    life: Numbers
    generation: Numbers
    since: Numbers
    until: Numbers


def _lives(plan: CrewPlan, begin_us: int, end_us: int) -> Iterator[tuple[Acts, Spells]]:
    """What may happen in that time (and what else happens in the same periods)."""
    group = np.arange(plan.groups)
    group = group[plan.begins(group) < end_us]
    zero = plan.period_begins(group, 0)
    low = np.maximum((begin_us - zero) // plan.period_us, -1)
    high = np.maximum((end_us - 1 - zero) // plan.period_us, -1)
    starting = low == -1
    if starting.any():
        yield _beginnings(Crew.of(plan, group[starting], low[starting]))
    low = np.maximum(low, 0)
    count = np.maximum(0, high - low + 1)
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)
    group = np.repeat(group, count)
    for at in range(0, len(group), PAIRS_AT_ONCE):
        some = slice(at, at + PAIRS_AT_ONCE)
        yield _incidents(Crew.of(plan, group[some], number[some]))


def _beginnings(crew: Crew) -> tuple[Acts, Spells]:
    plan, leads = crew.plan, crew.place == crew.leader
    begins = plan.begins(crew.group)
    later = FIRST_ALONE_US + crew.draw(ASK_WITHIN_US, Purpose.ASKS)
    asks = begins + np.where(leads, 0, later)
    joins = asks + crew.soon(Purpose.JOINS, -1)
    over = crew.latest(np.where(leads, joins // MS * MS, 0)) + INITIAL_ROUND_US
    everyone, nobody_before, generation = np.arange(len(asks)), np.zeros_like(asks), np.ones_like(asks)
    steps = [
        _acts(crew, Act.ASK, everyone, asks, nobody_before, generation),
        _acts(crew, Act.JOIN, everyone, joins, nobody_before, generation),
        _acts(crew, Act.SYNC, everyone, over + crew.soon(Purpose.SYNCS, -1, SYNCED_US), nobody_before, generation),
    ]
    until = plan.period_begins(crew.group, 0)
    return together(steps), Spells(crew, everyone, nobody_before, generation, over + SYNCED_US, until)


def _incidents(crew: Crew) -> tuple[Acts, Spells]:
    """A member goes within one heartbeat of the period's begin, and is out a session later at the latest; two more
    heartbeats later the others are in the next generation. Then it comes back, and that takes one heartbeat."""
    plan, number, goes = crew.plan, crew.number, crew.goes
    begins = plan.period_begins(crew.group, number)
    gone, stays = np.flatnonzero(goes), np.flatnonzero(~goes)
    life, generation = crew.life(crew.place), 2 * number + 1

    last = crew.latest(np.where(goes, crew.next_heartbeat(begins), 0))
    crashes = draw(1 << 20, plan.seed, Purpose.FATES, crew.group, number) < plan.crash_share * (1 << 20)
    leaves = crew.latest(np.where(goes, last + crew.soon(Purpose.LEAVES, number), 0))
    out = np.where(crashes, last // MS * MS + plan.session_us, leaves)
    noticed = np.where(goes, last, crew.next_heartbeat(out))
    rejoins = noticed + crew.soon(Purpose.JOINS, 2 * number)
    over = crew.latest(np.where(goes, 0, rejoins))
    syncs = over + crew.soon(Purpose.SYNCS, 2 * number, SYNCED_US)

    asks = begins + plan.session_us + 2 * plan.heartbeat_us + SPARE_US // 2
    back = crew.latest(np.where(goes, asks + crew.soon(Purpose.ASKS, number), 0))
    noticed_again = crew.next_heartbeat(back)
    joins = np.where(goes, back, noticed_again + crew.soon(Purpose.JOINS, 2 * number + 1))
    over_again = crew.latest(joins)
    syncs_again = over_again + crew.soon(Purpose.SYNCS, 2 * number + 1, SYNCED_US)
    life_again = life + goes

    left = gone[~crashes[gone]]
    everyone = np.arange(len(begins))
    steps = [
        _acts(crew, Act.LEAVE, left, leaves[left], life, generation),
        _acts(crew, Act.JOIN, stays, rejoins[stays], life, generation + 1),
        _acts(crew, Act.SYNC, stays, syncs[stays], life, generation + 1),
        _acts(crew, Act.ASK, gone, asks[gone], life_again, generation + 2),
        _acts(crew, Act.JOIN, everyone, joins, life_again, generation + 2),
        _acts(crew, Act.SYNC, everyone, syncs_again, life_again, generation + 2),
    ]
    spells = Spells(
        crew,
        np.concatenate([everyone, stays, everyone]),
        np.concatenate([life, life[stays], life_again]),
        np.concatenate([generation, generation[stays] + 1, generation + 2]),
        np.concatenate([begins, over[stays] + SYNCED_US, over_again + SYNCED_US]),
        np.concatenate([noticed + 1, noticed_again[stays] + 1, begins + plan.period_us]),
    )
    return together(steps), spells


def _acts(crew: Crew, act: Act, row: Numbers, t: Numbers, life: Numbers, generation: Numbers) -> Acts:
    """`row`: whose act it is, each; `life` and `generation` are those of all rows."""
    leader = crew.leader[row]
    leader_life = crew.life(crew.leader)[row]
    nothing = np.zeros_like(row)
    return Acts(
        nothing + act, t, crew.group[row], crew.place[row], life[row], generation[row], leader, leader_life, nothing
    )


# Grids.


def _grid_ends(act: Act, spells: Spells, begin_us: int, end_us: int) -> tuple[Numbers, Numbers]:
    """The first place on its grid in each spell, and the first after it, of those in that time."""
    begin, step = spells.crew.grid(act)
    begin = begin[spells.row]
    low = -((begin - np.maximum(spells.since, begin_us)) // step)
    high = -((begin - np.minimum(spells.until, end_us)) // step)
    return low, np.maximum(low, high)


def _grid_counts(act: Act, spells: Spells, begin_us: int, end_us: int) -> Numbers:
    low, high = _grid_ends(act, spells, begin_us, end_us)
    return high - low


def _on_grid(act: Act, spells: Spells, begin_us: int, end_us: int) -> Acts:
    low, high = _grid_ends(act, spells, begin_us, end_us)
    spell = np.repeat(np.arange(len(low)), high - low)
    index = np.arange(len(spell)) - np.repeat(np.cumsum(high - low) - high, high - low)
    begin, step = spells.crew.grid(act)
    row, nothing = spells.row[spell], np.zeros_like(index)
    return Acts(
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
