"""Write a replay's report as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.answers.metrics import MetricsOptions
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import local_folder, require_folder


def _file(out: str, html: Path | None) -> Path:
    """Return the file of the page, by default in the folder of the tables if it is local."""
    folder = local_folder(out)
    if html is None and folder is None:
        raise UserError(f"{out}: is not on this machine; give a local file for the page with --html")
    chosen = html or Path(str(folder), "report.html")
    job.require_file("--html", chosen)
    return chosen


def _checks(out: str, html: Path | None, **_: object) -> None:
    _file(out, html)
    require_folder(out)


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of a replay's tables; the replay may still be running.")],
    html: Annotated[
        Path | None,
        typer.Option(help="File of the HTML page.  [default: report.html in the folder]", show_default=False),
    ] = None,
    window_ms: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, help="Length of the time windows of rates, in milliseconds.")
    ] = 200,
    top: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Maximum number of rows per table.")] = 10,
) -> None:
    """Write a self-contained HTML report: outcomes over time, purgatory sizes, slow operations and causes."""
    from purgatory_udf.answers.report import write_report
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.common.console import CommandSteps

    file = _file(out, html)
    options = MetricsOptions(window_ms=window_ms, top=top)
    backend = open_backend()
    with CommandSteps(running_tasks(backend)):
        write_report(backend, out, options, file)
    print(f"Report: {file}")


if __name__ == "__main__":
    main()
