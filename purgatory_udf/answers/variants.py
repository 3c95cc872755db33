"""The variants of a what-if, and their effects: tables by variant and kind, purgatory sizes, and charts.

On the command line: `--variant half produce.timeout_ms=x0.5 fetch.max_wait_ms=x0.5 --variant …`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from purgatory_udf.answers import charts
from purgatory_udf.answers.charts import round_bin_ms
from purgatory_udf.answers.run_tables import RunTables, sql_file
from purgatory_udf.backend.backend import backend_of
from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import has_scope
from purgatory_udf.contract.tables import COMMENTED_WHAT_IF
from purgatory_udf.rules.purgatory.clock import STEP_MS

if TYPE_CHECKING:
    import pandas as pd

    from purgatory_udf.backend.backend import Session

BASELINE = "baseline"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


# Prefix of the keys of a variant that describe simulated brokers (`what-if --closed-loop`).
_BROKERS = "brokers."


@dataclass(frozen=True)
class Variant:
    """A configuration to replay the trace under, and its name.

    `brokers` has the changed keys of the scenario's brokers, as text; only simulations use them.
    """

    name: str
    config: Config
    brokers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _VariantArguments:
    name: str
    settings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def variants(arguments: Iterable[str], config: Path | None, settings: list[str]) -> list[Variant]:
    """Return the baseline and the variants; the settings of a variant override those of the baseline.

    A word with `=` is a setting, a word with the suffix .yaml or .yml is a file of settings, and any other word is the
    name of the next variant. Settings `brokers.KEY=VALUE` change the scenario of a simulation.

    Raises:
        UserError: A name is missing or repeated, or a setting is invalid.
    """
    named: list[_VariantArguments] = []
    for argument in arguments:
        if "=" not in argument and not argument.endswith((".yaml", ".yml")):
            named.append(_VariantArguments(argument))
        elif not named:
            raise UserError(f"--variant {argument}: a variant's name comes first (--variant NAME key=value…)")
        elif "=" in argument:
            named[-1].settings.append(argument)
        else:
            named[-1].files.append(argument)
    for each in named:
        _check(each, named)
    baseline = Variant(BASELINE, load_config(config, settings))
    return [baseline, *(_variant(each, config, settings) for each in named)]


def _check(arguments: _VariantArguments, named: list[_VariantArguments]) -> None:
    if not _NAME.fullmatch(arguments.name) or arguments.name == BASELINE:
        raise UserError(f"--variant {arguments.name}: expected a name of letters, digits, . _ -, other than {BASELINE}")
    if sum(other.name == arguments.name for other in named) > 1:
        raise UserError(f"--variant {arguments.name}: duplicate name; choose another")
    if not arguments.settings and not arguments.files:
        raise UserError(f"--variant {arguments.name}: has no settings; give at least one (--variant NAME key=value…)")
    if len(arguments.files) > 1 or (arguments.files and arguments.settings):
        raise UserError(f"--variant {arguments.name}: give either one YAML file of settings, or settings as key=value")


def _variant(arguments: _VariantArguments, config: Path | None, settings: list[str]) -> Variant:
    try:
        if arguments.files:
            load_config(arguments.files[0])
            return Variant(arguments.name, _over(config, settings, Path(arguments.files[0])))
        # The first matching rule applies, so rules of the variant come before those of the baseline.
        rules = [setting for setting in arguments.settings if has_scope(setting)]
        plain = [setting for setting in arguments.settings if not has_scope(setting)]
        of_brokers = [setting for setting in plain if setting.startswith(_BROKERS)]
        changed = dict(setting.removeprefix(_BROKERS).split("=", 1) for setting in of_brokers)
        kept = [setting for setting in plain if setting not in of_brokers]
        return Variant(arguments.name, load_config(config, [*rules, *settings, *kept]), changed)
    except UserError as error:
        raise UserError(f"--variant {arguments.name}: {error}") from None


def _over(config: Path | None, settings: list[str], file: Path) -> Config:
    """Return the baseline's settings, overridden by those of a file.

    What-if rules of the file take precedence over the baseline's.
    """
    given = load_config(file).model_dump(mode="json", exclude_unset=True)
    rules = given.pop("what_if", [])
    flat = [f"{key}={value}" for key, value in _flat(given)]
    over = load_config(config, [*settings, *flat])
    if not rules:
        return over
    both = [*rules, *over.model_dump(mode="json", exclude_unset=True)["what_if"]] if over.what_if else rules
    return load_config(
        config, [*(setting for setting in settings if not has_scope(setting)), *flat, f"what_if={json.dumps(both)}"]
    )


def _flat(values: dict[str, object], at: str = "") -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", "" if value is None else value


Row = dict[str, Any]

# Certainty of an outcome, by the column names of `what_if/certainty`.
CERTAINTY = {
    "sure": "certain",
    "after_client": "after a changed response to its client",
    "after_follower": "after a changed response to a follower",
}


class VariantChanges:
    """The view `changes`: each operation of the baseline with the same operation of a variant.

    Args:
        session: Spark session or backend.
        baseline: Folder of the replay of the baseline.
        variant: Folder of the replay of the variant.
        reacting: Whether each replay has a separate trace, because simulated clients react. Then operations are
            matched by client, request and number; otherwise by id.
    """

    def __init__(self, session: Session, baseline: str, variant: str, *, reacting: bool) -> None:
        self._database = backend_of(session).database()
        self._baseline, other = (
            RunTables(session, folder, database=self._database, prefix=f"{side}_")
            for side, folder in (("baseline", baseline), ("variant", variant))
        )
        for tables in (self._baseline, other):
            tables.add_view("operations", f"what_if/operations_by_{'client' if reacting else 'id'}")
        self._database.add_view("changes", sql_file("what_if/changes").text)

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a query of `sql/what_if`."""
        rows: list[Row] = self._database.query(sql_file(f"what_if/{name}").text).to_pylist()
        return rows

    def certainty(self) -> list[Row]:
        """Return the number of operations by kind and by how certain their outcome under the variant is."""
        self._baseline.add("events")
        return self.rows("certainty")

    def save(self, path: str, variant: str, *, append: bool) -> None:
        """Write the operations that differ to the table `what_if`.

        Args:
            path: Folder of the table.
            variant: Name of the variant.
            append: Whether to append to the table instead of replacing it.
        """
        constants = {"run_id": self._baseline.run.run_id, "variant": variant}
        query = sql_file("what_if/differing").text
        self._database.save(query, path, COMMENTED_WHAT_IF, constants=constants, append=append)


def outcomes_table(variant: str, rows: list[Row]) -> Table:
    """Return the outcomes of the baseline and of a variant by kind; empty if no operation differs."""
    differ, operations = (sum(row[name] for row in rows) for name in ("differ", "operations"))
    title = (
        f"{variant}: {differ:,} of {operations:,} operations have another outcome"
        if differ
        else f"{variant}: no difference in any of {operations:,} operations"
    )
    columns = ("kind", "operations", "differ", "expired", "would expire", "appear", "vanish", "other end", "one only")
    waits = ("p50 ms", "would be ms", "p99 ms", "would be ms", "wait in all, s")
    counts = (
        "operations",
        "differ",
        "baseline_expired",
        "variant_expired",
        "appear",
        "vanish",
        "other_end",
        "one_only",
    )
    quantiles = ("baseline_p50", "variant_p50", "baseline_p99", "variant_p99")
    cells = [
        (
            row["kind"],
            *(row[name] for name in counts),
            *(_rounded(row[name]) for name in quantiles),
            f"{(row['shift_ms'] or 0) / 1000:+,.1f}",
        )
        for row in rows
    ]
    return Table(title, (*columns, *waits), cells if differ else [])


def headline(variant: str, rows: list[Row]) -> str:
    """Return a sentence about a variant: the number of different outcomes, and the change in expirations and waits."""
    differ, operations = (sum(row[name] for row in rows) for name in ("differ", "operations"))
    if not differ:
        return f"{variant}: nothing changes."
    before, after = (sum(row[f"{side}_expired"] for row in rows) for side in ("baseline", "variant"))
    expire = (
        f"{after:,} instead of {before:,} operations expire"
        if after != before
        else f"{after:,} operations expire as before"
    )
    shift_s = sum(row["shift_ms"] or 0 for row in rows) / 1000
    waits = f"{abs(shift_s):,.1f} s {'less' if shift_s < 0 else 'more'} waiting in all"
    return f"{variant}: {expire}, {waits}; {differ:,} of {operations:,} operations change."


def certainty_table(variant: str, rows: list[Row]) -> Table:
    """Return a table that counts operations by kind and by how certain their outcome under the variant is.

    Each kind has a row for all operations, and one for those that end differently than in the baseline. `rows` are the
    result of `VariantChanges.certainty`.
    """
    cells = [
        (row["kind"], which, *(row[f"{scope}_{reason}"] for reason in CERTAINTY))
        for row in rows
        for scope, which in (("all", "all"), ("differing", "different"))
    ]
    title = f"{variant}: certainty of outcomes, with arrivals as recorded"
    return Table(title, ("kind", "outcomes", *CERTAINTY.values()), cells)


def purgatories_table(runs: Mapping[str, RunTables]) -> Table:
    """Return the maximum of each gauge in every run."""
    rows = [
        (row["purgatory"], row["broker"], name, row["size"], row["delayed"], row["purged"])
        for name, tables in runs.items()
        for row in tables.rows("what_if/purgatories")
    ]
    columns = ("purgatory", "broker", "variant", "PurgatorySize, most", "NumDelayedOperations, most", "purged")
    return Table("Purgatories", columns, sorted(rows, key=lambda row: (*row[:2], row[2] != BASELINE, row[2])))


def deliveries_table(runs: Mapping[str, RunTables]) -> Table:
    """Return the records delivered to each share group in every run, by how their deliveries ended."""
    ends = ("accepted", "released", "rejected", "lock_expired", "session_ended", "archived")
    counts: dict[tuple[str, str], Counter[str]] = {}
    for name, tables in runs.items():
        for row in tables.rows("metrics_tables/deliveries"):
            count = counts.setdefault((row["group"], name), Counter())
            count.update({end: row[end] for end in ("records", *ends)})
            count["again"] += row["records"] if row["delivery_count"] > 1 else 0
    rows: list[tuple[str | int, ...]] = [
        (group, name, *(counts[group, name][each] for each in ("records", "again", *ends)))
        for group, name in sorted(counts, key=lambda place: (place[0], place[1] != BASELINE, place[1]))
    ]
    columns = ("group", "variant", "records", "delivered again", *(end.replace("_", " ") for end in ends))
    return Table("Records delivered to share groups", columns, rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def what_if_charts(runs: Mapping[str, RunTables]) -> dict[str, charts.Spec]:
    """Return the specification of each chart that has data: expirations over time, waits, purgatory sizes."""
    (span,) = next(iter(runs.values())).rows("what_if/span")
    span_ms = 0 if span["first_ms"] is None else span["last_ms"] - span["first_ms"]
    bin_ms = round_bin_ms(span_ms + STEP_MS, STEP_MS)
    expired = _of_all(runs, "expired", bin_ms).sort_values(["kind", "variant", "t"], kind="stable")
    waits = _of_all(runs, "waits", bin_ms).sort_values(["kind", "low"], kind="stable")
    sizes = _of_all(runs, "sizes", bin_ms).sort_values(["purgatory", "variant", "t"], kind="stable")
    colours = dict(zip(runs, (charts.GREY, *charts.CAUSE_COLOURS), strict=False))
    with alt.data_transformers.disable_max_rows():
        drawn = {
            "expired": (expired, _over_time(expired, "expired", "kind", bin_ms, colours)),
            "waits": (waits, _ranges(waits, colours)),
            "sizes": (sizes, _over_time(sizes, "size", "purgatory", bin_ms, colours, joined=True)),
        }
        return {name: chart.to_dict() for name, (frame, chart) in drawn.items() if len(frame)}


def _of_all(runs: Mapping[str, RunTables], name: str, bin_ms: int) -> pd.DataFrame:
    """Run the query `what_if/NAME` on every run, and return all rows with the run's name in the column `variant`.

    `bin_ms` is the width of a bin of the time axis, in milliseconds.
    """
    import pandas as pd

    frames = [tables.query(f"what_if/{name}", bin_ms=bin_ms).to_pandas() for tables in runs.values()]
    return pd.concat([frame.assign(variant=run) for run, frame in zip(runs, frames, strict=True)], ignore_index=True)


def _over_time(
    frame: pd.DataFrame, what: str, row: str, bin_ms: int, colours: dict[str, str], joined: bool = False
) -> alt.Chart:
    """Return a chart of numbers over time: counts as points, or, if `joined`, levels as stepped lines.

    Args:
        frame: The numbers, with the columns `t`, `variant`, `what` and `row`.
        what: The column with the numbers.
        row: The column by which the chart is divided into rows.
        bin_ms: Width of a bin in milliseconds.
        colours: The colour of each variant.
        joined: Whether the numbers are levels, which hold until the next reading.
    """
    placed, x = charts.time_axis(frame, bin_ms)
    chart = alt.Chart(placed, width=charts.WIDTH, height=90).encode(
        x=x,
        y=charts.count_axis(what),
        color=charts.colours_of("variant", colours),
        tooltip=["time:N", f"{row}:N", "variant:N", f"{what}:Q"],
        row=charts.rows_of(row, frame),
    )
    if joined:
        marked = chart.mark_line(interpolate="step-after", strokeWidth=1.5)
    else:  # Concentric rings: variants with equal counts stay visible.
        widths = [30 + 60 * (len(colours) - 1 - place) for place in range(len(colours))]
        size = alt.Size("variant:N", scale=alt.Scale(domain=list(colours), range=widths), legend=None)
        marked = chart.mark_point(strokeWidth=1.5, filled=False).encode(size=size)
    return marked.resolve_scale(y="independent")


def _ranges(frame: pd.DataFrame, colours: dict[str, str]) -> alt.Chart:
    placed, order = charts.wait_labels(frame)
    return (
        alt.Chart(placed, width=charts.WIDTH, height=90)
        .mark_bar()
        .encode(
            x=alt.X("waited:O", title="waited, ms", sort=order).axis(labelAngle=0, labelOverlap=True),
            xOffset=alt.XOffset("variant:N", sort=list(colours)),
            y=charts.count_axis("operations"),
            color=charts.colours_of("variant", colours),
            tooltip=["kind:N", "variant:N", alt.Tooltip("waited:O", title="waited, ms"), "operations:Q"],
            row=charts.rows_of("kind", frame),
        )
        .resolve_scale(y="independent")
    )
