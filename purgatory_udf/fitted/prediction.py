"""The unchanged cluster and its variants beside each other: medians over seeds, and from the least to the greatest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.check import Checked, check
from purgatory_udf.fitted.copies import is_copy
from purgatory_udf.fitted.figures import NAMES, Figures
from purgatory_udf.fitted.plans import fitted_of, groups_of, plan_of
from purgatory_udf.fitted.seeds import PlayedSeeds, play_all
from purgatory_udf.fitted.settings import Setting, changed
from purgatory_udf.printing import Cell, Table
from purgatory_udf.simulate.scenario import Scenario

UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Prediction:
    """`played` by name, the unchanged cluster first."""

    checked: Checked
    played: Mapping[str, PlayedSeeds]
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
                    cells: list[Cell] = [_short(figures[figure]) for figure in NAMES]
                    if with_ranges:
                        cells = [_cell(figures[figure], low[figure], high[figure]) for figure in NAMES]
                    rows.append((who, api, name, *cells, "" if self.trusts(who) else "no"))
        return Table(
            f"Clients: medians over {self.seeds} seeds{' (least to greatest)' if with_ranges else ''}",
            ("who", "api", "variant", *NAMES, "to be trusted"),
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
    scenario: Scenario, variants: Mapping[str, Sequence[Setting]], seeds: int, say: Callable[[str], None] | None = None
) -> Prediction:
    plan, groups = plan_of(scenario), groups_of(scenario)
    plans = {UNCHANGED: plan}
    for name, settings in variants.items():
        try:
            plans[name] = changed(plan, settings, groups)
        except UserError as error:
            raise UserError(f"--variant {name}: {error}") from None
    played = play_all(plans, seeds, say)
    return Prediction(check(fitted_of(scenario), played[UNCHANGED].median), played, seeds)


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
