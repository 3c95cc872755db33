"""The tasks of an import: independent functions from record batches to record batches.

The context is passed as a function, because Spark broadcasts it once to each executor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import BATCH_ROWS, nulls
from purgatory_udf.contract import Rejection, read_row
from purgatory_udf.contract.value_types import INT32, INT64
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_kinds import Fact, FactsOfPartitions, Integers, Key
from purgatory_udf.sources.request_log.fetch_conversion import FetchConverter
from purgatory_udf.sources.request_log.high_watermark_events import (
    KINDS_OF_OFFSETS,
    PROGRESS_RANK,
    RANKS_OF_OFFSETS,
    REQUEST_RANK,
    OffsetChanges,
    TimedEvent,
)
from purgatory_udf.sources.request_log.importing.broker_pauses import (
    OverdueOperation,
    overdue_in_columns,
    overdue_operation,
)
from purgatory_udf.sources.request_log.importing.import_options import Rename, anonymised
from purgatory_udf.sources.request_log.importing.import_rows import (
    BAD,
    CHANGE,
    CHANGE_FIELDS,
    CHANGED,
    CHANGES,
    FACT,
    FINISHED,
    NO_REQUEST,
    OPERATION,
    OPERATION_FIELDS,
    OVERDUE,
    PARTS,
    PRODUCED,
    REMOTE_READ,
    Facts,
    are_columns,
    batch_of_part,
    batch_of_rows,
    constant,
    count_rows,
    facts_in,
    fetches_in,
    from_json,
    order_of_change,
    order_of_operation,
    packed_facts,
    produces_in,
    request_of,
    request_rows_in,
    to_json,
)
from purgatory_udf.sources.request_log.logged_request import (
    AT_ONCE,
    COMPLETED,
    EXPIRED,
    REMOTE_FETCH,
    ConvertedColumns,
    LoggedOperation,
    Place,
    first_slot,
    structs_of,
)
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_timeline import (
    PartitionInput,
    PartitionTimeline,
    ProducedOffsets,
    build_timelines,
)
from purgatory_udf.sources.request_log.produce_conversion import convert_produces
from purgatory_udf.sources.request_log.request_conversion import (
    ConvertedRequest,
    convert_requests,
    convert_share_groups,
)
from purgatory_udf.sources.request_log.tiered_reads import end_of_read_us, is_open, remote_read_event
from purgatory_udf.sources.trace_files.typed_columns import (
    DecodedLines,
    changes_as_events,
    decode_lines,
    fetches_as_events,
    produces_as_events,
)

# Start of a request's JSON.
_NAMED = b'{"request_id":"-",'

# Changes of partitions that are stored without JSON.
_MOVING = frozenset({"log_end", "high_watermark", "replica_end"})

# Columns with the offsets of a produce.
_OFFSETS = ["sub", "slots", "bases", "ends"]

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]
Row = dict[str, Any]

# Columns of a remote read in CHANGES.
READ_FIELDS = (*CHANGE_FIELDS, "slot", "base", "end")

ROWS = 10_000
# Number of facts after which a task serializes them; a larger number makes fewer rows, but takes more memory.
FACTS = 20_000
# Size of the serialized facts from which the timelines of several partitions are built together, in bytes.
_TOGETHER = 1 << 21
_FACT_PLACE = ("broker", "topic", "partition", "settled")


def request_step(context: Callable[[], Context]) -> Work:
    """Return the step that converts requests other than fetches, in any order, to PARTS."""

    def work(batches: Batches) -> Batches:
        report = Report()
        converted = (requests_of_batch(batch, context(), report) for batch in joined_by_kind(batches))
        yield from _parts(chain.from_iterable(converted), report)

    return work


def joined_by_kind(batches: Batches) -> Batches:
    """Join small batches, those of produces as columns and others apart: a small batch takes as long as a larger one.

    The order of the rows is lost.
    """
    held: dict[bool, list[pa.RecordBatch]] = {True: [], False: []}
    for batch in batches:
        of_kind = held[bool(batch.num_rows) and batch.column("limits")[0].is_valid]
        of_kind.append(batch)
        if sum(each.num_rows for each in of_kind) >= BATCH_ROWS:
            yield pa.concat_batches(of_kind)
            of_kind.clear()
    yield from (pa.concat_batches(of_kind) for of_kind in held.values() if of_kind)


def requests_of_batch(
    batch: pa.RecordBatch, context: Context, report: Report
) -> Iterator[ConvertedRequest | ConvertedColumns]:
    """Convert requests other than fetches: usual produces together, and all others one by one."""
    as_columns = are_columns(batch)
    count = as_columns.true_count
    if count:
        produces_only = batch if count == batch.num_rows else batch.filter(as_columns)
        produces = produces_in(produces_only)
        usual = produces.are_usual()
        if not usual.all():
            left = np.flatnonzero(~usual)
            rows = request_rows_in([produces_only.take(pa.array(left))])
            bodies = map(produces.bodies.produce, left.tolist())
            yield from convert_requests(map(request_of, rows, bodies), context, report)
            produces = produces_in(produces_only.filter(pa.array(usual)))
        yield convert_produces(produces, context, report)
    if count < batch.num_rows:
        others = batch if not count else batch.filter(pc.invert(as_columns))
        yield from convert_requests(map(request_of, request_rows_in([others])), context, report)


def session_step(context: Callable[[], Context]) -> Work:
    """Return the step that converts fetches, in the order of broker, session and start, to PARTS."""

    def work(batches: Batches) -> Batches:
        report, converter = Report(), FetchConverter(context())
        last = None
        for batch in batches:
            fetches = fetches_in(batch)
            converted = converter.convert(fetches, report)
            report.count("operations", len(converted.limit_ms))
            yield from batches_of_operations(converted, PARTS)
            facts: FactsOfPartitions = {}
            add_facts(facts, converted.facts)
            names = list(dict.fromkeys([last, *fetches.sessions]))
            # The last session of the batch may continue in the next one.
            last = names.pop()
            for name in filter(None, names):
                add_facts(facts, converter.finish(name))
            yield batch_of_facts(facts, None, PARTS)
        if last is not None:
            facts = {}
            add_facts(facts, converter.finish(last))
            yield batch_of_facts(facts, None, PARTS)
        yield batch_of_rows(count_rows(report.counts), PARTS)

    return work


def batches_of_operations(converted: ConvertedColumns, schema: pa.Schema, **constants: Any) -> Batches:
    """Yield the operations of requests, and the times of those that were overdue.

    `constants` are further columns of `schema`, with the same value in all rows.
    """
    operations, count = converted.operations, len(converted.limit_ms)
    same = {"part": OPERATION, "rank": REQUEST_RANK, "topic": "", "partition": -1, "sub": 0}
    same |= {"kind": converted.kind, **constants}
    columns = [
        operations[field.name].cast(field.type)
        if field.name in operations
        else constant(same.get(field.name), count, field.type)
        for field in schema
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=schema)
    yield from batches_of_overdue(converted, schema, **constants)


def batches_of_overdue(converted: ConvertedColumns, schema: pa.Schema, **constants: Any) -> Batches:
    """Yield the times of overdue operations; `constants` as in `batches_of_operations`."""
    rows = [{**_overdue_row(each), **constants} for each in overdue_in_columns(converted)]
    if rows:
        yield batch_of_rows(rows, schema)


def add_facts(facts: FactsOfPartitions, more: FactsOfPartitions) -> None:
    """Add further facts to those of the same partitions; those about invalid partitions are left out."""
    for (broker, key), its_facts in more.items():
        if _is_valid_partition(broker, key):
            facts.setdefault((broker, key), []).extend(its_facts)


def batch_of_facts(facts: FactsOfPartitions, settled: bool | None, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of facts, which are serialized; `settled` as in `Facts`."""
    places = {(broker, *key, settled): its_facts for (broker, key), its_facts in facts.items()}
    return batch_of_rows(list(_packed(places)), schema)


def share_step(context: Callable[[], Context]) -> Work:
    """Return the step that converts requests of share groups, in the order of group and start, to PARTS."""

    def work(batches: Batches) -> Batches:
        report = Report()
        requests = ((row.session or "", request_of(row)) for row in request_rows_in(batches))
        yield from _parts(convert_share_groups(requests, context(), report), report)

    return work


def timeline_step(context: Callable[[], Context]) -> Work:
    """Return the step that converts facts, in the order of broker, topic and partition, to CHANGES."""

    def work(batches: Batches) -> Batches:
        report = Report()
        rows = TimelineRows(CHANGES)
        for partitions in partitions_together(batches):
            facts = PartitionFacts.of_each(
                (broker, (topic, partition), (fact for row in of_partition for fact in facts_in(row["packed"])))
                for (broker, topic, partition), of_partition in partitions
            )
            timelines = build_timelines([PartitionInput(each, report) for each in facts], context())
            for timeline, of_partition in zip(timelines, facts, strict=True):
                yield from rows.add(timeline, of_partition)
        yield from rows.rest()
        yield batch_of_rows(count_rows(report.counts), CHANGES)

    return work


def partitions_together(batches: Batches) -> Iterator[list[tuple[tuple[int, str, int], Iterable[Row]]]]:
    """Yield (broker, topic, partition) and the rows of partitions, as many at once as have few facts.

    The rows are in the order of these columns. Those of a partition with many facts are read one by one.
    """
    held: list[tuple[tuple[int, str, int], Iterable[Row]]] = []
    size = 0
    for place, rows in groupby(rows_in(batches), lambda row: (row["broker"], row["topic"], row["partition"])):
        of_partition: list[Row] = []
        following = iter(rows)
        for row in following:
            of_partition.append(row)
            size += len(row["packed"] or b"")
            if size >= _TOGETHER:
                if held:
                    yield held
                yield [(place, chain(of_partition, following))]
                held, size = [], 0
                break
        else:
            held.append((place, of_partition))
    if held:
        yield held


class TimelineRows:
    """Events of timelines and offsets of their produces, until there are enough for a batch of a schema.

    Rows with the same columns are together in a batch. The columns are lists of Python objects, except for changes of
    offsets and the offsets of produces.
    """

    _FIELDS: Mapping[str, Sequence[str]] = {
        CHANGE: CHANGE_FIELDS,
        REMOTE_READ: READ_FIELDS,
    }

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: dict[str, list[tuple[Any, ...]]] = {part: [] for part in self._FIELDS}
        # Changes of offsets, the number of each partition's first one, and the partitions.
        self._changes: list[tuple[OffsetChanges, int]] = []
        self._partitions: list[tuple[int, str, int]] = []
        self._waiting = 0
        self._produced: list[ProducedOffsets] = []

    def add(self, timeline: PartitionTimeline, facts: PartitionFacts) -> Batches:
        """Add the rows of a timeline, and yield the batches that are full."""
        yield from self._added(CHANGE, self._changes_of(timeline, facts))
        if self._waiting >= ROWS:
            yield from self._offset_changes()
        for produced in timeline.produced:
            self._produced.append(produced)
            if sum(len(each.file) for each in self._produced) >= ROWS:
                yield self._batch_of_produced()
        yield from self._added(REMOTE_READ, _reads_of(timeline, facts))

    def _added(self, part: str, rows: Iterable[tuple[Any, ...]]) -> Batches:
        rows = iter(rows)
        held = self._rows[part]
        while True:
            held += islice(rows, ROWS - len(held))
            if len(held) < ROWS:
                return
            yield batch_of_part(part, self._FIELDS[part], held, self._schema)
            held.clear()

    def _changes_of(self, timeline: PartitionTimeline, facts: PartitionFacts) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of all events but changes of offsets, which are kept as columns."""
        place, number = (facts.broker, facts.topic, facts.partition), 0
        for event in timeline.events:
            if isinstance(event, OffsetChanges):
                self._changes.append((event, number))
                self._partitions.append(place)
                self._waiting += len(event.at_us)
                number += len(event.at_us)
                continue
            changed = _changed(event.event)
            yield *order_of_change(*place, number, event), None if changed else to_json(event.event), changed
            number += 1

    def _offset_changes(self) -> Batches:
        """Yield the changes of offsets."""
        if self._changes:
            yield _batch_of_offset_changes(self._changes, self._partitions, self._schema)
        self._changes, self._partitions, self._waiting = [], [], 0

    def _batch_of_produced(self) -> pa.RecordBatch:
        joined = zip(ProducedOffsets._fields, map(np.concatenate, zip(*self._produced, strict=True)), strict=True)
        columns = {name: pa.array(values) for name, values in joined}
        self._produced = []
        return _batch_of_columns(PRODUCED, columns, self._schema)

    def rest(self) -> Batches:
        """Yield the remaining rows."""
        yield from self._offset_changes()
        if self._produced:
            yield self._batch_of_produced()
        for part, held in self._rows.items():
            if held:
                yield batch_of_part(part, self._FIELDS[part], held, self._schema)


def finish_events(rename: Rename | None, source: Callable[[int], str]) -> Work:
    """Return the step that makes events of the contract (FINISHED) from ordered rows, numbered within each task.

    An event that the contract rejects is replaced by the reason. Produces get their offsets, requests the id
    `SOURCE:LINE`, and `rename`, if given, replaces names by pseudonyms.
    """

    def work(batches: Batches) -> Batches:
        first = 0
        for batch in batches:
            yield from _finished(_named(batch, source), first, rename)
            first += batch.num_rows

    return work


def _named(batch: pa.RecordBatch, source: Callable[[int], str]) -> pa.RecordBatch:
    """Return a batch with `request_id`, made of source and line, and null for changes without a request.

    The records of remote fetches get their kind and outcome.
    """
    remote = batch.column("remote")
    if remote.null_count < batch.num_rows:
        place = batch.schema.get_field_index("recorded")
        batch = batch.set_column(place, batch.schema.field(place), _of_remote_fetches(batch.column(place), remote))
    files, lines = batch.column("file").dictionary_encode(), batch.column("line")
    names = [source(file) if file >= 0 else None for file in files.dictionary.to_pylist()]
    ids = pc.binary_join_element_wise(pa.array(names, pa.string()).take(files.indices), lines.cast(pa.string()), ":")
    named = batch.append_column("request_id", pc.if_else(pc.greater_equal(lines, 0), ids, None))
    return named.append_column("at_line", batch.column("line"))


def _finished(batch: pa.RecordBatch, first: int, rename: Rename | None) -> Batches:
    """Yield the events (FINISHED) of rows, in their order; `first` is the number of the first one."""
    is_left = np.ones(batch.num_rows, bool)
    groups: list[EventsOfGroup] = []
    if rename is None:
        for group in _valid_columns(batch):
            groups.append(group)
            is_left[group.places] = False
    left = np.flatnonzero(is_left)
    others = batch if rename else batch.filter(pa.array(is_left))
    lines = _texts(others)
    decoded = decode_lines(lines) if rename is None else DecodedLines([], [], list(range(len(lines))))
    for events, numbers in zip(decoded.events, decoded.numbers, strict=True):
        columns = dict(zip(events.schema.names, events.columns, strict=True))
        groups.append(EventsOfGroup(columns, left[numbers], np.arange(len(numbers))))
    judged = []
    for number in decoded.undecoded:
        (row,) = others.slice(number, 1).to_pylist()
        event = _with_request(from_json(lines[number]), row)
        place = {name: row[name] for name in ("file", "at_line", "recorded")} | {"number": first + int(left[number])}
        try:
            event = read_row(event)
        except Rejection as rejection:
            raw = json.dumps(_given_event(row))
            judged.append({**place, "rule": rejection.rule, "reason": rejection.reason, "raw": raw})
        else:
            if row["request_id"] is not None:
                # The contract drops the id of an event that is not a request, such as `share_state`.
                event["request_id"] = row["request_id"]
            judged.append({**place, **(anonymised(event, rename) if rename else event)})
    groups = [group for group in groups if len(group.places)]
    finished = [_of_groups(groups, batch, first)] if groups else []
    if judged:
        finished.append(batch_of_rows(judged, FINISHED))
    if len(finished) > 1:
        finished = pa.Table.from_batches(finished).sort_by("number").combine_chunks().to_batches()
    yield from finished


class EventsOfGroup(NamedTuple):
    """Events with the same columns, by name; event i belongs to row `places[i]`, and is in row `rows[i]` of them."""

    columns: dict[str, pa.Array]
    places: Integers
    rows: Integers


def _valid_columns(batch: pa.RecordBatch) -> Iterator[EventsOfGroup]:
    """Yield the events without JSON that are certainly valid."""
    partition = {name: batch.column(name) for name in ("time_us", "broker", "topic", "partition")}
    fetches, produces, changes = (batch.column(name) for name in ("fetch", "produce", "change"))
    if fetches.null_count < len(batch):
        columns, valid = fetches_as_events(fetches, partition["broker"])
        places = np.flatnonzero(valid)
        yield EventsOfGroup(columns, places, places)
    if produces.null_count < len(batch):
        places = np.flatnonzero(produces.is_valid())
        # Other columns are costly to filter.
        rows = batch.select(["produce", "broker", *_OFFSETS]).filter(produces.is_valid())
        columns, valid = produces_as_events(_with_offsets(rows), rows.column("broker"))
        yield EventsOfGroup(columns, places[valid], np.flatnonzero(valid))
    if changes.null_count < len(batch):
        columns, valid = changes_as_events(changes, partition)
        places = np.flatnonzero(valid)
        yield EventsOfGroup(columns, places, places)


def _with_offsets(rows: pa.RecordBatch) -> pa.StructArray:
    """Return the produces of rows with the offsets that the timelines of their partitions found."""
    produces = rows.column("produce")
    lists = pc.struct_field(produces, "partitions")
    items = pa.RecordBatch.from_struct_array(lists.flatten())
    base, last = (items.column(name).to_numpy().copy() for name in ("base_offset", "last_offset"))
    bounds = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    slots, bases, ends = (rows.column(name) for name in ("slots", "bases", "ends"))
    of_row = np.repeat(np.arange(len(rows)), pc.list_value_length(slots).fill_null(0).to_numpy())
    place = slots.flatten().to_numpy() - first_slot(rows.column("sub").to_numpy())[of_row]
    is_known = (place >= 0) & (place < np.diff(bounds)[of_row])
    place = (bounds[of_row] + place)[is_known]
    base[place] = bases.flatten().to_numpy()[is_known]
    last[place] = ends.flatten().to_numpy()[is_known] - 1
    found = {"base_offset": pa.array(base), "last_offset": pa.array(last)}
    columns = {name: found.get(name, items.column(name)) for name in items.schema.names}
    partitions = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), structs_of(columns, lists.type.value_type))
    return _with_fields(produces, partitions=partitions)


def _of_groups(groups: Sequence[EventsOfGroup], batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the batch (FINISHED) of the events of all groups, with the values of their rows and in the rows' order."""
    joined = _joined_columns(groups, batch.num_rows)
    given = {
        "number": pa.array(np.arange(first, first + batch.num_rows)),
        **{name: batch.column(name) for name in ("file", "at_line")},
        **joined,
        **_request_columns(joined, batch),
    }
    columns = [given[field.name] if field.name in given else nulls(len(batch), field.type) for field in FINISHED]
    finished = pa.RecordBatch.from_arrays(columns, schema=FINISHED)
    is_event = np.zeros(len(batch), bool)
    for group in groups:
        is_event[group.places] = True
    return finished if is_event.all() else finished.filter(pa.array(is_event))


def _joined_columns(groups: Sequence[EventsOfGroup], count: int) -> dict[str, pa.Array]:
    """Return the columns of events in several groups, for `count` rows; columns without values are left out."""
    columns = {}
    indices: dict[tuple[int, ...], pa.Array] = {}
    for name in dict.fromkeys(name for group in groups for name in group.columns):
        # Most columns belong to few groups.
        numbers = tuple(
            number
            for number, group in enumerate(groups)
            if name in group.columns and group.columns[name].null_count < len(group.columns[name])
        )
        if not numbers:
            continue
        of_column = [groups[number] for number in numbers]
        arrays = [group.columns[name] for group in of_column]
        if len(numbers) == 1 and of_column[0].rows is of_column[0].places:
            (columns[name],) = arrays
            continue
        if numbers not in indices:
            indices[numbers] = _indices(of_column, list(map(len, arrays)), count)
        columns[name] = pa.concat_arrays(arrays).take(indices[numbers])
    return columns


def _indices(groups: Sequence[EventsOfGroup], lengths: Sequence[int], count: int) -> pa.Array:
    """Return for each of `count` rows its index in the joined columns of the groups; null for rows without an event.

    `lengths` are those of the groups' columns.
    """
    indices, first = np.full(count, -1), 0
    for group, length in zip(groups, lengths, strict=True):
        indices[group.places] = first + group.rows
        first += length
    return pa.array(indices, mask=indices < 0)


def _texts(batch: pa.RecordBatch) -> list[bytes]:
    """Return the events' JSON: produces with their offsets, requests with a placeholder id (see `_request_columns`)."""
    names = batch.column("request_id").is_valid().to_pylist()
    events = batch.column("event").cast(pa.binary()).to_pylist()
    for number in np.flatnonzero(batch.column("event").is_null()).tolist():
        events[number] = to_json(_given_event(batch.slice(number, 1).to_pylist()[0]))
    texts = [_NAMED + text[1:] if has_name else text for text, has_name in zip(events, names, strict=True)]
    lists = (batch.column(name).to_pylist() for name in ("slots", "bases", "ends"))
    subs = batch.column("sub").to_pylist()
    for number, (of_slots, bases, ends) in enumerate(zip(*lists, strict=True)):
        if not of_slots:
            continue
        event = from_json(texts[number])
        slots = first_slot(subs[number])
        for slot, base, end in zip(of_slots, bases, ends, strict=True):
            if 0 <= slot - slots < len(event["partitions"]):
                event["partitions"][slot - slots]["base_offset"] = base
                event["partitions"][slot - slots]["last_offset"] = end - 1
        texts[number] = to_json(event)
    return texts


def _request_columns(events: Mapping[str, pa.Array], rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns `request_id`, `time_us` (of the first try) and `recorded` of requests.

    If a request is first tried after its arrival, the recorded wait is shortened by that delay.
    """
    name, tried_us, arrived_us = rows.column("request_id"), rows.column("time_us"), events["time_us"]
    delay_us = pc.if_else(
        pc.and_(name.is_valid(), pc.greater(tried_us, arrived_us)), pc.subtract(tried_us, arrived_us), 0
    )
    recorded = rows.column("recorded")
    if pc.any(pc.not_equal(delay_us, 0)).as_py():
        # The end of a remote read has a request, but no record.
        waited_ms = pc.subtract(pc.struct_field(recorded, "remote_ms"), pc.divide(delay_us.cast(pa.float64()), 1000))
        changed = pc.not_equal(delay_us, 0)
        recorded = _with_fields(
            recorded,
            remote_ms=pc.if_else(changed, pc.max_element_wise(waited_ms, 0.0), pc.struct_field(recorded, "remote_ms")),
        )
    return {
        "request_id": pc.coalesce(name, events["request_id"]) if "request_id" in events else name,
        "time_us": pc.add(arrived_us, delay_us),
        "recorded": recorded,
    }


def _given_event(row: Row) -> dict[str, Any]:
    """Return the event of a row, which is in one of the columns `EVENT`."""
    if row["event"] is not None:
        event: dict[str, Any] = from_json(row["event"])
        return event
    for kind in ("fetch", "produce"):
        if row[kind] is not None:
            fields = row[kind]
            client = {"client_id": fields.pop("client_id")}
            event = {"time_us": fields.pop("time_us"), "type": kind, **fields, "broker": row["broker"]}
            return event if client["client_id"] is None else event | client
    place = {name: row[name] for name in ("broker", "topic", "partition")}
    changed = {name: value for name, value in row["change"].items() if value is not None}
    return {"time_us": row["time_us"], "type": "partition", **place, **changed}


def _with_request(event: dict[str, Any], row: Row) -> dict[str, Any]:
    """Return the event of a request with its id and the time of its first try. Updates the row's recorded wait."""
    if row["request_id"] is None:
        return event
    delay_us = row["time_us"] - event["time_us"]
    event["request_id"] = row["request_id"]
    if delay_us > 0:
        event["time_us"] = row["time_us"]
        if row["recorded"] is not None:
            row["recorded"]["remote_ms"] = max(0, row["recorded"]["remote_ms"] - delay_us / 1000)
    return event


def _of_remote_fetches(recorded: pa.StructArray, remote: pa.Array) -> pa.StructArray:
    """Return recorded outcomes in which remote fetches have their kind and outcome; see `UNORDERED` for `remote`."""
    kind, outcome = (pc.struct_field(recorded, name) for name in ("kind", "outcome"))
    waited = pc.and_(remote.is_valid(), pc.not_equal(outcome, AT_ONCE))
    of_waits = pc.if_else(pc.equal(remote, 1), EXPIRED, COMPLETED)
    return _with_fields(
        recorded,
        kind=pc.if_else(remote.is_valid(), REMOTE_FETCH, kind),
        outcome=pc.if_else(waited, of_waits, outcome),
    )


def _with_fields(structs: pa.StructArray, **changed: pa.Array) -> pa.StructArray:
    """Return structs with other values of some fields."""
    columns = [changed.get(field.name, pc.struct_field(structs, field.name)) for field in structs.type]
    return pa.StructArray.from_arrays(columns, fields=list(structs.type), mask=structs.is_null())


def _parts(converted: Iterable[ConvertedRequest | ConvertedColumns], report: Report) -> Batches:
    operations: list[tuple[Any, ...]] = []
    held: list[Row] = []
    facts: dict[tuple[int, Key], list[Fact]] = {}
    waiting = 0
    for parts in converted:
        if isinstance(parts, ConvertedColumns):
            report.count("operations", len(parts.limit_ms))
            yield from batches_of_operations(parts, PARTS)
            for place, of_place in parts.facts.items():
                facts.setdefault(place, []).extend(of_place)
            continue
        broker = parts.broker
        for key, fact in parts.facts:
            facts_of_key = facts.get((broker, key))
            if facts_of_key is None:
                facts_of_key = facts[broker, key] = []
            facts_of_key.append(fact)
        waiting += len(parts.facts)
        report.count("operations", len(parts.operations))
        operations += map(row_of_operation, parts.operations)
        for operation in parts.operations:
            if (overdue := overdue_operation(operation)) is not None:
                held.append(_overdue_row(overdue))
        if parts.bad is not None:
            held += _bad_row(parts, report)
        if len(operations) + len(held) >= ROWS or waiting >= FACTS:
            yield batch_of_part(OPERATION, OPERATION_FIELDS, operations, PARTS)
            yield batch_of_rows([*held, *_packed(_at_valid_places(facts))], PARTS)
            operations, held, facts, waiting = [], [], {}, 0
    held += count_rows(report.counts)
    yield batch_of_part(OPERATION, OPERATION_FIELDS, operations, PARTS)
    yield batch_of_rows([*held, *_packed(_at_valid_places(facts))], PARTS)


def _at_valid_places(facts: Mapping[tuple[int, Key], list[Fact]]) -> dict[tuple[Any, ...], list[Fact]]:
    return {
        (broker, *key, None): its_facts
        for (broker, key), its_facts in facts.items()
        if _is_valid_partition(broker, key)
    }


def rows_of_parts(parts: ConvertedRequest, report: Report) -> Iterator[Row]:
    """Yield the overdue operations of a converted request, and its line if it was malformed."""
    yield from _overdue_rows(parts)
    yield from _bad_row(parts, report)


def row_of_operation(operation: LoggedOperation) -> tuple[Any, ...]:
    """Return the values of the columns `OPERATION_FIELDS`."""
    event = operation.event
    recorded = None if operation.recorded is None else msgspec.structs.astuple(operation.recorded)
    return *order_of_operation(operation), event["type"], to_json(event), recorded


def _overdue_rows(parts: ConvertedRequest) -> Iterator[Row]:
    for operation in parts.operations:
        overdue = overdue_operation(operation)
        if overdue is not None:
            yield _overdue_row(overdue)


def _overdue_row(overdue: OverdueOperation) -> Row:
    broker, file, line, *times = overdue
    return {"part": OVERDUE, "broker": broker, "file": file, "line": line, "numbers": times}


def _bad_row(parts: ConvertedRequest, report: Report) -> Iterator[Row]:
    if parts.bad is not None:
        file, line = parts.bad.place
        report.count("bad_lines")
        text = {"kind": parts.bad.reason, "event": parts.bad.raw}
        yield {"part": BAD, "broker": parts.broker, "file": file, "line": line, **text}


class RequestFacts(NamedTuple):
    """Facts of a request about partitions at a broker; `settled` as in `Facts`."""

    broker: int
    settled: bool | None
    facts: Sequence[tuple[Key, Fact]]


class SettledOperation(NamedTuple):
    """An operation of a followed log, and whether its request is settled; see `carried_state.CONVERTED`."""

    operation: LoggedOperation
    settled: bool


def _is_valid_partition(broker: int, key: Key) -> bool:
    """Return whether broker and partition are valid; otherwise, the contract rejects the event."""
    return -1 <= broker <= INT32 and 0 <= key[1] <= INT32


def _batch_of_offset_changes(
    changes: Sequence[tuple[OffsetChanges, int]], partitions: Sequence[tuple[int, str, int]], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of the changes of partitions (broker, topic, partition), with the number of each first change."""
    all_changes = OffsetChanges(*map(np.concatenate, zip(*(each for each, _ in changes), strict=True)))
    lengths = np.array([len(each.at_us) for each, _ in changes])
    of_partition = np.repeat(np.arange(len(changes)), lengths)
    starts = np.array([number for _, number in changes]) - (np.cumsum(lengths) - lengths)
    brokers, topics, numbers = (pa.array(column).take(of_partition) for column in zip(*partitions, strict=True))
    count = len(of_partition)
    kinds = pa.array(all_changes.kind)
    moved = {
        "change": pa.array(KINDS_OF_OFFSETS).take(kinds),
        "offset": pa.array(all_changes.offset),
        "bytes": pa.array(all_changes.bytes, mask=all_changes.bytes < 0),
        "batches": pa.array(all_changes.batches, mask=all_changes.batches < 0),
        "replica_id": pa.array(all_changes.replica, mask=all_changes.replica < 0),
    }
    columns = {
        "time_us": pa.array(all_changes.at_us),
        "rank": pa.array(RANKS_OF_OFFSETS).take(kinds),
        "broker": brokers,
        "topic": topics,
        "partition": numbers,
        "file": pa.repeat(NO_REQUEST.file, count),
        "line": pa.repeat(NO_REQUEST.line, count),
        "sub": pa.array(starts[of_partition] + np.arange(count)),
        "change": pa.StructArray.from_arrays([moved[field.name] for field in CHANGED], fields=list(CHANGED)),
    }
    return _batch_of_columns(CHANGE, columns, schema)


def _batch_of_columns(part: str, columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of rows of one part; the columns of the schema that are not given are null."""
    count = len(next(iter(columns.values())))
    given = {"part": pa.repeat(part, count), **columns}
    arrays = [
        given[field.name].cast(field.type) if field.name in given else nulls(count, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _changed(event: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the fields (CHANGED) of a change that moves an offset; None for other events, which are stored as JSON."""
    if event.get("change") not in _MOVING or not 0 <= event["offset"] <= INT64:
        return None
    return event["change"], event["offset"], event.get("bytes"), event.get("batches"), event.get("replica_id")


def _reads_of(timeline: PartitionTimeline, facts: PartitionFacts) -> Iterator[tuple[Any, ...]]:
    for number, read in enumerate(timeline.remote_reads):
        event = remote_read_event(facts, read)
        timed = TimedEvent(end_of_read_us(read), PROGRESS_RANK, event, Place(read.file, read.line))
        order = order_of_change(facts.broker, facts.topic, facts.partition, number, timed)
        yield *order, to_json(event), None, read.slot, int(is_open(read)), read.waited_us


def rows_in(batches: Batches) -> Iterator[Row]:
    """Yield the rows of record batches as dictionaries."""
    for batch in batches:
        yield from batch.to_pylist()


def batches_of(
    rows: Iterable[Facts | RequestFacts | SettledOperation | Row | pa.RecordBatch], schema: pa.Schema
) -> Batches:
    """Yield batches of the rows, with the facts of a partition serialized together. Batches remain unchanged.

    Facts of requests about invalid partitions are left out, because the contract rejects their events.
    """
    held: list[Row] = []
    operations: list[tuple[Any, ...]] = []
    fields = (*OPERATION_FIELDS, "settled")
    facts: dict[tuple[Any, ...], list[Fact]] = {}
    waiting = 0
    for row in rows:
        if isinstance(row, RequestFacts):
            for (topic, partition), fact in row.facts:
                place = row.broker, topic, partition, row.settled
                facts_of_key = facts.get(place)
                if facts_of_key is None:
                    if not _is_valid_partition(row.broker, (topic, partition)):
                        continue
                    facts_of_key = facts[place] = []
                facts_of_key.append(fact)
                waiting += 1
        elif isinstance(row, Facts):
            if row.facts:
                facts.setdefault(row[:4], []).extend(row.facts)
                waiting += len(row.facts)
        elif isinstance(row, pa.RecordBatch):
            yield row
        elif isinstance(row, SettledOperation):
            operations.append((*row_of_operation(row.operation), row.settled))
        else:
            held.append(row)
        if len(held) + len(operations) >= ROWS or waiting >= FACTS:
            yield batch_of_rows([*held, *_packed(facts)], schema)
            yield batch_of_part(OPERATION, fields, operations, schema)
            held, operations, facts, waiting = [], [], {}, 0
    yield batch_of_rows([*held, *_packed(facts)], schema)
    if operations:
        yield batch_of_part(OPERATION, fields, operations, schema)


def _packed(facts: Mapping[tuple[Any, ...], list[Fact]]) -> Iterator[Row]:
    for place, of_place in facts.items():
        yield {"part": FACT, **dict(zip(_FACT_PLACE, place, strict=True)), "packed": packed_facts(of_place)}
