"""Every operation under the baseline beside the same one under a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from purgatory_udf.storage.run_tables import RunTables

SAME, APPEARS, VANISHES, OTHERWISE, LONGER, SHORTER, ONLY_ONE = (
    "same",
    "expiration appears",
    "expiration vanishes",
    "ended by something else",
    "waits longer",
    "waits less",
    "in one of both only",
)
CHANGES = (APPEARS, VANISHES, OTHERWISE, LONGER, SHORTER, ONLY_ONE)

_NAMED = ("operation_id", "broker", "request_id", "client_id", "key", "started_at")
# What two operations are the same by. In one trace: by what began them.
_OF_ONE_TRACE = ("kind", "began")
# In two: by whose n-th they are. A group's own rounds are nobody's request, and a join may open several windows.
_OF_TWO_TRACES = ("kind", "who", "request", "nth")


def pairs(baseline: RunTables, variant: RunTables, reacting: bool = False) -> DataFrame:
    """One row an operation, with its `change`. What one side has no end for (it was open, or its group never began
    it) is null there. Where clients were `reacting`, each side is of a trace of its own."""
    same = _OF_TWO_TRACES if reacting else _OF_ONE_TRACE
    left, right = (_side(tables, name, same) for tables, name in ((baseline, "baseline"), (variant, "variant")))
    both = left.join(right, [*same], "full")
    named = [sf.coalesce(f"baseline_{name}", f"variant_{name}").alias(name) for name in _NAMED]
    ends = [
        f"{side}_{what}"
        for what in ("expired", "completed_by", "wait_ms", "watched", "bytes")
        for side in ("baseline", "variant")
    ]
    shift = (sf.col("variant_wait_ms") - sf.col("baseline_wait_ms")).alias("shift_ms")
    return both.select("kind", *named, *ends, shift, _change().alias("change"))


def differing(paired: DataFrame) -> DataFrame:
    """Those that a variant changes anything of."""
    return paired.where(sf.col("change") != SAME)


def _side(tables: RunTables, name: str, same: tuple[str, ...]) -> DataFrame:
    ended = tables.ended().withColumn("began", sf.col("operation_id"))
    if same == _OF_TWO_TRACES:
        ended = _numbered(ended)
    columns = (*_NAMED, "expired", "completed_by", "wait_ms", "watched", "bytes")
    return ended.select(*same, *(sf.col(column).alias(f"{name}_{column}") for column in columns))


def _numbered(ended: DataFrame) -> DataFrame:
    """With `who` asked, their `request`, and the `nth` operation of this kind that came of it."""
    who = sf.coalesce("client_id", sf.lit("")).alias("who")
    request = sf.coalesce("request_id", "key", sf.lit("")).alias("request")
    of_one = Window.partitionBy("kind", "who", "request").orderBy("started_at", "operation_id")
    return ended.select("*", who, request).withColumn("nth", sf.row_number().over(of_one))


def _change() -> Column:
    before, after = sf.col("baseline_expired"), sf.col("variant_expired")
    same_end = (sf.col("baseline_completed_by") == sf.col("variant_completed_by")) & sf.col(
        "baseline_bytes"
    ).eqNullSafe(sf.col("variant_bytes"))
    shift = sf.col("variant_wait_ms") - sf.col("baseline_wait_ms")
    return (
        sf.when(before.isNull() | after.isNull(), ONLY_ONE)
        .when(~before & after, APPEARS)
        .when(before & ~after, VANISHES)
        .when(shift > 0, LONGER)
        .when(shift < 0, SHORTER)
        .when(~same_end, OTHERWISE)
        .otherwise(SAME)
    )
