"""Take in recorded traces: which lines are events, which are not and why."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf import cli
from purgatory_udf.config import Config, load
from purgatory_udf.ingest.inputs import JSON_LINES, PARQUET, find_files


class Form(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


def _configuration(
    config: Path | None, settings: list[str] | None, max_disorder_ms: int | None, max_rejected: float | None
) -> Config:
    given = {"max_disorder_ms": max_disorder_ms, "max_rejected": max_rejected}
    options = [f"{key}={value}" for key, value in given.items() if value is not None]
    return load(config, [*(settings or []), *options])


def _checks(
    paths: list[str],
    form: Form,
    config: Path | None,
    settings: list[str] | None,
    max_disorder_ms: int | None,
    max_rejected: float | None,
    **_: object,
) -> None:
    _configuration(config, settings, max_disorder_ms, max_rejected)
    find_files(paths, PARQUET if form is Form.PARQUET else JSON_LINES)


@cli.job(checks=_checks)
def main(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Files, folders (searched to their depth), patterns, URIs.")
    ],
    out: Annotated[str, typer.Option(help="Folder in which the tables events and rejected_events are made.")],
    form: Annotated[Form, typer.Option("--from", help="What the files are; .gz and .zst are unpacked.")] = Form.JSONL,
    max_disorder_ms: Annotated[
        int | None, typer.Option(help="How far a file may go back in time.  [default: 0]", show_default=False)
    ] = None,
    max_rejected: Annotated[
        float | None,
        typer.Option(
            help="Percent of lines that may be rejected with exit status 0.  [default: 0]", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace both tables if they exist.")] = False,
    events_per_file: Annotated[
        int, typer.Option(help="About how many events a file of the table holds.", min=1)
    ] = 50_000,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run.  [default: made from the input]", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings (conf/local.yaml documents them).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting (repeatable).")
    ] = None,
) -> None:
    """Recorded traces become a table of events; what is no event goes to rejected_events, with the reason."""
    from purgatory_udf.ingest.progress import Phases, running_tasks
    from purgatory_udf.ingest.report import IngestOptions
    from purgatory_udf.ingest.run import ingest
    from purgatory_udf.session import build_session

    chosen = _configuration(config, settings, max_disorder_ms, max_rejected)
    options = IngestOptions(
        paths=paths,
        out=out,
        source=form.value,
        max_disorder_ms=chosen.max_disorder_ms,
        overwrite=overwrite,
        events_per_file=events_per_file,
        run_id=run_id,
    )
    spark = build_session("purgatory-ingest")
    with Phases(running_tasks(spark)) as phases:
        report = ingest(spark, options, phases)
    print("\n".join(report.summary()))
    report.require_few_rejected(chosen.max_rejected)


if __name__ == "__main__":
    main()
