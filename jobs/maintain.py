"""Compact the tables of an output and delete files that are no longer needed."""

from __future__ import annotations

from typing import Annotated

import typer

from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import require_folder


def _checks(out: str, **_: object) -> None:
    require_folder(out)


@job.job(checks=_checks, brief=True, reads=("out",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of a replay or an import; the job may still be running.")],
    keep_hours: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Minimum age of unreferenced files to delete, in hours.")
    ] = 168,
) -> None:
    """Compact small files of tables, and delete replaced files and the internal files of finished runs."""
    from purgatory_udf.storage.maintenance import maintain, report

    print("\n".join(report(*maintain(open_backend(), out, keep_hours))))


if __name__ == "__main__":
    main()
