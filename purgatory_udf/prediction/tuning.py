"""The search for settings: what they bring, what they cost, and which nothing beats.

Settings are tried on a grid that is even in the logarithm, each in one short play; around those on the frontier the
grid is made finer; those on the frontier are then played whole, with all seeds. A play takes less than a second, and a
grid tells more than a path of a search does: the whole frontier, not one point of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.fit_check import FitCheck, check_fit
from purgatory_udf.prediction.plan_builder import build_plan, consumer_groups, require_fitted
from purgatory_udf.prediction.prediction_runs import UNCHANGED, SeedResults, simulate_all
from purgatory_udf.prediction.simulation_plan import ClusterPlan
from purgatory_udf.prediction.variant_settings import SETTING_KEYS, apply_settings, parse_variant_setting
from purgatory_udf.simulation.scenario import Scenario

# How many values of a key are tried first, by how many keys there are, and how often the grid is made finer.
GRID_SIZES = {1: 12, 2: 6, 3: 4}
ROUNDS = 1
# The search plays no longer than this; the frontier is then played whole.
SEARCH_MS = 15_000.0
# What a goal or a limit may be about, beside the effects that a prediction lists.
FIGURES = ("per_s", "waited", "expired", "p50_ms", "p95_ms", "p99_ms", "kb")
_GOAL = re.compile(r"(\S.*?)\s+([+-]\d+(?:\.\d+)?)\s*%")
_WITHIN = re.compile(r"(\S.*?)\s*(<=|>=)\s*(\d+(?:\.\d+)?)")
_OVER = re.compile(r"([^=\[]+(?:\[.*\])?)=(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Goal:
    """To change a figure by so many percent of what it is unchanged; the sign says which way is better."""

    figure: str
    percent: float

    @property
    def text(self) -> str:
        return f"{self.figure} {self.percent:+g} %"

    def wanted(self, before: float) -> float:
        return before * (1 + self.percent / 100)


@dataclass(frozen=True)
class Limit:
    figure: str
    most: bool
    limit: float

    @property
    def text(self) -> str:
        return f"{self.figure} {'<=' if self.most else '>='} {self.limit:g}"

    def allows(self, value: float) -> bool:
        return value <= self.limit if self.most else value >= self.limit


@dataclass(frozen=True)
class SettingRange:
    """A key, and from where to where."""

    key: str
    low: int
    high: int

    def grid(self, count: int) -> list[int]:
        """Even in the logarithm; 0 counts as 1 there."""
        low, high = np.log(max(1, self.low)), np.log(max(1, self.high))
        values = [round(float(np.exp(at))) for at in np.linspace(low, high, count)]
        return sorted({self.low, self.high, *(min(self.high, max(self.low, value)) for value in values)})


@dataclass(frozen=True)
class Trial:
    """`whole`: played to the end with every seed, not once and briefly. `best`: one of those, and none of them is
    better in one of both and as good in the other."""

    values: tuple[int, ...]
    text: str
    goal: float
    within: float
    reached: bool
    allowed: bool
    whole: bool = False
    best: bool = False


@dataclass(frozen=True)
class TuningResult:
    goal: Goal
    within: Limit
    unchanged: tuple[float, float]
    tried: Sequence[Trial]
    seeds: int
    checked: FitCheck

    @property
    def wanted(self) -> float:
        return self.goal.wanted(self.unchanged[0])

    @property
    def frontier(self) -> list[Trial]:
        return sorted((trial for trial in self.tried if trial.best), key=lambda trial: trial.within)

    @property
    def chosen(self) -> Trial | None:
        """Of those that reach the goal within the limit, the one that costs least; else none."""
        good = [trial for trial in self.tried if trial.whole and trial.reached and trial.allowed]
        cheap = min if self.within.most else max
        return cheap(good, key=lambda trial: trial.within) if good else None

    @property
    def nearest(self) -> Trial | None:
        """Of those within the limit, the one that brings most."""
        allowed = [trial for trial in self.tried if trial.whole and trial.allowed]
        most = min if self.goal.percent < 0 else max
        return most(allowed, key=lambda trial: trial.goal) if allowed else None

    def table(self) -> Table:
        rows = [
            (
                *(trial.text, round(trial.goal, 3), _percent(trial.goal, self.unchanged[0]), round(trial.within, 3)),
                *("yes" if good else "no" for good in (trial.reached, trial.allowed)),
            )
            for trial in self.frontier
        ]
        columns = ("settings", self.goal.figure, "change", self.within.figure, "reaches the goal", "within the limit")
        return Table("The frontier: what each setting brings, and costs", columns, rows)

    def lines(self) -> list[str]:
        before = f"Unchanged: {self.goal.figure} {self.unchanged[0]:.4g}, {self.within.figure} {self.unchanged[1]:.4g}"
        chosen = self.chosen
        if chosen is None:
            said = f"Nothing that was tried reaches {self.goal.text} within {self.within.text}"
            nearest = self.nearest
            if nearest is not None:
                said += f"; within it, {self._phrase(nearest)} comes nearest"
        else:
            said = f"Best: {self._phrase(chosen)}"
        tried = f"{len(self.tried)} settings were tried"
        return [before, "", *self.table().lines(), "", said, tried, *self.checked.verdict()]

    def _phrase(self, tried: Trial) -> str:
        change = _percent(tried.goal, self.unchanged[0])
        return f"{tried.text}: {self.goal.figure} {tried.goal:.4g} ({change}), {self.within.figure} {tried.within:.4g}"


def parse_goal(text: str) -> Goal:
    match = _GOAL.fullmatch(text.strip())
    if match is None or float(match[2]) == 0:
        raise UserError(f"--goal {text}: expected a figure and a change of it, such as 'requests_per_s -50%'")
    return Goal(match[1], float(match[2]))


def parse_limit(text: str) -> Limit:
    match = _WITHIN.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--within {text}: expected a limit, such as 'append_to_answer_p99_ms <= 50'")
    return Limit(match[1], match[2] == "<=", float(match[3]))


def parse_ranges(words: Sequence[str]) -> list[SettingRange]:
    ranges = []
    for word in words:
        match = _OVER.fullmatch(word.strip())
        if match is None or int(match[2]) >= int(match[3]):
            raise UserError(f"--over {word}: expected key=low..high (keys: {', '.join(SETTING_KEYS)})")
        parse_variant_setting(f"{match[1]}={match[2]}")
        ranges.append(SettingRange(match[1], int(match[2]), int(match[3])))
    if not 1 <= len(ranges) <= max(GRID_SIZES):
        raise UserError(f"--over: expected one to {max(GRID_SIZES)} keys, got {len(ranges)}")
    return ranges


def tune(
    scenario: Scenario,
    goal: Goal,
    within: Limit,
    over: Sequence[SettingRange],
    seeds: int,
    say: Callable[[str], None] = lambda _: None,
) -> TuningResult:
    plan, groups = build_plan(scenario), consumer_groups(scenario)
    short = replace(plan, duration_ms=min(plan.duration_ms, SEARCH_MS))

    def played(of: ClusterPlan, points: Sequence[tuple[int, ...]], seeds: int) -> dict[tuple[int, ...], SeedResults]:
        plans = {str(at): apply_settings(of, map(parse_variant_setting, _words(over, at)), groups) for at in points}
        by_name = simulate_all(plans, seeds)
        return {at: by_name[str(at)] for at in points}

    unchanged = simulate_all({UNCHANGED: plan}, seeds)[UNCHANGED]
    before = (figure_value(goal.figure, unchanged), figure_value(within.figure, unchanged))
    grids = [span.grid(GRID_SIZES[len(over)]) for span in over]
    known: dict[tuple[int, ...], Trial] = {}
    points = list(product(*grids))
    for number in range(ROUNDS + 1):
        say(f"trying {len(points)} settings")
        for at, outcome in played(short, points, 1).items():
            known[at] = _tried(over, at, outcome, goal, within, before[0])
        known = dict(sorted(known.items()))
        best = [trial.values for trial in _marked(list(known.values()), goal, within) if trial.best]
        if number < ROUNDS:
            grids = [sorted({*grid, *_between(grid)}) for grid in grids]
            points = sorted(_around(best, grids) - set(known))
        if not points:
            break
    # Played whole, a setting may fall behind one that was not: then that one is, too.
    while brief := [at for at in best if not known[at].whole]:
        say(f"playing {len(brief)} of the frontier again")
        for at, outcome in played(plan, brief, seeds).items():
            known[at] = replace(_tried(over, at, outcome, goal, within, before[0]), whole=True)
        best = [trial.values for trial in _marked(list(known.values()), goal, within) if trial.best]
    checked = check_fit(require_fitted(scenario), unchanged.median)
    return TuningResult(goal, within, before, _marked(list(known.values()), goal, within), seeds, checked)


def figure_value(figure: str, played: SeedResults) -> float:
    """`requests_per_s` of all, one of the effects, or `who: per_s`, a client's figure (of its fetches, or produces)."""
    effects = played.median_effects
    if figure == "requests_per_s":
        return sum(value for name, value in effects.items() if name.endswith(": requests_per_s"))
    if figure in effects:
        return effects[figure]
    who, _, name = figure.rpartition(": ")
    apis = played.median.get(who)
    if apis is None or name not in FIGURES:
        known = ", ".join([*effects, *(f"{each}: {FIGURES[0]}" for each in played.median)])
        raise UserError(
            f"{figure}: no such figure (there are requests_per_s, {known}; a client has {', '.join(FIGURES)})"
        )
    return next(iter(apis.values()))[name]


def _tried(
    over: Sequence[SettingRange], at: tuple[int, ...], played: SeedResults, goal: Goal, within: Limit, before: float
) -> Trial:
    value, cost = figure_value(goal.figure, played), figure_value(within.figure, played)
    wanted = goal.wanted(before)
    reached = value <= wanted if goal.percent < 0 else value >= wanted
    return Trial(at, " ".join(_words(over, at)), value, cost, reached, within.allows(cost))


def _marked(tried: Sequence[Trial], goal: Goal, within: Limit) -> list[Trial]:
    """With `best` where nothing dominates."""
    up, down = (1 if goal.percent < 0 else -1), (1 if within.most else -1)
    scores = np.array([(up * trial.goal, down * trial.within) for trial in tried])
    marked = []
    for place, (trial, score) in enumerate(zip(tried, scores, strict=True)):
        beaten = ((scores <= score).all(axis=1) & (scores < score).any(axis=1)).any()
        # Of those that come to the same, the first: it asks for least.
        again = (scores[:place] == score).all(axis=1).any()
        marked.append(replace(trial, best=not beaten and not again))
    return marked


def _between(grid: Sequence[int]) -> list[int]:
    """The middles, in the logarithm."""
    return [round(float(np.sqrt(max(1, low) * high))) for low, high in pairwise(grid)]


def _around(best: Sequence[tuple[int, ...]], grids: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    """The neighbours of these points on the finer grid, along one key at a time."""
    neighbours = set()
    for at in best:
        for key, grid in enumerate(grids):
            place = list(grid).index(at[key])
            for near in (place - 1, place + 1):
                if 0 <= near < len(grid):
                    neighbours.add((*at[:key], grid[near], *at[key + 1 :]))
    return neighbours


def _words(over: Sequence[SettingRange], at: Sequence[int]) -> list[str]:
    return [f"{span.key}={value}" for span, value in zip(over, at, strict=True)]


def _percent(value: float, before: float) -> str:
    return f"{(value / before - 1) * 100:+.1f} %" if before else "–"
