"""Everything that the tables know of some operations: their requests, their watches, and what happened on their keys.

The events of a partition are read from the trace's beginning, because how far a follower had got may have been said
long before the operation arrived; what comes back is counted by operation, partition, and kind of event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.dialect import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from purgatory_udf.storage.run_tables import RunFrames

Place = tuple[str, int]


@dataclass(frozen=True)
class PartitionHappening:
    """One kind of event on a partition: how often during the wait, and how far it had got by the end."""

    what: str
    replica: int | None
    times: int
    last_us: int
    reached: int | None


@dataclass
class Evidence:
    """One operation. `end` is its row of completions, expirations or cancellations, None while it is open."""

    operation_id: int
    end: Row | None
    request: Row | None = None
    watches: list[Row] = field(default_factory=list)
    happenings: dict[Place, list[PartitionHappening]] = field(default_factory=dict)
    in_sync: dict[Place, list[int]] = field(default_factory=dict)
    deciding: Row | None = None
    changes: list[Row] = field(default_factory=list)


def collect(tables: RunFrames, ids: Iterable[int]) -> list[Evidence]:
    """The evidence on each of these operations, in their order; meant for some dozens, not for thousands."""
    wanted = list(dict.fromkeys(ids))
    ends = {row.operation_id: row for row in _ends(tables, wanted)}
    by_id = {number: Evidence(number, ends.get(number)) for number in wanted}
    for request in _requests(tables, wanted):
        by_id[request.seq].request = request
    watches = tables.table("watches").where(_among("operation_id", wanted)).orderBy("topic", "partition")
    for watch in watches.collect():
        by_id[watch.operation_id].watches.append(watch)
    _look_around(tables, by_id)
    return [each for each in by_id.values() if each.end or each.request]


def us(moment: str) -> Column:
    """A time as microseconds: Python's own time zone has no say in it."""
    return sf.unix_micros(moment).alias(f"{moment.removesuffix('_at')}_us")


def _among(column: str, ids: list[int]) -> Column:
    return sf.col(column).isin(ids) if ids else sf.lit(False)


def _ends(tables: RunFrames, ids: list[int]) -> list[Row]:
    ended = tables.ended().union(tables.cancelled()).where(_among("operation_id", ids))
    return ended.withColumns({name: us(at) for name, at in _TIMES.items()}).collect()


_TIMES = {"started_us": "started_at", "ended_us": "ended_at", "deadline_us": "deadline"}


def _requests(tables: RunFrames, ids: list[int]) -> list[Row]:
    return tables.table("events").where(_among("seq", ids)).collect()


def _look_around(tables: RunFrames, evidence: dict[int, Evidence]) -> None:
    """What happened on the partitions of each operation, up to its end."""
    spark = tables.spark
    places = [
        (each.operation_id, each.end.broker, part.topic, part.partition, each.end.started_us, _until(each.end))
        for each in evidence.values()
        if each.end
        for part in each.end.partitions or []
    ]
    if not places or not tables.has("events"):
        return
    columns = "operation_id LONG, at_broker INT, topic STRING, partition INT, started_us LONG, ended_us LONG"
    asked = spark.createDataFrame(places, columns)
    topics, latest = {place[2] for place in places}, max(place[5] for place in places)
    touches = _touches(tables.table("events").where(sf.col("time_us") <= latest), topics)
    # A topic that is being created has no partition of its own: any of them counts, at any broker.
    same = sf.col("touch.topic") == sf.col("asked.topic")
    there = (sf.col("touch.partition") == sf.col("asked.partition")) & (sf.col("broker") == sf.col("at_broker"))
    near = (
        touches.alias("touch")
        .join(sf.broadcast(asked.alias("asked")), same & (there | (sf.col("asked.partition") < 0)))
        .where("time_us <= ended_us AND seq != operation_id")
        .select("operation_id", "asked.topic", "asked.partition", "started_us", "ended_us", *_TOUCH)
    )
    _count(near, evidence)
    _decide(near, evidence)


def _until(end: Row) -> int:
    """The last microsecond that counts: an operation expires before the events of its deadline."""
    return int(end.ended_us) - bool(end.expired)


_TOUCH = ("time_us", "seq", "what", "replica", "reached", "in_sync", "request_id", "client_id")


def _touches(events: DataFrame, topics: Iterable[str]) -> DataFrame:
    """One row for each event and partition of these topics: what it did there, and which offset it told of."""
    topics = list(topics)
    common = (sf.coalesce("broker", sf.lit(0)).alias("broker"), "time_us", "seq", "request_id", "client_id")
    of_requests = (
        events.where(sf.col("type").isin("produce", "fetch"))
        .where(sf.exists("partitions", lambda part: part["topic"].isin(topics)))
        .select(*common, sf.col("type").alias("what"), "replica_id", sf.explode("partitions").alias("part"))
        # A consumer's fetch changes nothing for anybody; a produce in error did not append.
        .where("(what = 'fetch' AND replica_id >= 0) OR (what = 'produce' AND part.error = 'NONE')")
        .select(
            *("broker", "time_us", "seq", "request_id", "client_id", "what"),
            sf.when(sf.col("what") == "fetch", sf.col("replica_id")).alias("replica"),
            sf.when(sf.col("what") == "fetch", sf.col("part.fetch_offset"))
            .otherwise(sf.col("part.last_offset") + 1)
            .alias("reached"),
            sf.lit(None).cast("array<int>").alias("in_sync"),
            "part.topic",
            "part.partition",
        )
    )
    of_partitions = events.where("type = 'partition'").select(
        *common,
        sf.col("change").alias("what"),
        sf.when(sf.col("change") == "replica_end", sf.col("replica_id")).alias("replica"),
        sf.col("offset").alias("reached"),
        sf.col("isr").alias("in_sync"),
        "topic",
        "partition",
    )
    return of_requests.unionByName(of_partitions).where(sf.col("topic").isin(topics))


def _count(near: DataFrame, evidence: dict[int, Evidence]) -> None:
    moment = sf.struct("time_us", "seq")
    counted = near.groupBy("operation_id", "topic", "partition", "what", "replica").agg(
        sf.count_if(sf.col("time_us") >= sf.col("started_us")).alias("times"),
        sf.max("time_us").alias("last_us"),
        sf.max("reached").alias("reached"),
        sf.max_by("in_sync", sf.when(sf.col("in_sync").isNotNull(), moment)).alias("in_sync"),
        sf.max(sf.when(sf.col("in_sync").isNotNull(), moment)).alias("said"),
    )
    latest: dict[tuple[int, Place], tuple[Any, list[int]]] = {}
    for row in counted.collect():
        place = (row.topic, row.partition)
        happening = PartitionHappening(row.what, row.replica, row.times, row.last_us, row.reached)
        evidence[row.operation_id].happenings.setdefault(place, []).append(happening)
        if row.said is not None:
            key = (row.operation_id, place)
            latest[key] = max(latest.get(key, (row.said, row.in_sync)), (row.said, row.in_sync))
    for (number, place), (_, in_sync) in latest.items():
        evidence[number].in_sync[place] = in_sync


def _decide(near: DataFrame, evidence: dict[int, Evidence]) -> None:
    """The event whose time is the end's, on the key that is named as the trigger."""
    triggers = {number: each.end.trigger for number, each in evidence.items() if each.end and each.end.trigger}
    if not triggers:
        return
    at_end = near.where("time_us = ended_us").where(_among("operation_id", list(triggers))).orderBy("seq")
    for row in at_end.collect():
        key = row.topic if row.partition < 0 else f"{row.topic}-{row.partition}"
        each = evidence[row.operation_id]
        if key == triggers[row.operation_id] and each.deciding is None:
            each.deciding = row
