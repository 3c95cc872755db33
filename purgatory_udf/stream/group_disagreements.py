"""`group_disagreements`: what was told, beside what an import of a request log has recorded; counted and listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.errors import UserError
from purgatory_udf.groups.disagreements import COMPARED, disagreements
from purgatory_udf.printing import Table
from purgatory_udf.query import functions as sf
from purgatory_udf.storage import delta, runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.tables import GROUP_DISAGREEMENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    rows.coalesce(1).write.format("delta").mode("overwrite").save(layout.table("group_disagreements"))


def _recorded(spark: SparkSession, run: Run) -> DataFrame | None:
    """Recorded answers with their requests, where an import put them beside the events."""
    events = str(run.trace.get("events") or "")
    path = f"{events.rstrip('/').rpartition('/')[0]}/recorded"
    if not events or not delta.is_table(spark, path):
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
    run = runs.load(spark, layout.table("runs"), "replay")
    if run is None or run.status != runs.FINISHED:
        raise UserError(f"{out}: no finished replay to explain; replay without --explain first")
    changes = layout.table("group_transitions")
    known = delta.is_table(spark, changes) and spark.read.format("delta").load(changes).where(sf.col("group") == group)
    path = layout.table("group_disagreements")
    rows = []
    if delta.is_table(spark, path):
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
