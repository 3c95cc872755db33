"""The group query: events to what each group's coordinator found, by broker and group id; and that as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from purgatory_udf.config import Config
from purgatory_udf.groups.requests import Requests
from purgatory_udf.groups.rows import COLUMNS
from purgatory_udf.groups.tables import SCHEMAS, GroupTables
from purgatory_udf.loop.grouping import group_of
from purgatory_udf.stream import group_adapter
from purgatory_udf.stream.group_adapter import GroupLimits
from purgatory_udf.stream.packing import CLOCK, PACKED
from purgatory_udf.tables import TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def groups_query(events: DataFrame, control: DataFrame, config: Config, limits: GroupLimits) -> DataFrame:
    """What each group's coordinator found, call by call."""
    packed = events.select(*COLUMNS).mapInArrow(packer(config), from_arrow_schema(PACKED))
    return (
        packed.unionByName(control.select(*PACKED.names))
        .withWatermark("event_time", f"{config.max_disorder_ms + 1} milliseconds")
        .groupBy("group")
        .applyInPandasWithState(
            group_adapter.coordinating(limits),
            group_adapter.OUTPUT_SCHEMA,
            group_adapter.STATE_SCHEMA,
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


def packer(config: Config) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: events as one value per group, or shard of groups, and Arrow batch; one more row,
    of no group, tells the batch's latest time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _pack(pa.Table.from_batches([batch]), config)

    return run


def _pack(events: pa.Table, config: Config) -> pa.RecordBatch:
    # Groups of one broker have nothing to do with each other: each is by itself, or one of a shard's.
    group = group_of("partition" if config.grouping == "partition" else "shard", config.grouping_shards)
    names, times, payloads = [CLOCK], [int(events["time_us"].to_numpy().max())], [b""]
    for name, requests in Requests.of(events).apart(lambda key: group(key)):
        names.append(name)
        times.append(int(requests.rows.t.max()))
        payloads.append(requests.to_bytes())
    latest = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    columns = [pa.array(names, pa.string()), latest, pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def table_of(packets: DataFrame, table: str, tables: GroupTables) -> DataFrame:
    """One table's rows from packets, many packets at a time."""
    return packets.select("payload").mapInArrow(_rows_of(table, tables), from_arrow_schema(SCHEMAS[table]))


def _rows_of(table: str, tables: GroupTables) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from tables.rows(table, batch.column("payload").drop_null().to_pylist()).to_batches()

    return run
