"""A call's input: events in time order, the rows they refer to, and the table capacity that they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import inlined, int64
from purgatory_udf.rules.engine.jit.records import Records, attribute_view, copy_records, record, take_records
from purgatory_udf.rules.engine.loop.arena import GROWTH, PURGATORY_KEY, empty_table
from purgatory_udf.rules.engine.loop.codes import (
    ANY_BROKER,
    LAST_WITH_PARTS,
    UNKNOWN,
    Acks,
    Code,
    Error,
    Reader,
    key_of,
    key_parts,
)

_TOTALS = record("operations parts nodes read_ends purgatory_keys")


@dataclass(frozen=True)
class Capacity:
    """Upper bounds of the rows that a call's events can add to the tables of a state.

    `read_ends` is the number of events that end a read or lookup in remote storage.
    """

    growth: Records  # one row for each of the call's names
    purgatory_keys: Records  # the purgatories that its requests may wait in
    operations: int
    parts: int
    nodes: int
    read_ends: int


def measure_capacity(events: Records, request_parts: Records, names: int) -> Capacity:
    """Compute the capacity that the events need, for a call with this number of key names."""
    growth, purgatory_keys = np.zeros(names, GROWTH), np.empty(len(events), PURGATORY_KEY)
    totals = np.zeros(1, _TOTALS)
    _measure(
        attribute_view(events),
        attribute_view(request_parts),
        attribute_view(growth),
        attribute_view(purgatory_keys),
        attribute_view(totals),
    )
    operations, parts, nodes, read_ends, count = totals[0].tolist()
    return Capacity(growth, purgatory_keys[:count], operations, parts, nodes, read_ends)


@entry_point
def _measure(
    events: Records, request_parts: Records, growth: Records, purgatory_keys: Records, totals: Records
) -> None:
    """Fill `growth`, `purgatory_keys` and `totals` from the events and their request parts."""
    total = totals[0]
    for e in range(len(events)):
        event = events[e]
        code, mode = event.code, event.mode
        purgatory_code = waits_in(code)
        if purgatory_code != 0:
            at = 0
            while at < total.purgatory_keys and (
                purgatory_keys[at].code != purgatory_code or purgatory_keys[at].broker != event.broker
            ):
                at += 1
            if at == total.purgatory_keys:
                purgatory_keys[at].code, purgatory_keys[at].broker = purgatory_code, event.broker
                total.purgatory_keys += 1
        if code <= LAST_WITH_PARTS:
            total.operations += 1
            total.parts += event.count
            total.read_ends += code == Code.REMOTE_READ or code == Code.REMOTE_LOOKUP
        elif code == Code.LOG_END:
            growth[event.key].batches += 1
        elif code == Code.SEGMENT_ROLL:
            growth[event.key].rolls += 1
        elif may_add_node(code, mode):
            total.nodes += 1
        for a in range(event.first, event.first + event.count):
            part = request_parts[a]
            if code == Code.PRODUCE and part.error == Error.NONE and mode < Acks.INVALID:
                growth[part.key].batches += 1
            elif may_add_node(code, mode):
                total.nodes += 1


# A bit mask of codes: compiled code would compare a code with one after the other.
_ADDING_NODES = int64(
    sum(
        1 << int(code)
        for code in (
            Code.REPLICA_END,
            Code.LED,
            Code.CREATE_TOPICS,
            Code.THROTTLED,
            Code.UNTHROTTLED,
            Code.LIST_OFFSETS,
            Code.LOCAL_LOG_START,
        )
    )
)


@inlined
def may_add_node(code: int, mode: int) -> bool:
    """Return whether an event may add a node: for a follower, a topic's leader, or the dead watchers of a topic.

    `code` and `mode` are those of the event.
    """
    return mode == Reader.FOLLOWER if code == Code.FETCH else (_ADDING_NODES >> code) & 1 != 0


@inlined
def waits_in(code: int) -> int:
    """Return the code of the purgatory that must exist for this kind of event, or 0 if it needs none.

    A broker's RemoteFetch purgatory exists from the broker's first event of tiered storage on.
    """
    if code in (Code.LOCAL_LOG_START, Code.REMOTE_QUOTA, Code.READER_QUEUE):
        return Code.REMOTE_FETCH
    return code if code <= Code.CREATE_TOPICS or code == Code.LIST_OFFSETS else 0


@cache
def no_strings() -> pa.Array:
    """Return an empty column of strings."""
    return pa.array([], pa.string())


def concat_strings(left: pa.Array, right: pa.Array) -> pa.Array:
    """Concatenate two columns. If one of them is empty, the other is returned without a copy."""
    if not len(left) or not len(right):
        return left if len(left) else right
    return pa.concat_arrays([left, right])


def take_strings(strings: pa.Array, rows: Records) -> pa.Array:
    """Return the strings in these rows. A column of nulls is not copied."""
    if strings.null_count == len(strings):
        return pa.nulls(len(rows), pa.string())
    return strings.take(pa.array(rows))


class KeyColumns(NamedTuple):
    """Brokers (`UNKNOWN`: any), partitions and topics of keys."""

    brokers: Records
    partitions: Records
    topics: pa.StringArray

    def take(self, keys: Records) -> KeyColumns:
        """Return the rows with these numbers."""
        return KeyColumns(self.brokers[keys], self.partitions[keys], self.topics.take(pa.array(keys)))

    def append(self, columns: KeyColumns) -> KeyColumns:
        """Return these rows, followed by further ones."""
        return KeyColumns(
            np.concatenate([self.brokers, columns.brokers]),
            np.concatenate([self.partitions, columns.partitions]),
            pa.concat_arrays([self.topics, columns.topics]),
        )


class KeyNames:
    """The names of keys, as strings (`key_of`) or as columns. Either form is computed when it is first needed.

    Formatting a name or splitting it takes longer than deciding several events.
    """

    def __init__(self, strings: list[str] | None = None, columns: KeyColumns | None = None) -> None:
        """Create names from one form, or from both."""
        self._strings = [] if strings is None and columns is None else strings
        self._columns = columns

    @property
    def strings(self) -> list[str]:
        """The names as strings."""
        if self._strings is None:
            brokers, partitions, topics = self.columns.brokers.tolist(), self.columns.partitions, self.columns.topics
            names = {broker: ANY_BROKER if broker == UNKNOWN else broker for broker in {*brokers}}
            self._strings = [
                key_of(names[broker], topic, partition)
                for broker, partition, topic in zip(brokers, partitions.tolist(), topics.to_pylist(), strict=True)
            ]
        return self._strings

    @property
    def columns(self) -> KeyColumns:
        """The names as columns."""
        if self._columns is None:
            parts = [key_parts(name) for name in self.strings]
            self._columns = KeyColumns(
                np.array([UNKNOWN if broker == ANY_BROKER else int(broker) for broker, _, _ in parts], np.int32),
                np.array([partition for _, partition, _ in parts], np.int32),
                pa.array([topic for _, _, topic in parts], pa.string()),
            )
        return self._columns

    def __len__(self) -> int:
        return len(self.strings if self._columns is None else self._columns.brokers)

    def __getitem__(self, key: int) -> str:
        return self.strings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.strings)

    def take(self, keys: Records) -> KeyNames:
        """Return the names of the keys with these numbers."""
        strings, columns = self._strings, self._columns
        return KeyNames(
            None if strings is None else [strings[key] for key in keys.tolist()],
            None if columns is None else columns.take(keys),
        )

    def append(self, names: KeyNames) -> KeyNames:
        """Return these names, followed by further ones."""
        strings, columns = self._strings, self._columns
        return KeyNames(
            None if strings is None else [*strings, *names.strings],
            None if columns is None else columns.append(names.columns),
        )


@dataclass
class Call:
    """The events of one call, and everything that they refer to by row number.

    Events are sorted by (`t`, `seq`). A request, or the end of a read for one, has `count` rows of `request_parts` from
    `first` on, and `text` is its row in `request_ids` and `client_ids`. These may have rows of other events, too. A
    change may have a row in `leader_and_isr`, which refers to `in_sync`. Keys are indices of `names`. Where a request
    part records an error that has no `Error` code, its `text` is a row of `errors`.
    """

    names: KeyNames = field(default_factory=KeyNames)
    events: Records = field(default_factory=empty_table("events"))
    request_parts: Records = field(default_factory=empty_table("request_parts"))
    leader_and_isr: Records = field(default_factory=empty_table("leader_and_isr"))
    in_sync: Records = field(default_factory=empty_table("in_sync"))
    request_ids: pa.Array = field(default_factory=no_strings)
    client_ids: pa.Array = field(default_factory=no_strings)
    errors: pa.Array = field(default_factory=no_strings)
    capacity: Capacity | None = None  # if it has been computed

    def __len__(self) -> int:
        return len(self.events)

    def select(self, which: Records) -> Call:
        """Return a call with the events at the rows `which`; the other tables and columns are shared, complete."""
        return replace(self, events=take_records(self.events, which), capacity=None)

    def with_own_ids(self) -> Call:
        """Return a call in which `request_ids` and `client_ids` have one row for each request, in their order."""
        requests = np.flatnonzero(self.events["code"] <= LAST_WITH_PARTS)
        if len(requests) == len(self.request_ids):
            return self
        events = copy_records(self.events)
        rows = events["text"][requests]
        events["text"][requests] = np.arange(len(requests))
        request_ids, client_ids = (take_strings(ids, rows) for ids in (self.request_ids, self.client_ids))
        return replace(self, events=events, request_ids=request_ids, client_ids=client_ids)


def change_rows(events: Records) -> Records:
    """Return the rows of the events that are not requests."""
    return np.flatnonzero(events["code"] > LAST_WITH_PARTS)


def in_time_order(events: Records) -> Records:
    """Sort events by (`t`, `seq`), without a copy if they are in order."""
    t, seq = events["t"], events["seq"]
    ordered = (t[1:] > t[:-1]) | ((t[1:] == t[:-1]) & (seq[1:] >= seq[:-1]))
    return events if ordered.all() else take_records(events, np.lexsort((seq, t)))
