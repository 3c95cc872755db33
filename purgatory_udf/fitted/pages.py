"""The pages of a fit, of a prediction and of a search: the report's, with these tables and pictures."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.fitted.check import Checked
from purgatory_udf.fitted.pictures import beside, frontier
from purgatory_udf.fitted.prediction import UNCHANGED, Prediction
from purgatory_udf.fitted.tuning import Tuned
from purgatory_udf.report.page import Section, facts, figure, page, table

RECORDED = "recorded"


def fit_page(checked: Checked, said: list[str]) -> str:
    specs = beside({RECORDED: checked.recorded, "simulated": checked.simulated}, {})
    sections = [
        Section("Rates", "What each client asked for, and got.", figure("rates")),
        Section("Waits", "How long its requests were in the purgatory.", figure("waits")),
        Section("Every figure", _trust(checked), table(checked.table())),
    ]
    cards = facts([(f"{checked.near} of {checked.judged}", "figures reproduced")])
    return page("A scenario fitted to a recording", " ".join(said[:2]), cards, sections, specs)


def prediction_page(found: Prediction) -> str:
    of = {RECORDED: found.checked.recorded, **{name: played.median for name, played in found.played.items()}}
    specs = beside(of, {name: played.range for name, played in found.played.items()})
    sections = [
        Section("Rates", "Recorded, simulated without a change, predicted; whiskers over seeds.", figure("rates")),
        Section("Waits", "How long requests are in the purgatory.", figure("waits")),
        Section("Every figure", _trust(found.checked), table(found.clients())),
        Section(
            "Effects on the others", "Brokers' load, records' way to consumers, purgatories.", table(found.effects())
        ),
        Section(
            "Is the model right?",
            "What was recorded, and what the unchanged scenario does.",
            table(found.checked.table()),
        ),
    ]
    cards = facts(
        [
            (str(len(found.variants)), "variants"),
            (str(found.seeds), "seeds each"),
            (f"{found.checked.near} of {found.checked.judged}", f"recorded figures that {UNCHANGED} reproduces"),
        ]
    )
    return page("What would happen if", f"Variants: {', '.join(found.variants)}.", cards, sections, specs)


def tuning_page(found: Tuned) -> str:
    chosen = found.chosen
    sections = [
        Section(
            "The frontier",
            "Every setting that was tried; pale ones are beyond the limit. Nothing beats those that are joined.",
            figure("frontier"),
        ),
        Section("What each costs", "", table(found.table())),
    ]
    cards = facts(
        [
            (str(len(found.tried)), "settings tried"),
            (chosen.text if chosen else "none", "reaches the goal at the least cost"),
        ]
    )
    said = f"{found.goal.text} within {found.within.text}."
    return page(
        "Settings, searched", said, cards, sections, frontier(found.tried, found.goal.figure, found.within.figure)
    )


def write_page(text: str, file: Path | None) -> list[str]:
    """The line that says where it is."""
    if file is None:
        return []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return [f"Page: {file}"]


def _trust(checked: Checked) -> str:
    reasons = checked.reasons()
    return f"Not to be trusted: {'; '.join(reasons)}." if reasons else "The unchanged scenario does what was recorded."
