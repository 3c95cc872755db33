"""Converts tables of events to calls of the engine, with what-if settings applied (`what_if_columns`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.column_access import (
    PLACE,
    column_place,
    column_record,
    list_items,
    read_batch,
)
from purgatory_udf.rules.engine.event_records import EventColumn, count_rare_changes
from purgatory_udf.rules.engine.jit.records import Records, attribute_view
from purgatory_udf.rules.engine.loop.engine_call import Call, in_time_order
from purgatory_udf.rules.engine.parallel_pieces import PieceOffsets, parse_in_parallel, threads_for
from purgatory_udf.rules.engine.what_if_columns import effective_settings

_NO_STRINGS = pa.array([], pa.string())

# All columns that the engine reads. A stream must select them.
READ_COLUMNS = (
    "time_us", "seq", "broker", "type", "request_id", "client_id", "acks", "timeout_ms", "replica_id", "max_wait_ms",
    "min_bytes", "max_bytes", "isolation", "partitions", "topics", "topic", "partition", "change", "offset", "bytes",
    "leader_epoch", "isr", "min_isr", "hard_max_bytes", "batches", "wake", "error", "exhausted", "full",
)  # fmt: skip

# Tables of earlier versions may lack these.
_ADDED_LATER = ("hard_max_bytes", "batches", "wake", "error", "exhausted", "full")
# Where the columns are: a column of a batch, or a list and a field of its items.
_WHERE: dict[EventColumn, tuple[str, ...]] = {
    EventColumn.TIME: ("time_us",),
    EventColumn.SEQ: ("seq",),
    EventColumn.BROKER: ("broker",),
    EventColumn.TYPE: ("type",),
    EventColumn.ACKS: ("acks",),
    EventColumn.REPLICA: ("replica_id",),
    EventColumn.TIMEOUT: ("timeout_ms",),
    EventColumn.MAX_WAIT: ("max_wait_ms",),
    EventColumn.MIN_BYTES: ("min_bytes",),
    EventColumn.MAX_BYTES: ("max_bytes",),
    EventColumn.ISOLATION: ("isolation",),
    EventColumn.PARTITIONS: ("partitions",),
    EventColumn.TOPICS: ("topics",),
    EventColumn.ITEM_TOPIC: ("partitions", "topic"),
    EventColumn.ITEM_PARTITION: ("partitions", "partition"),
    EventColumn.ITEM_LAST_OFFSET: ("partitions", "last_offset"),
    EventColumn.ITEM_BYTES: ("partitions", "bytes"),
    EventColumn.ITEM_ERROR: ("partitions", "error"),
    EventColumn.ITEM_FETCH_OFFSET: ("partitions", "fetch_offset"),
    EventColumn.ITEM_MAX_BYTES: ("partitions", "max_bytes"),
    EventColumn.ITEM_EPOCH: ("partitions", "current_leader_epoch"),
    EventColumn.ITEM_THROTTLED: ("partitions", "throttled"),
    EventColumn.ITEM_OFFSET: ("partitions", "offset"),
    EventColumn.NEW_TOPIC: ("topics", "topic"),
    EventColumn.NEW_PARTITIONS: ("topics", "partitions"),
    EventColumn.CHANGE: ("change",),
    EventColumn.TOPIC: ("topic",),
    EventColumn.PARTITION: ("partition",),
    EventColumn.OFFSET: ("offset",),
    EventColumn.BYTES: ("bytes",),
    EventColumn.EPOCH: ("leader_epoch",),
    EventColumn.ISR: ("isr",),
    EventColumn.IN_SYNC: ("isr", ""),
    EventColumn.MIN_ISR: ("min_isr",),
    EventColumn.HARD_MAX_BYTES: ("hard_max_bytes",),
    EventColumn.BATCHES: ("batches",),
    EventColumn.ITEM_PREFERRED_REPLICA: ("partitions", "preferred_replica"),
    EventColumn.ITEM_TIMESTAMP: ("partitions", "timestamp"),
    EventColumn.WAKE: ("wake",),
    EventColumn.ERROR: ("error",),
    EventColumn.EXHAUSTED: ("exhausted",),
    EventColumn.FULL: ("full",),
}
# The columns that what-if settings change.
_CHANGED_SETTINGS = {
    EventColumn.TIMEOUT: "timeout_ms",
    EventColumn.MAX_WAIT: "max_wait_ms",
    EventColumn.MIN_BYTES: "min_bytes",
}


def present_columns(names: Sequence[str]) -> list[str]:
    """Return those of `names`, the columns of an `events` table, that the engine reads.

    A table that an earlier version wrote may lack some of `READ_COLUMNS`.
    """
    return [name for name in READ_COLUMNS if name in names]


def explode(table: pa.Table, config: Config, threads: int | None = None) -> Call:
    """Return the table's events as one call.

    Events without partitions or topics (of groups, of the clock) are skipped.

    Args:
        table: Rows of `events`.
        config: The what-if settings to apply, and the brokers' limits.
        threads: Number of threads that parse the rows; by default it depends on the number of rows.
    """
    batch = _single_batch(table)
    layout = _layout(batch.schema)
    columns = _Columns(batch.select(layout.selected))
    records = read_batch(columns.batch, layout.places)
    # The changed columns must outlive the parsing.
    settings = effective_settings(columns, config)
    for (column, name), values in zip(_CHANGED_SETTINGS.items(), settings, strict=True):
        if values is not columns[name]:
            records[column] = column_record(values)
    rows, count = len(table), threads or threads_for(len(table))
    starts = [_piece_start(rows * nth // count, columns, records) for nth in range(count)]
    parsed = parse_in_parallel(
        records,
        [*starts, _end_of_pieces(records)],
        max_bytes=config.fetch.max_bytes,
        cap_min_bytes=config.fetch.cap_min_bytes,
        list_offsets_ms=config.list_offsets.request_timeout_ms,
        item_count=int(records["count"][EventColumn.ITEM_TOPIC]),
    )
    error_rows = parsed.error_rows
    return Call(
        parsed.names,
        in_time_order(parsed.events) if parsed.unordered else parsed.events,
        parsed.request_parts,
        parsed.leader_and_isr,
        parsed.in_sync,
        columns["request_id"],
        columns["client_id"],
        _errors(columns).take(pa.array(error_rows)) if len(error_rows) else _NO_STRINGS,
        parsed.capacity,
    )


def _single_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of the table as one batch, usually without a copy."""
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.select(present_columns(table.schema.names)).combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], table.schema)
    (batch,) = batches
    return batch


class _Layout(NamedTuple):
    """Which columns of a schema are read, and where the columns of `EventColumn` are among these."""

    schema: pa.Schema
    selected: list[int]
    places: Records


# The layout of the last batch: all batches of a stream have the same schema.
_recent: list[_Layout] = []


def _layout(schema: pa.Schema) -> _Layout:
    """Return the layout of a schema."""
    for layout in _recent:
        if layout.schema.equals(schema):
            return layout
    names = present_columns(schema.names)
    missing = [name for name in READ_COLUMNS if name not in names and name not in _ADDED_LATER]
    if missing:
        raise KeyError(f"the table of events lacks the columns {missing}")
    read = pa.schema([schema.field(name) for name in names])
    places = [column_place(read, *_WHERE[column]) for column in EventColumn]
    selected = [schema.get_field_index(name) for name in read.names]
    layout = _Layout(schema, selected, np.array(places, np.int64).view(PLACE).ravel())
    _recent[:] = [layout]
    return layout


def _errors(columns: _Columns) -> pa.Array:
    """Concatenate the errors of list items with those of rows."""
    of_items, of_rows = list_items(columns["partitions"]).field("error"), columns.maybe("error")
    return of_items if of_rows is None else pa.concat_arrays([of_items, of_rows])


def _piece_start(row: int, columns: _Columns, records: Records) -> PieceOffsets:
    """Return the start of the piece from `row` on: how many rows of each kind the rows before it may produce."""
    if row == 0:
        return PieceOffsets(0, 0, 0, 0, 0, 0, 0)
    items, changes = _items_before(columns["partitions"], row), _known_before(columns["change"], row)
    leader_and_isr, second_events = count_rare_changes(attribute_view(records), row)
    of_brokers = sum(_known_before(columns.maybe(name), row) for name in ("exhausted", "full"))
    return PieceOffsets(
        rows=row,
        changes=changes + of_brokers,
        second_events=second_events,
        leader_and_isr=leader_and_isr,
        # The end of a read names its partition as a change does.
        request_parts=items
        + _items_before(columns["topics"], row)
        + max(0, _known_before(columns["topic"], row) - changes),
        members=_items_before(columns["isr"], row),
        error_rows=_known_before(list_items(columns["partitions"]).field("error"), items)
        + _known_before(columns.maybe("error"), row),
    )


def _end_of_pieces(records: Records) -> PieceOffsets:
    """Return the end of the last piece, as `_piece_start` does for the others."""
    rows, valid = records["count"], records["valid"]
    changes = int(valid[EventColumn.CHANGE])
    return PieceOffsets(
        rows=int(rows[EventColumn.TYPE]),
        changes=changes + int(valid[EventColumn.EXHAUSTED] + valid[EventColumn.FULL]),
        second_events=changes,
        leader_and_isr=changes,
        request_parts=int(rows[EventColumn.ITEM_TOPIC] + rows[EventColumn.NEW_TOPIC])
        + max(0, int(valid[EventColumn.TOPIC]) - changes),
        members=int(rows[EventColumn.IN_SYNC]),
        error_rows=int(valid[EventColumn.ITEM_ERROR] + valid[EventColumn.ERROR]),
    )


def _known_before(column: pa.Array | None, row: int) -> int:
    """Return how many rows before this one are not null."""
    return 0 if column is None else row - column.slice(0, row).null_count


def _items_before(lists: pa.Array, row: int) -> int:
    """Return the number of items in the lists before the row."""
    return int(lists.offsets[row].as_py() - lists.offsets[0].as_py())


class _Columns(Mapping[str, pa.Array]):
    """The columns of a batch by name, which are created when they are first used."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._arrays: dict[str, pa.Array] = {}

    def maybe(self, name: str) -> pa.Array | None:
        """Return a column, or None if the batch, of an earlier version, lacks it."""
        return self[name] if self.batch.schema.get_field_index(name) >= 0 else None

    def __getitem__(self, name: str) -> pa.Array:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = self.batch.column(name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch.schema.names)

    def __len__(self) -> int:
        return self.batch.num_columns
