"""What a followed replay knows now, on a terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.storage.output_folder import local_folder, require_folder


def _checks(out: str, **_: object) -> None:
    if local_folder(out) is None:
        raise UserError(f"{out}: is not on this machine; top reads files of this machine only")
    require_folder(out)


@job.job(checks=_checks, spark=False)
def main(
    out: Annotated[str, typer.Option(help="Folder of a replay that was begun with --follow.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end, for scripts.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    rows: Annotated[int, typer.Option(min=1, help="How many of those that wait, and of the groups, to show.")] = 10,
) -> None:
    """What a followed replay knows now: purgatories, what waits longest and what it lacks, groups in rebalance."""
    from purgatory_udf.streaming.top_screen import show_top

    _checks(out)
    show_top(out, once, every, rows)


if __name__ == "__main__":
    main()
