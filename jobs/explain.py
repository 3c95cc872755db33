"""One operation's or one group's story."""

from __future__ import annotations

from typing import Annotated

import typer

from purgatory_udf.answers.explain.question import Question
from purgatory_udf.backend.input_size import ANSWERED_BYTES
from purgatory_udf.launch import job
from purgatory_udf.storage.output_folder import require_folder


def _checks(out: str, operation: int | None, request_id: str | None, group: str | None, **_: object) -> None:
    Question(operation, request_id, group)
    require_folder(out)


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANSWERED_BYTES)
def main(
    out: Annotated[str, typer.Option(help="Folder of a replay's tables; it may still be running.")],
    operation: Annotated[int | None, typer.Option(help="Explain the operation of this operation_id.")] = None,
    request_id: Annotated[str | None, typer.Option(help="Explain the request of this request_id.")] = None,
    group: Annotated[str | None, typer.Option(help="Explain what this consumer group went through.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many operations, or changes of a group, to tell of.")] = 20,
) -> None:
    """What a request asked for, what it waited on, what ended it and why not before, in words and times."""
    from purgatory_udf.answers.explain.question import explain
    from purgatory_udf.common.console import printable
    from purgatory_udf.launch.spark_session import session_for

    question = Question(operation, request_id, group)
    print("\n".join(map(printable, explain(session_for("purgatory-explain"), out, question, top))))


if __name__ == "__main__":
    main()
