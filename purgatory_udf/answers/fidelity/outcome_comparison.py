"""Recorded and replayed, side by side: one row an operation that both know, with the cause of each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.answers.fidelity import timer_delays
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.contract.tables import FIDELITY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Why a replay ended an operation otherwise than the recorded broker did: every disagreement falls under one of these.
#
# A request log dates whole requests. When inside the handling of a request its records were appended, a follower's
# offset taken or a waiting fetch looked at, it does not say; so most disagreements are between *at once* and
# *completed*.


AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"
# No outcome was found: the operation was still open, or the replay ran without it.
NONE = "none"

CAUSES = {
    "not_replayed": "the replay has no outcome of it: it ran without draining, or over other events",
    "session_before_the_log": "a fetch of a session that began before the log: some of its partitions are unknown",
    "partition_error": "answered with an error: leadership and metadata as that broker saw them are not in the log",
    "coordinator_append": "decided by an append that no PRODUCE line shows, dated by its batch or its request",
    "stamped_late": "answered by another thread before its own handling was stamped as done: it did wait",
    "inside_handling": "the deciding request was being handled when this one was first tried: which came first is "
    "inside that handling",
    "near_the_deadline": "the deciding change came within a few milliseconds of the deadline",
    "dated_apart": "the deciding change and the first try lie within a few milliseconds, as near as lines are dated",
    "change_unseen": "the log shows no such change, or shows it at another time",
    "other_coordinator": "answered by another coordinator than the classic one, which has timers of its own",
    "group_state": "the group was in another state when it was asked",
}

# Lines are written some 0.1 ms after the answer, some milliseconds under load.
NEAR_MS = 5.0


@dataclass(frozen=True, slots=True)
class Pair:
    """An operation as recorded and as replayed, and what is known around it.

    `decided_by` is the topic-partition whose change ended the replayed one or held its bytes; `in_handling` says if
    a produce or a follower's fetch was being handled at that broker when this operation was first tried.
    """

    kind: str
    recorded: str
    replayed: str
    recorded_ms: float
    replayed_ms: float | None
    delay_ms: float | None
    error: str
    complete: bool
    decided_by: str | None
    in_handling: bool


def cause_of(pair: Pair) -> str | None:
    """None where both ended alike."""
    if pair.recorded == pair.replayed:
        return None
    if pair.replayed == NONE:
        return "not_replayed"
    if not pair.complete:
        return "session_before_the_log"
    if pair.error != "NONE":
        return "partition_error"
    if (pair.decided_by or "").startswith("__"):
        return "coordinator_append"
    if COMPLETED in (pair.recorded, pair.replayed) and EXPIRED in (pair.recorded, pair.replayed):
        return "near_the_deadline" if _near_the_deadline(pair) else "change_unseen"
    if EXPIRED in (pair.recorded, pair.replayed):
        return "change_unseen"
    if pair.kind == "produce acks=-1" and pair.recorded == AT_ONCE:
        return "stamped_late"
    if pair.in_handling:
        return "inside_handling"
    waited = pair.recorded_ms if pair.recorded == COMPLETED else (pair.replayed_ms or 0.0)
    return "dated_apart" if waited <= NEAR_MS else "change_unseen"


def _near_the_deadline(pair: Pair) -> bool:
    """Whichever side saw the change saw it close to the end of the wait."""
    seen = pair.recorded_ms if pair.recorded == COMPLETED else pair.replayed_ms
    return pair.delay_ms is not None and seen is not None and abs(pair.delay_ms - seen) <= NEAR_MS


# Kinds whose operation has the id of its event; groups are compared by their answers (`group_answers`).
BY_ID = (
    "consumer fetch",
    "follower fetch",
    "produce acks=-1",
    "produce acks=1",
    "produce acks=0",
    "transaction markers",
    "delete_records",
    "create_topics",
)
# Whose handling may hide when something happened.
CHANGING = ("follower fetch", "produce acks=-1", "produce acks=1", "produce acks=0")

ACCURACY = 100_000

_FACTS = pa.schema(
    [
        *(column for column in FIDELITY if column.name != "cause"),
        ("error", pa.string()),
        ("complete", pa.bool_()),
        ("delay_ms", pa.float64()),
        ("decided_by", pa.string()),
        ("in_handling", pa.bool_()),
    ]
)


class Compared(NamedTuple):
    """FIDELITY rows of all operations that are compared by their id, and the phases (ms) of the brokers' timers that
    could be told from them."""

    rows: DataFrame
    phases: dict[int, float]


def compared(spark: SparkSession, out: str, run_id: str) -> Compared:
    recorded = _recorded(spark, out).where(sf.col("kind").isin(*BY_ID))
    both = recorded.join(_ends(spark, out), "operation_id", "left").withColumns(
        {
            "run_id": sf.lit(run_id),
            "replayed_outcome": sf.coalesce("replayed_outcome", sf.lit(NONE)),
            "recorded_ms": sf.col("recorded_remote_ms"),
            "difference_ms": sf.col("recorded_remote_ms") - sf.col("replayed_ms"),
            "both_expired": (sf.col("recorded_outcome") == EXPIRED) & (sf.col("replayed_outcome") == EXPIRED),
            "agrees": sf.col("recorded_outcome") == sf.coalesce("replayed_outcome", sf.lit(NONE)),
            "error": sf.col("recorded_error"),
            "complete": sf.col("recorded_complete"),
        }
    )
    phases = timer_delays.phases(both.where("both_expired"))
    both = _beyond_the_reaper(both, phases)
    agreeing = both.where("agrees").withColumn("cause", sf.lit(None).cast("string")).select(*FIDELITY.names)
    differing = _with_handling(both.where("NOT agrees"), recorded).select(*_FACTS.names)
    rows = agreeing.unionByName(differing.mapInArrow(_with_cause, from_arrow_schema(FIDELITY)))
    return Compared(rows, phases)


def _beyond_the_reaper(both: DataFrame, phases: Mapping[int, float]) -> DataFrame:
    """What expired was answered when the broker's reaper got to it, some tenths of a millisecond after its timer's
    delay, while the replay ends it at the deadline: where both sides expired, their difference is what goes beyond that
    broker's median, counted from the end of the timer's delay where its phase is known."""
    late = sf.col("difference_ms") + timer_delays.started_within(phases)
    both = both.withColumn("late_ms", sf.when(sf.col("both_expired"), late))
    median = sf.percentile_approx("late_ms", 0.5, ACCURACY).alias("usual_ms")
    usual = both.where("both_expired").groupBy("broker").agg(median)
    beyond = sf.when(sf.col("both_expired"), sf.col("late_ms") - sf.col("usual_ms")).otherwise(sf.col("difference_ms"))
    return both.join(sf.broadcast(usual), "broker", "left").withColumn("difference_ms", beyond)


def _recorded(spark: SparkSession, out: str) -> DataFrame:
    """Tables of earlier imports do not say when a line was written."""
    recorded = _table(spark, out, "recorded")
    if "written_at" in recorded.columns:
        return recorded
    return recorded.withColumn("written_at", sf.lit(None).cast("timestamp"))


def _table(spark: SparkSession, out: str, name: str) -> DataFrame:
    return spark.read.format("delta").load(f"{out.rstrip('/')}/{name}")


def _ends(spark: SparkSession, out: str) -> DataFrame:
    """How and when the replay ended each operation. What expired has waited its whole delay: deadlines are whole
    milliseconds, while a start is not."""
    # The partition that held the bytes which an operation on arrival was answered with.
    full = sf.element_at(sf.filter("partitions", lambda partition: partition["bytes"] > 0), 1)
    held = sf.when(sf.size(sf.filter("partitions", lambda partition: partition["bytes"] > 0)) > 0, full["topic"])
    delay = _ms("deadline", "started_at").alias("delay_ms")
    decided_by = sf.coalesce("trigger", held, "key").alias("decided_by")
    common = ("operation_id", delay, decided_by)
    completed = _table(spark, out, "completions").select(
        *common,
        sf.when(sf.col("watched"), COMPLETED).otherwise(AT_ONCE).alias("replayed_outcome"),
        _ms("completed_at", "started_at").alias("replayed_ms"),
    )
    # A fetch that is not to wait is answered at once, and no broker counts it as expired.
    outcome = sf.when((sf.col("kind") == "fetch") & (sf.col("wait_ms") == 0), AT_ONCE).otherwise(EXPIRED)
    expired = _table(spark, out, "expirations").select(
        *common, outcome.alias("replayed_outcome"), sf.col("wait_ms").cast("double").alias("replayed_ms")
    )
    return completed.unionByName(expired)


def _ms(later: str, earlier: str) -> Column:
    return (sf.unix_micros(later) - sf.unix_micros(earlier)) / 1000


def _with_handling(differing: DataFrame, recorded: DataFrame) -> DataFrame:
    """Whether something else was being handled at that broker at the first try, that may have decided it."""
    busy = recorded.where(sf.col("kind").isin(*CHANGING)).select(
        sf.col("broker").alias("busy_broker"),
        sf.col("operation_id").alias("busy_id"),
        sf.unix_micros("started_at").alias("until_us"),
        (sf.unix_micros("started_at") - sf.col("recorded_local_ms") * 1000).alias("since_us"),
    )
    tried = sf.unix_micros("started_at")
    overlapping = (
        (sf.col("broker") == sf.col("busy_broker"))
        & (sf.col("operation_id") != sf.col("busy_id"))
        # Either may be dated some tenths of a millisecond off.
        & tried.between(sf.col("since_us") - 500, sf.col("until_us") + 500)
    )
    in_handling = (
        differing.join(busy, overlapping).select("operation_id").distinct().withColumn("in_handling", sf.lit(True))
    )
    return differing.join(in_handling, "operation_id", "left").withColumn(
        "in_handling", sf.coalesce("in_handling", sf.lit(False))
    )


def _with_cause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [{**row, "cause": cause_of(_pair(row))} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=FIDELITY)


def _pair(row: dict[str, Any]) -> Pair:
    return Pair(
        kind=row["kind"],
        recorded=row["recorded_outcome"],
        replayed=row["replayed_outcome"],
        recorded_ms=row["recorded_ms"],
        replayed_ms=row["replayed_ms"],
        delay_ms=row["delay_ms"],
        error=row["error"],
        complete=row["complete"],
        decided_by=row["decided_by"],
        in_handling=row["in_handling"],
    )
