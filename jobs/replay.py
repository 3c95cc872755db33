"""Replay recorded events through Kafka's purgatory rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import is_local_path
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import REPLAYED_BYTES, OpenBackend
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, find_files
from purgatory_udf.storage.output_folder import output_lock


def _configuration(
    config: Path | None, settings: list[str], max_disorder_ms: int | None, drain: bool | None, batch_events: int | None
) -> Config:
    given = {"max_disorder_ms": max_disorder_ms, "drain": drain, "batch_events": batch_events}
    options = [f"{key}={str(value).lower()}" for key, value in given.items() if value is not None]
    return load_config(config, [*settings, *options])


def _checks(
    events: str | None,
    trace: list[str] | None,
    config: Path | None,
    settings: list[str] | None,
    max_disorder_ms: int | None,
    drain: bool | None,
    batch_events: int | None,
    follow: bool,
    more: list[str] | None = None,
    explain: str | None = None,
    json: Path | None = None,
    **_: object,
) -> None:
    job.require_file("--json", json)
    if json is not None and explain is not None:
        raise UserError("--explain prints text only; remove --json")
    if more and not trace:
        raise UserError(f"{more[0]}: unexpected argument; use --trace for files to replay")
    if trace:
        find_files([*trace, *(more or [])], JSON_LINES)
    if explain is not None and events is None and not trace:
        return
    if explain is not None and follow:
        raise UserError("--explain needs a finished replay; remove --follow")
    if (events is None) == (not trace):
        raise UserError("give either --events TABLE or --trace FILE…")
    if follow and trace:
        raise UserError("--follow reads a growing table; ingest the trace first and pass --events")
    _configuration(config, settings or [], max_disorder_ms, drain, batch_events)


def _needs_spark(follow: bool, **_: object) -> bool:
    return follow


def _in_python(events: str | None, out: str, follow: bool, **_: object) -> bool:
    # Spark's JVM reads JSON Lines, and tables that are not on this machine, row by row.
    return events is not None and not follow and is_local_path(events) and is_local_path(out)


@job.job(
    checks=_checks,
    reads=("events", "trace", "more"),
    max_local_bytes=REPLAYED_BYTES,
    needs_spark=_needs_spark,
    in_python=_in_python,
)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder for the tables.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="PATH", help="More --trace files.", hidden=True)] = None,
    events: Annotated[str | None, typer.Option(help="Delta table of events, as ingest writes it.")] = None,
    trace: Annotated[
        list[str] | None, typer.Option(help="JSON Lines files, folders or globs to import first (repeatable).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; conf/local.yaml documents them.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting; overrides --config (repeatable)."),
    ] = None,
    max_disorder_ms: Annotated[
        int | None,
        typer.Option(
            help="Maximum out-of-orderness of events, in milliseconds.  [default: 0]",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        bool | None,
        typer.Option(
            "--drain/--no-drain",
            help="After the last event, let open operations expire, or leave them open.  [default: drain]",
            show_default=False,
        ),
    ] = None,
    batch_events: Annotated[
        int | None,
        typer.Option(help="Approximate number of events per micro-batch.  [default: 500000]", show_default=False),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(help="ID of the run.  [default: derived from the trace and the settings]", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the tables of an earlier run in the folder.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the table of events: replay new events until interrupted.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Consumer group: list its requests with different replayed and recorded responses. "
            "Without --events and --trace, the existing replay in the folder is used.",
        ),
    ] = None,
    json: job.JsonFile = None,
) -> None:
    """Replay the events of a trace; write completions, expirations and watches as Delta tables.

    Give the trace with --events or --trace; with --explain, neither is necessary.
    """
    from purgatory_udf.answers.replay_summary import as_json, summary
    from purgatory_udf.backend.file_system import write_json
    from purgatory_udf.sources.trace_files.trace_import import ingest_trace
    from purgatory_udf.streaming.group_disagreements import explained
    from purgatory_udf.streaming.replay_run import replay_recording
    from purgatory_udf.streaming.run_resumption import ReplayOptions

    _checks(events, trace, config, settings, max_disorder_ms, drain, batch_events, follow, more, explain, json)
    chosen = _configuration(config, settings or [], max_disorder_ms, drain, batch_events)
    backend = open_backend()
    if explain is not None and events is None and not trace:
        print("\n".join(explained(backend, out, explain)))
        return
    ingested: str | None = None
    with output_lock(out, "replay"):
        if trace:
            events, ingested = ingest_trace(backend, [*trace, *(more or [])], out, chosen, overwrite)
        assert events is not None
        run = replay_recording(backend, ReplayOptions(events, out, chosen, run_id, overwrite, follow, ingested))
    if json != Path("-"):
        print("\n".join(summary(backend, out, run)))
    if json is not None:
        write_json(json, as_json(backend, out, run))
    if explain is not None:
        print("\n".join(["", *explained(backend, out, explain)]))


if __name__ == "__main__":
    main()
