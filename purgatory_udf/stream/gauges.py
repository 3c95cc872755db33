"""`purgatory_gauges` where the streams leave something to be done: up to when it goes, and the groups' purgatories.

Partitions' purgatories are read in the stream as it goes. A coordinator's come from what its groups' calls have found,
which are many groups' of one broker: they are sorted out by (broker, purgatory), and each such set is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.config import Config
from purgatory_udf.frames.codec import unpack
from purgatory_udf.frames.frame import Array, Frame
from purgatory_udf.loop.words import PURGATORIES, Code
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout
from purgatory_udf.stream.group_gauges import GROUP_CODES, group_parts, read_parts
from purgatory_udf.tables import PURGATORY_GAUGES
from purgatory_udf.timeline.gauges import STEP_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTS = pa.schema([("broker", pa.int32()), ("code", pa.int32()), ("payload", pa.binary())])


def close_gauges(spark: SparkSession, layout: Layout, config: Config, run_id: str, first_us: int, last_us: int) -> None:
    """Add the groups' gauges, and let the table end with the trace, or, drained, with its last operation."""
    until_ms = last_us // 1000 if not config.drain else _first_step_after_all(spark, layout, last_us)
    table = layout.table("purgatory_gauges")
    # A stream's last readings may come later than the last end of any operation.
    _remove(spark, table, f"at > timestamp_millis({until_ms})")
    if not delta.is_table(spark, layout.group_packets):
        return
    names = ", ".join(f"'{PURGATORIES[code]}'" for code in GROUP_CODES)
    _remove(spark, table, f"purgatory IN ({names})")
    parts = group_parts(spark, layout, from_arrow_schema(_PARTS))
    assert parts is not None
    rows = parts.groupBy("broker", "code").applyInPandas(
        _one_purgatory(config, run_id, first_us // 1000, until_ms), from_arrow_schema(PURGATORY_GAUGES)
    )
    rows.write.format("delta").mode("append").save(table)


def _remove(spark: SparkSession, table: str, which: str) -> None:
    if spark.read.format("delta").load(table).where(which).head(1):
        DeltaTable.forPath(spark, table).delete(which)


def _first_step_after_all(spark: SparkSession, layout: Layout, last_us: int) -> int:
    """The first reading by which the trace is over and every operation has ended."""
    over_ms = last_us // 1000 + 1
    for table, ended_at in (("completions", "completed_at"), ("expirations", "expired_at")):
        # Of groups, operations complete after the trace's end, too: one timer's end may be another's completion.
        ends = spark.read.format("delta").load(layout.table(table)).select(sf.max(sf.unix_millis(ended_at))).first()
        assert ends is not None
        over_ms = max(over_ms, ends[0] or 0)
    return -(-over_ms // STEP_MS) * STEP_MS


class _Names:
    """One numbering of keys over packets that each have their own."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def renumbered(self, frame: Frame, keys: Frame) -> Frame:
        number: Array = np.array([self._numbers.setdefault(name, len(self._numbers)) for name in keys.name])
        return frame.with_columns(key=number[frame.key]) if len(frame) else frame


def _one_purgatory(
    config: Config, run_id: str, first_ms: int, until_ms: int
) -> Callable[[Any, pd.DataFrame], pd.DataFrame]:
    interval = config.group.purge_interval

    def run(key: Any, parts: pd.DataFrame) -> pd.DataFrame:
        broker, code = int(key[0]), Code(int(key[1]))
        names, found = _Names(), [unpack(bytes(value)) for value in parts["payload"]]
        of_groups = [
            {part: names.renumbered(frames[part], frames["keys"]) for part in ("lives", "walked")} for frames in found
        ]
        return _rows(run_id, broker, code, read_parts(of_groups, code, interval, first_ms, until_ms))

    return run


def _rows(run_id: str, broker: int, code: Code, read: Frame) -> pd.DataFrame:
    numbers = {name: read.columns[name] for name in ("watched", "delayed", "purged")}
    frame = pd.DataFrame({"at": pd.to_datetime(read.at_ms, unit="ms", utc=True).as_unit("us"), **numbers})
    frame.insert(0, "purgatory", PURGATORIES[code])
    frame.insert(0, "broker", np.int32(broker))
    frame.insert(0, "run_id", run_id)
    return frame
