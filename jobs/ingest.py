"""Take in recorded traces: which lines are events, which are not and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from purgatory_udf import cli
from purgatory_udf.config import Config, load
from purgatory_udf.ingest.form import Form, require_fit
from purgatory_udf.ingest.inputs import JSON_LINES, PARQUET, find_files
from purgatory_udf.ingest.report import IngestOptions, IngestReport
from purgatory_udf.requestlog.log_files import find_logs
from purgatory_udf.requestlog.options import ImportReport, RequestLogOptions


def _configuration(
    config: Path | None, settings: list[str] | None, max_disorder_ms: int | None, max_rejected: float | None
) -> Config:
    given = {"max_disorder_ms": max_disorder_ms, "max_rejected": max_rejected}
    options = [f"{key}={value}" for key, value in given.items() if value is not None]
    return load(config, [*(settings or []), *options])


def _checks(
    paths: list[str],
    form: Form,
    out: str,
    config: Path | None,
    settings: list[str] | None,
    max_disorder_ms: int | None,
    max_rejected: float | None,
    **more: Any,
) -> None:
    _configuration(config, settings, max_disorder_ms, max_rejected)
    require_fit(form, {"max_disorder_ms": max_disorder_ms, **more})
    if form is Form.REQUEST_LOG:
        _request_log(paths, out, more).require_files()
        find_logs(paths)
    else:
        find_files(paths, PARQUET if form is Form.PARQUET else JSON_LINES)


def _request_log(paths: list[str], out: str, given: dict[str, Any]) -> RequestLogOptions:
    return RequestLogOptions(paths, out, **{name: value for name, value in given.items() if value is not None})


@cli.job(checks=_checks)
def main(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Files, folders (searched to their depth), patterns, URIs.")
    ],
    out: Annotated[str, typer.Option(help="Folder in which the tables events and rejected_events are made.")],
    form: Annotated[
        Form,
        typer.Option(
            "--from",
            help="What the files are: request-log is Kafka's own; packed ones are unpacked.",
            show_default=True,
        ),
    ] = Form.JSONL,
    max_disorder_ms: Annotated[
        int | None, typer.Option(help="How far a file may go back in time.  [default: 0]", show_default=False)
    ] = None,
    max_rejected: Annotated[
        float | None,
        typer.Option(
            help="Percent of lines that may be rejected with exit status 0.  [default: 0]", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the tables if they exist.")] = False,
    events_per_file: Annotated[
        int, typer.Option(help="About how many events a file of the table holds.", min=1)
    ] = 50_000,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run.  [default: made from the input]", show_default=False)
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Topic ids and names (JSON, kafka-topics --describe, or lines `id name`)."),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="FILE", help="Record batches (kafka-dump-log's output, or CSV).")
    ] = None,
    isr: Annotated[
        str | None, typer.Option(metavar="FILE", help="Leaders and in-sync sets (dump of the metadata log).")
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Zone of a log's times that name none, as +01:00.  [default: UTC]", show_default=False),
    ] = None,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Pseudonyms for topics, groups, clients and members.")
    ] = False,
    anonymise_key: Annotated[
        str | None, typer.Option(help="Secret from which the pseudonyms are made, so that none can be guessed.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings (conf/local.yaml documents them).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting (repeatable).")
    ] = None,
) -> None:
    """Recorded traces become a table of events; what is no event goes to rejected_events, with the reason."""
    from purgatory_udf.ingest.progress import Phases, running_tasks
    from purgatory_udf.ingest.run import ingest
    from purgatory_udf.requestlog.spark_import import ingest_request_log
    from purgatory_udf.session import build_session

    chosen = _configuration(config, settings, max_disorder_ms, max_rejected)
    spark = build_session("purgatory-ingest")
    report: IngestReport | ImportReport
    with Phases(running_tasks(spark)) as phases:
        if form is Form.REQUEST_LOG:
            given: dict[str, Any] = {"topics": topics, "batches": batches, "isr": isr, "zone": zone}
            given |= {"anonymise": anonymise, "anonymise_key": anonymise_key}
            given |= {"overwrite": overwrite, "events_per_file": events_per_file, "run_id": run_id}
            report = ingest_request_log(spark, _request_log(paths, out, given), phases)
        else:
            options = IngestOptions(
                paths=paths,
                out=out,
                source="parquet" if form is Form.PARQUET else "jsonl",
                max_disorder_ms=chosen.max_disorder_ms,
                overwrite=overwrite,
                events_per_file=events_per_file,
                run_id=run_id,
            )
            report = ingest(spark, options, phases)
    print("\n".join(report.summary()))
    report.require_few_rejected(chosen.max_rejected)


if __name__ == "__main__":
    main()
