"""A replay from beginning to end: prepare, stream, let the clock run out, settle, count.

Every step may be interrupted and run again: the streams go on from their checkpoints, tables are written once per
batch, and the rest is done anew. What a run is, its trace and the settings that decide its answers, is kept in `runs`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from purgatory_udf.config import INT32_MAX, Config
from purgatory_udf.errors import UserError
from purgatory_udf.live.boards import Boards
from purgatory_udf.loop.engine import purge_intervals
from purgatory_udf.loop.grouping import group_of
from purgatory_udf.loop.state import Limits
from purgatory_udf.storage import delta, runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.staging import staged
from purgatory_udf.stream.adapter import Plan, Sees
from purgatory_udf.stream.following import QUERIES, Following
from purgatory_udf.stream.gauges import close_gauges
from purgatory_udf.stream.groups import follow_groups, replay_groups
from purgatory_udf.stream.packing import CLOCK, PACKED
from purgatory_udf.stream.queries import WRITTEN, Sink, TraceSource, by_group, delta_stream, packed, to_tables
from purgatory_udf.stream.running import follow_to_end, stop_all, stopped_by_signal
from purgatory_udf.stream.survey import Survey, grouping_for, survey
from purgatory_udf.tables import ENDS, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

# Settings that change how a replay is carried out, never what it answers.
_READING = ("max_rejected", "max_line_bytes", "max_unpacked")
_MACHINERY = ("batch_events", "grouping", "grouping_shards", *_READING)
# Of these a checkpoint depends: a run can only go on with what it began with.
_FIXED_BY_CHECKPOINT = ("grouping", "grouping_shards")

# Kept with a run: whether all of its trace is one batch.
_AT_ONCE = "at_once"
_TIMERS_ALONE = "spark.sql.streaming.noDataMicroBatches.enabled"

_LOOK_EVERY_SECONDS = 1


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
    trace = _Trace(spark, options)
    if not options.follow and not delta.is_table(spark, layout.table("runs")):
        trace.look_ahead()
    run = _begin(spark, options, layout, trace)
    if run.status == runs.FINISHED:
        log.info("run %s is finished already; --overwrite replays it anew", run.run_id)
        return run
    schemas = {layout.table(name): TABLES[name] for name in WRITTEN}
    alone = bool(run.configuration.get(_AT_ONCE)) and not trace.found.of_groups
    if not alone:
        # After the run is known: a run that is stopped before its tables are there goes on, too.
        delta.create_all(spark, schemas)
    if options.follow:
        return _follow(spark, options, layout, run)
    found = trace.found
    source = _source(spark, options, layout, run, found)
    assert found.first_us is not None and found.last_us is not None
    sinks: list[Sink] = []
    if found.operations:
        retain = min(found.most_bytes, options.config.fetch.max_bytes)
        plan = Plan(
            run.run_id,
            Limits(purge_intervals(options.config), found.first_us // 1000, retain),
            options.config.max_disorder_ms > 0,
            found.last_us,
            source.at_once,
        )
        stream = _Stream(spark, options.config, layout, run, plan, alone=alone)
        queries = stream.queries(lambda: source.stream(spark))
        for query in queries:
            query.to_end(found)
        sinks = [query.sink for query in queries]
    if alone:
        # Its one batch has made those that it has rows for.
        delta.create_all(spark, schemas)
    groups = replay_groups(spark, options.config, layout, run, found, source)
    given = _rows(sinks) if options.config.drain and not groups else None
    with ThreadPoolExecutor(1) as beside:
        counted = beside.submit(_counts, spark, layout, found, groups, given)
        if not (sinks and all(sink.closes for sink in sinks)):
            close_gauges(spark, layout, options.config, found.last_us, None if groups else _latest(sinks))
        counts = counted.result()
    done = run.finished(counts)
    runs.save(spark, layout.table("runs"), done)
    return done


class _Trace:
    """The events of a trace that is finished, looked over when somebody asks for the first time; or `ahead` of that,
    beside whatever comes before."""

    def __init__(self, spark: SparkSession, options: ReplayOptions) -> None:
        self._spark, self._events = spark, options.events
        self._ahead: Future[Survey] | None = None

    def look_ahead(self) -> None:
        beside = ThreadPoolExecutor(1)
        self._ahead = beside.submit(self._survey)
        beside.shutdown(wait=False)

    def _survey(self) -> Survey:
        return survey(self._spark.read.format("delta").load(self._events))

    @cached_property
    def found(self) -> Survey:
        found = self._ahead.result() if self._ahead else self._survey()
        if not found.events:
            raise UserError(f"{self._events}: the table holds no event")
        return found


def _source(spark: SparkSession, options: ReplayOptions, layout: Layout, run: Run, found: Survey) -> TraceSource:
    """The trace in the batches that the run was begun with."""
    if run.configuration.get(_AT_ONCE):
        return TraceSource(options.events)
    return TraceSource(*staged(spark, options.events, layout, found.events, options.config.batch_events))


def _rows(sinks: Sequence[Sink]) -> Counter[str] | None:
    """How many rows each table was given, as far as this process has seen all."""
    given = [sink.rows for sink in sinks]
    return sum((rows for rows in given if rows is not None), Counter()) if sinks and None not in given else None


def _latest(sinks: Sequence[Sink]) -> int | None:
    """When the last operation ended, as far as this process has seen all."""
    ends = [sink.latest_us for sink in sinks]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def semantic_settings(config: Config) -> dict[str, Any]:
    """The settings that the answers depend on."""
    return {key: value for key, value in config.model_dump(mode="json").items() if key not in _MACHINERY}


def _begin(spark: SparkSession, options: ReplayOptions, layout: Layout, trace_of: _Trace) -> Run:
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
        for name in (*WRITTEN, "group_transitions", "group_disagreements", "_replay"):
            delta.remove(spark, layout.table(name))
        if known:
            runs.forget(spark, layout.table("runs"), known)
    elif any(delta.exists(spark, layout.table(name)) for name in WRITTEN):
        raise UserError(f"{options.out}: holds tables of no known run; --overwrite replaces them")
    settings = {**options.config.model_dump(mode="json"), "asked": asked, "stream": uuid.uuid4().hex}
    settings["grouping"] = _grouping(spark, options, trace_of)
    # A trace of one batch ends within it. That changes what this batch writes, so it is decided here, for good.
    settings[_AT_ONCE] = not options.follow and trace_of.found.events <= options.config.batch_events
    run = Run(run_id, "replay", trace, settings)
    runs.save(spark, layout.table("runs"), run)
    return run


def _grouping(spark: SparkSession, options: ReplayOptions, trace_of: _Trace) -> str:
    """The run's for good; what a table that still grows will hold, nobody knows."""
    if options.config.grouping != "auto":
        return options.config.grouping
    if options.follow:
        return "broker"
    return grouping_for(spark.read.format("delta").load(options.events), trace_of.found.events)


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
        if now[key] == "auto":
            continue
        if known.status != runs.FINISHED and known.configuration.get(key) != now[key]:
            raise UserError(
                f"{options.out}: the interrupted run was begun with {key}={known.configuration.get(key)}, "
                f"not {now[key]}; go on with that, or --overwrite"
            )


@dataclass(frozen=True)
class _Query:
    """One query of a run, and the row that lets its clock run past the end of a finished trace."""

    spark: SparkSession
    name: str
    control: str
    sink: Sink
    at_once: bool
    writer: Callable[[], DataStreamWriter]

    def to_end(self, found: Survey) -> None:
        """Over all events there are; then, if they came in several batches, once more with the clock run out."""
        if self.at_once:
            self._run(found, timers=False)
            return
        if not self.spark.read.format("delta").load(self.control).head(1):
            self._run(found, timers=False)
            assert found.last_us is not None
            self._run_out_the_clock(found.last_us)
        self._run(found, timers=True)

    def _run(self, found: Survey, timers: bool) -> None:
        """Over what there is. A last batch without events, for timers alone, is worth its while only at the end."""
        self.spark.conf.set(_TIMERS_ALONE, timers)
        try:
            query = self.writer().trigger(availableNow=True).start()
        finally:
            self.spark.conf.unset(_TIMERS_ALONE)
        follow_to_end(query, self.name, found)

    def _run_out_the_clock(self, last_us: int) -> None:
        """One row of no key, past the last deadline that there can be, so that every timer fires."""
        row = self.spark.range(1).select(
            sf.lit(CLOCK).alias("group"),
            sf.timestamp_micros(sf.lit(last_us + (INT32_MAX + 2000) * 1000)).alias("event_time"),
            sf.lit(b"").alias("payload"),
        )
        row.write.format("delta").mode("append").save(self.control)


@dataclass(frozen=True)
class _Stream:
    """The partition queries of one run: one where groups are brokers; else one for the groups, and one behind them."""

    spark: SparkSession
    config: Config
    layout: Layout
    run: Run
    plan: Plan
    boards: Boards | None = None
    alone: bool = False  # these are all the events there are, in one batch

    def queries(self, events: Callable[[], DataFrame]) -> list[_Query]:
        grouping = str(self.run.configuration["grouping"])
        group = group_of(grouping, self.config.grouping_shards)
        sees = Sees.ALL if grouping == "broker" else Sees.SHARE

        def arriving() -> DataFrame:
            return packed(events(), self.config, group)

        first = self._query("replay", "partitions", self.layout.control, arriving, sees)
        if sees is Sees.ALL:
            return [first]
        control = f"{self.layout.control}_behind"
        delta.create(self.spark, self.layout.relay, PACKED)

        def relayed() -> DataFrame:
            return delta_stream(self.spark, self.layout.relay, since=0)

        return [first, self._query("brokers", "brokers", control, relayed, Sees.REST)]

    def _query(self, title: str, name: str, control: str, arriving: Callable[[], DataFrame], sees: Sees) -> _Query:
        stream_id = f"{self.run.run_id}/{self.run.configuration['stream']}/{name}"
        closes = self.alone and sees is Sees.ALL
        sink = Sink(self.layout, stream_id, self.plan.trace_end_us, self.config.drain, name, self.boards, closes)
        if not self.plan.at_once:
            delta.create(self.spark, control, PACKED)

        def writer() -> DataStreamWriter:
            plan = replace(self.plan, sees=sees)
            # A trace of one batch ends within it: nobody has to be told the time afterwards.
            told = None if plan.at_once else delta_stream(self.spark, control)
            frame = by_group(arriving(), told, self.config, plan)
            return to_tables(frame, sink, self.layout.checkpoint(name), name)

        return _Query(self.spark, title, control, sink, self.plan.at_once, writer)


def _follow(spark: SparkSession, options: ReplayOptions, layout: Layout, run: Run) -> Run:
    """All queries side by side over a table that still grows, until interrupted; nothing is drained."""
    nothing = Survey(0, 0, 0, None, None, options.config.fetch.max_bytes)
    with stopped_by_signal():
        began_ms = _first_event_ms(spark, options.events)
        boards = Boards(spark, layout, run.run_id, QUERIES)
        live = Following(spark, layout, run, boards)
        limits = Limits(purge_intervals(options.config), began_ms, options.config.fetch.max_bytes)
        plan = Plan(run.run_id, limits, options.config.max_disorder_ms > 0, None, follows=True)
        stream = _Stream(spark, options.config, layout, run, plan, boards)

        def events() -> DataFrame:
            return delta_stream(spark, options.events, since=delta.began(spark, options.events))

        running = [query.writer().start() for query in stream.queries(events)]
        others = follow_groups(spark, stream.config, layout, run, events(), began_ms, boards)
        try:
            follow_to_end(running[0], "replay", nothing, beside=(*running[1:], *others), live=live)
        finally:
            # What others read from stops first.
            stop_all((running[0], *others, *running[1:]))
            live.stop()
    return run


def _first_event_ms(spark: SparkSession, events: str) -> int:
    """When the trace begins: gauges are read from there on. Waits for a first event."""
    while True:
        first = spark.read.format("delta").load(events).agg(sf.min("time_us")).first()
        if first is not None and first[0] is not None:
            return int(first[0]) // 1000
        log.info("waiting for a first event")
        time.sleep(_LOOK_EVERY_SECONDS)


def _counts(
    spark: SparkSession, layout: Layout, found: Survey, groups: dict[str, Any], given: Counter[str] | None
) -> dict[str, Any]:
    """What the run came to; `given`: how many rows the tables were given, if that is known without counting them."""

    def rows(name: str) -> int:
        if given is not None and name in ENDS:
            return given[name]
        path = layout.table(name)
        return spark.read.format("delta").load(path).count() if delta.is_table(spark, path) else 0

    with ThreadPoolExecutor(len(ENDS) + 1) as pool:
        *ended, rejected = pool.map(rows, (*ENDS, "rejected_events"))
    # A session or a rebalance is an operation that no event names: the groups' own count says how many there were.
    operations = found.operations + groups.get("operations", 0)
    return {
        "events": found.events,
        "rejected": rejected,
        "lines": found.events + rejected,
        "operations": operations,
        **dict(zip(ENDS, ended, strict=True)),
        "open": operations - sum(ended),
        **({"groups": groups} if groups else {}),
    }
