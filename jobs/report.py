"""A replay as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.answers.metrics.metrics_run import MetricsOptions
from purgatory_udf.backend.input_size import ANSWERED_BYTES
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.storage.output_folder import local_folder, require_folder


def _file(out: str, html: Path | None) -> Path:
    """Where the page goes: beside the tables, if they are on this machine."""
    folder = local_folder(out)
    if html is None and folder is None:
        raise UserError(f"{out}: is not on this machine; --html names the file to write")
    chosen = html or Path(str(folder), "report.html")
    if chosen.is_dir():
        raise UserError(f"{chosen}: is a folder; --html names a file")
    return chosen


def _checks(out: str, html: Path | None, **_: object) -> None:
    _file(out, html)
    require_folder(out)


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANSWERED_BYTES)
def main(
    out: Annotated[str, typer.Option(help="Folder of a replay's tables; it may still be running.")],
    html: Annotated[
        Path | None, typer.Option(help="The page.  [default: report.html in the folder]", show_default=False)
    ] = None,
    window_ms: Annotated[int, typer.Option(min=1, help="Length of a window of the tables over time.")] = 200,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table to show.")] = 10,
) -> None:
    """One HTML page that needs no network: what ended when, how full purgatories were, what was slow and why."""
    from purgatory_udf.answers.report.report_run import write_report
    from purgatory_udf.launch.spark_session import session_for

    file = _file(out, html)
    options = MetricsOptions(window_ms=window_ms, top=top)
    print(f"Report: {write_report(session_for('purgatory-report'), out, options, file)}")


if __name__ == "__main__":
    main()
