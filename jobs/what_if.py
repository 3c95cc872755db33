"""Compare settings on a recorded trace, on a simulated cluster, or on a model of a recorded cluster."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purgatory_udf.backend.file_system import LocalFiles, require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import is_small_and_local
from purgatory_udf.contract.overrides import key_hint
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, REPLAYED_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import local_folder, output_lock

# Options of a simulation, and of a prediction, with their defaults.
CLOSED_LOOP_DEFAULTS = {"seed": None, "duration": None, "scale": 1.0}
PREDICTION_DEFAULTS = {"seeds": None, "json": None}

if TYPE_CHECKING:
    from purgatory_udf.answers.variants import Variant

_recorded = partial(typer.Option, rich_help_panel="Recorded trace (--events)")
_simulated = partial(typer.Option, rich_help_panel="Simulated cluster (--closed-loop)")
_predicted = partial(typer.Option, rich_help_panel="Model of a recorded cluster (--like)")


def _variants(words: list[str], config: Path | None, settings: list[str] | None) -> list[Variant]:
    from purgatory_udf.answers.variants import variants

    if not words:
        raise UserError("give at least one --variant NAME key=value…")
    return variants(words, config, settings or [])


def _checks(
    out: str | None,
    variant: list[str],
    events: str | None,
    closed_loop: str | None,
    config: Path | None,
    settings: list[str] | None,
    html: Path | None,
    like: str | None = None,
    **options: Any,
) -> None:
    from purgatory_udf.simulation.scenario import load_scenario, scenario_names

    if sum(each is not None for each in (events, closed_loop, like)) != 1:
        raise UserError(
            "give one of --events (a table of events), --like (a folder of a recording, or a fitted scenario) and "
            f"--closed-loop (a scenario: {', '.join(scenario_names())})"
        )
    job.require_file("--html", html)
    if like is not None:
        _check_prediction(like, variant, config, settings, options)
        return
    if out is None:
        raise UserError("--out is missing; give the folder for the table what_if")
    misplaced = next((name for name, usual in PREDICTION_DEFAULTS.items() if options.get(name) != usual), None)
    if misplaced is not None:
        raise UserError(f"--{misplaced} needs --like")
    chosen = _variants(variant, config, settings)
    if closed_loop is not None:
        scenario = load_scenario(closed_loop)
        for each in chosen:
            scenario.with_brokers(each.brokers, f"--variant {each.name}")
        late = next((each.name for each in chosen if each.config.max_disorder_ms), None)
        if late is not None:
            raise UserError(
                f"--variant {late}: max_disorder_ms has no effect with --closed-loop, because simulated events are in "
                "time order; remove it"
            )
    else:
        misplaced = next((name for name, usual in CLOSED_LOOP_DEFAULTS.items() if options[name] != usual), None)
        if misplaced is not None:
            raise UserError(f"--{misplaced} needs --closed-loop")
        _refuse_broker_keys(chosen)
    if local_folder(out) is not None:
        require_no_file(LocalFiles(), out)
    table = local_folder(events) if events is not None else None
    if table is not None and not table.is_dir():
        raise UserError(f"{events}: no such folder; --events names a table of events, as ingest writes it")


def _refuse_broker_keys(chosen: list[Variant]) -> None:
    """Raise UserError if a variant of a recorded trace changes simulated brokers."""
    for each in chosen:
        for key in each.brokers:
            hint = key_hint(key) or "give it with --closed-loop SCENARIO"
            raise UserError(f"--variant {each.name}: brokers.{key} applies to simulated brokers only; {hint}")


def _check_prediction(
    like: str, variant: list[str], config: Path | None, settings: list[str] | None, options: dict[str, Any]
) -> None:
    from purgatory_udf.prediction.prediction_commands import require_source
    from purgatory_udf.prediction.prediction_runs import parse_variants

    if config is not None or settings:
        raise UserError("--config and --set cannot be used with --like; edit the scenario that fit writes")
    misplaced = next((name for name, usual in CLOSED_LOOP_DEFAULTS.items() if options.get(name) != usual), None)
    if misplaced is not None:
        raise UserError(f"--{misplaced} needs --closed-loop")
    parse_variants(variant)
    require_source(like)
    job.require_file("--json", options.get("json"))


def _needs_spark(events: str | None, **_: object) -> bool:
    # Each variant is a replay, with its limit.
    return events is not None and not is_small_and_local([events], REPLAYED_BYTES)


@job.job(checks=_checks, reads=("like", "events"), writes=("out",), max_local_bytes=ANY_BYTES, needs_spark=_needs_spark)
def main(
    open_backend: OpenBackend,
    variant: Annotated[
        list[str],
        typer.Option(
            metavar="NAME KEY=VALUE…",
            help="Name of a variant, followed by its settings or a YAML file of settings (repeatable).",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder for the table what_if. A replay of the same events in it is used as the baseline. With "
            "--like, only the page is written there.",
            show_default=False,
        ),
    ] = None,
    events: Annotated[
        str | None, _recorded(help="Delta table of events, as ingest writes it.", show_default=False)
    ] = None,
    closed_loop: Annotated[
        str | None,
        _simulated(
            metavar="SCENARIO",
            help="Name or file of a scenario; it is simulated under each variant, so that clients react.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        str | None,
        _predicted(
            metavar="FOLDER|FILE",
            help="Folder of an imported request log, or a scenario written by fit; a model of the recorded cluster "
            "predicts each variant.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        _predicted(
            help="Number of simulations per variant, each with its own random seed.  [default: 5]",
            min=1,
            max=1000,
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        Path | None,
        _predicted(
            "--json",
            help="File for the figures as JSON; - prints only the JSON, to standard output.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, _simulated(help="Random seed.  [default: the scenario's]", show_default=False)] = None,
    duration: Annotated[
        float | None,
        _simulated(
            help="Simulated time, in seconds.  [default: the scenario's]", min=0.001, max=86_400, show_default=False
        ),
    ] = None,
    scale: Annotated[
        float, _simulated(help="Factor for the number of producers and consumers.", min=0.001, max=1000)
    ] = 1.0,
    config: Annotated[Path | None, typer.Option(help="YAML file of the baseline's settings.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting of the baseline; overrides --config (repeatable)."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="File of the HTML page.  [default: what-if.html in the folder; with --like: prediction.html, "
            "prediction-2.html and so on]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare settings: on a recorded trace, on a simulated cluster, or by a model of a recorded cluster.

    Give one of --events, --closed-loop and --like.
    """
    from purgatory_udf.answers.what_if import ScenarioOptions, what_if, what_if_simulated
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.common.console import Phases
    from purgatory_udf.simulation.scenario import load_scenario
    from purgatory_udf.storage.run_records import recorded_brokers, warn_of_contradictions, with_recorded

    simulation_options = {"seed": seed, "duration": duration, "scale": scale}
    _checks(
        out, variant, events, closed_loop, config, settings, html, like, **simulation_options, seeds=seeds, json=json
    )
    if like is not None:
        _predict(open_backend, like, variant, seeds, json, html or _default_page(out or like))
        return
    assert out is not None
    chosen = _variants(variant, config, settings)
    folder = local_folder(out)
    file = html or (folder / "what-if.html" if folder else None)
    with output_lock(out, "what-if"):
        backend = open_backend()
        if events is not None:
            recorded = recorded_brokers(backend, events)
            chosen = [replace(each, config=with_recorded(each.config, recorded)) for each in chosen]
            warn_of_contradictions(chosen[0].config, recorded.settings)
            comparison = what_if(backend, events, out, chosen, file)
        else:
            assert closed_loop is not None
            options = ScenarioOptions(load_scenario(closed_loop), seed, duration, scale)
            with Phases(running_tasks(backend)) as report_phase:
                comparison = what_if_simulated(backend, options, out, chosen, file, report_phase)
    print("\n".join(comparison.lines()))
    if file:
        print(f"Page: {file}")


def _default_page(place: str) -> Path | None:
    """Return a new page in the folder, or in the folder of the file; None if it is not local."""
    folder = local_folder(place)
    if folder is None:
        return None
    page = (folder.parent if folder.is_file() else folder) / "prediction.html"
    numbered = (page.with_stem(f"{page.stem}-{number}") for number in count(2))
    return next(each for each in chain([page], numbered) if not each.exists())


def _predict(
    open_backend: OpenBackend, like: str, words: list[str], seeds: int | None, json: Path | None, html: Path | None
) -> None:
    from purgatory_udf.prediction.prediction_commands import run_prediction

    for line in run_prediction(open_backend, like, words, seeds, json, html):
        print(line)


if __name__ == "__main__":
    main()
