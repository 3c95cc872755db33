"""Check the invariants of a replay's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import local_folder


def _checks(out: str, json: Path | None) -> None:
    """Reject unusable paths before Spark is started."""
    job.require_file("--json", json)
    folder = local_folder(out)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{out}: no such folder; --out names the folder of a replay")


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of a replay's tables.")],
    json: job.JsonFile = None,
) -> None:
    """Check the invariants of a replay's tables; exit status 1 if one is violated."""
    from purgatory_udf.answers.audit import as_json, audit, report, require_all
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.backend.file_system import write_json
    from purgatory_udf.common.console import CommandSteps

    backend = open_backend()
    with CommandSteps(running_tasks(backend)):
        findings = audit(backend, out)
    if json != Path("-"):
        print("\n".join(report(findings)))
    if json is not None:
        write_json(json, as_json(findings))
    require_all(findings)


if __name__ == "__main__":
    main()
