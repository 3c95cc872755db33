"""`purgatory_gauges`: what each broker's gauges had read, worked out from settled operations once they have all ended.

A purgatory is one broker's; its operations and the walks of its lists come from many packets, are sorted out by
(broker, purgatory), and each such group is one call of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.columnar.gauge_table import CHECKS, purge_intervals
from purgatory_udf.columnar.gauges import STEP_MS, gauges
from purgatory_udf.columnar.partition import WALKS as WALK_COLUMNS
from purgatory_udf.columnar.pending import Packet, merge
from purgatory_udf.loop.words import ANY_BROKER, PURGATORIES, Code, parts_of
from purgatory_udf.config import Config
from purgatory_udf.stream.buckets import in_portions
from purgatory_udf.stream.group_gauges import GROUP_CODES, group_parts, read_parts
from purgatory_udf.stream.layout import Layout
from purgatory_udf.tables import PURGATORY_GAUGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPERATIONS = ("op", "t", "deadline", "expired", "watched", "end_t", "end_seq", "end_sub")
_PARTS = pa.schema([("broker", pa.int32()), ("code", pa.int32()), ("payload", pa.binary())])


def write_gauges(spark: SparkSession, layout: Layout, config: Config, run_id: str, first_us: int, last_us: int) -> None:
    """Write the table anew from what the run has settled; without draining, up to the trace's last event."""
    topics = [
        row.broker
        for name in ("completions", "expirations")
        for row in spark.read.format("delta")
        .load(layout.table(name))
        .where("kind = 'create_topics'")
        .select("broker")
        .distinct()
        .collect()
    ]
    ended = spark.read.format("delta").load(layout.ended).mapInArrow(_ended, from_arrow_schema(_PARTS))
    settling = spark.read.format("delta").load(layout.settling).select("payload")
    walks = settling.mapInArrow(_walks(sorted(set(topics))), from_arrow_schema(_PARTS))
    until_ms = last_us // 1000 if not config.drain else _first_step_after_all(spark, layout, last_us)
    parts, groups = ended.unionAll(walks), group_parts(spark, layout, from_arrow_schema(_PARTS))
    rows = (
        (parts if groups is None else parts.unionAll(groups))
        .groupBy("broker", "code")
        .applyInPandas(
            _one_purgatory(config, run_id, first_us // 1000, until_ms),
            from_arrow_schema(PURGATORY_GAUGES),
        )
    )
    rows.write.format("delta").mode("overwrite").save(layout.table("purgatory_gauges"))


def _first_step_after_all(spark: SparkSession, layout: Layout, last_us: int) -> int:
    """The first reading by which the trace is over and every operation has ended."""
    over_ms = last_us // 1000 + 1
    for table, ended_at in (("completions", "completed_at"), ("expirations", "expired_at")):
        # Of groups, operations complete after the trace's end, too: one timer's end may be another's completion.
        ends = spark.read.format("delta").load(layout.table(table)).select(sf.max(sf.unix_millis(ended_at))).first()
        assert ends is not None
        over_ms = max(over_ms, ends[0] or 0)
    return -(-over_ms // STEP_MS) * STEP_MS


def _ended(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: operations that waited, by broker and purgatory."""
    for batch in batches:
        for value in batch.column("payload").to_pylist():
            yield _parts(list(_of_ended(unpack(value))))


def _walks(topic_brokers: list[int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: walks of watcher lists, by broker and purgatory, many packets at a time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packets in in_portions(batch.column("payload").to_pylist()):
                yield _parts(list(_of_walks(merge(packets), topic_brokers)))

    return run


Part = tuple[int, int, bytes]


def _parts(parts: list[Part]) -> pa.RecordBatch:
    columns = [[part[number] for part in parts] for number in range(len(_PARTS))]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _PARTS, strict=True)], schema=_PARTS
    )


def _of_ended(frames: dict[str, Frame]) -> Iterator[Part]:
    operations, watches = frames["operations"], frames["watches"]
    for code in np.unique(operations.code):
        for broker in np.unique(operations.broker[operations.code == code]):
            mine = operations.take((operations.code == code) & (operations.broker == broker) & (operations.watched > 0))
            if len(mine):
                lists = watches.take(np.isin(watches.op, mine.op)).only(("op", "key"))
                parts = {"keys": frames["keys"], "operations": mine.only(_OPERATIONS), "watches": lists}
                yield int(broker), int(code), pack(parts)


def _of_walks(packet: Packet, topic_brokers: list[int]) -> Iterator[Part]:
    owners = np.array([parts_of(name)[0] for name in packet.keys], dtype=object)
    for owner in sorted(set(owners)):
        mine = packet.walks.take((owners == owner)[packet.walks.key])
        brokers = topic_brokers if owner == ANY_BROKER else [int(owner)]
        for code, check in CHECKS.items():
            checked = mine.take(mine.checks & check > 0)
            for broker in brokers if len(checked) else []:
                names = Frame({"name": np.array(packet.keys, dtype=object)})
                yield broker, int(code), pack({"keys": names, "walks": checked})


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
    intervals = purge_intervals(config)

    def run(key: Any, parts: pd.DataFrame) -> pd.DataFrame:
        broker, code = int(key[0]), Code(int(key[1]))
        names, found = _Names(), [unpack(bytes(value)) for value in parts["payload"]]
        if code in GROUP_CODES:
            of_groups = [
                {part: names.renumbered(frames[part], frames["keys"]) for part in ("lives", "walked")}
                for frames in found
            ]
            read = read_parts(of_groups, code, intervals[code], first_ms, until_ms)
            return _rows(run_id, broker, code, read)
        operations = [frames["operations"] for frames in found if "operations" in frames]
        if not operations:
            return _rows(run_id, broker, code, None)
        watches = [names.renumbered(frames["watches"], frames["keys"]) for frames in found if "watches" in frames]
        walks = [names.renumbered(frames["walks"], frames["keys"]) for frames in found if "walks" in frames]
        waited = Frame.concat(operations)
        read = gauges(
            waited,
            Frame.concat(watches),
            Frame.concat([WALK_COLUMNS.empty(), *walks]),
            intervals[code],
            first_ms,
            until_ms,
        )
        return _rows(run_id, broker, code, read)

    return run


def _rows(run_id: str, broker: int, code: Code, read: Frame | None) -> pd.DataFrame:
    at = read.at_ms if read is not None else np.zeros(0, dtype=np.int64)
    numbers = {name: read.columns[name] if read is not None else at for name in ("watched", "delayed", "purged")}
    frame = pd.DataFrame({"at": pd.to_datetime(at, unit="ms", utc=True).as_unit("us"), **numbers})
    frame.insert(0, "purgatory", PURGATORIES[code])
    frame.insert(0, "broker", np.int32(broker))
    frame.insert(0, "run_id", run_id)
    return frame
