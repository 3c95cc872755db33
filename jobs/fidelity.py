"""How near a replay comes to what the recorded brokers did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.backend.input_size import ANSWERED_BYTES
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job


def _checks(
    jmx_before: str | None, jmx_after: str | None, server_log: list[str] | None, zone: str, **_: object
) -> None:
    from purgatory_udf.sources.request_log.lines.log_files import find_logs, zone_of

    if server_log:
        find_logs(server_log)
    try:
        zone_of(zone)
    except ValueError as error:
        raise UserError(f"--zone {zone}: {error}") from None
    if jmx_before and not jmx_after:
        raise UserError("--jmx-before needs --jmx-after: what counts is the increase")


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANSWERED_BYTES)
def main(
    out: Annotated[str, typer.Option(help="Folder of the tables of an imported request log and of its replay.")],
    jmx_before: Annotated[
        str | None, typer.Option(help="Reading of the brokers' counters (JSON) when the log began.")
    ] = None,
    jmx_after: Annotated[str | None, typer.Option(help="Reading of the brokers' counters when it ended.")] = None,
    server_log: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A broker's server.log, or a folder of them: what became of its groups."),
    ] = None,
    zone: Annotated[str, typer.Option(help="Zone of the server logs' times that have none.")] = "UTC",
    html: Annotated[
        Path | None, typer.Option(help="The page.  [default: fidelity.html in the folder]", show_default=False)
    ] = None,
) -> None:
    """Recorded against replayed: how operations ended, how long they waited, and why some differ."""
    from purgatory_udf.answers.fidelity.fidelity_run import FidelityOptions, run_fidelity
    from purgatory_udf.launch.spark_session import session_for
    from purgatory_udf.sources.request_log.lines.log_files import zone_of

    options = FidelityOptions(out, jmx_before, jmx_after, html, server_log or (), zone_of(zone))
    fidelity = run_fidelity(session_for("purgatory-fidelity"), options)
    print("\n".join(fidelity.summary()))


if __name__ == "__main__":
    main()
