"""From judged pieces to the rows of the tables: what is late, whose `seq` another event has, what comes when.

Mostly the ends of the pieces tell that no event is either; then the events stay packed (`arrange`). Otherwise each is a
row, and those of all pieces are compared. The tables are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from purgatory_udf.errors import NeedsSparkError
from purgatory_udf.ingest.arrange import borders, in_order, nothing_is_left_to_decide, parts_in_order, unpacked
from purgatory_udf.ingest.judge import PLACE, PieceEnd
from purgatory_udf.ingest.placing import numbered, place, seq_may_repeat, starts
from purgatory_udf.ingest.report import IngestOptions
from purgatory_udf.ingest.source import Source
from purgatory_udf.ingest.verdicts import without_late, without_repeated_seq
from purgatory_udf.query import functions as sf
from purgatory_udf.query import is_local
from purgatory_udf.storage.staging import in_files, write_files, write_parts_here
from purgatory_udf.tables import EVENTS, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Counts(NamedTuple):
    """How many events, how many rejected lines by rule, and the events' first and last time."""

    accepted: int
    by_rule: dict[str, int]
    first_us: int | None
    last_us: int | None


class Decided(NamedTuple):
    """`write` makes the table of the events, in order, at a path; `rejected` has the table's columns among its own."""

    counts: Counts
    write: Callable[[str], None]
    rejected: DataFrame


def decided(
    spark: SparkSession,
    staged: DataFrame,
    ends: Sequence[PieceEnd],
    source: Source,
    run_id: str,
    options: IngestOptions,
) -> Decided:
    sources = [file.name for file in source.files]
    refused = place(spark, staged.where("rule IS NOT NULL").select(*PLACE.names), ends, sources)
    refused = refused.withColumn("run_id", sf.lit(run_id))
    if nothing_is_left_to_decide(ends, options.max_disorder_ms):
        cuts = borders(ends, options.events_per_file)
        if cuts is not None and is_local():
            parts = parts_in_order(staged, ends, sources, run_id, cuts)
            return Decided(_summed(ends), lambda path: write_parts_here(parts, path, EVENTS), refused)
        if cuts is not None:
            return Decided(_summed(ends), partial(write_files, in_order(staged, ends, sources, run_id, cuts)), refused)
    if is_local():
        raise NeedsSparkError("events that are late, or whose numbers may repeat")
    rows = numbered(place(spark, unpacked(staged), ends, sources)).withColumns(
        {"run_id": sf.lit(run_id), "rule": sf.lit(None).cast("string"), "reason": sf.lit(None).cast("string")}
    )
    compared = without_late(rows, options.max_disorder_ms)
    if seq_may_repeat(ends):
        compared = without_repeated_seq(spark, compared, sources)
    counts = _counted(compared, ends)
    taken = compared.where("rule IS NULL").withColumn("event_time", sf.timestamp_micros("time_us"))
    events = in_files(taken.select(*TABLES["events"].names), counts.accepted, options.events_per_file)
    rejected = refused.unionByName(_with_text(spark, compared, ends, source), allowMissingColumns=True)
    return Decided(counts, partial(write_files, events), rejected)


def _summed(ends: Sequence[PieceEnd]) -> Counts:
    with_events = [end for end in ends if end.events]
    by_rule: Counter[str] = Counter()
    for end in ends:
        by_rule.update(json.loads(end.by_rule))
    first = min((end.first_us for end in with_events), default=None)
    last = max((end.latest for end in with_events), default=None)
    return Counts(sum(end.events for end in ends), dict(by_rule), first, last)


def _counted(compared: DataFrame, ends: Sequence[PieceEnd]) -> Counts:
    times = (sf.min("time_us").alias("first"), sf.max("time_us").alias("last"))
    counts = {row.rule: row for row in compared.groupBy("rule").agg(sf.count("*").alias("n"), *times).collect()}
    events = counts.pop(None, None)
    by_rule = {**_summed(ends).by_rule, **{rule: row.n for rule, row in counts.items()}}
    return Counts(events.n, by_rule, events.first, events.last) if events else Counts(0, by_rule, None, None)


def _with_text(spark: SparkSession, compared: DataFrame, ends: Sequence[PieceEnd], source: Source) -> DataFrame:
    """Events that are refused after all, with their text: it has not been kept, so their pieces are read again."""
    refused = compared.where("rule IS NOT NULL").select("file", "piece", "line", "source", "reason", "run_id")
    touched = {(row.file, row.piece) for row in refused.select("file", "piece").distinct().collect()}
    before = {
        (start.file, start.piece): start.lines_before for start in starts(ends) if (start.file, start.piece) in touched
    }
    texts = source.texts(spark, before).withColumnRenamed("text", "raw")
    return refused.join(texts, ["file", "line"])
