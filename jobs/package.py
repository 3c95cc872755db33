"""Make the archive that brings this product to a cluster's workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job


def _checks(out: Path, **_: object) -> None:
    if not out.name.endswith(".tar.gz"):
        raise UserError(f"{out}: Spark unpacks what is called .tar.gz")
    if not out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")


@job.job(checks=_checks, spark=False)
def main(
    out: Annotated[Path, typer.Option(help="The archive to write, *.tar.gz.")] = Path("purgatory-env.tar.gz"),
) -> None:
    """The environment as one archive for a cluster's workers: --archives brings it there."""
    from purgatory_udf.launch import package_archive

    _checks(out)
    root = Path(os.environ.get("PURGATORY_HOME") or Path(__file__).resolve().parents[1])
    made = package_archive.create_archive(root, out)
    print(f"{made}  {made.stat().st_size / 1e6:,.0f} MB")
    print(f"./spark-submit.sh --master MASTER --archives {made} JOB …  is all that workers with Java and Python need")


if __name__ == "__main__":
    main()
