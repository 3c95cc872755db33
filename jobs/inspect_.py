"""Inspect the state of a replay: the keys with open operations."""

from __future__ import annotations

from typing import Annotated

import typer

from purgatory_udf.launch import job


@job.job(reads=("checkpoint",))
def main(
    checkpoint: Annotated[
        str, typer.Option(help="Folder of a replay's tables, or the checkpoint folder of its partition query.")
    ],
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000_000, help="Maximum number of keys to print, those with the most open watches first."
        ),
    ] = 50,
) -> None:
    """List the state in a checkpoint by key: number of open operations, oldest one, next deadline, bytes."""
    from purgatory_udf.launch.spark_session import build_session
    from purgatory_udf.streaming.checkpoints import inspect

    print("\n".join(inspect(build_session("purgatory-inspect"), checkpoint, limit).lines()))


if __name__ == "__main__":
    main()
