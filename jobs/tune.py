"""Search for settings that reach a goal, on a model of a recorded cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import local_folder


def _checks(like: str, goal: str, within: str, over: list[str], html: Path | None, **_: Any) -> None:
    from purgatory_udf.prediction.prediction_commands import require_source
    from purgatory_udf.prediction.tuning import parse_goal, parse_limit, parse_ranges

    parse_goal(goal)
    parse_limit(within)
    parse_ranges(over)
    require_source(like)
    job.require_file("--html", html)


@job.job(checks=_checks, brief=True, reads=("like",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    like: Annotated[
        str,
        typer.Option(metavar="FOLDER|FILE", help="Folder of an imported request log, or a scenario written by fit."),
    ],
    goal: Annotated[str, typer.Option(help="Figure to improve and its wanted change, such as 'requests_per_s -50%'.")],
    within: Annotated[
        str, typer.Option(help="Figure to keep within a limit, and the limit, such as 'append_to_answer_p99_ms <= 50'.")
    ],
    over: Annotated[
        list[str], typer.Option(metavar="KEY=LOW..HIGH", help="Setting to vary and its range (up to three times).")
    ],
    seeds: Annotated[
        int,
        typer.Option(
            help="Number of simulations per setting on the Pareto frontier, each with its own random seed.",
            min=1,
            max=1000,
        ),
    ] = 3,
    html: Annotated[
        Path | None,
        typer.Option(help="File of the HTML page.  [default: tune.html in the folder of --like]", show_default=False),
    ] = None,
) -> None:
    """Search for settings that reach a goal within a limit, on a model of a recorded cluster."""
    from purgatory_udf.prediction.prediction_commands import run_tuning

    _checks(like, goal, within, over, html)
    folder = local_folder(like)
    page_folder = None if folder is None else folder.parent if folder.is_file() else folder
    page = html or (page_folder / "tune.html" if page_folder else None)
    print("\n".join(run_tuning(open_backend, like, goal, within, over, seeds, page)))


if __name__ == "__main__":
    main()
