"""Converts tables of events to calls of the engine, with what-if settings applied (`what_if_columns`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.column_access import COLUMN, column_record, gather_strings, list_items
from purgatory_udf.rules.engine.event_records import EventColumn
from purgatory_udf.rules.engine.jit.records import Records
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

_READ_COLUMNS = frozenset(READ_COLUMNS)


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
    columns = _Columns(table)
    partitions, topics, in_sync = columns["partitions"], columns["topics"], columns["isr"]
    items, new, members = list_items(partitions), list_items(topics), list_items(in_sync)
    timeouts, waits, min_bytes = effective_settings(columns.arrays, config)
    arrays = {
        EventColumn.TIME: columns["time_us"],
        EventColumn.SEQ: columns["seq"],
        EventColumn.BROKER: columns["broker"],
        EventColumn.TYPE: columns["type"],
        EventColumn.ACKS: columns["acks"],
        EventColumn.REPLICA: columns["replica_id"],
        EventColumn.TIMEOUT: timeouts,
        EventColumn.MAX_WAIT: waits,
        EventColumn.MIN_BYTES: min_bytes,
        EventColumn.MAX_BYTES: columns["max_bytes"],
        EventColumn.ISOLATION: columns["isolation"],
        EventColumn.PARTITIONS: partitions,
        EventColumn.TOPICS: topics,
        EventColumn.ITEM_TOPIC: items.field("topic"),
        EventColumn.ITEM_PARTITION: items.field("partition"),
        EventColumn.ITEM_LAST_OFFSET: items.field("last_offset"),
        EventColumn.ITEM_BYTES: items.field("bytes"),
        EventColumn.ITEM_ERROR: items.field("error"),
        EventColumn.ITEM_FETCH_OFFSET: items.field("fetch_offset"),
        EventColumn.ITEM_MAX_BYTES: items.field("max_bytes"),
        EventColumn.ITEM_EPOCH: items.field("current_leader_epoch"),
        EventColumn.ITEM_THROTTLED: items.field("throttled"),
        EventColumn.ITEM_OFFSET: items.field("offset"),
        EventColumn.NEW_TOPIC: new.field("topic"),
        EventColumn.NEW_PARTITIONS: new.field("partitions"),
        EventColumn.CHANGE: columns["change"],
        EventColumn.TOPIC: columns["topic"],
        EventColumn.PARTITION: columns["partition"],
        EventColumn.OFFSET: columns["offset"],
        EventColumn.BYTES: columns["bytes"],
        EventColumn.EPOCH: columns["leader_epoch"],
        EventColumn.ISR: in_sync,
        EventColumn.IN_SYNC: members,
        EventColumn.MIN_ISR: columns["min_isr"],
        EventColumn.HARD_MAX_BYTES: columns.maybe("hard_max_bytes"),
        EventColumn.BATCHES: columns.maybe("batches"),
        EventColumn.ITEM_PREFERRED_REPLICA: _field(items, "preferred_replica"),
        EventColumn.ITEM_TIMESTAMP: _field(items, "timestamp"),
        EventColumn.WAKE: columns.maybe("wake"),
        EventColumn.ERROR: columns.maybe("error"),
        EventColumn.EXHAUSTED: columns.maybe("exhausted"),
        EventColumn.FULL: columns.maybe("full"),
    }
    rows, count = len(table), threads or threads_for(len(table))
    errors = _errors(items.field("error"), columns.maybe("error"))
    starts = [_piece_start(rows * nth // count, columns, items.field("error")) for nth in range(count + 1)]
    records = np.array([column_record(arrays[column]) for column in EventColumn]).view(COLUMN).ravel()
    parsed = parse_in_parallel(
        records,
        starts,
        max_bytes=config.fetch.max_bytes,
        cap_min_bytes=config.fetch.cap_min_bytes,
        list_offsets_ms=config.list_offsets.request_timeout_ms,
        item_count=len(items),
    )
    requests, error_rows = parsed.request_rows, pa.array(parsed.error_rows)
    return Call(
        parsed.names,
        in_time_order(parsed.events) if parsed.unordered else parsed.events,
        parsed.request_parts,
        parsed.leader_and_isr,
        parsed.in_sync,
        _rows_of(columns["request_id"], requests),
        _rows_of(columns["client_id"], requests),
        errors.take(error_rows) if len(error_rows) else _NO_STRINGS,
        parsed.capacity,
    )


def _errors(of_items: pa.Array, of_rows: pa.Array | None) -> pa.Array:
    """Concatenate the errors of list items with those of rows; the latter are left out if they are all null."""
    return of_items if of_rows is None or of_rows.null_count == len(of_rows) else pa.concat_arrays([of_items, of_rows])


def _piece_start(row: int, columns: _Columns, item_errors: pa.Array) -> PieceOffsets:
    """Return the start of the piece that begins at `row`: how many rows of each kind the rows before it may produce."""
    if row == 0:
        return PieceOffsets(0, 0, 0, 0, 0)
    items, changes = _items_before(columns["partitions"], row), _known_before(columns["change"], row)
    of_brokers = sum(_known_before(columns.maybe(name), row) for name in ("exhausted", "full"))
    return PieceOffsets(
        rows=row,
        changes=changes + of_brokers,
        # The end of a read names its partition as a change does.
        request_parts=items
        + _items_before(columns["topics"], row)
        + max(0, _known_before(columns["topic"], row) - changes),
        members=_items_before(columns["isr"], row),
        error_rows=_known_before(item_errors, items) + _known_before(columns.maybe("error"), row),
    )


def _known_before(column: pa.Array | None, row: int) -> int:
    """Return how many rows before this one are not null."""
    return 0 if column is None else row - column.slice(0, row).null_count


def _items_before(lists: pa.Array, row: int) -> int:
    """Return the number of items in the lists before the row."""
    return int(lists.offsets[row].as_py() - lists.offsets[0].as_py())


class _Columns:
    """The columns of a table, each as one array."""

    def __init__(self, table: pa.Table) -> None:
        # Other columns cannot be read here either, because a stream does not select them.
        names = table.schema.names
        places = [at for at, name in enumerate(names) if name in _READ_COLUMNS]
        # Usually there is one batch. Reading its columns takes half the time of reading those of the table.
        batches = table.to_batches() if table.column(0).num_chunks == 1 else []
        columns = (
            batches[0].select(places).columns
            if len(batches) == 1
            else [_single_chunk(table.column(at)) for at in places]
        )
        self.arrays = dict(zip((names[at] for at in places), columns, strict=True))

    def maybe(self, name: str) -> pa.Array | None:
        """Return a column, or None if the table, of an earlier version, lacks it."""
        return self.arrays.get(name)

    def __getitem__(self, name: str) -> pa.Array:
        return self.arrays[name]


def _single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _field(items: pa.Array, name: str) -> pa.Array | None:
    """Return a field, or None if the table, of an earlier version, lacks it."""
    return items.field(name) if items.type.get_field_index(name) >= 0 else None


def _rows_of(texts: pa.Array, rows: Records) -> pa.Array:
    """Return the strings at the row numbers `rows`, in ascending order.

    The usual cases take no copy: `rows` are all rows, or no row has a string.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(rows), pa.string())
    if len(rows) == len(texts):
        return texts
    gathered = gather_strings(texts, rows)
    return texts.take(pa.array(rows)) if gathered is None else gathered
