"""The same trace, or the same simulated cluster, under other configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from purgatory_udf import cli
from purgatory_udf.errors import UserError
from purgatory_udf.outputs import local_folder
from purgatory_udf.whatif.variants import Variant, variants

# What only a simulation is told by.
STAGE = {"seed": None, "duration": None, "scale": 1.0}


def _variants(words: list[str], config: Path | None, settings: list[str] | None) -> list[Variant]:
    if not words:
        raise UserError("give at least one --variant NAME key=value…")
    return variants(words, config, settings or [])


def _checks(
    out: str,
    variant: list[str],
    events: str | None,
    closed_loop: str | None,
    config: Path | None,
    settings: list[str] | None,
    html: Path | None,
    **stage: Any,
) -> None:
    from purgatory_udf.simulate.load import load, names

    if (events is None) == (closed_loop is None):
        raise UserError(
            f"give either --events, a table of events, or --closed-loop SCENARIO (names: {', '.join(names())})"
        )
    chosen = _variants(variant, config, settings)
    if closed_loop is not None:
        load(closed_loop)
        late = next((each.name for each in chosen if each.config.max_disorder_ms), None)
        if late is not None:
            raise UserError(f"{late}: max_disorder_ms: a simulated trace is in order")
    else:
        strange = next((name for name, usual in STAGE.items() if stage[name] != usual), None)
        if strange is not None:
            raise UserError(f"--{strange} goes with --closed-loop")
    folder = local_folder(out)
    if folder is not None and folder.is_file():
        raise UserError(f"{out}: is a file; --out names a folder")
    table = local_folder(events) if events is not None else None
    if table is not None and not table.is_dir():
        raise UserError(f"{events}: no such folder (--events names a table of events, as ingest makes it)")
    if html is not None and html.is_dir():
        raise UserError(f"{html}: is a folder; --html names a file")


@cli.job(checks=_checks)
def main(
    out: Annotated[
        str, typer.Option(help="Folder of the table what_if; a replay of the events that is in it is the baseline.")
    ],
    variant: Annotated[
        list[str],
        typer.Option(
            metavar="NAME KEY=VALUE…",
            help="A variant's name, then its settings, or a YAML file of settings (repeatable).",
        ),
    ],
    events: Annotated[
        str | None, typer.Option(help="Delta table of events, as ingest writes it.", show_default=False)
    ] = None,
    closed_loop: Annotated[
        str | None,
        typer.Option(
            metavar="SCENARIO",
            help="Instead of a table: simulate this scenario under each variant, so that its clients react.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Closed loop: another run of chance.  [default: the scenario's]", show_default=False),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Closed loop: seconds of simulated time.  [default: the scenario's]",
            min=0.001,
            max=86_400,
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Closed loop: times as many producers and consumers.", min=0.001, max=1000)
    ] = 1.0,
    config: Annotated[Path | None, typer.Option(help="YAML file of the baseline's settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting of the baseline (repeatable).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="The page.  [default: what-if.html in the folder]", show_default=False)
    ] = None,
) -> None:
    """What other settings would have changed: every recorded arrival as it was, or simulated clients that react."""
    from purgatory_udf.ingest.progress import Phases, running_tasks
    from purgatory_udf.session import build_session
    from purgatory_udf.simulate.load import load
    from purgatory_udf.whatif.closed_loop import Stage
    from purgatory_udf.whatif.run import what_if, what_if_simulated

    _checks(out, variant, events, closed_loop, config, settings, html, seed=seed, duration=duration, scale=scale)
    chosen = _variants(variant, config, settings)
    folder = local_folder(out)
    file = html or (folder / "what-if.html" if folder else None)
    spark = build_session("purgatory-what-if")
    if events is not None:
        found = what_if(spark, events, out, chosen, file)
    else:
        assert closed_loop is not None
        stage = Stage(load(closed_loop), seed, duration, scale)
        with Phases(running_tasks(spark)) as say:
            found = what_if_simulated(spark, stage, out, chosen, file, say)
    print("\n".join(found.lines()))
    if file:
        print(f"Page: {file}")


if __name__ == "__main__":
    main()
