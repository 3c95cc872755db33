"""Which run a replay goes on with: a new one, or the one that was interrupted here."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.file_system import files_of, require_no_file
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.engine.loop import state_codec
from purgatory_udf.rules.groups import frames, group_state_store
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import TraceSurvey, grouping_for
from purgatory_udf.streaming.partition_rules import OUTPUT_TABLES
from purgatory_udf.streaming.replay_options import ReplayOptions, semantic_settings
from purgatory_udf.streaming.single_batch_replay import GROUPING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# How a run is known again, whichever version began it: by the settings that decide what it answers, and by the formats
# of its state.


# In which formats a run's state is kept, from its beginning to its end. `queries` is how many there are, which tables
# go between them, and what Spark keeps beside a state: whoever changes that counts on.
FORMATS = {
    "queries": 2,
    "partitions": state_codec.VERSION,
    "groups": group_state_store.VERSION,
    "frames": frames.VERSION,
}


def as_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The kept settings of a run as this version has them: what it does not know is left out, what is new has its
    default."""
    return _filled(settings, semantic_settings(Config()))


def _filled(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: settings.get(key, default) for key, default in defaults.items()}
    return {
        key: _filled(value, defaults[key]) if isinstance(value, dict) and isinstance(defaults[key], dict) else value
        for key, value in given.items()
    }


def other_formats(settings: Mapping[str, Any]) -> str:
    """Those of a run that are none of this version; a state tells of its own where the run does not."""
    kept = settings.get("formats", FORMATS)
    return ", ".join(f"{name} {kept.get(name)}" for name, ours in FORMATS.items() if kept.get(name) != ours)


# Of these a checkpoint depends: a run can only go on with what it began with.
_FIXED_BY_CHECKPOINT = ("grouping", "grouping_shards")

# How a run is called that nobody has given a name.
_MADE = "run-"
# Kept with a run: whether all of its trace is one batch.
_AT_ONCE = "at_once"


def begin(spark: SparkSession, options: ReplayOptions, layout: Layout, trace: TraceSurvey) -> Run:
    """What a run is, its trace and the settings that decide its answers, is kept in `runs`."""
    require_no_file(files_of(spark), options.out)
    identity = _identity(spark, options)
    asked = _fingerprint([identity, semantic_settings(options.config)])
    run_id = options.run_id or f"{_MADE}{asked[:12]}"
    known = run_records.load(spark, layout.table("runs"), "replay")
    if known and not options.overwrite:
        _same_run(known, run_id, identity, options)
        return known
    if options.overwrite:
        # Its record goes first: a run whose tables are being removed must not be taken for a finished one.
        if known:
            run_records.forget(spark, layout.table("runs"), known)
        for name in (*OUTPUT_TABLES, "group_transitions", "group_disagreements", "_replay"):
            files_of(spark).remove(layout.table(name))
    elif any(files_of(spark).exists(layout.table(name)) for name in OUTPUT_TABLES):
        raise UserError(f"{options.out}: holds tables of no known run; --overwrite replaces them")
    settings = {**options.config.model_dump(mode="json"), "formats": FORMATS, "stream": uuid.uuid4().hex}
    settings["grouping"] = _grouping(spark, options, trace)
    # A trace of one batch ends within it. That changes what this batch writes, so it is decided here, for good.
    settings[_AT_ONCE] = not options.follow and trace.survey.events <= options.config.batch_events
    run = Run(run_id, "replay", {"events": options.events, **identity}, settings)
    run_records.save(spark, layout.table("runs"), run)
    return run


def at_once(run: Run) -> bool:
    return bool(run.configuration.get(_AT_ONCE))


def _grouping(spark: SparkSession, options: ReplayOptions, trace: TraceSurvey) -> str:
    """The run's for good; what a table that still grows will hold, nobody knows."""
    if local(spark):
        return GROUPING
    if options.config.grouping != "auto":
        return options.config.grouping
    if options.follow:
        return "broker"
    return grouping_for(spark, options.events, trace.survey.events)


def _identity(spark: SparkSession, options: ReplayOptions) -> dict[str, Any]:
    """What makes a trace the same trace: the files it was ingested from, or the table and its version."""
    if options.ingested:
        return {"ingest": options.ingested}
    known = delta_tables.identity(spark, options.events)
    return {"table": known["table"]} | ({} if options.follow else {"version": known["version"]})


def _fingerprint(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()


def _same_run(known: Run, run_id: str, identity: Mapping[str, Any], options: ReplayOptions) -> None:
    same_trace = all(known.trace.get(key) == value for key, value in identity.items())
    # A name of its own making changes with every setting that there is, and one of these may be newer than the run.
    named = options.run_id is not None or not known.run_id.startswith(_MADE)
    same_settings = as_now(known.configuration) == semantic_settings(options.config)
    if (named and known.run_id != run_id) or not same_trace or not same_settings:
        raise UserError(
            f"{options.out}: holds run {known.run_id} of another trace or with other settings; "
            "choose another --out, or --overwrite to replace it"
        )
    if known.status != run_records.FINISHED and (other := other_formats(known.configuration)):
        raise UserError(
            f"{options.out}: the interrupted run keeps its state in other formats than this version ({other}): finish "
            "it with the version that began it, or start it anew with --overwrite"
        )
    now = options.config.model_dump()
    for key in _FIXED_BY_CHECKPOINT:
        if now[key] == "auto":
            continue
        if known.status != run_records.FINISHED and known.configuration.get(key) != now[key]:
            raise UserError(
                f"{options.out}: the interrupted run was begun with {key}={known.configuration.get(key)}, "
                f"not {now[key]}; go on with that, or --overwrite"
            )
