"""Executes a replay: prepare, process all events, expire the remaining operations, trim the gauges, count.

Every step may be interrupted and repeated: streams resume from their checkpoints, tables accept each batch once, and
the other steps are repeated.

A growing table is followed until interrupted: all queries run at the same time, and nothing is drained. The number of
open operations is shown at once, and the run's counts are saved to `runs` every minute.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.backend import Backend, LocalBackend, Session, SparkBackend, backend_of
from purgatory_udf.backend.delta_store import EPOCH, Condition
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import CheckFailedError, NeedsSparkError, UserError, is_interrupt
from purgatory_udf.contract.tables import COMMENTED_TABLES, ENDS
from purgatory_udf.launch import backend_choice
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.groups.group_outcome_tables import GROUP_ANSWERS
from purgatory_udf.rules.groups.group_rows import KINDS
from purgatory_udf.rules.purgatory.clock import Pauses
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.batch_sink import Sink
from purgatory_udf.streaming.event_source import EventTable, Survey, TraceSource
from purgatory_udf.streaming.group_disagreements import disagreement_counts, write_disagreements
from purgatory_udf.streaming.partition_rules import OUTPUT_TABLES
from purgatory_udf.streaming.run_resumption import (
    SINGLE_BATCH_GROUPING,
    ReplayOptions,
    is_one_batch,
    start_or_resume,
    with_recorded_settings,
)
from purgatory_udf.streaming.share_rules import DELIVERIES
from purgatory_udf.streaming.stateful_adapter import Plan, closing_ms
from purgatory_udf.streaming.status_file import StatusFiles
from purgatory_udf.streaming.streaming_query import (
    QUERIES,
    Queries,
    interrupt_on_sigterm,
    monitor_query,
    replay_queries,
    stop_queries,
    stream_queries,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Each task of a stateful query has a state store, which costs every batch a commit whether its groups had events or
# not, and results are written by as many tasks. Spark's default of 200 is meant for clusters of many machines: on two
# executors of one core each it makes minutes of a batch that takes seconds.
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_FEWEST, _MOST = 8, 200
# More than one per core, so that a core with few events takes another task.
_TASKS_PER_CORE = 2


def set_shuffle_partitions(spark: SparkSession) -> None:
    """Set `spark.sql.shuffle.partitions` by the number of cores, unless it is configured.

    A resumed run keeps the number in its checkpoint.
    """
    if spark.sparkContext.getConf().contains(_SHUFFLE_PARTITIONS):
        return
    if spark.conf.get(_SHUFFLE_PARTITIONS) == str(_MOST):
        spark.conf.set(_SHUFFLE_PARTITIONS, str(shuffle_partitions(spark.sparkContext.defaultParallelism)))


def shuffle_partitions(cores: int) -> int:
    """Return the number of shuffle partitions for this number of cores."""
    return min(_MOST, max(_FEWEST, _TASKS_PER_CORE * cores))


def require_backend(session: Session, options: ReplayOptions) -> None:
    """Check that the backend can execute the replay, before anything is written.

    Raises:
        NeedsSparkError: The backend is this process, and the replay needs Spark.
    """
    backend = backend_of(session)
    events = EventTable(backend, options.events, options.config.fetch.max_bytes)
    if isinstance(backend, LocalBackend) and events.exists:
        events.require()
        require_single_batch(backend, options, Layout(options.out), events)


def replay_recording(session: Session, options: ReplayOptions) -> Run:
    """Replay events with the settings that their recording shows, unless others are given; warn of contradictions."""
    if options.follow:
        EventTable(backend_of(session), options.events).wait()
    return run_replay(session, with_recorded_settings(session, options))


def run_replay(session: Session, options: ReplayOptions) -> Run:
    """Replay events into the outcome tables and return the run's record.

    Raises:
        UserError: There is no table of events, or the folder has another run.
        CheckFailedError: Operations have no end, although the run was to end all of them.
    """
    backend = backend_of(session)
    events = EventTable(backend, options.events, options.config.fetch.max_bytes)
    events.require()
    try:
        return _run(backend, options, events)
    except (UserError, NeedsSparkError):
        raise
    except Exception as error:
        if not options.follow and not is_interrupt(error):
            _check_rows(events)
        raise


def _check_rows(events: EventTable) -> None:
    """Raise `UserError` if the rows explain why a replay has failed.

    They are not checked before, because the rows of imports are complete.
    """
    log.info("the replay failed; checking whether events lack values")
    try:
        events.require_complete_rows()
    except UserError:
        raise
    except Exception as error:
        # The first error is reported.
        log.debug("events are not checked: %s", error)


def _run(backend: Backend, options: ReplayOptions, events: EventTable) -> Run:
    layout, config = Layout(options.out), options.config
    runs = layout.table("runs")
    if not options.follow and not backend.delta(runs).is_table(runs):
        events.start()
    if isinstance(backend, LocalBackend):
        require_single_batch(backend, options, layout, events)
    run = start_or_resume(backend, options, layout, events)
    if run.status == run_records.FINISHED:
        log.info("run %s has finished already; to repeat it, use --overwrite", run.run_id)
        return run
    if isinstance(backend, SparkBackend):
        # A cluster's executors are known by now: they have written the run's record.
        set_shuffle_partitions(backend.spark)
        if options.follow:
            create_tables(backend, layout, groups=True, shares=events.has_share_groups())
            return follow(backend, events, config, layout, run)
    survey = events.survey
    # Divided into batches in the same way as when the run was started.
    source = TraceSource(events.path) if is_one_batch(run) else events.batches(layout, config.batch_events)
    if not source.is_one_batch:
        # After the run is recorded: a run that is stopped before it has tables is resumed, too.
        create_tables(backend, layout, survey.of_groups > 0, survey.of_shares > 0)
    queries = _queries(backend, events, config, layout, run, source.is_one_batch)
    partitions = []
    if survey.operations:
        closes = not survey.of_groups and not survey.of_shares
        partitions = queries.partition_sinks(survey.most_bytes, survey.least_bytes, closes)
    groups = [queries.group_sink()] if survey.of_groups else []
    if survey.of_shares:
        partitions = [*partitions, queries.share_sink()]
    make = replay_queries(backend, source, config)
    for title, sink in (*partitions, *groups):
        make(title, sink).to_end(survey)
    if source.is_one_batch:
        # Its one batch has created the tables that it has rows for.
        create_tables(backend, layout, survey.of_groups > 0, survey.of_shares > 0)
    counts = _end(backend, config, layout, run, survey, [sink for _, sink in partitions], [sink for _, sink in groups])
    if config.drain and counts["open"]:
        # A run with lost rows must not look complete.
        raise CheckFailedError(
            f"{options.out}: {counts['open']:,} operations of the trace have no end in its tables, possibly because "
            "files were lost; restart with --overwrite"
        )
    done = run.finished(counts)
    run_records.save(backend, runs, done)
    return done


def create_tables(backend: Backend, layout: Layout, groups: bool, shares: bool = False) -> None:
    """Create the outcome tables that do not exist yet.

    Args:
        backend: Backend of the tables.
        layout: The run's tables.
        groups: Whether to create the tables of consumer groups.
        shares: Whether to create the tables of share groups.
    """
    schemas = {layout.table(name): COMMENTED_TABLES[name] for name in OUTPUT_TABLES}
    if groups:
        schemas |= {
            **{layout.table(name): COMMENTED_TABLES[name] for name in ("group_transitions", "member_transitions")},
            layout.answers: GROUP_ANSWERS,
        }
    if shares:
        schemas[layout.table(DELIVERIES)] = COMMENTED_TABLES[DELIVERIES]
    backend.delta(layout.out).create_all(schemas)


def _queries(
    backend: Backend, events: EventTable, config: Config, layout: Layout, run: Run, is_one_batch: bool
) -> Queries:
    survey = events.survey
    assert survey.first_us is not None
    assert survey.last_us is not None
    topics = events.topics() if survey.of_topics else ClusterTopics()
    pauses = events.pauses(survey.last_us) if survey.of_pauses else Pauses()
    has_disorder = config.max_disorder_ms > 0
    plan = Plan(run.run_id, has_disorder, survey.last_us, is_one_batch, topics=topics, pauses=pauses)
    return Queries(backend, config, layout, run, plan, survey.first_us // 1000)


def _end(
    backend: Backend,
    config: Config,
    layout: Layout,
    run: Run,
    survey: Survey,
    partitions: list[Sink],
    groups: list[Sink],
) -> dict[str, Any]:
    """Finish a run: compare responses to group members, delete gauges after its end, and return its counts.

    `partitions` and `groups` are the sinks of these queries.
    """
    sinks = [*partitions, *groups]
    of_groups: dict[str, Any] = {}
    for sink in groups:
        write_disagreements(backend, layout, run)
        of_groups = group_counts(backend, layout, sink)
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(run_counts, backend, layout, survey, of_groups, rows_written(sinks))
        if not (sinks and all(sink.closes for sink in sinks)):
            assert survey.last_us is not None
            close_gauges(backend, layout, config, survey.last_us, last_end_us(sinks))
        return counted.result()


# Each save is one more version of the `runs` table.
_SAVE_SECONDS = 60.0
# The limits of fetches to come are unknown: the default of `max.partition.fetch.bytes` and `replica.fetch.max.bytes`.
_LEAST_BYTES = 1 << 20


def follow(backend: SparkBackend, events: EventTable, config: Config, layout: Layout, run: Run) -> Run:
    """Replay a growing table until the process is interrupted."""
    most_bytes = config.fetch.max_bytes
    with interrupt_on_sigterm():
        trace_start_ms = events.wait_for_first_event()
        status_files = StatusFiles(backend, layout, run.run_id, QUERIES)
        counts = RunningCounts(backend, layout, run, status_files)
        # Later topics and pauses are not known to the running query.
        topics, pauses = events.topics(), events.pauses()
        has_disorder = config.max_disorder_ms > 0
        plan = Plan(run.run_id, has_disorder, None, is_followed=True, topics=topics, pauses=pauses)
        queries = Queries(backend, config, layout, run, plan, trace_start_ms, status_files)
        make = stream_queries(backend, events.growing_stream, config)
        sinks = [*queries.partition_sinks(most_bytes, _LEAST_BYTES), queries.group_sink()]
        if events.has_share_groups():
            sinks.append(queries.share_sink())
        running = [make(*each).start() for each in sinks]
        try:
            unknown = Survey(0, 0, 0, None, None, most_bytes, _LEAST_BYTES)
            monitor_query(running[0], "replay", unknown, running[1:], counts)
        finally:
            stop_queries(running)
            counts.stop()
    return run


class RunningCounts:
    """The counts of a run that follows a table, which are saved to `runs` from time to time."""

    def __init__(
        self,
        backend: SparkBackend,
        layout: Layout,
        run: Run,
        status_files: StatusFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._table, self._run, self._status_files = backend, layout.table("runs"), run, status_files
        self._clock = clock
        self._saved: dict[str, Any] = run.counts
        self._saved_at: float | None = None

    @property
    def open(self) -> int:
        """Number of open operations."""
        return self._status_files.open

    def refresh(self) -> None:
        """Save the counts if a minute has passed since the last time. The first call saves them at once."""
        now = self._clock()
        if self._saved_at is None or now - self._saved_at >= _SAVE_SECONDS:
            self._save(now)

    def stop(self) -> None:
        """Save the counts a last time."""
        self._save(self._clock())

    def _save(self, now: float) -> None:
        counts = self._status_files.counts()
        if counts == self._saved or not counts["events"]:
            return
        self._saved_at = now
        try:
            run_records.save(self._backend, self._table, replace(self._run, counts=counts))
            self._saved = counts
        except Exception as error:
            # Another job may be writing its row, or the interrupt that stops this process has stopped the JVM. The next
            # save will do as well.
            log.debug("counts are not saved: %s", error)


def close_gauges(backend: Backend, layout: Layout, config: Config, last_us: int, latest_us: int | None = None) -> None:
    """Delete gauge readings after the end of the trace or, in a drained run, after the end of its last operation.

    Args:
        backend: Backend of the tables.
        layout: The run's tables.
        config: The run's configuration.
        last_us: Time of the trace's last event, in epoch microseconds.
        latest_us: When the last operation ended; None if that must be read from the tables.
    """
    until_ms = last_us // 1000
    if config.drain:
        until_ms = closing_ms(last_us, _last_end_us(backend, layout) if latest_us is None else latest_us)
    table = layout.table("purgatory_gauges")
    late = [Condition("at", ">", EPOCH + timedelta(milliseconds=until_ms))]
    if backend.delta(table).count(table, late):
        backend.delta(table).delete(table, late)


def _last_end_us(backend: Backend, layout: Layout) -> int:
    """Return when the last operation completed or expired, in epoch microseconds.

    Cancellations are not read, because they never happen after the end of the trace.
    """
    ends = backend.query(
        "SELECT max(ended_at) AS ended_at FROM (SELECT completed_at AS ended_at FROM completions "
        "UNION ALL SELECT expired_at AS ended_at FROM expirations) AS ended",
        {name: layout.table(name) for name in ("completions", "expirations")},
    ).to_pylist()
    last = ends[0]["ended_at"]
    return 0 if last is None else int((last - EPOCH) / timedelta(microseconds=1))


def rows_written(sinks: Sequence[Sink]) -> Counter[str] | None:
    """Return the number of rows written to each table; None if this process has not written every batch."""
    rows = [sink.rows for sink in sinks if sink.drain]
    return sum((each for each in rows if each is not None), Counter()) if rows and None not in rows else None


def last_end_us(sinks: Sequence[Sink]) -> int | None:
    """Return when the last operation ended; None if this process has not seen every batch."""
    ends = [sink.latest_us for sink in sinks]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def run_counts(
    backend: Backend, layout: Layout, survey: Survey, groups: dict[str, Any], given: Counter[str] | None
) -> dict[str, Any]:
    """Count the results of a run.

    Args:
        backend: Backend that reads the tables.
        layout: The run's tables.
        survey: Size and time span of the trace.
        groups: The counts of consumer groups, if there are any.
        given: Number of rows written to each table, if it is known without counting them.
    """

    def rows(name: str) -> int:
        if given is not None and name in ENDS:
            return given[name]
        path = layout.table(name)
        store = backend.delta(path)
        return store.count(path) if store.is_table(path) else 0

    with ThreadPoolExecutor(len(ENDS) + 1) as pool:
        *ended, rejected = pool.map(rows, (*ENDS, "rejected_events"))
    # No event names a session or a rebalance: their number comes from the groups' counts.
    operations = survey.operations + survey.share_fetches + groups.get("operations", 0)
    return {
        "events": survey.events,
        "rejected": rejected,
        "lines": survey.events + rejected,
        "operations": operations,
        **dict(zip(ENDS, ended, strict=True)),
        "open": operations - sum(ended),
        **({"groups": groups} if groups else {}),
    }


def group_counts(backend: Backend, layout: Layout, sink: Sink) -> dict[str, Any]:
    """Count the operations, transitions and disagreements of consumer groups.

    `sink` has written the tables of groups. If its counts are complete, they are used instead of a scan.
    """
    given = rows_written([sink])

    def rows(table: str) -> int:
        if given is not None:
            return given[table]
        path = layout.table(table)
        if table == "group_transitions":
            return backend.delta(path).count(path)
        kinds = ", ".join(f"'{kind}'" for kind in KINDS)
        counted = backend.query(f"SELECT count(*) AS n FROM ends WHERE kind IN ({kinds})", {"ends": path})
        return int(counted.column("n")[0].as_py())

    still_open = 0
    if not sink.drain:
        assert sink.gauges is not None
        still_open = sink.gauges.left_open()
    ended = {table: rows(table) for table in ENDS}
    return {
        "operations": sum(ended.values()) + still_open,
        **ended,
        "open": still_open,
        "transitions": rows("group_transitions"),
        "disagreements": disagreement_counts(backend, layout),
    }


def require_single_batch(backend: Backend, options: ReplayOptions, layout: Layout, events: EventTable) -> None:
    """Check that this process can replay the trace.

    Args:
        backend: This process.
        options: Options of the replay.
        layout: The run's tables, possibly of an interrupted run.
        events: The table of events.

    Raises:
        NeedsSparkError: The run needs a stream or too much memory.
    """
    known = None if options.overwrite else run_records.load(backend, layout.table("runs"), "replay")
    if known is not None and known.status == run_records.FINISHED and not options.follow:
        # Nothing is left to do.
        return
    if options.follow or options.config.grouping not in ("auto", SINGLE_BATCH_GROUPING):
        raise NeedsSparkError("the replay runs as a stream, because of --follow or the setting grouping")
    if known is not None and (
        known.configuration.get("grouping") != SINGLE_BATCH_GROUPING
        or not is_one_batch(known)
        or backend.files.exists(f"{layout.internal}/checkpoints")
    ):
        raise NeedsSparkError(f"{layout.out}: the run there was started as a stream")
    if options.any_size:
        return
    count, batch_events = events.survey.events, options.config.batch_events
    if count > batch_events and batch_events != Config().batch_events:
        raise NeedsSparkError(f"{count:,} events are more than one batch (batch_events is {batch_events:,})")
    if count + events.most_watches() > backend_choice.most_rows_in_memory():
        raise NeedsSparkError(
            f"{events.path}: {count:,} events and up to {events.most_watches():,} watches, which may not fit in memory"
        )
