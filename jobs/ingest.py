"""Import recorded traces from files, request logs and Kafka topics."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.common.local_files import is_local_path
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages
from purgatory_udf.sources.request_log.importing.import_options import HOLD_MS, ImportReport, RequestLogOptions
from purgatory_udf.sources.request_log.log_files import find_logs
from purgatory_udf.sources.trace_files.input_files import (
    JSON_LINES,
    PARQUET,
    InputFile,
    InputFormat,
    find_files,
    require_applicable_options,
)
from purgatory_udf.sources.trace_files.text_lines import FileLimits
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions, IngestReport
from purgatory_udf.storage.output_folder import output_lock

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend
    from purgatory_udf.common.console import Phases

_request_log = partial(typer.Option, rich_help_panel="Request logs (--from request-log, --messages request-log)")
_kafka = partial(typer.Option, rich_help_panel="Kafka topics (--from kafka)")


class _Options:
    """The options of the command line, converted to the options of each input format."""

    def __init__(self, form: InputFormat, paths: list[str] | None, config: Config, given: dict[str, Any]) -> None:
        self.form = form
        self.paths = paths or []
        self.config = config
        self.given = {name: value for name, value in given.items() if value is not None}

    def events(self) -> IngestOptions:
        return IngestOptions(
            paths=self.paths or [self.given["topic"]],
            source="parquet" if self.form is InputFormat.PARQUET else "jsonl",
            max_disorder_ms=self.config.max_disorder_ms,
            limits=self._limits(),
            **self._of("out", "overwrite", "events_per_file", "run_id"),
        )

    def request_log(self) -> RequestLogOptions:
        metadata = ("topics", "batches", "isr", "zone", "anonymise", "anonymise_key")
        paths = self.paths or [self.given["topic"]]
        options = self._of("out", *metadata, "overwrite", "events_per_file", "run_id", "hold_ms", "kafka_version")
        return RequestLogOptions(paths, limits=self._limits(), **options)

    def kafka(self) -> KafkaTopic:
        return KafkaTopic(**self._of("bootstrap", "topic", "messages", "client", "client_file"))

    @property
    def is_log(self) -> bool:
        return self.form is InputFormat.REQUEST_LOG or self.given.get("messages") is Messages.REQUEST_LOG

    def require_applicable_options(self) -> None:
        """Raise `UserError` if the options contradict each other; no file is read."""
        require_applicable_options(self.form, self.paths, self.given)
        if self.form is InputFormat.KAFKA:
            self.kafka().require_applicable_options(self.given)

    def require_files(self) -> None:
        if self.is_log:
            self.request_log().require_files()
        if self.form is InputFormat.REQUEST_LOG:
            find_logs(self.paths)
        elif self.form is not InputFormat.KAFKA:
            find_files(self.paths, PARQUET if self.form is InputFormat.PARQUET else JSON_LINES)

    def _limits(self) -> FileLimits:
        return FileLimits(self.config.max_line_bytes, self.config.max_unpacked)

    def _of(self, *names: str) -> dict[str, Any]:
        return {name: self.given[name] for name in names if name in self.given}


def _options_of(
    paths: list[str] | None,
    form: InputFormat,
    config: Path | None,
    settings: list[str] | None,
    max_disorder_ms: int | None,
    max_rejected: float | None,
    **given: Any,
) -> _Options:
    options = {"max_disorder_ms": max_disorder_ms, "max_rejected": max_rejected}
    words = [f"{key}={value}" for key, value in options.items() if value is not None]
    return _Options(
        form, paths, load_config(config, [*(settings or []), *words]), {"max_disorder_ms": max_disorder_ms, **given}
    )


def _checks(**given: Any) -> None:
    options = _options_of(**given)
    options.require_applicable_options()
    options.require_files()


def _needs_spark(**given: Any) -> bool:
    # Rows of files are spilled, so these may have any size.
    return _options_of(**given).form is InputFormat.KAFKA


def _in_python(**given: Any) -> bool:
    # Tables that are not on this machine are written by Spark's JVM, row by row.
    return _options_of(**given).form is InputFormat.REQUEST_LOG and is_local_path(given["out"])


@job.job(checks=_checks, reads=("paths",), max_local_bytes=ANY_BYTES, needs_spark=_needs_spark, in_python=_in_python)
def main(
    open_backend: OpenBackend,
    out: Annotated[
        str, typer.Option(help="Folder for the tables: events, rejected_events, and for request logs recorded.")
    ],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files, folders (searched recursively), glob patterns, or URIs."),
    ] = None,
    form: Annotated[
        InputFormat,
        typer.Option(
            "--from",
            help="Input format; request-log is the log that Kafka's request logger writes. Files may be compressed.",
        ),
    ] = InputFormat.JSONL,
    max_disorder_ms: Annotated[
        int | None,
        typer.Option(
            help="Maximum out-of-orderness of events, in milliseconds; events beyond it are rejected.  [default: 0]",
            show_default=False,
        ),
    ] = None,
    max_rejected: Annotated[
        float | None,
        typer.Option(
            help="Maximum percentage of rejected lines; above it, the exit status is 1.  [default: 0]",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing tables in the folder.")] = False,
    events_per_file: Annotated[
        int, typer.Option(help="Approximate number of events per file of the table events.", min=1, max=1_000_000_000)
    ] = 50_000,
    run_id: Annotated[
        str | None, typer.Option(help="ID of the run.  [default: derived from the input]", show_default=False)
    ] = None,
    topics: Annotated[
        str | None,
        _request_log(
            metavar="FILE",
            help="File of topic IDs and names: JSON, output of kafka-topics --describe, or lines `id name`.",
        ),
    ] = None,
    batches: Annotated[
        str | None, _request_log(metavar="FILE", help="File of record batches: output of kafka-dump-log, or CSV.")
    ] = None,
    isr: Annotated[
        str | None,
        _request_log(
            metavar="FILE",
            help="File of leaders and in-sync sets: output of kafka-dump-log --cluster-metadata-decoder.",
        ),
    ] = None,
    kafka_version: Annotated[
        str | None,
        _request_log(
            metavar="X.Y",
            help="Kafka version of the brokers, if the log does not show it. Replays then follow the "
            "rules of this version: for example, up to 3.9 offset commits wait like produces.",
        ),
    ] = None,
    zone: Annotated[
        str | None,
        _request_log(
            help="Time zone of log times without an offset: UTC or an offset, such as +01:00.  [default: UTC]",
            show_default=False,
        ),
    ] = None,
    anonymise: Annotated[
        bool,
        _request_log(
            "--anonymise", help="Replace the names of topics, groups, clients, members and assignors with pseudonyms."
        ),
    ] = False,
    anonymise_key: Annotated[
        str | None,
        _request_log(
            help="Secret key for the pseudonyms, as ${env:NAME}; without a key, others can verify guessed names."
        ),
    ] = None,
    bootstrap: Annotated[
        str | None, _kafka(metavar="HOST:PORT[,…]", help="Bootstrap servers of the cluster with the topic.")
    ] = None,
    topic: Annotated[str | None, _kafka(help="Topic to read.")] = None,
    messages: Annotated[
        Messages | None,
        _kafka(
            help="Content of each message: an event, or a line of a request log.  [default: events]", show_default=False
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        _kafka(metavar="KEY=VALUE", help="Kafka client setting, for example security.protocol=SSL (repeatable)."),
    ] = None,
    client_file: Annotated[
        str | None,
        _kafka(
            metavar="FILE",
            help="Properties file of Kafka client settings, including secrets; ${env:NAME} is replaced by the "
            "environment variable, here and in --client.",
        ),
    ] = None,
    follow: Annotated[
        bool, _kafka("--follow", help="Follow the topic: import new messages until interrupted.")
    ] = False,
    hold_ms: Annotated[
        int | None,
        _kafka(
            help="Time to hold back lines of a followed request log, in milliseconds, because later lines may describe "
            f"earlier events; at least the longest wait of a request.  [default: {HOLD_MS}]",
            show_default=False,
            min=1,
            max=86_400_000,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; conf/local.yaml documents them.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting; overrides --config (repeatable)."),
    ] = None,
) -> None:
    """Import recorded traces into the table events; invalid lines go to rejected_events with the reason."""
    options = _options_of(**{name: value for name, value in locals().items() if name != "open_backend"})
    options.require_applicable_options()
    from purgatory_udf.backend.backend import SparkBackend, running_tasks
    from purgatory_udf.common.console import Phases

    backend = open_backend()
    if follow:
        from purgatory_udf.sources.follow_topic import follow_until_stopped

        assert isinstance(backend, SparkBackend)
        with output_lock(out, "ingest"):
            follow_until_stopped(
                backend.spark, options.kafka(), options.request_log() if options.is_log else options.events()
            )
        return
    with output_lock(out, "ingest"), Phases(running_tasks(backend)) as phases:
        report = (
            _from_kafka(backend, options, phases)
            if form is InputFormat.KAFKA
            else _from_files(backend, options, phases)
        )
    print("\n".join(report.summary()))
    report.require_few_rejected(options.config.max_rejected)


def _from_files(
    backend: Backend, options: _Options, phases: Phases, files: list[InputFile] | None = None
) -> IngestReport | ImportReport:
    from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log
    from purgatory_udf.sources.trace_files.trace_import import ingest

    if options.is_log:
        return ingest_request_log(backend, options.request_log(), phases, files)
    return ingest(backend, options.events(), phases, files)


def _from_kafka(backend: Backend, options: _Options, phases: Phases) -> IngestReport | ImportReport:
    from purgatory_udf.backend.backend import SparkBackend
    from purgatory_udf.sources.kafka_topic import connect, spool_messages

    assert isinstance(backend, SparkBackend)
    connect(backend.spark, options.kafka())
    with spool_messages(backend.spark, options.kafka(), f"{options.given['out'].rstrip('/')}/_messages") as files:
        return _from_files(backend, options, phases, files)


if __name__ == "__main__":
    main()
