"""The group query: events to the operations and state changes of consumer groups, by broker and group id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from purgatory_udf.config import Config
from purgatory_udf.groups.packet import TALLIES, Tables
from purgatory_udf.groups.rows import COLUMNS, rows_by_group
from purgatory_udf.stream import group_adapter
from purgatory_udf.stream.group_adapter import GroupLimits, encode
from purgatory_udf.stream.layout import Layout
from purgatory_udf.stream.packing import CLOCK, PACKED
from purgatory_udf.tables import COMPLETIONS, EXPIRATIONS, GROUP_TRANSITIONS, TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What the query writes, and which count of its output says whether there is anything to write.
_WRITES = {
    "completions": (COMPLETIONS, "completed"),
    "expirations": (EXPIRATIONS, "expired"),
    "group_transitions": (GROUP_TRANSITIONS, "transitions"),
    "group_tallies": (TALLIES, "tallied"),
}


def tallies_path(layout: Layout) -> str:
    """Counts by group: how often the trace and the replay disagree, and what is open at the end."""
    return f"{layout.machinery}/group_tallies"


def control_path(layout: Layout) -> str:
    """The row that lets the groups' clock run past the end of a finished trace."""
    return f"{layout.machinery}/group_control"


def groups_query(events: DataFrame, control: DataFrame, config: Config, limits: GroupLimits) -> DataFrame:
    """Query 3: what each group's coordinator does."""
    packed = events.select(*COLUMNS).mapInArrow(pack, from_arrow_schema(PACKED))
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


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events as one value per group and Arrow batch; one more row, of no group, tells the batch's latest time."""
    for batch in batches:
        if not batch.num_rows:
            continue
        events = pa.Table.from_batches([batch])
        names, times, payloads = [CLOCK], [int(events["time_us"].to_numpy().max())], [b""]
        for key, rows in rows_by_group(events):
            names.append(key)
            times.append(int(rows.t[-1]))
            payloads.append(encode(rows))
        latest = pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
        columns = [pa.array(names, pa.string()), latest, pa.array(payloads, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _rows_of(table: str, tables: Tables) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [tables.rows(table, value.as_py()) for value in batch.column("payload")]
            if found:
                yield from pa.concat_tables(found).combine_chunks().to_batches()

    return run


def write_groups(layout: Layout, tables: Tables, stream_id: str) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`: each table once, however often a batch is repeated after a crash."""

    def run(batch: DataFrame, number: int) -> None:
        # Delta skips a write it has seen and would leave the frame unread, which Spark takes for lost state.
        batch = batch.persist()
        try:
            counts = batch.agg(*(sf.sum(count).alias(count) for _, count in _WRITES.values())).first()
            assert counts is not None
            for table, (schema, count) in _WRITES.items():
                # Without draining, operations that end after the trace are tallied as open.
                left_open = table == "group_tallies" and not tables.drain
                if not (counts[count] or (left_open and (counts["completed"] or counts["expired"]))):
                    continue
                path = tallies_path(layout) if table == "group_tallies" else layout.table(table)
                rows = batch.select("payload").mapInArrow(_rows_of(table, tables), from_arrow_schema(schema))
                (
                    rows.write.format("delta")
                    .mode("append")
                    .option("txnAppId", f"{stream_id}/groups/{table}")
                    .option("txnVersion", number)
                    .save(path)
                )
        finally:
            batch.unpersist()

    return run
