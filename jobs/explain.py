"""Explain operations, a group, or a member of a group."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.answers.explain import Question
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import require_folder


def _checks(
    out: str,
    operation: int | None,
    request_id: str | None,
    group: str | None,
    client: str | None,
    member: str | None,
    record: str | None,
    json: Path | None,
    **_: object,
) -> None:
    job.require_file("--json", json)
    Question(operation, request_id, group, client, member, record)
    require_folder(out)


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of a replay's tables; the replay may still be running.")],
    operation: Annotated[
        int | None, typer.Option(help="ID of the operation to explain: operation_id in the tables of outcomes.")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(help="ID of the request to explain, or a unique suffix of the ID.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group to explain.")] = None,
    client: Annotated[str | None, typer.Option(help="Client ID of the expired operations to explain.")] = None,
    member: Annotated[
        str | None, typer.Option(help="Member of a consumer group (KIP-848) to explain: its member ID or client ID.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(help="Record of a share group to explain, as GROUP/TOPIC-PARTITION:OFFSET.")
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, help="Maximum number of operations, or of group changes, to print.")
    ] = 20,
    json: job.JsonFile = None,
) -> None:
    """Explain an operation, group, member or record: what it waited for, what ended the wait, and why not earlier.

    Give one of --operation, --request-id, --group, --client, --member and --record; --member may have a --group.
    """
    from purgatory_udf.answers.explain import explain
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.backend.file_system import write_json
    from purgatory_udf.common.console import CommandSteps, printable

    question = Question(operation, request_id, group, client, member, record)
    backend = open_backend()
    with CommandSteps(running_tasks(backend)):
        lines = explain(backend, out, question, top)
    if json != Path("-"):
        print("\n".join(map(printable, lines)))
    if json is not None:
        asked = {name: value for name, value in asdict(question).items() if value is not None}
        write_json(json, {"question": asked, "lines": lines})


if __name__ == "__main__":
    main()
