"""What groups' calls have found, sorted out by broker and purgatory for the gauges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from purgatory_udf.frames.codec import pack
from purgatory_udf.frames.frame import Array, Frame
from purgatory_udf.groups.gauges import LIVES, TURNS, WALKED, by_purgatory, group_gauges
from purgatory_udf.loop.words import Code
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

GROUP_CODES = tuple(TURNS)


def group_parts(spark: SparkSession, layout: Layout, schema: StructType) -> DataFrame | None:
    """Of each packet its share of each purgatory; None where the run has no groups."""
    if not delta.is_table(spark, layout.group_packets):
        return None
    return spark.read.format("delta").load(layout.group_packets).mapInPandas(_sorted_out, schema)


def _sorted_out(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        parts = [
            (broker, int(code), pack({"keys": _names(names), "lives": lives, "walked": walked}))
            for broker, code, names, lives, walked in by_purgatory([bytes(value) for value in frame["payload"]])
        ]
        yield pd.DataFrame(parts, columns=["broker", "code", "payload"])


def _names(names: list[str]) -> Frame:
    column: Array = pd.Series(names, dtype=object).to_numpy()
    return Frame({"name": column})


def read_parts(
    parts: Sequence[dict[str, Frame]], code: Code, purge_interval: int, first_ms: int, last_ms: int
) -> Frame:
    """The gauges of one purgatory, from the shares of all packets; keys have been numbered in one list."""
    lives = Frame.concat([LIVES.empty(), *(part["lives"] for part in parts)])
    walked = Frame.concat([WALKED.empty(), *(part["walked"] for part in parts)])
    return group_gauges(lives, walked, code, purge_interval, first_ms, last_ms)
