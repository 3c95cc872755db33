"""Show a followed replay on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.storage.output_folder import local_folder, require_folder


def _checks(out: str, json: Path | None, serve: str | None, **_: object) -> None:
    job.require_file("--json", json)
    if json is not None and serve is not None:
        raise UserError("give --json or --serve, not both")
    if local_folder(out) is None:
        raise UserError(f"{out}: is not on this machine; top reads local files only")
    require_folder(out)


@job.job(checks=_checks, spark=False)
def main(
    out: Annotated[str, typer.Option(help="Folder of a replay that was started with --follow.")],
    once: Annotated[bool, typer.Option("--once", help="Print the status once and exit, for scripts.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=86_400, help="Interval between updates, in seconds.")] = 1.0,
    rows: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000_000,
            help="Maximum number of rows in each of the tables of waiting operations and of groups.",
        ),
    ] = 10,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the status as JSON, written once; - for standard output."),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the status to Prometheus at http://HOST:PORT/metrics until interrupted; "
            "a port alone listens on 127.0.0.1.",
        ),
    ] = None,
) -> None:
    """Show the status of a followed replay: purgatories, longest waits and their reasons, rebalancing groups."""
    from purgatory_udf.streaming.top_screen import show_top, write_status

    _checks(out, json, serve)
    if serve is not None:
        from purgatory_udf.streaming import metrics_server

        metrics_server.serve(out, serve)
    elif json is not None:
        write_status(out, rows, json)
    else:
        show_top(out, once, every, rows)


if __name__ == "__main__":
    main()
