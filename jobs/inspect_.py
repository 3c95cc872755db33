"""Look into a checkpoint: which keys hold open operations right now."""

from __future__ import annotations

from typing import Annotated

import typer

from purgatory_udf.launch import job


@job.job(reads=("checkpoint",))
def main(
    checkpoint: Annotated[str, typer.Option(help="Output folder of a replay, or its checkpoint of partitions.")],
    limit: Annotated[
        int, typer.Option(min=1, help="How many keys to list, those with the most open watches first.")
    ] = 50,
) -> None:
    """The watcher lists held in a checkpoint's state: open operations, oldest, next deadline, bytes, by key."""
    from purgatory_udf.launch.spark_session import build_session
    from purgatory_udf.streaming.state_inspection import inspect

    print("\n".join(inspect(build_session("purgatory-inspect"), checkpoint, limit).lines()))


if __name__ == "__main__":
    main()
