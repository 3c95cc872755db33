"""Starts a new run of a replay, or resumes the interrupted run in its folder."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from purgatory_udf.backend.backend import Backend, LocalBackend, Session
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.engine.loop import state_codec
from purgatory_udf.rules.groups import column_frames, group_gauges, group_state_store
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import EventTable
from purgatory_udf.streaming.partition_rules import OUTPUT_TABLES

# The grouping of a run that one process replays in one batch.
SINGLE_BATCH_GROUPING = "broker"

# Settings that change how a replay is executed, but not its results.
_IMPORT_SETTINGS = ("max_rejected", "max_line_bytes", "max_unpacked")
_EXECUTION_SETTINGS = ("batch_events", "grouping", "grouping_shards", *_IMPORT_SETTINGS)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay.

    Attributes:
        events: Path of the Delta table of events.
        out: Output folder.
        config: All settings.
        run_id: Id of the run; None derives it from the trace and the settings.
        overwrite: Whether to delete an existing run and start from scratch.
        follow: Whether to follow a growing table until interrupted.
        ingested: Name of the import, if the same command imports the events. It then identifies the trace.
        any_size: Whether this process may replay a trace of any size in memory. By default, Spark replays large ones.
    """

    events: str
    out: str
    config: Config
    run_id: str | None = None
    overwrite: bool = False
    follow: bool = False
    ingested: str | None = None
    any_size: bool = False


def with_recorded_settings(session: Session, options: ReplayOptions) -> ReplayOptions:
    """Return the options with the settings that the recording of the events shows, unless they set others.

    A followed replay that resumes keeps the settings that it was started with. Contradictions are logged as warnings.
    """
    recorded = run_records.recorded_brokers(session, options.events)
    known = None
    if options.follow and not options.overwrite:
        known = run_records.load(session, Layout(options.out).table("runs"), "replay")
    if known:
        config = run_records.with_version(options.config, recorded.kafka_version)
        config = run_records.with_kept(config, known.configuration)
    else:
        config = run_records.with_recorded(options.config, recorded)
    run_records.warn_of_contradictions(config, recorded.settings)
    return replace(options, config=config)


def semantic_settings(config: Config) -> dict[str, Any]:
    """Return the settings that results depend on."""
    return {key: value for key, value in config.model_dump(mode="json").items() if key not in _EXECUTION_SETTINGS}


# Versions of the formats of a run's state. `queries` is increased when the number of queries, their sources, the schema
# of Spark's state, or the names of its groups change.
FORMATS = {
    "queries": 5,
    "partitions": state_codec.VERSION,
    "groups": group_state_store.VERSION,
    "frames": column_frames.VERSION,
    "gauges": group_gauges.VERSION,
}


def with_current_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings in this version's form: unknown settings are dropped, new ones get their default."""
    return _filled(settings, semantic_settings(Config()))


def _filled(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: settings.get(key, default) for key, default in defaults.items()}
    return {
        key: _filled(value, defaults[key]) if isinstance(value, dict) and isinstance(defaults[key], dict) else value
        for key, value in given.items()
    }


def other_formats(settings: Mapping[str, Any]) -> str:
    """Return the formats of a run that this version cannot read, as text; empty if it can read all."""
    run_formats = settings.get("formats", FORMATS)
    different = [name for name, current in FORMATS.items() if run_formats.get(name) != current]
    return ", ".join(f"{name} {run_formats.get(name)}" for name in different)


# Settings that a checkpoint depends on: a run keeps those it was started with.
_FIXED_BY_CHECKPOINT = ("grouping", "grouping_shards")

# Prefix of generated run ids.
_MADE = "run-"
# Recorded with a run: whether all of its trace is one batch.
_IS_ONE_BATCH = "at_once"


def start_or_resume(backend: Backend, options: ReplayOptions, layout: Layout, events: EventTable) -> Run:
    """Return the run to execute, recorded in `runs` with its trace and the settings that its results depend on.

    Raises:
        UserError: If the folder has another run, or a run that this version cannot resume.
    """
    files, runs = backend.files, layout.table("runs")
    require_no_file(files, options.out)
    identity = _identity(events, options)
    fingerprint = _fingerprint([identity, semantic_settings(options.config)])
    run_id = options.run_id or f"{_MADE}{fingerprint[:12]}"
    known = run_records.load(backend, runs, "replay")
    if known and not options.overwrite:
        _same_run(known, run_id, identity, options)
        return known
    if options.overwrite:
        # Delete the record before the tables: an incomplete run must not look finished.
        if known:
            run_records.forget(backend, runs, known)
        others = ("share_deliveries", "group_transitions", "member_transitions", "group_disagreements", "_replay")
        for name in (*OUTPUT_TABLES, *others):
            files.remove(layout.table(name))
    elif any(files.exists(layout.table(name)) for name in OUTPUT_TABLES):
        raise UserError(
            f"{options.out}: has tables without a record of their run; replace them with --overwrite, or "
            "choose another --out"
        )
    settings = {**options.config.model_dump(mode="json"), "formats": FORMATS, "stream": uuid.uuid4().hex}
    settings["grouping"] = _grouping(backend, options, events)
    # Fixed for the run: the only batch of a trace also writes the end of the trace.
    fits = events.survey.events <= options.config.batch_events
    settings[_IS_ONE_BATCH] = isinstance(backend, LocalBackend) or (fits and not options.follow)
    run = Run(run_id, "replay", {"events": events.path, **identity}, settings)
    run_records.save(backend, runs, run)
    return run


def is_one_batch(run: Run) -> bool:
    """Return whether the run has its whole trace in one batch."""
    return bool(run.configuration.get(_IS_ONE_BATCH))


def _grouping(backend: Backend, options: ReplayOptions, events: EventTable) -> str:
    """Return the run's grouping. For `auto`, a growing table is grouped by broker, because its size is not known."""
    if isinstance(backend, LocalBackend):
        return SINGLE_BATCH_GROUPING
    if options.config.grouping != "auto":
        return options.config.grouping
    if options.follow:
        return "broker"
    return events.grouping()


def _identity(events: EventTable, options: ReplayOptions) -> dict[str, Any]:
    """Return the identity of the trace: the files it was imported from, or the table and its version."""
    if options.ingested:
        return {"ingest": options.ingested}
    known = events.identity()
    return {"table": known.table} | ({} if options.follow else {"version": known.version})


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _same_run(known: Run, run_id: str, identity: Mapping[str, Any], options: ReplayOptions) -> None:
    same_trace = all(known.trace.get(key) == value for key, value in identity.items())
    # A generated id changes with every setting, and some setting may be newer than the run.
    named = options.run_id is not None or not known.run_id.startswith(_MADE)
    same_settings = with_current_defaults(known.configuration) == semantic_settings(options.config)
    if (named and known.run_id != run_id) or not same_trace or not same_settings:
        raise UserError(
            f"{options.out}: has run {known.run_id} of another trace or with other settings; "
            "choose another --out, or replace it with --overwrite"
        )
    if known.status != run_records.FINISHED and (other := other_formats(known.configuration)):
        raise UserError(
            f"{options.out}: the interrupted run has state in formats that this version cannot read ({other}): finish "
            "it with the version that started it, or restart it with --overwrite"
        )
    now = options.config.model_dump()
    for key in _FIXED_BY_CHECKPOINT:
        if now[key] == "auto":
            continue
        if known.status != run_records.FINISHED and known.configuration.get(key) != now[key]:
            raise UserError(
                f"{options.out}: the interrupted run was started with {key}={known.configuration.get(key)}, "
                f"not {now[key]}; resume it with that value, or restart it with --overwrite"
            )
