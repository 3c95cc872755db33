"""Find the causes of unusual waits in a replay, the heaviest first."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import require_folder


def _moment(option: str, text: str | None) -> int | None:
    """Parse a time in ISO 8601 to microseconds since the epoch; None stays None. `option` is for error messages."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
    except ValueError:
        raise UserError(f"{option} {text}: expected a time in ISO 8601, such as 2026-03-02T09:00:02Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _checks(out: str, start: str | None, end: str | None, json: Path | None, baseline: str | None, **_: object) -> None:
    first, last = _moment("--from", start), _moment("--to", end)
    if first is not None and last is not None and first > last:
        raise UserError(f"--from {start} must not be later than --to {end}")
    job.require_file("--json", json)
    for folder in (out, *([baseline] if baseline else [])):
        require_folder(folder)


@job.job(checks=_checks, reads=("out", "baseline"), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of a replay's tables; the replay may still be running.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start of the period, in ISO 8601: report only incidents that end at or after it.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="End of the period, in ISO 8601: report only incidents that start at or before it.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Maximum number of findings to print.")] = 10,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the findings as JSON; - for standard output.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER_OUT",
            help="Folder of another replay to compare with: also report findings and waits that have become worse.",
        ),
    ] = None,
) -> None:
    """Name the broker, client, member or setting behind unusual waits; write the tables blame and findings."""
    from purgatory_udf.answers.diagnosis.diagnosis_run import as_json, as_text, comparison, diagnose, sentences
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.backend.file_system import replace_file
    from purgatory_udf.common.console import CommandSteps, printable

    backend = open_backend()
    with CommandSteps(running_tasks(backend)):
        diagnosis = diagnose(backend, out).within(_moment("--from", start), _moment("--to", end))
        earlier = diagnose(backend, baseline) if baseline else None
    compared = {} if earlier is None else {"baseline": as_json(diagnosis, earlier)}
    if json == Path("-"):
        print(as_text(diagnosis, **compared), end="")
        return
    lines = sentences(diagnosis, out, top)
    if earlier is not None:
        lines += ["", *comparison(diagnosis, earlier)]
    print("\n".join(map(printable, lines)))
    if json is not None:
        replace_file(json, as_text(diagnosis, **compared))
        print(f"\nJSON: {json}")


if __name__ == "__main__":
    main()
