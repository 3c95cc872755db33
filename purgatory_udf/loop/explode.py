"""Events of the contract, as Arrow columns, become records: an event, and a row for each key that it touches.

What-if settings take effect here, so that everything after it sees one delay and one min_bytes per operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.config import INT32_MAX, Config, fetch_keys
from purgatory_udf.loop.call import Call, in_order
from purgatory_udf.loop.words import ANY_BROKER, CHANGES, NO_PARTITION, UNKNOWN, Acks, Code, Error, Reader
from purgatory_udf.loop.world import ASKED, EVENT, MEMBER, Records
from purgatory_udf.scope.columns import Subjects

# What requests list.
_LISTS = ("partitions", "topics")
_NAMED_ERRORS = {error.name: int(error) for error in Error if error is not Error.RECORDED}


@dataclass
class _Part:
    """Some events of one type, what they ask, and the names of the keys in which that counts."""

    events: Records
    asked: Records
    keys: _Keys
    texts: pa.Table | None = None
    errors: pa.Array | None = None
    in_sync: Records | None = None


def numbers(column: pa.Array, absent: int = UNKNOWN) -> Records:
    if column.null_count:
        column = pc.fill_null(column, absent)
    return column.to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class _Keys:
    """Rows' keys: which of the names each has. Names are made once each, for texts cost most of all."""

    number: Records
    names: list[str]

    @staticmethod
    def of(broker: pa.Array | str, partition: pa.Array | int, topic: pa.Array) -> _Keys:
        number, columns = np.zeros(len(topic), dtype=np.int64), []
        for part in (broker, partition, topic):
            if isinstance(part, pa.Array):
                coded = part.dictionary_encode()
                if len(coded.dictionary) > 1:
                    number = number * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
                columns.append([str(value) for value in coded.dictionary.to_pylist()])
            else:
                columns.append([str(part)])
        coded = pa.array(number).dictionary_encode()
        places = np.unravel_index(coded.dictionary.to_numpy(), [max(1, len(values)) for values in columns])
        words = zip(*([values[at] for at in place] for values, place in zip(columns, places, strict=True)), strict=True)
        return _Keys(coded.indices.to_numpy(zero_copy_only=False), list(map("/".join, words)))


def _events(table: pa.Table, code: Code | Records) -> Records:
    rows = np.zeros(len(table), EVENT)
    rows["t"], rows["seq"] = numbers(table["time_us"]), numbers(table["seq"])
    rows["broker"] = numbers(table["broker"], 0)
    rows["code"], rows["who"] = code, UNKNOWN
    return rows


def _asked(rows: int) -> Records:
    asked = np.zeros(rows, ASKED)
    asked["epoch"] = asked["more"] = asked["text"] = UNKNOWN
    return asked


class _Requests:
    """One request type's events with their partitions (or topics) flattened."""

    def __init__(self, table: pa.Table, listed: str, code: Code) -> None:
        column = table[listed]
        self.table = table
        self.events = _events(table, code)
        sizes = numbers(pc.list_value_length(column), 0)
        self.parents = np.repeat(np.arange(len(table)), sizes)
        self.items = pc.list_flatten(column)
        self.asked = _asked(len(self.parents))
        first = np.cumsum(sizes) - sizes
        self.asked["place"] = np.arange(len(self.parents)) - first[self.parents]
        self.events["total"] = self.events["count"] = sizes
        self.events["first"] = first

    def event(self, name: str, absent: int = UNKNOWN) -> Records:
        return numbers(self.table[name], absent)

    def item(self, name: str, absent: int = UNKNOWN) -> Records:
        return numbers(pc.struct_field(self.items, name), absent)

    def wanted(self, name: str, config: Config, *keys: str) -> Records:
        """A recorded value of each request, as the what-if settings want it."""
        subjects = Subjects(self.table, self.items, self.parents)
        return subjects.asked(self.event(name), config.what_if, keys, config.plain(keys))

    def part(self, keys: _Keys, errors: pa.Array | None = None) -> _Part:
        return _Part(self.events, self.asked, keys, self.table.select(["request_id", "client_id"]), errors)

    def keys(self) -> _Keys:
        brokers = np.unique(self.events["broker"])
        broker = str(brokers[0]) if len(brokers) == 1 else pa.array(self.events["broker"][self.parents])
        return _Keys.of(broker, pc.struct_field(self.items, "partition"), pc.struct_field(self.items, "topic"))


def _produces(table: pa.Table, config: Config) -> _Part:
    requests = _Requests(table, "partitions", Code.PRODUCE)
    events, asked, parents = requests.events, requests.asked, requests.parents
    events["delay"] = requests.wanted("timeout_ms", config, "produce.timeout_ms")
    said = pc.struct_field(requests.items, "error")
    failed = np.flatnonzero(numbers(pc.fill_null(pc.not_equal(said, "NONE"), False)))
    names = None
    if len(failed):
        words = said.take(pa.array(failed))
        codes = np.array([_NAMED_ERRORS.get(word, int(Error.RECORDED)) for word in words.to_pylist()], dtype=np.int32)
        asked["error"][failed] = codes
        asked["text"][failed] = np.arange(len(failed))
        names = words
    acks = requests.event("acks")
    sound = np.bincount(parents[asked["error"] == Error.NONE], minlength=len(events))
    delayed = np.where(sound > 0, Acks.DELAYED, Acks.ALL_IN_ERROR)
    events["mode"] = np.where(acks == -1, delayed, np.where((acks == 0) | (acks == 1), Acks.AT_ONCE, Acks.INVALID))
    asked["error"][(events["mode"] == Acks.INVALID)[parents]] = Error.INVALID_REQUIRED_ACKS
    asked["offset"], asked["size"] = requests.item("last_offset") + 1, requests.item("bytes", 0)
    return requests.part(requests.keys(), names)


def _fetches(table: pa.Table, config: Config) -> _Part:
    requests = _Requests(table, "partitions", Code.FETCH)
    events, asked, parents = requests.events, requests.asked, requests.parents
    replica = requests.event("replica_id")
    events["delay"], least = (
        np.where(replica >= 0, *(requests.wanted(field, config, *fetch_keys(field, who)) for who in (True, False)))
        for field in ("max_wait_ms", "min_bytes")
    )
    events["least"] = np.minimum(least, np.minimum(requests.event("max_bytes", INT32_MAX), config.fetch.max_bytes))
    committed = numbers(pc.fill_null(pc.equal(table["isolation"], "read_committed"), False))
    events["mode"] = np.where(replica >= 0, Reader.FOLLOWER, np.where(committed, Reader.COMMITTED, Reader.CONSUMER))
    events["who"] = replica
    throttled = pc.struct_field(requests.items, "throttled")
    if throttled.null_count < len(throttled):
        asked["throttled"] = numbers(pc.fill_null(throttled, False)) & (replica >= 0)[parents]
    asked["offset"], asked["size"] = requests.item("fetch_offset"), requests.item("max_bytes", INT32_MAX)
    asked["epoch"] = requests.item("current_leader_epoch")
    return requests.part(requests.keys())


def _deletes(table: pa.Table, config: Config) -> _Part:
    requests = _Requests(table, "partitions", Code.DELETE_RECORDS)
    requests.events["delay"] = requests.wanted("timeout_ms", config, "delete_records.timeout_ms")
    requests.asked["offset"] = requests.item("offset")
    return requests.part(requests.keys())


def _creates(table: pa.Table, config: Config) -> _Part:
    requests = _Requests(table, "topics", Code.CREATE_TOPICS)
    requests.events["delay"] = requests.wanted("timeout_ms", config, "create_topics.timeout_ms")
    requests.asked["offset"] = requests.item("partitions")
    return requests.part(_Keys.of(ANY_BROKER, NO_PARTITION, pc.struct_field(requests.items, "topic")))


def _one_each(events: Records) -> Records:
    events["first"], events["count"] = np.arange(len(events)), 1
    return events


def _changes(table: pa.Table) -> list[_Part]:
    changes = table["change"].dictionary_encode()
    known = np.array([CHANGES[name] for name in changes.dictionary.to_pylist()], dtype=np.int32)
    codes = known[changes.indices.to_numpy(zero_copy_only=False)]
    events, asked = _one_each(_events(table, codes)), _asked(len(table))
    leads = codes == Code.LEADER
    events["who"] = np.where(leads, numbers(table["min_isr"]), numbers(table["replica_id"]))
    asked["offset"], asked["size"] = numbers(table["offset"]), numbers(table["bytes"], 0)
    asked["epoch"] = numbers(table["leader_epoch"])
    isr = table["isr"]
    tells = np.flatnonzero((leads | (codes == Code.ISR)) & numbers(pc.is_valid(isr)))
    members = isr.take(pa.array(tells))
    counts = numbers(pc.list_value_length(members), 0)
    asked["who"][tells], asked["more"][tells] = np.cumsum(counts) - counts, counts
    in_sync = numbers(pc.list_flatten(members)).astype(np.int32).view(MEMBER)
    partitions = _Part(events, asked, _Keys.of(pc.fill_null(table["broker"], 0), table["partition"], table["topic"]))
    partitions.in_sync = in_sync

    metadata = np.flatnonzero(leads | (codes == Code.DELETED))
    if not len(metadata):
        return [partitions]
    told = table.take(pa.array(metadata)).combine_chunks()
    led = _one_each(_events(_flat(told), np.where(leads[metadata], int(Code.LED), int(Code.UNLED))))
    topics = _asked(len(told))
    topics["offset"] = numbers(told["partition"])
    return [partitions, _Part(led, topics, _Keys.of(ANY_BROKER, NO_PARTITION, _flat(told)["topic"]))]


class _Flat:
    """A table of single chunks, whose columns are plain arrays."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, name: str) -> pa.Array:
        column = self._table.column(name)
        if isinstance(column, pa.ChunkedArray):
            return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return column

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)


def _flat(table: pa.Table) -> pa.Table:
    return _Flat(table)


_MAKERS: dict[str, tuple[str | None, Callable[[pa.Table, Config], list[_Part]]]] = {
    "produce": ("partitions", lambda some, config: [_produces(some, config)]),
    "fetch": ("partitions", lambda some, config: [_fetches(some, config)]),
    "delete_records": ("partitions", lambda some, config: [_deletes(some, config)]),
    "create_topics": ("topics", lambda some, config: [_creates(some, config)]),
    "partition": (None, lambda some, config: _changes(some)),
}


def explode(table: pa.Table, config: Config) -> Call:
    """The table's events as one call; events of no partition (groups, clock) leave nothing."""
    table = table.combine_chunks()
    parts: list[_Part] = []
    types = table["type"]
    for name, (listed, make) in _MAKERS.items():
        # To filter lists costs most of all, even where no row has one.
        lean = table.drop_columns([other for other in _LISTS if other != listed and other in table.column_names])
        some = lean.filter(pc.equal(types, name))
        if len(some):
            parts += make(_flat(some.combine_chunks()), config)
    return _joined(parts)


def _joined(parts: list[_Part]) -> Call:
    if not parts:
        return Call()
    known: dict[str, int] = {}
    rows = texts = errors = 0
    for part in parts:
        place = np.array([known.setdefault(name, len(known)) for name in part.keys.names], dtype=np.int32)
        if len(part.asked):
            part.asked["key"] = place[part.keys.number]
        part.events["first"] += rows
        part.events["text"] = np.arange(texts, texts + len(part.events)) if part.texts is not None else 0
        part.asked["text"][part.asked["text"] >= 0] += errors
        rows += len(part.asked)
        texts += len(part.events) if part.texts is not None else 0
        errors += 0 if part.errors is None else len(part.errors)
    return Call(
        list(known),
        in_order(np.concatenate([part.events for part in parts])),
        np.concatenate([part.asked for part in parts]),
        np.concatenate([np.zeros(0, MEMBER), *(part.in_sync for part in parts if part.in_sync is not None)]),
        _texts([part.texts["request_id"] for part in parts if part.texts is not None]),
        _texts([part.texts["client_id"] for part in parts if part.texts is not None]),
        _texts([part.errors for part in parts if part.errors is not None]),
    )


def _texts(columns: list[pa.Array]) -> pa.Array:
    arrays = [pa.array([], pa.string())]
    for column in columns:
        arrays += column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.concat_arrays(arrays)
