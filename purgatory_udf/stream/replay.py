"""A replay from beginning to end: prepare, stream, let the clock run out, settle, count.

Every step may be interrupted and run again: the streams go on from their checkpoints, tables are written once per
batch, and the rest is done anew. What a run is, its trace and the settings that decide its answers, is kept in `runs`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from purgatory_udf.config import INT32_MAX, Config
from purgatory_udf.errors import UserError
from purgatory_udf.stream import delta, runs
from purgatory_udf.stream.adapter import Limits
from purgatory_udf.stream.gauges import write_gauges
from purgatory_udf.stream.groups import follow_groups, replay_groups
from purgatory_udf.stream.layout import Layout
from purgatory_udf.stream.packing import CLOCK, PACKED
from purgatory_udf.stream.queries import (
    OUTCOMES,
    delta_stream,
    operations_query,
    settling_stream,
    to_delta,
    watches_query,
    write_outcomes,
)
from purgatory_udf.stream.runs import Run
from purgatory_udf.stream.staging import staged
from purgatory_udf.stream.survey import Survey, survey
from purgatory_udf.stream.watch import follow_to_end, stop_all, stopped_by_signal
from purgatory_udf.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Settings that change how a replay is carried out, never what it answers.
_READING = ("max_rejected", "max_line_bytes", "max_unpacked")
_MACHINERY = ("batch_events", "grouping", "grouping_shards", "settle_buckets", *_READING)
# Of these a checkpoint depends: a run can only go on with what it began with.
_FIXED_BY_CHECKPOINT = ("grouping", "grouping_shards", "settle_buckets")


@dataclass(frozen=True)
class ReplayOptions:
    events: str
    out: str
    config: Config
    run_id: str | None = None
    overwrite: bool = False
    follow: bool = False
    ingested: str | None = None  # the ingest that made the events, when one command did both


def run_replay(spark: SparkSession, options: ReplayOptions) -> Run:
    """Replay the events into the outcome tables; the run's record says what came of it."""
    layout = Layout(options.out)
    if not delta.is_table(spark, options.events):
        raise UserError(f"{options.events}: no Delta table of events there (ingest makes one)")
    run = _begin(spark, options, layout)
    if run.status == runs.FINISHED:
        log.info("run %s is finished already; --overwrite replays it anew", run.run_id)
        return run
    # After the run is known: a run that is stopped before its tables are there goes on, too.
    for name in OUTCOMES:
        delta.create(spark, layout.table(name), TABLES[name])
    if options.follow:
        return _follow(spark, options, layout, run)
    found = survey(spark.read.format("delta").load(options.events))
    if not found.events:
        raise UserError(f"{options.events}: the table holds no event")
    events, files = staged(spark, options.events, layout, found.events, options.config.batch_events)
    stream = _Stream(spark, options.config, layout, run, found)
    if found.operations:
        stream.watches(events, files)
        stream.run_out_the_clock()
        stream.watches(events, files)
        stream.operations()
    groups = replay_groups(spark, options.config, layout, run, found, events, files)
    log.info("working out the gauges")
    assert found.first_us is not None and found.last_us is not None
    write_gauges(spark, layout, options.config, run.run_id, found.first_us, found.last_us)
    counts = _counts(spark, layout, found, groups)
    done = run.finished(counts)
    runs.save(spark, layout.table("runs"), done)
    return done


def semantic_settings(config: Config) -> dict[str, Any]:
    """The settings that the answers depend on."""
    return {key: value for key, value in config.model_dump(mode="json").items() if key not in _MACHINERY}


def _begin(spark: SparkSession, options: ReplayOptions, layout: Layout) -> Run:
    """The run to go on with: a new one, or the one that was interrupted here."""
    if delta.is_file(spark, options.out):
        raise UserError(f"{options.out}: is a file; --out names a folder")
    identity = _identity(spark, options)
    asked = _fingerprint([identity, semantic_settings(options.config)])
    trace = {"events": options.events, **identity}
    run_id = options.run_id or f"run-{asked[:12]}"
    known = runs.load(spark, layout.table("runs"), "replay")
    if known and not options.overwrite:
        _same_run(known, run_id, asked, options)
        return known
    if options.overwrite:
        for name in (*OUTCOMES, "purgatory_gauges", "group_transitions", "group_disagreements", "_replay"):
            delta.remove(spark, layout.table(name))
        if known:
            runs.forget(spark, layout.table("runs"), known)
    elif any(delta.exists(spark, layout.table(name)) for name in OUTCOMES):
        raise UserError(f"{options.out}: holds tables of no known run; --overwrite replaces them")
    settings = {**options.config.model_dump(), "asked": asked, "stream": uuid.uuid4().hex}
    run = Run(run_id, "replay", trace, settings)
    runs.save(spark, layout.table("runs"), run)
    return run


def _identity(spark: SparkSession, options: ReplayOptions) -> dict[str, Any]:
    """What makes a trace the same trace: the files it was ingested from, or the table and its version."""
    if options.ingested:
        return {"ingest": options.ingested}
    known = delta.identity(spark, options.events)
    return {"table": known["table"]} | ({} if options.follow else {"version": known["version"]})


def _fingerprint(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()


def _same_run(known: Run, run_id: str, asked: str, options: ReplayOptions) -> None:
    if known.run_id != run_id or known.configuration.get("asked") != asked:
        raise UserError(
            f"{options.out}: holds run {known.run_id} of another trace or with other settings; "
            "choose another --out, or --overwrite to replace it"
        )
    now = options.config.model_dump()
    for key in _FIXED_BY_CHECKPOINT:
        if known.status != runs.FINISHED and known.configuration.get(key) != now[key]:
            raise UserError(
                f"{options.out}: the interrupted run was begun with {key}={known.configuration.get(key)}, "
                f"not {now[key]}; go on with that, or --overwrite"
            )


class _Stream:
    """The queries of one run."""

    def __init__(self, spark: SparkSession, config: Config, layout: Layout, run: Run, found: Survey) -> None:
        self.spark, self.config, self.layout, self.run, self.found = spark, config, layout, run, found
        retain = min(found.most_bytes, config.fetch.max_bytes)
        self.limits = Limits(retain, config.max_disorder_ms > 0)
        delta.create(spark, layout.control, PACKED)
        if not delta.is_table(spark, layout.settling):
            spark.createDataFrame([], "payload BINARY").write.format("delta").save(layout.settling)
        if not delta.is_table(spark, layout.ended):
            spark.createDataFrame([], "payload BINARY").write.format("delta").save(layout.ended)

    def watches(self, events: str, files: int) -> None:
        """Query 1, over all events there are now."""
        frame = watches_query(
            delta_stream(self.spark, events, files, delta.began(self.spark, events)),
            delta_stream(self.spark, self.layout.control),
            self.config,
            self.limits,
        )
        writer = to_delta(frame, self.layout.settling, self.layout.checkpoint("partitions"), "watches")
        query = writer.trigger(availableNow=True).start()
        follow_to_end(query, "replay", self.found)

    def run_out_the_clock(self) -> None:
        """One row of no key, past the last deadline that there can be, so that every timer fires."""
        if self.spark.read.format("delta").load(self.layout.control).head(1):
            return
        assert self.found.last_us is not None
        end_us = self.found.last_us + (INT32_MAX + 2000) * 1000
        row = self.spark.range(1).select(
            sf.lit(CLOCK).alias("group"),
            sf.timestamp_micros(sf.lit(end_us)).alias("event_time"),
            sf.lit(b"").alias("payload"),
        )
        row.write.format("delta").mode("append").save(self.layout.control)

    def operations(self) -> None:
        """Query 2, over all watches there are now."""
        last = self.found.last_us
        stream_id = f"{self.run.run_id}/{self.run.configuration['stream']}"
        settling = settling_stream(self.spark, self.layout.settling)
        writer = operations_query(settling, self.config.settle_buckets).writeStream.foreachBatch(
            write_outcomes(self.layout, self.run.run_id, stream_id, last, self.config.drain)
        )
        query = (
            writer.queryName("operations")
            .option("checkpointLocation", self.layout.checkpoint("operations"))
            .trigger(availableNow=True)
            .start()
        )
        follow_to_end(query, "settle", None)


def _follow(spark: SparkSession, options: ReplayOptions, layout: Layout, run: Run) -> Run:
    """Both queries side by side over a table that still grows, until interrupted; nothing is drained."""
    nothing = Survey(0, 0, None, None, options.config.fetch.max_bytes)
    stream = _Stream(spark, options.config, layout, run, nothing)
    events = delta_stream(spark, options.events, since=delta.began(spark, options.events))
    frame = watches_query(events, delta_stream(spark, layout.control), stream.config, stream.limits)
    first = to_delta(frame, layout.settling, layout.checkpoint("partitions"), "watches").start()
    stream_id = f"{run.run_id}/{run.configuration['stream']}"
    second = (
        operations_query(settling_stream(spark, layout.settling), stream.config.settle_buckets)
        .writeStream.foreachBatch(write_outcomes(layout, run.run_id, stream_id, None, True))
        .queryName("operations")
        .option("checkpointLocation", layout.checkpoint("operations"))
        .start()
    )
    others = follow_groups(spark, stream.config, layout, run, events)
    with stopped_by_signal():
        try:
            follow_to_end(first, "replay", nothing, beside=(second, *others))
        finally:
            # What others read from stops first.
            coordinators, group_tables = others
            stop_all((first, coordinators, second, group_tables))
    return run


def _counts(spark: SparkSession, layout: Layout, found: Survey, groups: dict[str, Any]) -> dict[str, Any]:
    def rows(name: str) -> int:
        path = layout.table(name)
        return spark.read.format("delta").load(path).count() if delta.is_table(spark, path) else 0

    completions, expirations = rows("completions"), rows("expirations")
    rejected = rows("rejected_events")
    # A session or a rebalance is an operation that no event names: the groups' own count says how many there were.
    operations = found.operations + groups.get("operations", 0)
    return {
        "events": found.events,
        "rejected": rejected,
        "lines": found.events + rejected,
        "operations": operations,
        "completions": completions,
        "expirations": expirations,
        "open": operations - completions - expirations,
        **({"groups": groups} if groups else {}),
    }
