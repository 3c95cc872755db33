"""Build the archive of the Python environment for a cluster's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import COMMAND, ROOT
from purgatory_udf.launch import job


def _checks(out: Path, **_: object) -> None:
    if not out.name.endswith(".tar.gz"):
        raise UserError(f"{out}: the name must end in .tar.gz, which Spark unpacks")
    if not out.parent.is_dir():
        raise UserError(f"{out}: no such folder: {out.parent}; create it or choose another --out")


@job.job(checks=_checks, spark=False)
def main(
    out: Annotated[Path, typer.Option(help="Archive to write, with the extension .tar.gz.")] = Path(
        "purgatory-env.tar.gz"
    ),
) -> None:
    """Build an archive of the Python environment for a cluster's workers (spark-submit --archives)."""
    from purgatory_udf.launch import package_archive

    _checks(out)
    made = package_archive.create_archive(ROOT, out)
    print(f"{made}  {made.stat().st_size / 1e6:,.0f} MB")
    print(f"Use it on a cluster: {COMMAND} --master MASTER --archives {made} JOB …")


if __name__ == "__main__":
    main()
