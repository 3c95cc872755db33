"""Decides with the whole input which events are late or repeat a `seq`, and returns the rows of the tables.

Usually the totals of the pieces rule out both, and the events stay serialized (`event_order`). Otherwise, all events
are compared as rows. The tables are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sf

from purgatory_udf.backend.backend import Backend, LocalBackend
from purgatory_udf.backend.dataset import Dataset, SparkDataset
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.contract.tables import EVENTS, REJECTED_EVENTS, TABLES
from purgatory_udf.sources.trace_files.event_order import (
    borders,
    in_order,
    numbered,
    parts_in_order,
    place,
    rejections,
    seq_may_repeat,
    starts,
    totals_suffice,
    unpacked,
)
from purgatory_udf.sources.trace_files.import_report import IngestOptions
from purgatory_udf.sources.trace_files.line_validation import PLACE, PieceEnd
from purgatory_udf.sources.trace_files.trace_reader import Source
from purgatory_udf.storage.event_staging import in_files, write_files, write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LATE = "late"
DUPLICATE = "duplicate seq"


def without_late(placed: DataFrame, max_disorder_ms: int) -> DataFrame:
    """Set `rule` and `reason` of events more than `max_disorder_ms` behind an earlier line of their file."""
    behind = sf.col("latest") - sf.col("time_us")
    late = sf.col("rule").isNull() & (behind > max_disorder_ms * 1000)
    reason = sf.format_string(
        "late: time_us %d is %d us behind %d, the greatest before it in the file (max_disorder_ms is %d)",
        "time_us",
        behind,
        "latest",
        sf.lit(max_disorder_ms),
    )
    return placed.withColumns(
        {
            "rule": sf.when(late, LATE).otherwise(sf.col("rule")),
            "reason": sf.when(late, reason).otherwise(sf.col("reason")),
        }
    )


def without_repeated_seq(placed: DataFrame, sources: Sequence[str]) -> DataFrame:
    """Set `rule` and `reason` of events with the `seq` of an earlier event in input order."""
    shared = (
        placed.where("rule IS NULL")
        .groupBy("seq")
        .agg(sf.count("*").alias("events"), sf.min(sf.struct("file", "line")).alias("first"))
        .where("events > 1")
        .select("seq", "first")
    )
    names = placed.sparkSession.createDataFrame(list(enumerate(sources)), "first_file INT, first_source STRING")
    named = shared.join(sf.broadcast(names), shared["first.file"] == names["first_file"])
    compared = placed.join(named, "seq", "left")
    repeated = sf.col("rule").isNull() & (sf.struct("file", "line") != sf.col("first"))
    reason = sf.concat(
        sf.format_string("seq: %d: already used at %s:%d", "seq", "first_source", "first.line"),
        sf.when(sf.col("own_seq"), "").otherwise(" (this line brings none: it is its place in the input)"),
    )
    return compared.withColumns(
        {
            "rule": sf.when(repeated, DUPLICATE).otherwise(sf.col("rule")),
            "reason": sf.when(repeated, reason).otherwise(sf.col("reason")),
        }
    )


class Counts(NamedTuple):
    """Numbers of events and of rejected lines by rule, and the first and last time of events."""

    accepted: int
    by_rule: dict[str, int]
    first_us: int | None
    last_us: int | None


class Decided(NamedTuple):
    """Counts, a function that writes the table of events to a path, and the rows of `rejected_events`."""

    counts: Counts
    write: Callable[[str], None]
    rejected: Dataset


def decided(
    backend: Backend,
    staged: Dataset,
    ends: Sequence[PieceEnd],
    source: Source,
    run_id: str,
    options: IngestOptions,
) -> Decided:
    """Decide which events are late or repeat a `seq`, and return the rows of both tables.

    Raises:
        NeedsSparkError: If events must be compared, and the backend is this process.
    """
    sources = [file.name for file in source.files]
    lines = staged.where_null("rule", null=False).select(*PLACE.names)
    rejected = lines.map(rejections(ends, sources, run_id), REJECTED_EVENTS)
    is_decided = totals_suffice(ends, options.max_disorder_ms)
    cuts = borders(ends, options.events_per_file) if is_decided else None
    if isinstance(backend, LocalBackend):
        if cuts is None:
            raise NeedsSparkError("events that may be late or repeat a seq")
        parts = parts_in_order(staged, ends, sources, run_id, cuts)
        return Decided(_summed(ends), lambda path: write_parts(parts, path, EVENTS), rejected)
    assert isinstance(staged, SparkDataset)
    if cuts is not None:
        return Decided(_summed(ends), partial(write_files, in_order(staged, ends, sources, run_id, cuts)), rejected)
    rows = numbered(place(unpacked(staged), ends, sources)).withColumns(
        {"run_id": sf.lit(run_id), "rule": sf.lit(None).cast("string"), "reason": sf.lit(None).cast("string")}
    )
    compared = without_late(rows, options.max_disorder_ms)
    if seq_may_repeat(ends):
        compared = without_repeated_seq(compared, sources)
    counts = _counted(compared, ends)
    taken = compared.where("rule IS NULL").withColumn("event_time", sf.timestamp_micros("time_us"))
    events = in_files(taken.select(*TABLES["events"].names), counts.accepted, options.events_per_file)
    texts = _with_text(backend, compared, ends, source).select(*REJECTED_EVENTS.names)
    return Decided(counts, partial(write_files, events), rejected.union(SparkDataset(texts, REJECTED_EVENTS)))


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


def _with_text(backend: Backend, compared: DataFrame, ends: Sequence[PieceEnd], source: Source) -> DataFrame:
    """Return late and repeated events with their text, for which their pieces are read again."""
    refused = compared.where("rule IS NOT NULL").select("file", "piece", "line", "source", "reason", "run_id")
    touched = {(row.file, row.piece) for row in refused.select("file", "piece").distinct().collect()}
    before = {
        (start.file, start.piece): start.lines_before for start in starts(ends) if (start.file, start.piece) in touched
    }
    texts = source.texts(backend, before)
    assert isinstance(texts, SparkDataset)
    return refused.join(texts.frame.withColumnRenamed("text", "raw"), ["file", "line"])
