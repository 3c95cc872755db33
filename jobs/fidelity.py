"""Compare a replay with the recorded brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend


def _checks(
    jmx_before: str | None,
    jmx_after: str | None,
    server_log: list[str] | None,
    zone: str,
    json: Path | None = None,
    **_: object,
) -> None:
    job.require_file("--json", json)
    from purgatory_udf.sources.request_log.log_files import find_logs, zone_of

    if server_log:
        find_logs(server_log)
    try:
        zone_of(zone)
    except ValueError as error:
        raise UserError(f"--zone {zone}: {error}") from None
    if jmx_before and not jmx_after:
        raise UserError("--jmx-before needs --jmx-after, because the increase between the two is compared")


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of an imported request log and its replay.")],
    jmx_before: Annotated[
        str | None,
        typer.Option(help="JSON file of the brokers' expiration counters (JMX), read at the start of the log."),
    ] = None,
    jmx_after: Annotated[
        str | None,
        typer.Option(help="JSON file of the brokers' expiration counters (JMX), read at the end of the log."),
    ] = None,
    server_log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="server.log of a broker, or a folder of server logs, to compare consumer groups (repeatable).",
        ),
    ] = None,
    zone: Annotated[
        str,
        typer.Option(help="Time zone of times without an offset in the server logs: UTC or an offset, such as +01:00."),
    ] = "UTC",
    html: Annotated[
        Path | None,
        typer.Option(help="File of the HTML page.  [default: fidelity.html in the folder]", show_default=False),
    ] = None,
    json: job.JsonFile = None,
) -> None:
    """Compare recorded and replayed operations: outcomes, waits, and the causes of differences."""
    from purgatory_udf.answers.fidelity_run import FidelityOptions, run_fidelity
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.backend.file_system import write_json
    from purgatory_udf.common.console import CommandSteps
    from purgatory_udf.sources.request_log.log_files import zone_of

    options = FidelityOptions(out, jmx_before, jmx_after, html, server_log or (), zone_of(zone))
    backend = open_backend()
    with CommandSteps(running_tasks(backend)):
        fidelity = run_fidelity(backend, options)
    if json != Path("-"):
        print("\n".join(fidelity.summary()))
    if json is not None:
        write_json(json, fidelity.as_json())


if __name__ == "__main__":
    main()
