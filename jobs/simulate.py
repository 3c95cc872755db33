"""Simulate a cluster whose clients answer back, and write the trace that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf import cli
from purgatory_udf.errors import UserError


def _checks(scenario: str | None, jsonl: Path | None, **_: object) -> None:
    from purgatory_udf.simulate.load import load, names

    if scenario is None:
        raise UserError(f"give --scenario NAME or a file (names: {', '.join(names())})")
    load(scenario)
    if jsonl is not None and not jsonl.absolute().parent.is_dir():
        raise UserError(f"--jsonl {jsonl}: there is no folder {jsonl.absolute().parent}")


@cli.job(checks=_checks)
def main(
    out: Annotated[str, typer.Option(help="Folder of the tables: events, and the truth about them.")],
    scenario: Annotated[
        str | None, typer.Option(help="A name of conf/scenarios, or a YAML file like those.", show_default=False)
    ] = None,
    jsonl: Annotated[Path | None, typer.Option(help="Write the events to this file, too, as JSON Lines.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another run of chance.  [default: the scenario's]")] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds of simulated time.  [default: the scenario's]", min=0.001, max=86_400),
    ] = None,
    scale: Annotated[float, typer.Option(help="Times as many producers and consumers.", min=0.001, max=1000)] = 1.0,
    check: Annotated[
        bool, typer.Option("--check", help="Replay the trace and require that it says what the brokers did.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in the folder.")] = False,
) -> None:
    """Make a trace: a simulated cluster whose clients answer back, and what its brokers really did."""
    from purgatory_udf.ingest.progress import Phases, running_tasks
    from purgatory_udf.session import build_session
    from purgatory_udf.simulate.load import load
    from purgatory_udf.simulate.run import Request, simulate, varied

    _checks(scenario, jsonl)
    assert scenario is not None
    played = varied(load(scenario), seed, duration, scale)
    spark = build_session("purgatory-simulate")
    with Phases(running_tasks(spark)) as phases:
        simulate(spark, Request(played, out, jsonl, check, overwrite), phases)


if __name__ == "__main__":
    main()
