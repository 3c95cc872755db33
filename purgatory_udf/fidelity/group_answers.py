"""The answers of groups, recorded and replayed, as rows of the same table as all other operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.fidelity.groups import ComparedRequest, GroupChange, answers
from purgatory_udf.query import functions as sf
from purgatory_udf.tables import FIDELITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPES = ("join_group", "sync_group", "heartbeat")

_ROWS = pa.schema([column for column in FIDELITY if column.name != "run_id"])
_EVENT = (
    "seq",
    "broker",
    "group",
    "time_us",
    "type",
    "member_id",
    "generation",
    "leader",
    "api_version",
    "group_instance_id",
    "assigned_member_id",
)


def compared_groups(spark: SparkSession, out: str, run_id: str, classic: bool) -> DataFrame:
    """FIDELITY rows of joins, syncs and heartbeats. `classic`: the recorded coordinator is the one that is replayed."""
    folder = out.rstrip("/")
    events = spark.read.format("delta").load(f"{folder}/events").where(sf.col("type").isin(*TYPES)).select(*_EVENT)
    recorded = spark.read.format("delta").load(f"{folder}/recorded").drop("broker")
    requests = events.join(recorded, events.seq == recorded.operation_id).drop("seq")
    changes = spark.read.format("delta").load(f"{folder}/group_transitions")
    histories = changes.groupBy("broker", "group").agg(
        sf.sort_array(
            sf.collect_list(sf.struct(sf.unix_micros("at").alias("at"), "to_state", "generation", "members"))
        ).alias("changes")
    )
    asked = requests.groupBy("broker", "group").agg(
        sf.sort_array(
            sf.collect_list(
                sf.struct("time_us", "operation_id", *(name for name in requests.columns if name not in _SORTED))
            )
        ).alias("requests")
    )
    together = asked.join(histories, ["broker", "group"], "left")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [answer for row in batch.to_pylist() for answer in _answers(row, classic)]
            yield pa.RecordBatch.from_pylist(rows, schema=_ROWS)

    answered = together.mapInArrow(work, from_arrow_schema(_ROWS)).withColumn("run_id", sf.lit(run_id))
    return answered.select(*FIDELITY.names)


_SORTED = ("time_us", "operation_id", "broker", "group")


def _answers(row: dict[str, Any], classic: bool) -> Iterator[dict[str, Any]]:
    changes = [
        GroupChange(change["at"], change["to_state"], change["generation"], frozenset(change["members"] or ()))
        for change in row["changes"] or ()
    ]
    by_id = {request["operation_id"]: request for request in row["requests"]}
    for answer in answers(changes, map(_request, row["requests"])):
        request = by_id[answer.operation_id]
        agrees = answer.recorded == answer.replayed
        replayed_ms = answer.replayed_ms if agrees and classic else None
        yield {
            "operation_id": answer.operation_id,
            "broker": row["broker"],
            "kind": request["kind"],
            "request_id": request["request_id"],
            "started_at": request["started_at"],
            "recorded_outcome": answer.recorded,
            "replayed_outcome": answer.replayed,
            "recorded_ms": answer.recorded_ms,
            "replayed_ms": replayed_ms,
            "difference_ms": None if replayed_ms is None else answer.recorded_ms - replayed_ms,
            "agrees": agrees,
            "cause": None if agrees else "group_state" if classic else "other_coordinator",
        }


def _request(row: dict[str, Any]) -> ComparedRequest:
    return ComparedRequest(
        operation_id=row["operation_id"],
        at_us=row["time_us"],
        type=row["type"],
        member_id=row["member_id"] or "",
        generation=-1 if row["generation"] is None else row["generation"],
        leader=bool(row["leader"]),
        recorded=row["recorded_error"],
        recorded_ms=row["recorded_remote_ms"],
        granted=row["recorded_generation"],
        api_version=5 if row["api_version"] is None else row["api_version"],
        instance=row["group_instance_id"],
        assigned=row["assigned_member_id"],
    )
