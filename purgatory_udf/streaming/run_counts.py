"""What a run came to, as `runs` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, ENDS, GROUP_DISAGREEMENTS
from purgatory_udf.rules.groups.group_codes import KINDS
from purgatory_udf.rules.groups.group_disagreements import COMPARED, disagreements
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.delta_tables import asked, commented_writer
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import Survey
from purgatory_udf.streaming.streaming_query import Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# `group_disagreements`: what was told, beside what an import of a request log has recorded; counted and listed.


# Requests whose recorded answer can be compared; the others may have one error per partition, or per member.
_ANSWERED = ("join_group", "sync_group", "heartbeat")
# `runs` names the groups that disagree most; the table has them all.
_NAMED_IN_RUNS = 50


def write_disagreements(spark: SparkSession, layout: Layout, run: Run, replayed: DataFrame) -> None:
    """Write the table anew."""
    recorded = _recorded(spark, run)
    if recorded is None:
        compared = replayed.withColumns({name: sf.lit(None) for name in ("recorded_error", "recorded_generation")})
    else:
        answers = recorded.select("seq", "recorded_error", "recorded_generation")
        compared = replayed.join(answers, "seq", "left").unionByName(
            _not_told(replayed, recorded), allowMissingColumns=True
        )
    typed = [sf.col(field.name).cast(field.dataType) for field in from_arrow_schema(COMPARED)]
    rows = compared.select(*typed).mapInArrow(_disagreeing(run.run_id), from_arrow_schema(GROUP_DISAGREEMENTS))
    writer = commented_writer(rows.coalesce(1), COMMENTED_TABLES["group_disagreements"])
    writer.format("delta").mode("overwrite").save(layout.table("group_disagreements"))


def _recorded(spark: SparkSession, run: Run) -> DataFrame | None:
    """Recorded answers with their requests, where an import put them beside the events."""
    events = str(run.trace.get("events") or "")
    path = f"{events.rstrip('/').rpartition('/')[0]}/recorded"
    if not events or not delta_tables.is_table(spark, path):
        return None
    answers = spark.read.format("delta").load(path).where(sf.lower("api").isin(*_ANSWERED))
    requests = spark.read.format("delta").load(events).where(sf.col("type").isin(*_ANSWERED))
    asked = requests.select(
        "seq",
        sf.coalesce("broker", sf.lit(0)).alias("broker"),
        "group",
        sf.timestamp_micros("time_us").alias("asked_at"),
        sf.col("type").alias("api"),
        "request_id",
        "member_id",
        sf.col("generation").alias("asked_generation"),
    )
    compared = answers.select(sf.col("operation_id").alias("seq"), "recorded_error", "recorded_generation")
    return asked.join(compared, "seq")


def _not_told(answers: DataFrame, recorded: DataFrame) -> DataFrame:
    """Requests with a recorded answer, of which the replay says nothing: a heartbeat is well then, and a join or a sync
    has never been answered."""
    left = recorded.join(answers.select("seq"), "seq", "left_anti")
    well = sf.when(sf.col("api") == "heartbeat", "NONE")
    return left.withColumns({"error": well, "answered_at": sf.when(sf.col("api") == "heartbeat", sf.col("asked_at"))})


def _disagreeing(run_id: str) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from disagreements(pa.Table.from_batches([batch]).cast(COMPARED), run_id).to_batches()

    return run


def counted(spark: SparkSession, layout: Layout) -> dict[str, Any]:
    """By kind, and by group for those that disagree most."""
    totals: Counter[str] = Counter()
    by_group: dict[str, dict[str, int]] = {}
    rows = spark.read.format("delta").load(layout.table("group_disagreements"))
    for broker, group, what, n in rows.groupBy("broker", "group", "disagreement").count().collect():
        totals[what] += n
        by_group.setdefault(f"{broker}/{group}", {})[what] = n
    worst = sorted(by_group, key=lambda key: (-sum(by_group[key].values()), key))[:_NAMED_IN_RUNS]
    return {"groups": len(by_group), **totals, "by_group": {key: by_group[key] for key in worst}}


def explained(spark: SparkSession, out: str, group: str) -> list[str]:
    """The disagreements of one group, as lines to read."""
    layout = Layout(out)
    run = run_records.load(spark, layout.table("runs"), "replay")
    if run is None or run.status != run_records.FINISHED:
        raise UserError(f"{out}: no finished replay to explain; replay without --explain first")
    changes = layout.table("group_transitions")
    known = delta_tables.is_table(spark, changes) and spark.read.format("delta").load(changes).where(
        sf.col("group") == group
    )
    path = layout.table("group_disagreements")
    rows = []
    if delta_tables.is_table(spark, path):
        of_group = spark.read.format("delta").load(path).where(sf.col("group") == group)
        rows = of_group.orderBy("asked_at", "seq", "disagreement").collect()
    if not rows and not (known and known.head(1)):
        raise UserError(f"{out}: the replay has no group {group}")
    if not rows:
        return [f"Group {group}: the replay disagrees with nothing that the trace records"]
    columns = ("asked", "broker", "request", "api", "member", "disagreement", "recorded", "replayed")
    lines = [
        (
            row.asked_at.strftime("%Y-%m-%d %H:%M:%S.%f"),
            row.broker,
            row.request_id or str(row.seq),
            row.api,
            row.member_id or "-",
            row.disagreement,
            row.recorded,
            row.replayed,
        )
        for row in rows
    ]
    return Table(f"Group {group}: recorded against replayed", columns, lines).lines()


def written(queries: Sequence[Query]) -> Counter[str] | None:
    """How many rows each table was given, if this process has seen them all, and all of them are there."""
    rows = [query.sink.rows for query in queries if query.sink.drain]
    return sum((each for each in rows if each is not None), Counter()) if rows and None not in rows else None


def latest_us(queries: Sequence[Query]) -> int | None:
    """When the last operation ended, as far as this process has seen all."""
    ends = [query.sink.latest_us for query in queries]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def counts(
    spark: SparkSession, layout: Layout, survey: Survey, groups: dict[str, Any], given: Counter[str] | None
) -> dict[str, Any]:
    """`given`: how many rows the tables were given, if that is known without counting them."""

    def rows(name: str) -> int:
        if given is not None and name in ENDS:
            return given[name]
        path = layout.table(name)
        return asked(spark, path, lambda session: _count(session, path)) if delta_tables.is_table(spark, path) else 0

    with ThreadPoolExecutor(len(ENDS) + 1) as pool:
        *ended, rejected = pool.map(rows, (*ENDS, "rejected_events"))
    # A session or a rebalance is an operation that no event names: the groups' own count says how many there were.
    operations = survey.operations + groups.get("operations", 0)
    return {
        "events": survey.events,
        "rejected": rejected,
        "lines": survey.events + rejected,
        "operations": operations,
        **dict(zip(ENDS, ended, strict=True)),
        "open": operations - sum(ended),
        **({"groups": groups} if groups else {}),
    }


def _count(spark: SparkSession, path: str) -> int:
    return spark.read.format("delta").load(path).count()


def group_counts(spark: SparkSession, layout: Layout, groups: Query) -> dict[str, Any]:
    given = written([groups])

    def rows(table: str) -> int:
        if given is not None:
            return given[table]

        def count(session: SparkSession) -> int:
            frame = session.read.format("delta").load(layout.table(table))
            return (frame if table == "group_transitions" else frame.where(sf.col("kind").isin(*KINDS))).count()

        return asked(spark, layout.table(table), count)

    still_open = 0
    if not groups.sink.drain:
        assert groups.sink.gauges is not None
        still_open = groups.sink.gauges.left_open()
    ended = {table: rows(table) for table in ENDS}
    return {
        "operations": sum(ended.values()) + still_open,
        **ended,
        "open": still_open,
        "transitions": rows("group_transitions"),
        "disagreements": asked(spark, layout.out, lambda session: counted(session, layout)),
    }
