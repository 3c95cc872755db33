"""The pages of a fit, of a prediction and of a search: the report's, with these tables and pictures."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from purgatory_udf.fitted.check import Checked
from purgatory_udf.fitted.pictures import MOST_DRAWN, beside, frontier, others
from purgatory_udf.fitted.prediction import UNCHANGED, Prediction
from purgatory_udf.fitted.tuning import Tuned
from purgatory_udf.printing import Cell, Table
from purgatory_udf.report.page import Section, facts, figure, page, table
from purgatory_udf.whole_file import write_whole

RECORDED = "recorded"
# How a line of a fit begins that says what no log tells.
UNKNOWN = "unknown: "


def fit_page(checked: Checked, said: list[str]) -> str:
    """`said`: what was found, then what is unknown."""
    specs = beside({RECORDED: checked.recorded, "simulated": checked.simulated}, {})
    unknown = [line.removeprefix(UNKNOWN) for line in said if line.startswith(UNKNOWN)]
    findings = [line for line in said if not line.startswith(UNKNOWN)]
    sections = [
        *_clients(specs, "What each client asked for, and got."),
        Section("Every figure", _trust(checked), table(checked.table())),
    ]
    if unknown:
        rows: list[tuple[Cell, ...]] = [(line,) for line in unknown]
        advice = "And what was taken instead; the scenario can be edited."
        sections.append(Section("What the log does not tell", advice, table(Table("", ("unknown",), rows))))
    cards = facts([(f"{checked.near} of {checked.judged}", "figures reproduced")])
    return page("A scenario fitted to a recording", f"{'; '.join(findings)}.", cards, sections, specs)


def prediction_page(prediction: Prediction) -> str:
    of = {RECORDED: prediction.checked.recorded, **{name: played.median for name, played in prediction.played.items()}}
    specs = beside(of, {name: played.range for name, played in prediction.played.items()})
    specs |= others({name: played.median_effects for name, played in prediction.played.items()})
    sections = [
        *_clients(specs, "Recorded, simulated without a change, predicted; whiskers over seeds."),
        Section("Every figure", _trust(prediction.checked), table(prediction.clients(with_ranges=False))),
        Section(
            "Effects on the others",
            "Brokers' load, records' way to consumers, purgatories.",
            "".join(figure(name) for name in specs if name == "effects") + table(prediction.effects()),
        ),
        Section(
            "Is the model right?",
            "What was recorded, and what the unchanged scenario does.",
            table(prediction.checked.table()),
        ),
        Section("Over seeds", "Medians, and from the least to the greatest.", table(prediction.clients())),
    ]
    variants = len(prediction.variants)
    cards = facts(
        [
            (str(variants), "variant" if variants == 1 else "variants"),
            (str(prediction.seeds), "seed" if prediction.seeds == 1 else "seeds each"),
            (
                f"{prediction.checked.near} of {prediction.checked.judged}",
                f"recorded figures that {UNCHANGED} reproduces",
            ),
        ]
    )
    return page("What would happen if", f"Variants: {', '.join(prediction.variants)}.", cards, sections, specs)


def tuning_page(tuned: Tuned) -> str:
    chosen = tuned.chosen
    sections = [
        Section(
            "The frontier",
            "Every setting that was tried; dashed are the goal and the limit, pale is what is beyond either. "
            "Nothing beats those that are joined.",
            figure("frontier"),
        ),
        Section("What each costs", "", table(tuned.table())),
        Section(
            "Is the model right?",
            "What was recorded, and what the unchanged scenario does.",
            table(tuned.checked.table()),
        ),
    ]
    cards = facts(
        [
            (str(len(tuned.tried)), "settings tried"),
            (chosen.text if chosen else "none", "reaches the goal at the least cost"),
        ]
    )
    said = f"{tuned.goal.text} within {tuned.within.text}. {_trust(tuned.checked)}"
    return page("Settings, searched", said, cards, sections, frontier(tuned))


def _clients(specs: Collection[str], said: str) -> list[Section]:
    """The pictures of clients that there are."""
    drawn = {
        "rates": ("Rates", f"{said} At most {MOST_DRAWN} are drawn, the busiest; all are below."),
        "waits": ("Waits of fetches", "How long they are in the purgatory."),
        "produces": ("Waits of produces", "How long they are in the purgatory."),
    }
    return [Section(title, text, figure(name)) for name, (title, text) in drawn.items() if name in specs]


def write_page(text: str, file: Path | None) -> list[str]:
    """The line that says where it is."""
    if file is None:
        return []
    write_whole(file, text)
    return [f"Page: {file}"]


def _trust(checked: Checked) -> str:
    reasons = checked.reasons()
    return f"Not to be trusted: {'; '.join(reasons)}." if reasons else "The unchanged scenario does what was recorded."
