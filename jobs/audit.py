"""Hold the laws of a run against its tables."""

from __future__ import annotations

from typing import Annotated

import typer

from purgatory_udf import cli


@cli.job
def main(out: Annotated[str, typer.Option(help="Folder of the outcome tables, as replay made it.")]) -> None:
    """Check the laws that a replay's tables keep; exit status 1 if one is broken."""
    from purgatory_udf.audit import audit, report, require_all
    from purgatory_udf.session import build_session

    findings = audit(build_session("purgatory-audit"), out)
    print("\n".join(report(findings)))
    require_all(findings)


if __name__ == "__main__":
    main()
