"""From a line's place in its piece to its place in the input: line number, `seq`, and the times before it.

Pieces are read side by side, so none knows how many lines came before it or how late it was then. Both follow from
the pieces' own ends, one small row each:

    piece       lines  latest        begins after line  with the times before it up to
    a.jsonl 0     400    12:07                       0      –
    a.jsonl 1     380    12:05                     400  12:07
    a.jsonl 2     410    12:31                     780  12:07
    b.jsonl 0     ...                                0      –
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

from purgatory_udf.ingest.judge import PieceEnd
from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A file's lines get a range of `seq` of their own, which no file is long enough to leave.
SEQ_PER_FILE = 2**40
END_COLUMNS = [field.name for field in fields(PieceEnd)]


@dataclass(frozen=True, slots=True)
class PieceStart:
    """What came before a piece in its file."""

    file: int
    piece: int
    lines_before: int
    latest_before: int


def ends_of(judged: DataFrame) -> list[PieceEnd]:
    """The last rows of all pieces, in input order."""
    rows = judged.where("rows IS NOT NULL").select(*END_COLUMNS).collect()
    return sorted((PieceEnd(*row) for row in rows), key=lambda end: (end.file, end.piece))


def starts(ends: Sequence[PieceEnd]) -> list[PieceStart]:
    """`ends` in input order."""
    piece_starts = []
    file = lines = latest = -1
    for end in ends:
        if end.file != file:
            file, lines, latest = end.file, 0, 0
        piece_starts.append(PieceStart(end.file, end.piece, lines, latest))
        lines, latest = lines + end.line, max(latest, end.latest)
    return piece_starts


def seq_may_repeat(ends: Sequence[PieceEnd]) -> bool:
    """Whether two events could have the same `seq`, as far as the pieces' ends tell.

    A trace that brings none gets each once; one that brings them in rising order, piece after piece, needs no look.
    """
    with_events = [end for end in ends if end.events]
    if not any(end.given for end in with_events):
        return False
    if not all(end.given == end.events and end.rising for end in with_events):
        return True
    ranges = sorted((end.first_seq, end.last_seq) for end in with_events)
    return any(before[1] >= after[0] for before, after in pairwise(ranges))


def place(spark: SparkSession, judged: DataFrame, ends: Sequence[PieceEnd], sources: Sequence[str]) -> DataFrame:
    """The rows of the input's lines, with `source`, `line` and `latest` as they are in the whole input."""
    begins = [
        (start.file, start.piece, start.lines_before, start.latest_before, sources[start.file])
        for start in starts(ends)
    ]
    before = spark.createDataFrame(
        begins, "file INT, piece INT, lines_before BIGINT, latest_before BIGINT, source STRING"
    )
    line = sf.col("line") + sf.col("lines_before")
    latest = sf.greatest("latest", "latest_before")
    placed = judged.join(sf.broadcast(before), ["file", "piece"]).withColumns({"line": line, "latest": latest})
    return placed.drop("lines_before", "latest_before")


def numbered(placed: DataFrame) -> DataFrame:
    """Events that bring no `seq` get their place in the input; `own_seq` says whether one brought its own."""
    input_place = sf.col("file").cast("long") * SEQ_PER_FILE + sf.col("line")
    return placed.withColumns({"own_seq": sf.col("seq").isNotNull(), "seq": sf.coalesce("seq", input_place)})
