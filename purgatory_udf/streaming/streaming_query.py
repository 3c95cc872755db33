"""The streaming queries of a run. Each reads the same events, groups them, and writes the outcomes to tables.

If groups are brokers, partitions need one query. If they are partitions or shards, one query decides the operations
that are complete in one group, and another one, grouped by broker, decides the operations that span several groups.
Consumer groups are one more query.

arriving ─┐
          ├─► watermark ─► by group ─► adapter ─► chunks ─► sink ─► tables
control ──┘

`foreachBatch` functions shorten errors before these reach Spark (`shorten_errors`). When a query is stopped during
a batch, Spark checks whether an error is only the effect of the interruption. It matches the error's text with a
regular expression that needs one JVM stack frame per character. An error that has passed through Java and Python
contains the stacks of both, tens of thousands of characters. The match then fails with a StackOverflowError, which
hides the cause. Stack frames are therefore removed; `--verbose` logs them.

At the end: monitoring of running queries, for dropped rows and errors of concurrent queries, and their stop.
"""

from __future__ import annotations

import functools
import logging
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa

from purgatory_udf.backend.backend import Backend, LocalBackend, SparkBackend
from purgatory_udf.backend.delta_store import EPOCH
from purgatory_udf.backend.spark_workers import freeze_in_workers
from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.rules.engine.partition_engine import engine_settings
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.batch_sink import CoordinatorGauges, LocalChunks, Sink
from purgatory_udf.streaming.checkpoints import Snapshots, next_watermark_ms, prepare_checkpoint
from purgatory_udf.streaming.event_source import Survey, TraceSource, delta_stream, file_chunk_function
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.partition_rules import OperationScope, PartitionRules
from purgatory_udf.streaming.progress_line import BatchProgress, LiveCounts, ProgressLine, show_batch
from purgatory_udf.streaming.share_rules import ShareRules
from purgatory_udf.streaming.stateful_adapter import (
    CLOCK,
    INPUT_SCHEMA,
    OUTPUT_SCHEMA,
    STATE_SCHEMA,
    AnyRules,
    OutputChunk,
    Plan,
    call_rules,
    input_chunk_function,
    state_function,
)
from purgatory_udf.streaming.status_file import StatusFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Whether Spark makes a micro-batch without data, for timers alone.
_NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
# Names of the queries: partitions, operations that span groups of partitions, consumer groups, share groups.
QUERIES = (PARTITIONS, BROKERS, GROUPS, SHARES) = ("partitions", "brokers", "groups", "shares")
_POLL_SECONDS = 1
_STOP_POLL_SECONDS = 0.05
# How long `stop_queries` waits for a running batch.
_MAX_BATCH_WAIT_SECONDS = 30


def pack_events(events: DataFrame, rules: AnyRules, file_schema: pa.Schema | None = None) -> DataFrame:
    """Return events as one value per group and Arrow batch.

    Args:
        events: Rows of `events`.
        rules: Rules of the query.
        file_schema: The table's schema if Python workers read its files; None if Spark reads them.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.types import from_arrow_schema

    packed = from_arrow_schema(INPUT_SCHEMA)
    if file_schema is None:
        work = freeze_in_workers(input_chunk_function(rules))
        return events.select(*rules.input_columns(events.columns)).mapInArrow(work, packed)
    places = events.select(sf.input_file_name().alias("file"), sf.input_file_block_start().alias("start"))
    return places.mapInArrow(freeze_in_workers(file_chunk_function(rules, file_schema)), packed)


@dataclass(frozen=True)
class Query:
    """A streaming query.

    Attributes:
        backend: The session that streams.
        title: Name of the query in the progress line.
        arriving: Creates the stream of input chunks.
        max_disorder_ms: Maximum out-of-orderness of events.
        sink: Writes the results.
    """

    backend: SparkBackend
    title: str
    arriving: Callable[[], DataFrame]
    max_disorder_ms: int
    sink: Sink

    @property
    def name(self) -> str:
        """The query's name in Spark and in the checkpoint folder."""
        return self.sink.name

    def start(self) -> StreamingQuery:
        """Start the query over a table that grows.

        Without new events, Spark starts a batch for expired timers only if the same process executed the previous
        batch. If that process was killed before it did, an empty control row starts the batch.
        """
        self._create_control()
        writer = self._writer()
        watermark = next_watermark_ms(self.backend, self.sink.layout.checkpoint(self.name))
        if watermark:
            self._append_clock((watermark + 1) * 1000)
        return writer.start()

    def to_end(self, survey: Survey) -> None:
        """Process all events of a finished trace. A trace of several batches ends with a batch for the timers."""
        if self._is_one_batch:
            self._run(survey, timers=False)
            return
        self._create_control()
        store = self.backend.delta(self._control)
        if not store.count(self._control):
            self._run(survey, timers=False)
        # Appended again if it was before: a batch for timers alone follows only a batch of the same process, so a run
        # that was killed between the two would never get there.
        assert survey.last_us is not None
        self._run_out_the_clock(survey.last_us)
        self._run(survey, timers=True)

    @property
    def _is_one_batch(self) -> bool:
        return self.sink.rules.plan.is_one_batch

    @property
    def _control(self) -> str:
        return self.sink.layout.control(self.name)

    def _create_control(self) -> None:
        self.backend.delta(self._control).create(self._control, INPUT_SCHEMA)

    def _run(self, survey: Survey, timers: bool) -> None:
        """Process the available rows. With `timers`, a batch without events follows, in which timers fire."""
        spark = self.backend.spark
        spark.conf.set(_NO_DATA_BATCHES, timers)
        try:
            query = self._writer().trigger(availableNow=True).start()
        finally:
            spark.conf.unset(_NO_DATA_BATCHES)
        monitor_query(query, self.title, survey)

    def _run_out_the_clock(self, last_us: int) -> None:
        """Append a control row that is later than every possible deadline, so that all timers fire in one batch."""
        self._append_clock(last_us + (INT32_MAX + 2000) * 1000)

    def _append_clock(self, time_us: int) -> None:
        moment = EPOCH + timedelta(microseconds=time_us)
        row = pa.Table.from_pylist([{"group": CLOCK, "event_time": moment, "payload": b""}], INPUT_SCHEMA)
        self.backend.delta(self._control).append(self._control, row)

    def _writer(self) -> DataStreamWriter:
        checkpoint = prepare_checkpoint(self.backend, self.sink.layout.checkpoint(self.name))
        return (
            self._by_group()
            .writeStream.foreachBatch(shorten_errors(self.sink.write))
            .option("checkpointLocation", checkpoint)
            .queryName(self.name)
        )

    def _by_group(self) -> DataFrame:
        from pyspark.sql.streaming.state import GroupStateTimeout

        rows = self.arriving().select(*INPUT_SCHEMA.names)
        if not self._is_one_batch:
            # The only batch of a trace includes its end: no clock row follows.
            rows = rows.unionByName(delta_stream(self.backend.spark, self._control).select(*INPUT_SCHEMA.names))
        return (
            rows.withWatermark("event_time", f"{self.max_disorder_ms + 1} milliseconds")
            .groupBy("group")
            .applyInPandasWithState(
                freeze_in_workers(state_function(self.sink.rules)),
                OUTPUT_SCHEMA,
                STATE_SCHEMA,
                "append",
                GroupStateTimeout.EventTimeTimeout,
            )
        )


log = logging.getLogger(__name__)

Write = Callable[["DataFrame", int], None]

# Matching a text of this length takes a small part of the default stack of a JVM thread.
MAX_ERROR_CHARS = 1_500
_MAX_LINE_CHARS = 400
_STACK_FRAME_PREFIXES = ("\tat ", "\t... ", "  File ", "    ")


class BatchError(Exception):
    """An error of a batch and its causes, without stack traces."""


def shorten_errors(write: Write) -> Write:
    """Wrap a function for `foreachBatch` so that it raises short errors. A `UserError` passes unchanged."""

    @functools.wraps(write)
    def run(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except UserError:
            raise
        except Exception as error:
            log.debug("batch %s", number, exc_info=True)
            raise BatchError(shorten_text(f"{type(error).__module__}.{type(error).__name__}: {error}")) from None

    return run


def shorten_text(text: str) -> str:
    """Return the distinct lines of `text` that are not stack frames.

    If they exceed `MAX_ERROR_CHARS`, the middle is left out: the first line names the error, the last one its cause.
    """
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(_STACK_FRAME_PREFIXES))
    brief = "\n".join(dict.fromkeys(line[:_MAX_LINE_CHARS] for line in lines))
    if len(brief) <= MAX_ERROR_CHARS:
        return brief
    half = MAX_ERROR_CHARS // 2
    return f"{brief[:half]} …\n… {brief[-half:]}"


class ReplayQuery(Protocol):
    """Interface of a query that replays a finished trace, executed by Spark or by this process."""

    @property
    def sink(self) -> Sink:
        """The sink that writes the results to tables."""

    def to_end(self, survey: Survey) -> None:
        """Process all events of the trace, of which `survey` has the size and the time span, and write the tables."""


_CHUNKS = pa.schema(
    [
        ("table", pa.string()),
        ("group", pa.string()),
        ("time_us", pa.int64()),
        ("rows", pa.int64()),
        ("payload", pa.binary()),
    ]
)


class NoState:
    """Group state for a trace of one batch: without earlier state, and never read again."""

    exists = False
    hasTimedOut = False  # noqa: N815

    @property
    def get(self) -> tuple[Any, ...]:
        """Raise an error, because there is no state."""
        raise AssertionError("there is no state")

    def update(self, value: tuple[Any, ...]) -> None:
        """Ignore the state: no later call needs it."""

    def remove(self) -> None:
        """Ignore the removal."""

    def setTimeoutTimestamp(self, ms: int) -> None:  # noqa: N802
        """Ignore the timer: the call advances the clock past all deadlines."""

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        """Return the watermark that a stream has before its first event."""
        return 0


@dataclass(frozen=True)
class LocalQuery:
    """A query over a trace of one batch, executed by this process with the adapter, rules and sink of a stream.

    Each group gets all of its events in one call, so it needs no earlier state, no timers and no watermark. The writes
    have the same transaction ids as in a stream, so an interrupted run can be resumed here, and writes only the missing
    tables.
    """

    backend: LocalBackend
    title: str
    source: TraceSource
    sink: Sink

    def to_end(self, survey: Survey) -> None:
        """Replay all events and write the tables."""
        if code_cache.needs_warm_up():
            log.info("compiling the engine (once for each version; up to a minute)")
            warm_up.main()
        log.info("%s: replaying %s events", self.title, f"{survey.events:,}")
        rules = self.sink.rules
        rows = self.source.read(self.backend)
        packed = input_chunk_function(rules)(iter(rows.select(rules.input_columns(rows.column_names)).to_batches()))
        payloads: dict[str, list[bytes]] = defaultdict(list)
        for batch in packed:
            for group, payload in zip(batch.column("group").to_pylist(), batch.column("payload"), strict=True):
                payloads[group].append(payload.as_py())
        chunks = pa.Table.from_pylist([chunk._asdict() for chunk in self._chunks(payloads)], schema=_CHUNKS)
        self.sink.process(LocalChunks(chunks), 0)

    def _chunks(self, payloads: dict[str, list[bytes]]) -> Iterator[OutputChunk]:
        for group, values in payloads.items():
            yield from call_rules(self.sink.rules, group, values, NoState())


MakeQuery = Callable[[str, Sink], ReplayQuery]


def replay_queries(backend: Backend, source: TraceSource, config: Config) -> MakeQuery:
    """Return a function that creates a query over the events of a finished trace, given its title and sink."""
    if isinstance(backend, LocalBackend):
        return lambda title, sink: LocalQuery(backend, title, source, sink)
    assert isinstance(backend, SparkBackend)
    return stream_queries(backend, lambda: source.stream(backend), config, source.file_schema(backend))


def stream_queries(
    backend: SparkBackend, events: Callable[[], DataFrame], config: Config, file_schema: pa.Schema | None = None
) -> Callable[[str, Sink], Query]:
    """Return a function that creates a query over a stream of events, given its title and sink.

    `file_schema` is that of `pack_events`.
    """

    def make(title: str, sink: Sink) -> Query:
        return Query(
            backend, title, lambda: pack_events(events(), sink.rules, file_schema), config.max_disorder_ms, sink
        )

    return make


@dataclass(frozen=True)
class Queries:
    """Creates the titles and sinks of a run's queries. `trace_start_ms` is the start of the trace in epoch ms."""

    backend: Backend
    config: Config
    layout: Layout
    run: Run
    plan: Plan
    trace_start_ms: int
    status_files: StatusFiles | None = None

    def partition_sinks(self, most_bytes: int, least_bytes: int, closes: bool = False) -> list[tuple[str, Sink]]:
        """Return title and sink of each query of partitions.

        Args:
            most_bytes: The greatest limit of a partition's read. Positions in the log are kept for that many bytes.
            least_bytes: The smallest such limit. Larger batches are never merged.
            closes: Whether no other query of the run writes gauges.
        """
        config = self.config.model_copy(update={"grouping": self.run.configuration["grouping"]})
        most_bytes, least_bytes = (min(limit, config.fetch.max_bytes) for limit in (most_bytes, least_bytes))
        settings = engine_settings(config, self.trace_start_ms, most_bytes, least_bytes, self.plan.pauses)
        rules = PartitionRules(self.plan, config, settings)
        if config.grouping == "broker":
            return [("replay", self._sink(PARTITIONS, rules, closes=closes and self.plan.is_one_batch))]
        whole, split = replace(rules, scope=OperationScope.WHOLE), replace(rules, scope=OperationScope.SPLIT)
        return [("replay", self._sink(PARTITIONS, whole)), (BROKERS, self._sink(BROKERS, split))]

    def group_sink(self) -> tuple[str, Sink]:
        """Return title and sink of the query of consumer groups."""
        rules = GroupRules(self.plan, self.config)
        end_us = self.plan.trace_end_us
        end_ms = None if end_us is None else end_us // 1000
        state = GaugeState(self.config.group.purge_interval, self.trace_start_ms, end_ms, self.plan.pauses)
        gauges = CoordinatorGauges(state, Snapshots(self.backend, self.layout.coordinators), self.run.run_id)
        return GROUPS, self._sink(GROUPS, rules, gauges=gauges)

    def share_sink(self) -> tuple[str, Sink]:
        """Return title and sink of the query of share groups."""
        return SHARES, self._sink(SHARES, ShareRules(self.plan, self.config, self.trace_start_ms))

    def _sink(self, name: str, rules: AnyRules, closes: bool = False, gauges: CoordinatorGauges | None = None) -> Sink:
        stream_id = f"{self.run.run_id}/{self.run.configuration['stream']}/{name}"
        drain, status_files = self.config.drain, self.status_files
        return Sink(name, self.backend, self.layout, stream_id, rules, drain, closes, gauges, status_files)


def monitor_query(
    query: StreamingQuery,
    title: str,
    survey: Survey | None,
    others: Sequence[StreamingQuery] = (),
    live: LiveCounts | None = None,
) -> None:
    """Show the progress of a query until it has finished.

    Args:
        query: The query.
        title: The title of the progress line.
        survey: Facts of the trace, for the time of its end; None if it is unknown.
        others: Queries that run concurrently and may never end.
        live: Counts to show and refresh.

    Raises:
        CheckFailedError: Spark has dropped rows as late. With `others` this is raised immediately, else at the end.
        StreamingQueryException: The query or one of the others has failed.
    """
    batches = BatchProgress()
    late: dict[tuple[str, int], int] = {}
    with ProgressLine(title) as line:
        try:
            while True:
                ended = query.awaitTermination(_POLL_SECONDS)
                if live is not None:
                    live.refresh()
                recent = query.recentProgress
                for progress in batches.new_reports(recent):
                    show_batch(line, progress, batches.events, survey, live)
                reports = [(query, recent), *((other, other.recentProgress) for other in others)]
                late |= {
                    (each.id, progress.batchId): dropped
                    for each, shown in reports
                    for progress in shown
                    if (dropped := _dropped(progress))
                }
                if late and (ended or others):
                    raise CheckFailedError(
                        f"{sum(late.values())} chunks of input events were later than max_disorder_ms allows and were "
                        "not replayed; increase max_disorder_ms, or import the trace with ingest, which rejects late "
                        "events"
                    )
                if ended:
                    break
                for other in others:
                    if not other.isActive:
                        other.awaitTermination()
        except KeyboardInterrupt:
            # The caller stops several queries in the right order.
            if not others:
                query.stop()
            raise


def _dropped(progress: Any) -> int:
    return sum(state.numRowsDroppedByWatermark for state in progress.stateOperators)


def stop_queries(queries: Sequence[StreamingQuery]) -> None:
    """Stop queries in this order, each after its current batch, but at the latest after `_MAX_BATCH_WAIT_SECONDS`.

    An interrupted batch is repeated when the query resumes, but Spark logs long errors for it.
    """
    for query in queries:
        # The interrupt may have stopped the JVM, too.
        with suppress(Exception):
            start = time.monotonic()
            while query.status["isTriggerActive"] and time.monotonic() - start < _MAX_BATCH_WAIT_SECONDS:
                time.sleep(_STOP_POLL_SECONDS)
            query.stop()


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within the `with` block, so that queries are stopped as by Ctrl-C.

    Has no effect outside the main thread.
    """

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
