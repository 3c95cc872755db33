"""A replay from beginning to end: prepare, stream, let the clock run out, count.

Every step may be interrupted and run again: the streams go on from their checkpoints, tables are written once per
batch, and the rest is done anew.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.input_size import REPLAYED_BYTES, held
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES
from purgatory_udf.rules.groups.group_outcome_tables import GROUP_ANSWERS
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.delta_tables import asked
from purgatory_udf.storage.event_staging import staged
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import Survey, TraceSource, TraceSurvey
from purgatory_udf.streaming.follow_replay import follow
from purgatory_udf.streaming.partition_rules import OUTPUT_TABLES
from purgatory_udf.streaming.query_plan import Queries
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.run_counts import counts, group_counts, latest_us, write_disagreements, written
from purgatory_udf.streaming.run_resumption import at_once, begin
from purgatory_udf.streaming.single_batch_replay import require_possible
from purgatory_udf.streaming.stateful_rules import Plan
from purgatory_udf.streaming.streaming_query import Query
from purgatory_udf.streaming.trace_end import close_gauges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Over how many tasks a run's groups are spread.
#
# Each task of a stateful query is a state store, which costs every batch a commit of its own whether a group of it had
# events or not, and what such a query says is written by as many tasks. Spark's default of 200 is meant for clusters
# of many machines: on two executors of one core each it makes minutes of a batch that takes seconds.


_SETTING = "spark.sql.shuffle.partitions"
_FEWEST, _MOST = 8, 200
# So that a core whose groups have little to do helps another.
_FOR_EACH_CORE = 2


def spread(spark: SparkSession) -> None:
    """By the cores that there are by now, where nobody has said otherwise; a run that goes on keeps what its checkpoint
    says."""
    if local(spark) or spark.sparkContext.getConf().contains(_SETTING):
        return
    if spark.conf.get(_SETTING) == str(_MOST):
        spark.conf.set(_SETTING, str(tasks(spark.sparkContext.defaultParallelism)))


def tasks(cores: int) -> int:
    return min(_MOST, max(_FEWEST, _FOR_EACH_CORE * cores))


log = logging.getLogger(__name__)


def run_replay(spark: SparkSession, options: ReplayOptions) -> Run:
    """Replay the events into the outcome tables; the run's record says what came of it."""
    layout = Layout(options.out)
    if not delta_tables.is_table(spark, options.events):
        raise UserError(f"{options.events}: no Delta table of events there (ingest makes one)")
    trace = TraceSurvey(spark, options.events)
    if not options.follow and not delta_tables.is_table(spark, layout.table("runs")):
        trace.look_ahead()
    require_possible(spark, options, layout, trace)
    run = begin(spark, options, layout, trace)
    if run.status == run_records.FINISHED:
        log.info("run %s is finished already; --overwrite replays it anew", run.run_id)
        return run
    # A cluster's executors are known by now: they have written the run's record.
    spread(spark)
    if options.follow:
        create_tables(spark, layout, groups=True)
        return follow(spark, options, layout, run)
    survey = trace.survey
    source = _source(spark, options, layout, run, survey)
    if not source.at_once:
        # After the run is known: a run that is stopped before its tables are there goes on, too.
        create_tables(spark, layout, groups=survey.of_groups > 0)
    queries = _queries(spark, options, layout, run, survey, source)
    partitions = queries.of_partitions(survey.most_bytes, closes=not survey.of_groups) if survey.operations else []
    groups = [queries.of_groups()] if survey.of_groups else []
    for query in (*partitions, *groups):
        query.to_end(survey)
    if source.at_once:
        # Its one batch has made those that it has rows for.
        create_tables(spark, layout, groups=survey.of_groups > 0)
    result = _end(spark, options, layout, run, survey, partitions, groups)
    if options.config.drain and result["open"]:
        # Whatever it was, this run must not look whole.
        raise CheckFailedError(
            f"{options.out}: {result['open']:,} operations of the trace have no end in its tables, as after a file of "
            "theirs was lost; begin anew with --overwrite"
        )
    done = run.finished(result)
    run_records.save(spark, layout.table("runs"), done)
    return done


def create_tables(spark: SparkSession, layout: Layout, groups: bool) -> None:
    schemas = {layout.table(name): COMMENTED_TABLES[name] for name in OUTPUT_TABLES}
    if groups:
        schemas |= {
            layout.table("group_transitions"): COMMENTED_TABLES["group_transitions"],
            layout.answers: GROUP_ANSWERS,
        }
    delta_tables.create_all(spark, schemas)


def _source(spark: SparkSession, options: ReplayOptions, layout: Layout, run: Run, survey: Survey) -> TraceSource:
    """The trace in the batches that the run was begun with."""
    if at_once(run):
        return TraceSource(options.events)
    return TraceSource(*staged(spark, options.events, layout, survey.events, options.config.batch_events))


def _queries(
    spark: SparkSession, options: ReplayOptions, layout: Layout, run: Run, survey: Survey, source: TraceSource
) -> Queries:
    assert survey.first_us is not None
    plan = Plan(run.run_id, options.config.max_disorder_ms > 0, survey.last_us, source.at_once)
    return Queries(spark, options.config, layout, run, plan, survey.first_us // 1000, lambda: source.stream(spark))


def _end(
    spark: SparkSession,
    options: ReplayOptions,
    layout: Layout,
    run: Run,
    survey: Survey,
    partitions: list[Query],
    groups: list[Query],
) -> dict[str, Any]:
    """Let the gauges end with all the rest; what the run came to."""
    queries, config = [*partitions, *groups], options.config
    of_groups: dict[str, Any] = {}
    for query in groups:
        _write_disagreements(spark, options.events, layout, run)
        of_groups = group_counts(spark, layout, query)
    with ThreadPoolExecutor(1) as beside:
        counted = beside.submit(counts, spark, layout, survey, of_groups, written(queries))
        if not (queries and all(query.sink.closes for query in queries)):
            assert survey.last_us is not None
            close_gauges(spark, layout, config, survey.last_us, latest_us(queries))
        return counted.result()


def _write_disagreements(spark: SparkSession, events: str, layout: Layout, run: Run) -> None:
    def write(session: SparkSession) -> None:
        write_disagreements(session, layout, run, session.read.format("delta").load(layout.answers))

    if held([events, layout.answers], REPLAYED_BYTES):
        asked(spark, layout.out, write)
    else:
        write(spark)
