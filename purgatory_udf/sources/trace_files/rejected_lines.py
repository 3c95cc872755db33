"""Rejected lines of an import: which events are late or repeat a `seq`, and the rows of `rejected_events`.

`piece_validation` rejects lines that are invalid on their own. Late events, and those that repeat a `seq`, are found
afterwards, because this depends on the whole input. They are the *refused* events. For request logs see
`importing.import_passes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import Dataset, LocalDataset
from purgatory_udf.contract.tables import REJECTED_EVENTS
from purgatory_udf.sources.trace_files.piece_validation import (
    Batches,
    PieceTotals,
    Work,
    packed_events,
    piece_buffers,
    piece_starts,
    seq_may_repeat,
    seq_of,
    unpack,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Rules by which an import refuses events that are valid on their own.
LATE, DUPLICATE = "late", "duplicate seq"


def rejected_lines(totals: Sequence[PieceTotals], sources: Sequence[str], run_id: str) -> Work:
    """Return the step that turns invalid lines (PLACE) into rows of `rejected_events`.

    Args:
        totals: Totals of the pieces, in input order.
        sources: Names of the files, by their index.
        run_id: Name of the import.
    """
    before = {(start.file, start.piece): start.lines_before for start in piece_starts(totals)}
    names = list(sources)

    def step(batches: Batches) -> Batches:
        for batch in batches:
            files, pieces = batch.column("file").to_pylist(), batch.column("piece").to_pylist()
            lines_before = pa.array([before[place] for place in zip(files, pieces, strict=True)], pa.int64())
            columns = {
                "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows),
                "raw": batch.column("raw"),
                "reason": batch.column("reason"),
                "source": pa.array([names[file] for file in files], pa.string()),
                "line": pc.add(batch.column("line"), lines_before),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in REJECTED_EVENTS.names], schema=REJECTED_EVENTS)

    return step


def without_late(placed: DataFrame, max_disorder_ms: int) -> DataFrame:
    """Set `rule` and `reason` of events that are more than `max_disorder_ms` behind an earlier line of their file."""
    from pyspark.sql import functions as sf

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
    """Set `rule` and `reason` of events with the `seq` of an earlier event in input order.

    `sources` has the name of each file, by the number in the column `file`. Lines that are rejected already do not
    count.
    """
    from pyspark.sql import functions as sf

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
        sf.when(sf.col("own_seq"), "").otherwise(" (this line has no seq; its place in the input is used)"),
    )
    return compared.withColumns(
        {
            "rule": sf.when(repeated, DUPLICATE).otherwise(sf.col("rule")),
            "reason": sf.when(repeated, reason).otherwise(sf.col("reason")),
        }
    )


@dataclass(frozen=True)
class RefusedEvents:
    """The late events and those with a repeated `seq` of an import without Spark, and what remains.

    Attributes:
        by_file: The refused events of each file, in order of lines: an array with the columns of `_REFUSED`.
        pieces: The pieces with refused events, as (file, piece).
        by_rule: Number of refused events by rule, without rules that refuse none.
        taken: Number of other events.
        first_us: Time of the first of these; None if there is none.
        last_us: Time of the last of these.
    """

    by_file: Mapping[int, np.ndarray]
    pieces: frozenset[tuple[int, int]]
    by_rule: Mapping[str, int]
    taken: int
    first_us: int | None
    last_us: int | None

    def rejected(self, max_disorder_ms: int, sources: Sequence[str], run_id: str) -> Work:
        """Return the step that turns the text of lines (TEXTS) into rows of `rejected_events` for refused ones."""

        def step(batches: Batches) -> Batches:
            for batch in batches:
                files, numbers = (batch.column(name).to_numpy() for name in ("file", "line"))
                for file in np.unique(files).tolist():
                    found, places = self._places(file, numbers)
                    found &= files == file
                    refused = self.by_file.get(file, _NONE)[places[found]]
                    columns = {
                        "run_id": pa.repeat(pa.scalar(run_id), len(refused)),
                        "raw": batch.column("text").filter(pa.array(found)),
                        "reason": pa.array([_reason(row, max_disorder_ms, sources) for row in refused], pa.string()),
                        "source": pa.repeat(pa.scalar(sources[file]), len(refused)),
                        "line": pa.array(refused["line"]),
                    }
                    rows = [columns[name] for name in REJECTED_EVENTS.names]
                    yield pa.RecordBatch.from_arrays(rows, schema=REJECTED_EVENTS)

        return step

    def is_refused(self, file: int, lines: np.ndarray) -> np.ndarray:
        """Return a mask of the lines of a file, as numbers from its start, that are refused."""
        return self._places(file, lines)[0]

    def _places(self, file: int, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of the lines are refused, and their places in `by_file`."""
        refused = self.by_file.get(file, _NONE)["line"]
        places = np.searchsorted(refused, lines)
        found = places < len(refused)
        found[found] = refused[places[found]] == lines[found]
        return found, places


# A refused event. A late one has its time in `value` and the latest time before it in `other`. One that repeats a `seq`
# has that `seq` in `value`, and the event that has it first in `first_file` and `other`, its line.
_REFUSED = np.dtype(
    [
        ("line", np.int64),
        ("late", np.bool_),
        ("value", np.int64),
        ("other", np.int64),
        ("first_file", np.int32),
        ("given", np.bool_),
    ]
)
_NONE = np.empty(0, _REFUSED)
# An event that is not late.
_PUNCTUAL = np.dtype(
    [("seq", np.int64), ("file", np.int32), ("piece", np.int32), ("line", np.int64), ("us", np.int64), ("given", "?")]
)


def _reason(refused: np.void, max_disorder_ms: int, sources: Sequence[str]) -> str:
    value, other = int(refused["value"]), int(refused["other"])
    if not refused["late"]:
        origin = "" if refused["given"] else " (this line has no seq; its place in the input is used)"
        return f"seq: {value}: already used at {sources[refused['first_file']]}:{other}{origin}"
    return (
        f"late: time_us {value} is {other - value} us behind {other}, the greatest before it in the file "
        f"(max_disorder_ms is {max_disorder_ms})"
    )


def refused_events(staged: Dataset, totals: Sequence[PieceTotals], max_disorder_ms: int) -> RefusedEvents:
    """Return the events that are late, and of the others those with the `seq` of an earlier event in input order.

    Args:
        staged: VALIDATED rows, in this process.
        totals: Totals of the pieces, in input order.
        max_disorder_ms: Maximum out-of-orderness, in milliseconds. An event that is more behind an earlier line of its
            file is late.
    """
    packed = packed_events(staged)
    assert isinstance(packed, LocalDataset)
    starts = {(start.file, start.piece): start for start in piece_starts(totals)}
    may_repeat = seq_may_repeat(totals)
    refused: dict[int, list[np.ndarray]] = {}
    pieces, taken, late, spans, punctual = set(), 0, 0, [], []
    for buffer in chain.from_iterable(map(piece_buffers, packed.readers())):
        events = unpack(buffer)
        start = starts[events.column("file")[0].as_py(), events.column("piece")[0].as_py()]
        times, lines = events.column("time_us").to_numpy(), events.column("line").to_numpy() + start.lines_before
        latest = np.maximum(events.column("latest").to_numpy(), start.latest_before)
        is_late = latest - times > max_disorder_ms * 1000
        if count := int(is_late.sum()):
            of_piece = np.zeros(count, _REFUSED)
            of_piece["line"], of_piece["late"] = lines[is_late], True
            of_piece["value"], of_piece["other"] = times[is_late], latest[is_late]
            refused.setdefault(start.file, []).append(of_piece)
            pieces.add((start.file, start.piece))
            late += count
        if may_repeat:
            rows = np.zeros(len(times) - count, _PUNCTUAL)
            given = events.column("seq")
            rows["seq"] = seq_of(given, lines, start.file).to_numpy()[~is_late]
            rows["file"], rows["piece"], rows["line"] = start.file, start.piece, lines[~is_late]
            rows["us"], rows["given"] = times[~is_late], given.is_valid().to_numpy(zero_copy_only=False)[~is_late]
            punctual.append(rows)
        elif not is_late.all():
            taken += len(times) - count
            spans.append((int(times[~is_late].min()), int(times[~is_late].max())))
    repeated = 0
    if punctual and len(rows := np.concatenate(punctual)):
        places, first = _repeated(rows)
        repeated, others = len(places), np.delete(rows["us"], places)
        taken = len(others)
        # The first event of a `seq` is never refused.
        spans = [(int(others.min()), int(others.max()))]
        again = rows[places]
        pieces.update(set(zip(again["file"].tolist(), again["piece"].tolist(), strict=True)))
        for file in np.unique(again["file"]).tolist():
            of_file = again["file"] == file
            columns = np.zeros(int(of_file.sum()), _REFUSED)
            columns["line"], columns["value"], columns["given"] = (
                again[name][of_file] for name in ("line", "seq", "given")
            )
            columns["first_file"], columns["other"] = (rows[name][first[of_file]] for name in ("file", "line"))
            refused.setdefault(file, []).append(columns)
    counts = {LATE: late, DUPLICATE: repeated}
    return RefusedEvents(
        {file: np.sort(np.concatenate(parts), order="line") for file, parts in refused.items()},
        frozenset(pieces),
        {rule: number for rule, number in counts.items() if number},
        taken,
        min((first for first, _ in spans), default=None),
        max((last for _, last in spans), default=None),
    )


def _repeated(events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the events with the `seq` of an earlier line, and those of the first event of each `seq`."""
    order = np.lexsort((events["line"], events["file"], events["seq"]))
    seq = events["seq"][order]
    is_first = np.append(True, seq[1:] != seq[:-1])
    first = order[np.maximum.accumulate(np.where(is_first, np.arange(len(seq)), 0))]
    return order[~is_first], first[~is_first]
