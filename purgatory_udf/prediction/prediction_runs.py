"""Predictions: the unchanged cluster and its variants, each simulated with several random seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purgatory_udf.backend.process_pool import available_cores, spawned_processes
from purgatory_udf.common.configuration import read_mapping
from purgatory_udf.common.console import Cell, Table, counted
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
from purgatory_udf.prediction.simulation_plan import ClusterPlan, build_plan, consumer_groups, is_copy, require_fitted
from purgatory_udf.prediction.variant_settings import (
    VariantSetting,
    apply_settings,
    make_setting,
    parse_variant_setting,
)
from purgatory_udf.simulation.scenario import Scenario

# Default number of random seeds.
SEEDS = 5
# Below this many simulated reader-seconds, starting processes takes longer than the simulation.
SEQUENTIAL_S = 500


@dataclass(frozen=True)
class SeedResults:
    """The results of one plan, with one entry per seed."""

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
    plans: Mapping[str, ClusterPlan], seeds: int = SEEDS, report_phase: Callable[[str], None] | None = None
) -> dict[str, SeedResults]:
    """Simulate each plan with the seeds 1 to `seeds`, on all available cores.

    A result depends only on plan and seed, not on the process. `report_phase` is called when a plan is complete.
    """
    tasks = [(name, plan, seed) for name, plan in plans.items() for seed in range(1, seeds + 1)]
    workers = min(len(tasks), available_cores())
    results: dict[str, list[tuple[Figures, Effects]]] = {name: [] for name in plans}
    length_s = sum(plan.duration_ms / 1000 * len(plan.readers) for _, plan, _ in tasks)
    if workers == 1 or length_s < SEQUENTIAL_S:
        for name, plan, seed in tasks:
            results[name].append(simulate_once(plan, seed))
    else:
        with spawned_processes(workers) as pool:
            waiting = [(name, pool.submit(simulate_once, plan, seed)) for name, plan, seed in tasks]
            for name, future in waiting:
                results[name].append(future.result())
                if report_phase and len(results[name]) == seeds:
                    report_phase(f"simulated {name} with {counted(seeds, 'seed')}")
    return {
        name: SeedResults([of_seed[0] for of_seed in by_seed], [of_seed[1] for of_seed in by_seed])
        for name, by_seed in results.items()
    }


def simulate_once(plan: ClusterPlan, seed: int) -> tuple[Figures, Effects]:
    """Simulate a plan with one seed, and return the figures of its clients and of the cluster."""
    measurements = simulate(plan, seed)
    seconds = plan.duration_ms / 1000
    return simulated_figures(measurements, seconds), effects(measurements, seconds)


UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Prediction:
    """The results of the unchanged cluster (the first entry) and of each variant."""

    checked: FitCheck
    results: Mapping[str, SeedResults]
    seeds: int

    def as_json(self) -> dict[str, Any]:
        """Return the medians for JSON: `{variant: {client: {API: {figure: median}}}}`."""
        return {name: results.median for name, results in self.results.items()}

    def is_trusted(self, client: str) -> bool:
        """Return whether predictions for the client can be trusted. A copy is trusted if its original is."""
        recorded = self.checked.recorded
        original = client if client in recorded else next((name for name in recorded if is_copy(client, name)), client)
        return self.checked.is_trusted(original)

    @property
    def variants(self) -> list[str]:
        """The names of the variants."""
        return [name for name in self.results if name != UNCHANGED]

    def clients(self, with_ranges: bool = True) -> Table:
        """Return the table of the clients' figures, a row per client, API and variant.

        `with_ranges` adds the range of each figure over the seeds.
        """
        medians = {name: results.median for name, results in self.results.items()}
        ranges = {name: results.range for name, results in self.results.items()}
        rows: list[tuple[Cell, ...]] = []
        for client, api in _scoped_clients(medians):
            for name in self.results:
                figures = medians[name].get(client, {}).get(api)
                if figures is not None:
                    low, high = (each[client][api] for each in ranges[name])
                    cells: list[Cell] = [_short(figures[figure]) for figure in FIGURE_NAMES]
                    if with_ranges:
                        cells = [_cell(figures[figure], low[figure], high[figure]) for figure in FIGURE_NAMES]
                    rows.append((client, api, name, *cells, "" if self.is_trusted(client) else "no"))
        return Table(
            f"Clients: median over {counted(self.seeds, 'seed')}{' (minimum–maximum)' if with_ranges else ''}",
            ("client", "api", "variant", *FIGURE_NAMES, "trusted"),
            rows,
        )

    def effects(self) -> Table:
        """Return the table of effects on the cluster, a row per figure and a column per variant."""
        medians = {name: results.median_effects for name, results in self.results.items()}
        names = list(dict.fromkeys(name for effects in medians.values() for name in effects))
        rows = [(name, *(_short(effects.get(name)) for effects in medians.values())) for name in names]
        return Table("Effects on the cluster", ("figure", *self.results), rows)

    def headlines(self) -> list[str]:
        """Return a sentence for each variant: how the cluster's main figures change."""
        before = self.results[UNCHANGED].median_effects
        return [_headline(name, before, self.results[name].median_effects) for name in self.variants]

    def lines(self) -> list[str]:
        return [
            *self.headlines(),
            "",
            *self.clients().lines(),
            "",
            *self.effects().lines(),
            "",
            *self.checked.verdict(),
        ]


def predict(
    scenario: Scenario,
    variants: Mapping[str, Sequence[VariantSetting]],
    seeds: int,
    report_phase: Callable[[str], None] | None = None,
) -> Prediction:
    """Simulate the unchanged scenario and each variant.

    Args:
        scenario: A fitted scenario.
        variants: The settings of each variant, by name.
        seeds: Number of runs per variant, with the seeds 1 to `seeds`.
        report_phase: Called with a line of text when a variant is complete.

    Raises:
        UserError: A setting of a variant applies to no client or broker.
    """
    plan, groups = build_plan(scenario), consumer_groups(scenario)
    plans = {UNCHANGED: plan}
    for name, settings in variants.items():
        try:
            plans[name] = apply_settings(plan, settings, groups)
        except UserError as error:
            raise UserError(f"--variant {name}: {error}") from None
    results = simulate_all(plans, seeds, report_phase)
    return Prediction(check_fit(require_fitted(scenario), results[UNCHANGED].median), results, seeds)


# Main figures of the cluster, and what they are in a sentence.
_MAIN_FIGURES = {
    "append_to_answer_p50_ms": "records reach consumers after {} ms (median)",
    "produce_latency_p50_ms": "produces take {} ms (median)",
    "expirations_per_s": "{} operations expire per second",
}


def _headline(name: str, before: Effects, after: Effects) -> str:
    """Return a sentence about a variant, given the cluster's figures without and with it."""

    def change(old: float, new: float) -> str:
        percent = f" ({100 * (new - old) / old:+.0f} %)" if old else ""
        return f"{_short(new):,} instead of {_short(old):,}{percent}"

    requests = [
        sum(value for key, value in each.items() if key.endswith(": requests_per_s")) for each in (before, after)
    ]
    parts = [f"brokers answer {change(*requests)} requests per second"]
    parts += [
        text.format(change(before[key], after[key]))
        for key, text in _MAIN_FIGURES.items()
        if key in before and key in after
    ]
    return f"{name}: {', '.join(parts)}"


def _scoped_clients(medians: Mapping[str, Figures]) -> list[tuple[str, str]]:
    return sorted({(client, api) for figures in medians.values() for client, apis in figures.items() for api in apis})


def _cell(median: float, low: float, high: float) -> str:
    shown, least, greatest = map(_short, (median, low, high))
    return f"{shown}" if least == greatest else f"{shown} ({least}–{greatest})"


def _short(value: float | None) -> float | int | None:
    """Return the value rounded for a table: 1234, 12.3 or 1.234; None stays None."""
    if value is None:
        return None
    return round(value) if abs(value) >= 1000 else round(value, 1) if abs(value) >= 10 else round(value, 3)


# The key of a settings file under which the rules are; the first matching rule wins.
RULES = "what_if"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_variants(words: Iterable[str]) -> dict[str, list[VariantSetting]]:
    """Parse the words of `--variant`: for each variant a name, then settings `key=value` or .yaml files.

    Raises:
        UserError: A name is missing or repeated, a variant has no settings, or a setting is invalid.
    """
    variants: dict[str, list[VariantSetting]] = {}
    name: str | None = None
    for word in words:
        is_file = word.endswith((".yaml", ".yml"))
        if "=" not in word and not is_file:
            name = _named(word, variants)
            variants[name] = []
        elif name is None:
            raise UserError(f"--variant {word}: expected a name first (--variant NAME key=value…)")
        else:
            try:
                variants[name] += _in_file(Path(word)) if is_file and "=" not in word else [parse_variant_setting(word)]
            except UserError as error:
                raise UserError(f"--variant {name}: {error}") from None
    if not variants:
        raise UserError("give at least one --variant NAME key=value…")
    for each, settings in variants.items():
        if not settings:
            raise UserError(f"--variant {each}: has no settings; give at least one (--variant NAME key=value…)")
    return variants


def _named(word: str, variants: dict[str, list[VariantSetting]]) -> str:
    if not _NAME.fullmatch(word) or word == UNCHANGED:
        raise UserError(f"--variant {word}: expected a name of letters, digits, . _ -, other than {UNCHANGED}")
    if word in variants:
        raise UserError(f"--variant {word}: duplicate name; choose another")
    return word


def _in_file(path: Path) -> list[VariantSetting]:
    values = read_mapping(path)
    rules = values.pop(RULES, [])
    if not isinstance(rules, list):
        raise UserError(f"{path}: {RULES}: expected a list of rules, got {type(rules).__name__}")
    plain = [make_setting(key, _text(value), {}) for key, value in _flat(values, "")]
    return [
        *plain,
        *(setting for number, rule in enumerate(rules) for setting in _of_rule(f"{path}: {RULES}.{number}", rule)),
    ]


def _of_rule(place: str, rule: Any) -> list[VariantSetting]:
    """Return the settings of a rule. It has a scope and `settings`, as for a what-if of a recorded trace.

    `place` is the file and number of the rule, for error messages.
    """
    if not isinstance(rule, dict) or not isinstance(rule.get("settings"), dict) or len(rule) < 2:
        raise UserError(f"{place}: expected a scope (client_id, topic, group or broker) and a mapping 'settings'")
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
