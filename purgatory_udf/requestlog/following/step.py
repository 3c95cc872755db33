"""One step of following a log: what Spark reads, takes apart, dates and puts in order, and what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.query import functions as sf
from purgatory_udf.requestlog.cluster.context import TELLING, Context, Given
from purgatory_udf.requestlog.following import tasks
from purgatory_udf.requestlog.following.carried import Votes
from purgatory_udf.requestlog.following.remains import Left
from purgatory_udf.requestlog.following.rows import KEPT, SAID, SESSION, SWEEP, TAKEN_APART
from purgatory_udf.requestlog.importing import reading, rows
from purgatory_udf.requestlog.importing.frames import counted, held, in_order, own_thread, rejected
from purgatory_udf.requestlog.importing.passes import Keep, Leavings, Tasks, work
from purgatory_udf.requestlog.importing.rows import REQUESTS, RequestRow, request_of
from purgatory_udf.requestlog.importing.spark_tables import Finished
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.partitions.stretch import Stretch
from purgatory_udf.requestlog.report import Report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class TakenStep:
    """`finished` is to be written, but for events that the contract refuses (they have a `rule`): these only keep their
    numbers. `left` is for the next step."""

    finished: Finished
    left: Left


@dataclass(frozen=True)
class Step:
    """`source` names a row's `file`, which is the topic's partition; `keep` keeps what is used more than once."""

    spark: SparkSession
    given: Given
    hold_us: int
    source: Column
    keep: Keep

    def take(self, left: Left, read: DataFrame) -> TakenStep:
        """`read` are READ rows of the new lines."""
        carried = left.carried
        ends = read.where(sf.col("row") == reading.END).select("counts", "body").collect()
        tally = reading.Tally.of(map(tuple, ends))
        carried.asked = reading.most_partitions([carried.asked, tally.partitions])
        carried.modern = sorted({*carried.modern, *tally.modern})
        report = Report(dict(tally.counts))
        fresh = read.where(sf.col("row") == reading.REQUEST).select(*REQUESTS.names)
        requests = left.requests.unionByName(fresh)
        span = requests.agg(sf.min("arrival_us"), sf.max("answered_us")).first()
        if span is not None and span[0] is not None:
            carried.first_us, carried.last_us = min(carried.first_us, span[0]), max(carried.last_us, span[1])
        stretch = carried.stretch(carried.last_us, self.hold_us)
        telling, votes, settled_votes = _telling(requests), _votes(requests), _votes(requests, stretch.until_us)
        racked = bool(carried.counts.get("racked", 0) + report.counts["racked"])
        context = carried.context(telling, self.given, votes, racked)
        passed = work(requests, _tasks(self.spark, context, stretch), self.keep, stretch, _leavings(left.rows))
        parts, said, operations = passed.parts, passed.said, passed.operations
        due = operations.where(sf.col("at_us") < stretch.until_us)
        events = self.keep("events", in_order(due, said, self.source))
        finished = Finished(events, rejected(read, parts.where("settled"), events), self.source)
        topics = said.where(sf.col("part") == SWEEP).select("topic").distinct().collect()
        settled = (request for request in telling if request.start_us < stretch.until_us)
        carried.settle(stretch.until_us, settled, settled_votes, (row.topic for row in topics), context)
        carried.count(_counted(report, parts, said, events))
        waiting = operations.where("settled").where(sf.col("at_us") >= stretch.until_us)
        remaining = _remaining(parts, said, waiting)
        return TakenStep(finished, Left(carried, requests.where(sf.col("start_us") >= stretch.until_us), remaining))


def _counted(report: Report, parts: DataFrame, said: DataFrame, events: DataFrame) -> Report:
    for part in (parts, said):
        for cause, number in counted(part).items():
            report.count(cause, number)
    report.count("operations", events.where("recorded IS NOT NULL AND rule IS NULL").count())
    return report


def _telling(requests: DataFrame) -> list[Request]:
    telling = requests.where(sf.col("api").isin(*TELLING)).orderBy("start_us", "file", "line")
    return [request_of(RequestRow(*row)) for row in telling.select(*REQUESTS.names).collect()]


def _votes(requests: DataFrame, until_us: int | None = None) -> Votes:
    if until_us is not None:
        requests = requests.where(sf.col("start_us") < until_us)
    at_once = sf.sum(own_thread(sf.col("remote_us"))).alias("at_once")
    votes = requests.where(sf.col("api") == "HEARTBEAT").groupBy("broker").agg(at_once, sf.count("*").alias("all"))
    return {row.broker: (row.at_once, row["all"]) for row in votes.collect()}


def _tasks(spark: SparkSession, context: Context, stretch: Stretch) -> Tasks:
    handed, until_us = held(spark, context), stretch.until_us
    apart = tasks.take_sessions_apart(handed, until_us), tasks.take_requests_apart(handed, until_us)
    return Tasks(*apart, tasks.say_timelines(handed, stretch), TAKEN_APART, SAID)


def _leavings(remains: DataFrame) -> Leavings:
    def of(*parts: str) -> DataFrame:
        return remains.where(sf.col("part").isin(*parts)).withColumn("settled", sf.lit(True))

    states = of(SESSION).select(
        "broker", sf.col("kind").alias("session"), sf.lit(SESSION).alias("api"), sf.col("event").alias("body")
    )
    return Leavings(states, of(rows.FACT, SWEEP), of(rows.OPERATION))


def _remaining(parts: DataFrame, said: DataFrame, waiting: DataFrame) -> DataFrame:
    sessions = parts.where(sf.col("part") == SESSION).select(*KEPT.names)
    partitions = said.where(sf.col("part").isin(rows.FACT, SWEEP)).select(
        *(name for name in KEPT.names if name in SAID.names)
    )
    together = sessions.unionByName(waiting.select(*KEPT.names))
    return together.unionByName(partitions, allowMissingColumns=True).select(*KEPT.names)
