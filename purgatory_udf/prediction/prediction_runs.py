"""The unchanged cluster and its variants beside each other: medians over seeds, and from the least to the greatest."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purgatory_udf.common.configuration import read_mapping
from purgatory_udf.common.console import Cell, Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.fit_check import (
    FIGURE_NAMES,
    Effects,
    Figures,
    FitCheck,
    check_fit,
    effects,
    medians,
    ranges,
    simulated_figures,
)
from purgatory_udf.prediction.model_simulation import simulate
from purgatory_udf.prediction.plan_builder import build_plan, consumer_groups, require_fitted
from purgatory_udf.prediction.simulation_plan import ClusterPlan, is_copy
from purgatory_udf.prediction.variant_settings import (
    VariantSetting,
    apply_settings,
    make_setting,
    parse_variant_setting,
)
from purgatory_udf.simulation.scenario import Scenario

# Many plays at once, each with a seed of its own, on all cores that this process may use.


SEEDS = 5
# So many seconds of a reader's fetches are played before another process would have begun.
SEQUENTIAL_S = 500


@dataclass(frozen=True)
class SeedResults:
    """What one plan came to, under each seed."""

    figures: Sequence[Figures]
    effects: Sequence[Effects]

    @property
    def median(self) -> Figures:
        return medians(self.figures)

    @property
    def range(self) -> tuple[Figures, Figures]:
        return ranges(self.figures)

    @property
    def median_effects(self) -> Effects:
        names = self.effects[0]
        return {
            name: sorted(effect.get(name, 0.0) for effect in self.effects)[len(self.effects) // 2] for name in names
        }


def simulate_all(
    plans: Mapping[str, ClusterPlan], seeds: int = SEEDS, said: Callable[[str], None] | None = None
) -> dict[str, SeedResults]:
    """Each plan under the seeds 1, 2, …: the same plan and seed play the same, in whatever process."""
    tasks = [(name, plan, seed) for name, plan in plans.items() for seed in range(1, seeds + 1)]
    workers = min(len(tasks), _cores())
    played: dict[str, list[tuple[Figures, Effects]]] = {name: [] for name in plans}
    length_s = sum(plan.duration_ms / 1000 * len(plan.readers) for _, plan, _ in tasks)
    if workers == 1 or length_s < SEQUENTIAL_S:
        for name, plan, seed in tasks:
            played[name].append(simulate_once(plan, seed))
    else:
        # A child that is forked from a process with a JVM's threads may hang: it is started afresh.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            waiting = [(name, pool.submit(simulate_once, plan, seed)) for name, plan, seed in tasks]
            for name, future in waiting:
                played[name].append(future.result())
                if said and len(played[name]) == seeds:
                    said(f"played {name}")
    return {
        name: SeedResults([of_seed[0] for of_seed in mine], [of_seed[1] for of_seed in mine])
        for name, mine in played.items()
    }


def simulate_once(plan: ClusterPlan, seed: int) -> tuple[Figures, Effects]:
    diary = simulate(plan, seed)
    seconds = plan.duration_ms / 1000
    return simulated_figures(diary, seconds), effects(diary, seconds)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Prediction:
    """`played` by name, the unchanged cluster first."""

    checked: FitCheck
    played: Mapping[str, SeedResults]
    seeds: int

    def as_json(self) -> str:
        """`{variant: {who: {api: {figure: median over seeds}}}}`"""
        return json.dumps({name: played.median for name, played in self.played.items()}, indent=1)

    def trusts(self, who: str) -> bool:
        """A copy is trusted as what it is a copy of."""
        recorded = self.checked.recorded
        original = who if who in recorded else next((client for client in recorded if is_copy(who, client)), who)
        return self.checked.trusts(original)

    @property
    def variants(self) -> list[str]:
        return [name for name in self.played if name != UNCHANGED]

    def clients(self, with_ranges: bool = True) -> Table:
        medians = {name: played.median for name, played in self.played.items()}
        ranges = {name: played.range for name, played in self.played.items()}
        rows: list[tuple[Cell, ...]] = []
        for who, api in _whom(medians):
            for name in self.played:
                figures = medians[name].get(who, {}).get(api)
                if figures is not None:
                    low, high = (each[who][api] for each in ranges[name])
                    cells: list[Cell] = [_short(figures[figure]) for figure in FIGURE_NAMES]
                    if with_ranges:
                        cells = [_cell(figures[figure], low[figure], high[figure]) for figure in FIGURE_NAMES]
                    rows.append((who, api, name, *cells, "" if self.trusts(who) else "no"))
        return Table(
            f"Clients: medians over {self.seeds} seeds{' (least to greatest)' if with_ranges else ''}",
            ("who", "api", "variant", *FIGURE_NAMES, "to be trusted"),
            rows,
        )

    def effects(self) -> Table:
        """What it does to everybody: a row a figure, a column a variant."""
        medians = {name: played.median_effects for name, played in self.played.items()}
        names = list(dict.fromkeys(name for effects in medians.values() for name in effects))
        rows = [(name, *(_short(effects.get(name)) for effects in medians.values())) for name in names]
        return Table("Effects on the others", ("what", *self.played), rows)

    def lines(self) -> list[str]:
        return [*self.clients().lines(), "", *self.effects().lines(), "", *self.checked.verdict()]


def predict(
    scenario: Scenario,
    variants: Mapping[str, Sequence[VariantSetting]],
    seeds: int,
    say: Callable[[str], None] | None = None,
) -> Prediction:
    plan, groups = build_plan(scenario), consumer_groups(scenario)
    plans = {UNCHANGED: plan}
    for name, settings in variants.items():
        try:
            plans[name] = apply_settings(plan, settings, groups)
        except UserError as error:
            raise UserError(f"--variant {name}: {error}") from None
    played = simulate_all(plans, seeds, say)
    return Prediction(check_fit(require_fitted(scenario), played[UNCHANGED].median), played, seeds)


def _whom(medians: Mapping[str, Figures]) -> list[tuple[str, str]]:
    return sorted({(who, api) for figures in medians.values() for who, apis in figures.items() for api in apis})


def _cell(median: float, low: float, high: float) -> str:
    shown, least, greatest = map(_short, (median, low, high))
    return f"{shown}" if least == greatest else f"{shown} ({least}–{greatest})"


def _short(value: float | None) -> float | int | None:
    """With as many digits as mean something."""
    if value is None:
        return None
    return round(value) if abs(value) >= 1000 else round(value, 1) if abs(value) >= 10 else round(value, 3)


# The variants of a prediction as a command line says them: `big fetch.consumer.min_bytes=20000 … small …`.


# The section of a file of settings that has rules: for each setting the first that matches counts.
RULES = "what_if"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_variants(words: Iterable[str]) -> dict[str, list[VariantSetting]]:
    """A word with `=` is a setting, one that ends in .yaml a file of settings, any other the next variant's name."""
    variants: dict[str, list[VariantSetting]] = {}
    name: str | None = None
    for word in words:
        is_file = word.endswith((".yaml", ".yml"))
        if "=" not in word and not is_file:
            name = _named(word, variants)
            variants[name] = []
        elif name is None:
            raise UserError(f"--variant {word}: a variant's name comes first (--variant NAME key=value…)")
        else:
            try:
                variants[name] += _in_file(Path(word)) if is_file and "=" not in word else [parse_variant_setting(word)]
            except UserError as error:
                raise UserError(f"--variant {name}: {error}") from None
    if not variants:
        raise UserError("give at least one --variant NAME key=value…")
    for each, settings in variants.items():
        if not settings:
            raise UserError(f"--variant {each}: no setting follows (--variant NAME key=value…)")
    return variants


def _named(word: str, variants: dict[str, list[VariantSetting]]) -> str:
    if not _NAME.fullmatch(word) or word == UNCHANGED:
        raise UserError(f"--variant {word}: expected a name of letters, digits, . _ -, other than {UNCHANGED}")
    if word in variants:
        raise UserError(f"--variant {word}: named twice")
    return word


def _in_file(path: Path) -> list[VariantSetting]:
    values = read_mapping(path)
    rules = values.pop(RULES, [])
    if not isinstance(rules, list):
        raise UserError(f"{path}: {RULES}: expected a list of rules, got {type(rules).__name__}")
    plain = [make_setting(key, _text(value), {}) for key, value in _flat(values, "")]
    return [
        *plain,
        *(asked for number, rule in enumerate(rules) for asked in _of_rule(f"{path}: {RULES}.{number}", rule)),
    ]


def _of_rule(place: str, rule: Any) -> list[VariantSetting]:
    """As a what-if over recorded arrivals has them: whose requests, and `settings`."""
    if not isinstance(rule, dict) or not isinstance(rule.get("settings"), dict) or len(rule) < 2:
        raise UserError(f"{place}: expected client_id, topic, group or broker, and settings, a mapping of keys")
    scope = {name: value for name, value in rule.items() if name != "settings"}
    return [make_setting(key, _text(value), scope) for key, value in _flat(rule["settings"], "")]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _flat(values: dict[Any, Any], at: str) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value
