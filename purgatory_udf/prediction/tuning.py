"""Searches for settings that reach a goal within a limit, and for the Pareto frontier of both figures.

Settings are tried on a logarithmic grid, each in one short simulation. The grid is refined around the frontier.
Settings on the frontier are then simulated in full length with all seeds. One simulation takes less than a second, so a
grid is affordable, and unlike an optimizer it shows the whole frontier.
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
from purgatory_udf.prediction.prediction_runs import UNCHANGED, SeedResults, simulate_all
from purgatory_udf.prediction.simulation_plan import ClusterPlan, build_plan, consumer_groups, require_fitted
from purgatory_udf.prediction.variant_settings import SETTING_KEYS, apply_settings, parse_variant_setting
from purgatory_udf.simulation.scenario import Scenario

# Values per key in the first grid, by the number of keys, and the number of refinements.
GRID_SIZES = {1: 12, 2: 6, 3: 4}
ROUNDS = 1
# Simulated time of a trial on the grid, in milliseconds.
SEARCH_MS = 15_000.0
# The figures of clients for goals and limits, in addition to the effects of a prediction.
FIGURES = ("per_s", "waited", "expired", "p50_ms", "p95_ms", "p99_ms", "kb")
_GOAL = re.compile(r"(\S.*?)\s+([+-]\d+(?:\.\d+)?)\s*%")
_WITHIN = re.compile(r"(\S.*?)\s*(<=|>=)\s*(\d+(?:\.\d+)?)")
_OVER = re.compile(r"([^=\[]+(?:\[.*\])?)=(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Goal:
    """A figure, and its wanted change in percent. The sign shows which direction is better."""

    figure: str
    percent: float

    @property
    def text(self) -> str:
        return f"{self.figure} {self.percent:+g} %"

    def wanted(self, before: float) -> float:
        """Return the value to reach. `before` is the value in the unchanged cluster."""
        return before * (1 + self.percent / 100)


@dataclass(frozen=True)
class Limit:
    """A bound on a figure: an upper one if `most`, otherwise a lower one."""

    figure: str
    most: bool
    limit: float

    @property
    def text(self) -> str:
        return f"{self.figure} {'<=' if self.most else '>='} {self.limit:g}"

    def allows(self, value: float) -> bool:
        """Return whether the value is within the limit."""
        return value <= self.limit if self.most else value >= self.limit


@dataclass(frozen=True)
class SettingRange:
    """The key of a setting, and the range of its values to search, including `low` and `high`."""

    key: str
    low: int
    high: int

    def grid(self, count: int) -> list[int]:
        """Return values at even logarithmic distances, including both bounds; 0 counts as 1."""
        low, high = np.log(max(1, self.low)), np.log(max(1, self.high))
        values = [round(float(np.exp(at))) for at in np.linspace(low, high, count)]
        return sorted({self.low, self.high, *(min(self.high, max(self.low, value)) for value in values)})


@dataclass(frozen=True)
class Trial:
    """The result of one combination of settings.

    Attributes:
        values: The values of the settings.
        text: The settings as text.
        goal: Value of the figure that the goal is about.
        within: Value of the figure that is limited.
        reached: Whether the goal is reached.
        allowed: Whether the limit is kept.
        is_full_length: Whether it was simulated in full length with all seeds.
        best: Whether no other trial is better in one of the two figures and at least as good in the other.
    """

    values: tuple[int, ...]
    text: str
    goal: float
    within: float
    reached: bool
    allowed: bool
    is_full_length: bool = False
    best: bool = False


@dataclass(frozen=True)
class TuningResult:
    """The result of a search: all trials, and in `unchanged` the goal's and the limited figure without any change."""

    goal: Goal
    within: Limit
    unchanged: tuple[float, float]
    tried: Sequence[Trial]
    seeds: int
    checked: FitCheck

    @property
    def wanted(self) -> float:
        """The value of the goal's figure to reach."""
        return self.goal.wanted(self.unchanged[0])

    @property
    def frontier(self) -> list[Trial]:
        """The trials on the frontier, ordered by the limited figure."""
        return sorted((trial for trial in self.tried if trial.best), key=lambda trial: trial.within)

    @property
    def chosen(self) -> Trial | None:
        """The trial that reaches the goal within the limit and has the best limited figure; None if no trial does."""
        reaching = [trial for trial in self.tried if trial.is_full_length and trial.reached and trial.allowed]
        cheap = min if self.within.most else max
        return cheap(reaching, key=lambda trial: trial.within) if reaching else None

    @property
    def nearest(self) -> Trial | None:
        """The trial of full length within the limit that comes nearest to the goal; None if all exceed the limit."""
        allowed = [trial for trial in self.tried if trial.is_full_length and trial.allowed]
        most = min if self.goal.percent < 0 else max
        return most(allowed, key=lambda trial: trial.goal) if allowed else None

    def table(self) -> Table:
        rows = [
            (
                *(trial.text, round(trial.goal, 3), _percent(trial.goal, self.unchanged[0]), round(trial.within, 3)),
                *("yes" if met else "no" for met in (trial.reached, trial.allowed)),
            )
            for trial in self.frontier
        ]
        columns = ("settings", self.goal.figure, "change", self.within.figure, "reaches the goal", "within the limit")
        return Table("Frontier", columns, rows)

    def lines(self) -> list[str]:
        before = f"Unchanged: {self.goal.figure} {self.unchanged[0]:.4g}, {self.within.figure} {self.unchanged[1]:.4g}"
        chosen = self.chosen
        if chosen is None:
            result = f"No tried setting reaches {self.goal.text} within {self.within.text}"
            nearest = self.nearest
            if nearest is not None:
                result += f"; the nearest within the limit is {self._phrase(nearest)}"
        else:
            result = f"Best: {self._phrase(chosen)}"
        tried = f"{len(self.tried)} settings tried"
        return [before, "", *self.table().lines(), "", result, tried, *self.checked.verdict()]

    def _phrase(self, tried: Trial) -> str:
        change = _percent(tried.goal, self.unchanged[0])
        return f"{tried.text}: {self.goal.figure} {tried.goal:.4g} ({change}), {self.within.figure} {tried.within:.4g}"


def parse_goal(text: str) -> Goal:
    """Parse the option `--goal`, such as `requests_per_s -50%`. Raises UserError if it is invalid."""
    match = _GOAL.fullmatch(text.strip())
    if match is None or float(match[2]) == 0:
        raise UserError(f"--goal {text}: expected a figure and its change, such as 'requests_per_s -50%'")
    return Goal(match[1], float(match[2]))


def parse_limit(text: str) -> Limit:
    """Parse the option `--within`, such as `append_to_answer_p99_ms <= 50`. Raises UserError if it is invalid."""
    match = _WITHIN.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--within {text}: expected a figure and its limit, such as 'append_to_answer_p99_ms <= 50'")
    return Limit(match[1], match[2] == "<=", float(match[3]))


def parse_ranges(words: Sequence[str]) -> list[SettingRange]:
    """Parse the values of `--over`, such as `fetch.min_bytes=1..100000`. Raises UserError if one is invalid."""
    ranges: list[SettingRange] = []
    for word in words:
        match = _OVER.fullmatch(word.strip())
        if match is None or int(match[2]) >= int(match[3]):
            raise UserError(f"--over {word}: expected key=low..high (keys: {', '.join(SETTING_KEYS)})")
        parse_variant_setting(f"{match[1]}={match[2]}")
        if any(known.key == match[1] for known in ranges):
            raise UserError(f"--over {word}: {match[1]} already has a range")
        ranges.append(SettingRange(match[1], int(match[2]), int(match[3])))
    if not 1 <= len(ranges) <= max(GRID_SIZES):
        raise UserError(f"--over: expected one to {max(GRID_SIZES)} settings, got {len(ranges)}")
    return ranges


def tune(
    scenario: Scenario,
    goal: Goal,
    within: Limit,
    over: Sequence[SettingRange],
    seeds: int,
    report_phase: Callable[[str], None] = lambda _: None,
) -> TuningResult:
    """Search the ranges for settings that reach the goal within the limit.

    Args:
        scenario: A fitted scenario.
        goal: The figure to change.
        within: The bound on the other figure.
        over: One to three keys with their ranges.
        seeds: Number of runs per setting on the frontier.
        report_phase: Called with a line of text at the start of each phase.
    """
    plan, groups = build_plan(scenario), consumer_groups(scenario)
    short = replace(plan, duration_ms=min(plan.duration_ms, SEARCH_MS))

    def simulated(
        base: ClusterPlan, points: Sequence[tuple[int, ...]], seeds: int
    ) -> dict[tuple[int, ...], SeedResults]:
        plans = {
            str(at): apply_settings(base, map(parse_variant_setting, _settings_of(over, at)), groups) for at in points
        }
        by_name = simulate_all(plans, seeds)
        return {at: by_name[str(at)] for at in points}

    unchanged = simulate_all({UNCHANGED: plan}, seeds)[UNCHANGED]
    before = (figure_value(goal.figure, unchanged), figure_value(within.figure, unchanged))
    grids = [span.grid(GRID_SIZES[len(over)]) for span in over]
    known: dict[tuple[int, ...], Trial] = {}
    points = list(product(*grids))
    for number in range(ROUNDS + 1):
        report_phase(f"simulating {len(points)} settings for a short time")
        for at, outcome in simulated(short, points, 1).items():
            known[at] = _tried(over, at, outcome, goal, within, before[0])
        known = dict(sorted(known.items()))
        best = [trial.values for trial in _marked(list(known.values()), goal, within) if trial.best]
        if number < ROUNDS:
            grids = [sorted({*grid, *_between(grid)}) for grid in grids]
            points = sorted(_around(best, grids) - set(known))
        if not points:
            break
    # In full length a setting may leave the frontier, and another trial enters it: repeat until all
    # have been simulated in full length.
    while brief := [at for at in best if not known[at].is_full_length]:
        report_phase(f"simulating {len(brief)} settings on the frontier in full length")
        for at, outcome in simulated(plan, brief, seeds).items():
            known[at] = replace(_tried(over, at, outcome, goal, within, before[0]), is_full_length=True)
        best = [trial.values for trial in _marked(list(known.values()), goal, within) if trial.best]
    checked = check_fit(require_fitted(scenario), unchanged.median)
    return TuningResult(goal, within, before, _marked(list(known.values()), goal, within), seeds, checked)


def figure_value(figure: str, results: SeedResults) -> float:
    """Return a figure by name: `requests_per_s` in total, an effect, or a client's figure such as `audit: per_s`.

    Raises:
        UserError: There is no figure of this name.
    """
    effects = results.median_effects
    if figure == "requests_per_s":
        return sum(value for name, value in effects.items() if name.endswith(": requests_per_s"))
    if figure in effects:
        return effects[figure]
    client, _, name = figure.rpartition(": ")
    apis = results.median.get(client)
    if apis is None or name not in FIGURES:
        clients = " or ".join(f"'{each}: FIGURE'" for each in results.median)
        raise UserError(
            f"{figure}: unknown figure; use {', '.join(['requests_per_s', *effects])}, or {clients} with a FIGURE of "
            f"{', '.join(FIGURES)}"
        )
    return next(iter(apis.values()))[name]


def _tried(
    over: Sequence[SettingRange], at: tuple[int, ...], results: SeedResults, goal: Goal, within: Limit, before: float
) -> Trial:
    value, cost = figure_value(goal.figure, results), figure_value(within.figure, results)
    wanted = goal.wanted(before)
    reached = value <= wanted if goal.percent < 0 else value >= wanted
    return Trial(at, " ".join(_settings_of(over, at)), value, cost, reached, within.allows(cost))


def _marked(tried: Sequence[Trial], goal: Goal, within: Limit) -> list[Trial]:
    """Return the trials with `best` set for the first trial of each result that no other trial dominates."""
    up, down = (1 if goal.percent < 0 else -1), (1 if within.most else -1)
    scores = np.array([(up * trial.goal, down * trial.within) for trial in tried])
    marked = []
    for place, (trial, score) in enumerate(zip(tried, scores, strict=True)):
        is_dominated = ((scores <= score).all(axis=1) & (scores < score).any(axis=1)).any()
        # Of equal results only the first counts, which has the smallest settings.
        repeats = (scores[:place] == score).all(axis=1).any()
        marked.append(replace(trial, best=not is_dominated and not repeats))
    return marked


def _between(grid: Sequence[int]) -> list[int]:
    """Return the geometric mean of each pair of neighbours in the grid, rounded to a whole number."""
    return [round(float(np.sqrt(max(1, low) * high))) for low, high in pairwise(grid)]


def _around(best: Sequence[tuple[int, ...]], grids: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    """Return the neighbours of the points `best` on the refined grid, along one key at a time.

    A point has a value for each key; `grids` has the values of each key in ascending order.
    """
    neighbours = set()
    for at in best:
        for key, grid in enumerate(grids):
            place = list(grid).index(at[key])
            for neighbour in (place - 1, place + 1):
                if 0 <= neighbour < len(grid):
                    neighbours.add((*at[:key], grid[neighbour], *at[key + 1 :]))
    return neighbours


def _settings_of(over: Sequence[SettingRange], at: Sequence[int]) -> list[str]:
    return [f"{span.key}={value}" for span, value in zip(over, at, strict=True)]


def _percent(value: float, before: float) -> str:
    return f"{(value / before - 1) * 100:+.1f} %" if before else "–"
