"""Check the invariants of a replay's tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend


def _checks(out: str) -> None:
    """Reject a missing local folder before Spark is started."""
    if "://" not in out and not os.environ.get("HADOOP_CONF_DIR") and not Path(out).is_dir():
        raise UserError(f"{out}: no such folder")


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANY_BYTES)
def main(open_backend: OpenBackend, out: Annotated[str, typer.Option(help="Folder of a replay's tables.")]) -> None:
    """Check the invariants of a replay's tables; exit status 1 if one is violated."""
    from purgatory_udf.answers.audit import audit, report, require_all

    findings = audit(open_backend(), out)
    print("\n".join(report(findings)))
    require_all(findings)


if __name__ == "__main__":
    main()
