"""Events of the contract, as Arrow columns, become rows by key: one for every partition or topic that they touch.

What-if settings take effect here, so that everything after it sees one delay and one min_bytes per operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.columnar.frame import Array, Frame, Layout
from purgatory_udf.config import INT32_MAX, Config, fetch_keys
from purgatory_udf.loop.words import (
    ANY_BROKER,
    CHANGES,
    NO_PARTITION,
    THROTTLED,
    UNKNOWN,
    Acks,
    Code,
    Error,
    Reader,
)
from purgatory_udf.scope.columns import Subjects

ROWS = Layout(
    numbers=(
        "key",  # index into the call's keys
        "t",  # microseconds
        "seq",
        "sub",  # order within one event: a follower's progress goes partition by partition
        "code",
        "broker",
        "idx",  # the partition's place in its request
        "n",  # how many the request has
        "offset",  # produce: log end after it; fetch: where from; else the event's offset
        "size",  # produce, log_end: bytes; fetch: the partition's max_bytes
        "delay",
        "least",  # fetch: min_bytes as limited
        "mode",  # produce: Acks; fetch: Reader and THROTTLED
        "epoch",
        "who",  # fetch, replica_end: replica id; leader: min_isr
        "error",
    ),
    texts=("request_id", "client_id", "text"),  # text: an in-sync set `1,2,3`, or a recorded error's name
)

# What requests list.
_LISTS = ("partitions", "topics")
_NAMED_ERRORS = {error.name: int(error) for error in Error if error is not Error.RECORDED}


@dataclass(frozen=True)
class Exploded:
    keys: list[str]
    rows: Frame


def _numbers(column: pa.Array, absent: int = UNKNOWN) -> Array:
    return pc.fill_null(column.cast(pa.int64()), absent).to_numpy(zero_copy_only=False)


def _texts(column: pa.Array) -> Array:
    return pc.fill_null(column, "").to_numpy(zero_copy_only=False).astype(object)


@dataclass(frozen=True)
class _Keys:
    """Rows' keys: which of the names each has. Names are made once each, for texts cost most of all."""

    number: Array
    names: list[str]

    @staticmethod
    def of(broker: pa.Array | str, partition: pa.Array | int, topic: pa.Array) -> _Keys:
        number, columns = np.zeros(len(topic), dtype=np.int64), []
        for part in (broker, partition, topic):
            if isinstance(part, pa.Array):
                coded = part.dictionary_encode()
                number = number * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
                columns.append([str(value) for value in coded.dictionary.to_pylist()])
            else:
                columns.append([str(part)])
        coded = pa.array(number).dictionary_encode()
        places = np.unravel_index(coded.dictionary.to_numpy(), [max(1, len(values)) for values in columns])
        words = zip(*([values[at] for at in place] for values, place in zip(columns, places, strict=True)), strict=True)
        return _Keys(coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), list(map("/".join, words)))

    @staticmethod
    def joined(several: list[_Keys]) -> _Keys:
        known: dict[str, int] = {}
        numbers = []
        for keys in several:
            place = np.array([known.setdefault(name, len(known)) for name in keys.names], dtype=np.int64)
            numbers.append(place[keys.number])
        return _Keys(np.concatenate(numbers), list(known))


def _broker(events: pa.Table) -> pa.Array:
    return pc.fill_null(events["broker"].combine_chunks(), 0)


def _base(events: pa.Table, parents: Array | None = None) -> dict[str, Array]:
    columns = {"t": _numbers(events["time_us"]), "seq": _numbers(events["seq"])}
    columns["broker"] = _numbers(events["broker"], 0)
    return columns if parents is None else {name: column[parents] for name, column in columns.items()}


_ABSENT: dict[str, Array | int | str] = {
    **dict.fromkeys(ROWS.numbers, 0),
    **dict.fromkeys(ROWS.texts, ""),
    "epoch": UNKNOWN,
    "who": UNKNOWN,
}


def _filled(value: Array | int | str, rows: int) -> Array:
    """A column; one value for all rows takes up no room."""
    if isinstance(value, np.ndarray):
        return value
    return np.broadcast_to(np.array(value, dtype=object if isinstance(value, str) else np.int64), rows)


def _part(keys: _Keys, base: dict[str, Array], code: int | Array, **columns: Array | int) -> tuple[_Keys, Frame]:
    rows = len(keys.number)
    given = {**_ABSENT, **base, "code": code, **columns}
    return keys, Frame({name: _filled(given[name], rows) for name in ROWS.names})


class _Requests:
    """One request type's events with their partitions (or topics) flattened."""

    def __init__(self, events: pa.Table, listed: str, code: Code) -> None:
        column = events[listed]
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        self.events, self.code = events, code
        self.sizes = _numbers(pc.list_value_length(column), 0)
        self.parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False).astype(np.int64)
        self.items = pc.list_flatten(column)
        self.n = self.sizes[self.parents]
        first = np.cumsum(self.sizes) - self.sizes
        self.idx = np.arange(len(self.parents)) - first[self.parents]
        self.base = _base(events, self.parents)
        self.base |= {"idx": self.idx, "n": self.n}
        for name in ("request_id", "client_id"):
            told = _texts(events[name])[self.parents]
            self.base[name] = np.where(self.idx == 0, told, "").astype(object)

    def event(self, name: str, absent: int = UNKNOWN) -> Array:
        return _numbers(self.events[name], absent)

    def item(self, name: str, absent: int = UNKNOWN) -> Array:
        return _numbers(pc.struct_field(self.items, name), absent)

    def asked(self, name: str, config: Config, *keys: str) -> Array:
        """A recorded value of each request, as the what-if settings want it."""
        subjects = Subjects(self.events, self.items, self.parents)
        return subjects.asked(self.event(name), config.what_if, keys, config.plain(keys))

    def keys(self) -> _Keys:
        broker = pa.array(self.base["broker"])
        return _Keys.of(broker, pc.struct_field(self.items, "partition"), pc.struct_field(self.items, "topic"))

    def without_items(self, **columns: Array) -> tuple[_Keys, Frame]:
        """Requests that name no partition still are operations: they are answered at once."""
        empty = self.sizes == 0
        events = self.events.filter(pa.array(empty))
        keys = _Keys.of(_broker(events), NO_PARTITION, pa.array([""] * len(events), pa.string()))
        texts = {name: _texts(events[name]) for name in ("request_id", "client_id")}
        mine = {name: values[empty] for name, values in columns.items()}
        return _part(keys, _base(events) | texts, self.code, n=0, **mine)


def _produces(events: pa.Table, config: Config) -> list[tuple[_Keys, Frame]]:
    requests = _Requests(events, "partitions", Code.PRODUCE)
    delay = requests.asked("timeout_ms", config, "produce.timeout_ms")
    errors = pc.fill_null(pc.struct_field(requests.items, "error"), "NONE").to_numpy(zero_copy_only=False)
    failed = errors != "NONE"
    codes = np.zeros(len(errors), dtype=np.int64)
    texts = np.full(len(errors), "", dtype=object)
    for row in np.flatnonzero(failed):
        codes[row] = _NAMED_ERRORS.get(errors[row], Error.RECORDED)
        texts[row] = errors[row] if codes[row] == Error.RECORDED else ""
    acks = requests.event("acks")
    sound = np.bincount(requests.parents[~failed], minlength=len(acks)) if len(acks) else acks
    delayed = np.where(sound > 0, Acks.DELAYED, Acks.ALL_IN_ERROR)
    mode = np.where(acks == -1, delayed, np.where((acks == 0) | (acks == 1), Acks.AT_ONCE, Acks.INVALID))
    parents = requests.parents
    invalid = mode[parents] == Acks.INVALID
    codes[invalid], texts[invalid] = Error.INVALID_REQUIRED_ACKS, ""
    items = _part(
        requests.keys(),
        requests.base,
        Code.PRODUCE,
        offset=requests.item("last_offset") + 1,
        size=requests.item("bytes", 0),
        delay=delay[parents],
        mode=mode[parents],
        error=codes,
        text=texts,
    )
    return [items, requests.without_items(delay=delay, mode=mode)]


def _fetches(events: pa.Table, config: Config) -> list[tuple[_Keys, Frame]]:
    requests = _Requests(events, "partitions", Code.FETCH)
    parents = requests.parents
    replica = requests.event("replica_id")
    delay, least = (
        np.where(
            replica >= 0, *(requests.asked(field, config, *fetch_keys(field, follower)) for follower in (True, False))
        )
        for field in ("max_wait_ms", "min_bytes")
    )
    most = np.minimum(requests.event("max_bytes", INT32_MAX), config.fetch.max_bytes)
    least = np.minimum(least, most)
    committed = pc.fill_null(pc.equal(events["isolation"], "read_committed"), False).to_numpy()
    reader = np.where(replica >= 0, Reader.FOLLOWER, np.where(committed, Reader.COMMITTED, Reader.CONSUMER))
    throttled = pc.fill_null(pc.struct_field(requests.items, "throttled"), False)
    held = throttled.to_numpy(zero_copy_only=False) & (replica[parents] >= 0)
    items = _part(
        requests.keys(),
        requests.base,
        Code.FETCH,
        sub=np.where(replica[parents] >= 0, requests.idx, 0),
        offset=requests.item("fetch_offset"),
        size=requests.item("max_bytes", INT32_MAX),
        delay=delay[parents],
        least=least[parents],
        mode=reader[parents] + THROTTLED * held,
        epoch=requests.item("current_leader_epoch"),
        who=replica[parents],
    )
    return [items, requests.without_items(delay=delay, mode=reader)]


def _deletes(events: pa.Table, config: Config) -> list[tuple[_Keys, Frame]]:
    requests = _Requests(events, "partitions", Code.DELETE_RECORDS)
    delay = requests.asked("timeout_ms", config, "delete_records.timeout_ms")
    items = _part(
        requests.keys(),
        requests.base,
        Code.DELETE_RECORDS,
        offset=requests.item("offset"),
        delay=delay[requests.parents],
    )
    return [items, requests.without_items(delay=delay)]


def _creates(events: pa.Table, config: Config) -> list[tuple[_Keys, Frame]]:
    requests = _Requests(events, "topics", Code.CREATE_TOPICS)
    delay = requests.asked("timeout_ms", config, "create_topics.timeout_ms")
    keys = _Keys.of(ANY_BROKER, NO_PARTITION, pc.struct_field(requests.items, "topic"))
    items = _part(
        keys, requests.base, Code.CREATE_TOPICS, offset=requests.item("partitions"), delay=delay[requests.parents]
    )
    return [items, requests.without_items(delay=delay)]


def _changes(events: pa.Table) -> list[tuple[_Keys, Frame]]:
    changes = events["change"].combine_chunks().dictionary_encode()
    known = np.array([CHANGES[name] for name in changes.dictionary.to_pylist()], dtype=np.int64)
    codes = known[changes.indices.to_numpy(zero_copy_only=False)] if len(events) else np.zeros(0, dtype=np.int64)
    base = _base(events)
    leads = codes == Code.LEADER
    who = np.where(leads, _numbers(events["min_isr"]), _numbers(events["replica_id"]))
    texts = np.full(len(events), "", dtype=object)
    isr = events["isr"].combine_chunks()
    for row in np.flatnonzero((leads | (codes == Code.ISR)) & pc.is_valid(isr).to_numpy(zero_copy_only=False)):
        texts[row] = "=" + ",".join(str(member) for member in isr[int(row)].as_py())
    topics, partitions = events["topic"].combine_chunks(), events["partition"].combine_chunks()
    rows = _part(
        _Keys.of(_broker(events), partitions, topics),
        base,
        codes,
        offset=_numbers(events["offset"]),
        size=_numbers(events["bytes"], 0),
        epoch=_numbers(events["leader_epoch"]),
        who=who,
        text=texts,
    )
    metadata = leads | (codes == Code.DELETED)
    told = events.filter(pa.array(metadata))
    topic_rows = _part(
        _Keys.of(ANY_BROKER, NO_PARTITION, told["topic"].combine_chunks()),
        _base(told),
        np.where(codes[metadata] == Code.LEADER, int(Code.LED), int(Code.UNLED)),
        offset=_numbers(told["partition"]),
    )
    return [rows, topic_rows]


def explode(events: pa.Table, config: Config) -> Exploded:
    """Rows sorted by key, then (time, seq, sub); events of no partition (groups, clock) leave no row."""
    events = events.combine_chunks()
    types = events["type"]
    parts: list[tuple[_Keys, Frame]] = []
    makers: dict[str, tuple[str | None, Callable[[pa.Table], list[tuple[_Keys, Frame]]]]] = {
        "produce": ("partitions", lambda some: _produces(some, config)),
        "fetch": ("partitions", lambda some: _fetches(some, config)),
        "delete_records": ("partitions", lambda some: _deletes(some, config)),
        "create_topics": ("topics", lambda some: _creates(some, config)),
        "partition": (None, _changes),
    }
    for name, (listed, make) in makers.items():
        # To filter lists costs most of all, even where no row has one.
        lean = events.drop_columns([one for one in _LISTS if one != listed])
        some = lean.filter(pc.equal(types, name))
        if len(some):
            parts += make(some.combine_chunks())
    parts = [part for part in parts if len(part[1])]
    if not parts:
        return Exploded([], ROWS.empty())
    keys = _Keys.joined([part[0] for part in parts])
    rows = Frame.concat([part[1] for part in parts]).with_columns(key=keys.number)
    return Exploded(keys.names, rows.take(np.lexsort((rows.sub, rows.seq, rows.t, rows.key))))
