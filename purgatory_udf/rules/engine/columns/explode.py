"""Events of the contract, as Arrow columns, become records: an event, and a row for each key that it touches.

What-if settings take effect here, so that everything after it sees one delay and one min_bytes per operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.common.configuration import Config, fetch_keys
from purgatory_udf.contract.overrides import Subjects
from purgatory_udf.rules.engine.columns.column_access import COLUMN, items_of, placed
from purgatory_udf.rules.engine.columns.event_records import Of
from purgatory_udf.rules.engine.columns.parallel_pieces import Upto, arrived, threads_for
from purgatory_udf.rules.engine.loop.codes import UNKNOWN
from purgatory_udf.rules.engine.loop.engine_call import Call, in_order

_NO_WORDS = pa.array([], pa.string())

# All that is read of an event; whoever fetches events for this has to fetch these.
READS = (
    "time_us", "seq", "broker", "type", "request_id", "client_id", "acks", "timeout_ms", "replica_id", "max_wait_ms",
    "min_bytes", "max_bytes", "isolation", "partitions", "topics", "topic", "partition", "change", "offset", "bytes",
    "leader_epoch", "isr", "min_isr", "hard_max_bytes", "batches",
)  # fmt: skip


def columns_of(names: Sequence[str]) -> list[str]:
    """What is read of a table with these columns; those of earlier versions do not have all."""
    return [name for name in READS if name in names]


def explode(table: pa.Table, config: Config, threads: int | None = None) -> Call:
    """The table's events as one call; events of no partition (groups, clock) leave nothing. `threads`: at most so many
    as are worth it, if nothing is said."""
    columns = _Columns(table)
    partitions, topics, in_sync = columns["partitions"], columns["topics"], columns["isr"]
    items, new, members = items_of(partitions), items_of(topics), items_of(in_sync)
    timeouts, waits, least = _as_asked(columns, config)
    arrays = {
        Of.TIME: columns["time_us"], Of.SEQ: columns["seq"], Of.BROKER: columns["broker"], Of.TYPE: columns["type"],
        Of.ACKS: columns["acks"], Of.REPLICA: columns["replica_id"], Of.TIMEOUT: timeouts, Of.WAIT: waits,
        Of.LEAST: least, Of.MOST: columns["max_bytes"], Of.ISOLATION: columns["isolation"], Of.PARTITIONS: partitions,
        Of.TOPICS: topics, Of.ITEM_TOPIC: items.field("topic"), Of.ITEM_PARTITION: items.field("partition"),
        Of.ITEM_LAST_OFFSET: items.field("last_offset"), Of.ITEM_BYTES: items.field("bytes"),
        Of.ITEM_ERROR: items.field("error"), Of.ITEM_FETCH_OFFSET: items.field("fetch_offset"),
        Of.ITEM_MOST: items.field("max_bytes"), Of.ITEM_EPOCH: items.field("current_leader_epoch"),
        Of.ITEM_THROTTLED: items.field("throttled"), Of.ITEM_OFFSET: items.field("offset"),
        Of.NEW_TOPIC: new.field("topic"), Of.NEW_PARTITIONS: new.field("partitions"), Of.CHANGE: columns["change"],
        Of.TOPIC: columns["topic"], Of.PARTITION: columns["partition"], Of.OFFSET: columns["offset"],
        Of.BYTES: columns["bytes"], Of.EPOCH: columns["leader_epoch"], Of.ISR: in_sync, Of.IN_SYNC: members,
        Of.MIN_ISR: columns["min_isr"], Of.HARD: columns.maybe("hard_max_bytes"),
        Of.BATCHES: columns.maybe("batches"), Of.ITEM_PREFERRED: _field(items, "preferred_replica"),
    }  # fmt: skip
    rows, count = len(table), threads or threads_for(len(table))
    listed, errors = (partitions, topics, in_sync), items.field("error")
    borders = [_upto(rows * nth // count, *listed, columns["change"], errors) for nth in range(count + 1)]
    placed_ = np.array([placed(arrays[column]) for column in Of], COLUMN)
    found = arrived(placed_, borders, config.fetch.max_bytes)
    requests, named = pa.array(found.requests), pa.array(found.named)
    return Call(
        found.names,
        in_order(found.events) if found.mixed else found.events,
        found.asked,
        found.told,
        found.in_sync,
        _rows_of(columns["request_id"], requests),
        _rows_of(columns["client_id"], requests),
        errors.take(named) if len(named) else _NO_WORDS,
        found.room,
    )


def _upto(
    row: int, partitions: pa.Array, topics: pa.Array, in_sync: pa.Array, change: pa.Array, error: pa.Array
) -> Upto:
    """How much there is before that row."""
    items = _items_upto(partitions, row)
    return Upto(
        rows=row,
        changes=row - change.slice(0, row).null_count,
        asked=items + _items_upto(topics, row),
        members=_items_upto(in_sync, row),
        named=items - error.slice(0, items).null_count,
    )


def _items_upto(lists: pa.Array, row: int) -> int:
    """How many items the lists before the row have."""
    return int(lists.offsets[row].as_py() - lists.offsets[0].as_py())


class _Columns:
    """A table of whatever chunks, whose columns are plain arrays."""

    def __init__(self, table: pa.Table) -> None:
        # What is not declared cannot be read here, either: the stream does not have it.
        self.table = table.select(columns_of(table.column_names)).combine_chunks()
        self._arrays = dict(zip(self.table.column_names, map(_plain, self.table.columns), strict=True))

    def __len__(self) -> int:
        return len(self.table)

    def maybe(self, name: str) -> pa.Array | None:
        """A column that tables of earlier versions do not have."""
        return self._arrays.get(name)

    def __getitem__(self, name: str) -> pa.Array:
        return self._arrays[name]


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _field(items: pa.Array, name: str) -> pa.Array | None:
    """A field that tables of earlier versions do not have."""
    return items.field(name) if items.type.get_field_index(name) >= 0 else None


def _rows_of(texts: pa.Array, rows: pa.Array) -> pa.Array:
    """Requests' texts; often every row is a request, or none has a text."""
    if texts.null_count == len(texts):
        return pa.nulls(len(rows), pa.string())
    return texts if len(rows) == len(texts) else texts.take(rows)


def _as_asked(columns: _Columns, config: Config) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Time-outs, waits and least bytes as the what-if settings want them."""
    timeouts, waits, least = (columns[name] for name in ("timeout_ms", "max_wait_ms", "min_bytes"))
    for kind, listed in (("produce", "partitions"), ("delete_records", "partitions"), ("create_topics", "topics")):
        timeouts = _wanted(columns, timeouts, config, (f"{kind}.timeout_ms",), listed, kind)
    for follower in (True, False):
        waits = _wanted(columns, waits, config, fetch_keys("max_wait_ms", follower), "partitions", "fetch", follower)
        least = _wanted(columns, least, config, fetch_keys("min_bytes", follower), "partitions", "fetch", follower)
    return timeouts, waits, least


def _wanted(
    columns: _Columns,
    recorded: pa.Array,
    config: Config,
    keys: tuple[str, ...],
    listed: str,
    kind: str,
    follower: bool | None = None,
) -> pa.Array:
    """Of requests of this kind; of fetches, of followers' or consumers'."""
    plain = config.plain(keys)
    if plain is None and not any(key in rule.settings for rule in config.what_if for key in keys):
        return recorded
    lists = columns[listed]
    items = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    subjects = Subjects(columns.table, pc.list_flatten(lists), np.repeat(np.arange(len(columns)), items))
    values = pc.fill_null(recorded, UNKNOWN).to_numpy()
    asked = subjects.asked(values, config.what_if, keys, plain)
    mine = pc.equal(columns["type"], kind).to_numpy(zero_copy_only=False)
    if follower is not None:
        mine &= (pc.fill_null(columns["replica_id"], UNKNOWN).to_numpy() >= 0) == follower
    return pa.array(np.where(mine, asked, values), pa.int64())
