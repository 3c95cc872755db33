"""Fit a model of a recorded cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import local_folder, require_folder


def _checks(out: str, events: str | None, scenario_file: Path, html: Path | None, **_: Any) -> None:
    require_folder(out)
    table = local_folder(events) if events is not None else None
    if table is not None and not table.is_dir():
        raise UserError(f"{events}: no such folder; --events names a table of events, as ingest writes it")
    job.require_file("--scenario-file", scenario_file)
    if scenario_file == Path("-"):
        raise UserError("--scenario-file -: name a file; the check of the fit is printed to standard output")
    job.require_file("--html", html)


@job.job(checks=_checks, brief=True, reads=("out", "events"), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of an imported request log, or of a replay.")],
    scenario_file: Annotated[Path, typer.Option(help="YAML file for the fitted scenario.")],
    events: Annotated[
        str | None, typer.Option(help="Delta table of events.  [default: events in the folder]", show_default=False)
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="Number of simulations, each with its own random seed, that are compared with the recording.",
            min=1,
            max=1000,
        ),
    ] = 5,
    html: Annotated[
        Path | None, typer.Option(help="File of the HTML page.  [default: fit.html in the folder]", show_default=False)
    ] = None,
) -> None:
    """Fit a model to a recorded cluster, and check it by a simulation."""
    from purgatory_udf.prediction.prediction_commands import run_fit

    _checks(out, events, scenario_file, html)
    folder = local_folder(out)
    file = html or (folder / "fit.html" if folder else None)
    lines = run_fit(open_backend(), out, events, scenario_file, seeds, file)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
