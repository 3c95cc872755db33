"""`Rules` for share groups: share fetches, deliveries and the gauges of the purgatory ShareFetch.

A single group of the query contains all share groups of a trace, for three reasons: a share fetch spans partitions of
several topics, a share partition that moves continues at another broker, and the purgatory belongs to all share groups
of a broker. The rules are those of the reference, executed event by event. Of events that share groups do not depend
on, only time and broker are kept: a broker checks waiting share fetches at the end of any request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.contract.tables import ENDS, TABLES
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.rules.engine.loop.state_codec import add_header, strip_header
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.event_handlers import SHARE_EVENTS, SHARE_STORAGE_EVENTS
from purgatory_udf.rules.reference.reference_replay import FINISHED_BY_BROKER, VERSION, ShareReplay, ShareResults
from purgatory_udf.rules.reference.share_partition import SharePartition
from purgatory_udf.rules.reference.share_records import RecordState
from purgatory_udf.streaming.stateful_adapter import STATUS, InputChunk, OutputChunk, Plan, Rules, Scalars
from purgatory_udf.streaming.status_file import EXPIRATION_SECONDS

DELIVERIES = "share_deliveries"
# The name of the only group.
ALL_SHARES = "shares"
PURGATORY = "ShareFetch"
_MAGIC = b"PSHR"

# Columns of the events that change share groups, and of those of which only the time matters.
_COLUMNS = (
    "time_us", "seq", "broker", "type", "request_id", "client_id", "acks", "replica_id", "max_wait_ms", "min_bytes",
    "max_bytes", "partitions", "topic", "partition", "change", "offset", "bytes", "leader_epoch", "isr", "min_isr",
    "batches", "wake", "group", "member_id", "session_epoch", "max_records", "batch_size", "acquire_mode",
    "acknowledgements", "state_write_ms", "record_lock_duration_ms", "delivery_count_limit",
    "partition_max_record_locks", "auto_offset_reset", "start_offset", "states", "state_write_errors", "error",
    "isolation", "aborted", "last_offset", "exhausted", "full", "first_offset", "dead_letter_queue",
    "connection_closed",
)  # fmt: skip
_TICK_COLUMNS = ("time_us", "seq", "broker", "type")
_EFFECTIVE_TYPES = ("produce", "partition", "share_fetch", *SHARE_EVENTS, *SHARE_STORAGE_EVENTS)
# For the frequent types: the columns, and the fields of `partitions`, that the rules need.
_NEEDED = {
    "produce": (
        ("time_us", "broker", "type", "acks", "partitions"),
        ("topic", "partition", "error", "last_offset", "bytes"),
    ),
    "fetch": (("time_us", "broker", "type", "replica_id", "partitions"), ("topic", "partition", "fetch_offset")),
    "partition": (
        (
            "time_us", "broker", "type", "topic", "partition", "change", "offset", "bytes", "batches", "leader_epoch",
            "isr", "min_isr", "wake", "replica_id", "aborted",
        ),
        (),
    ),
}  # fmt: skip
_SCHEMA = pa.schema([TABLES["events"].field(name) for name in _COLUMNS])

# The number of waiting share fetches of a broker that the status file lists.
_LISTED_WAITS = 10


@dataclass(frozen=True)
class ShareRules(Rules[ShareReplay, pa.Table]):
    """The rules of the query for share groups."""

    plan: Plan
    config: Config
    trace_start_ms: int

    def input_columns(self, names: Sequence[str]) -> list[str]:
        return [name for name in _COLUMNS if name in names]

    def split_by_group(self, events: pa.Table) -> Iterator[InputChunk]:
        is_follower = pc.fill_null(pc.greater_equal(events.column("replica_id"), 0), False)
        is_effective = pc.or_(pc.is_in(events.column("type"), pa.array(_EFFECTIVE_TYPES)), is_follower)
        is_request = pc.is_in(events.column("type"), pa.array(sorted(FINISHED_BY_BROKER)))
        ticks = events.filter(pc.and_(is_request, pc.invert(is_effective))).select(_TICK_COLUMNS)
        rows = pa.concat_tables([events.filter(is_effective), ticks], promote_options="default")
        if len(rows):
            yield InputChunk(ALL_SHARES, pc.max(rows.column("time_us")).as_py(), _serialize(rows))

    def decode_rows(self, values: Sequence[bytes]) -> pa.Table:
        tables = [pa.ipc.open_stream(value).read_all() for value in values]
        rows = pa.concat_tables([_SCHEMA.empty_table(), *tables], promote_options="default")
        return rows.sort_by([("time_us", "ascending"), ("seq", "ascending")])

    def encode_rows(self, rows: pa.Table) -> bytes:
        return _serialize(rows)

    def times_us(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = rows.column("time_us").to_numpy()
        return times

    def select(self, rows: pa.Table, which: npt.NDArray[np.bool_]) -> pa.Table:
        return rows.filter(pa.array(which))

    def decode_state(self, value: bytes | None) -> ShareReplay:
        if value is None:
            return ShareReplay(self.config, self.trace_start_ms, self.plan.pauses)
        return ShareReplay.from_bytes(strip_header(_MAGIC, VERSION, value), self.config)

    def encode_state(self, state: ShareReplay) -> bytes:
        return add_header(_MAGIC, VERSION, state.to_bytes(), pack=True)

    def scalars(self, state: ShareReplay) -> Scalars:
        operations = state.open.values()
        wake_ms = state.next_wake_ms()
        return Scalars(
            len(operations),
            min((operation.started_us // 1000 for operation in operations), default=None),
            min((operation.deadline_ms for operation in operations), default=None),
            state.share_partitions,
            FOREVER if wake_ms is None else wake_ms,
        )

    def step(
        self, group: str, state: ShareReplay, rows: pa.Table, horizon_ms: int
    ) -> tuple[ShareReplay, Iterator[OutputChunk]]:
        results = state.step(_events(rows), None if horizon_ms >= FOREVER else horizon_ms)
        return state, self._chunks(group, state, results, horizon_ms)

    def _chunks(self, group: str, state: ShareReplay, results: ShareResults, horizon_ms: int) -> Iterator[OutputChunk]:
        by_table: dict[str, list[dict[str, Any]]] = {}
        for outcome in results.outcomes:
            by_table.setdefault(_table_of(outcome), []).append(self._end_row(outcome))
        for broker, delivery in results.deliveries:
            row = {name: getattr(delivery, name) for name in delivery.__slots__ if not name.endswith("_us")}
            row |= {"broker": broker, "acquired_at": delivery.acquired_us, "ended_at": delivery.ended_us}
            row["held_ms"] = delivery.ended_us // 1000 - delivery.acquired_us // 1000
            row["after_end"] = self._is_after_end(delivery.ended_us)
            by_table.setdefault(DELIVERIES, []).append(row)
        for gauge in results.gauges:
            reading = {name: getattr(gauge, name) for name in ("broker", "purgatory", "watched", "delayed", "purged")}
            by_table.setdefault("purgatory_gauges", []).append(reading | {"at": gauge.at_ms * 1000})
        for table, rows in by_table.items():
            latest_us = max(row["completed_at"] for row in rows) if table in ENDS else 0
            payload = _serialize(_table(rows, table, self.plan.run_id))
            yield OutputChunk(table, "", latest_us, len(rows), payload)
        if self.plan.is_followed:
            yield OutputChunk(STATUS, group, horizon_ms * 1000, 0, _status(state, results.outcomes))

    def _end_row(self, outcome: Outcome) -> dict[str, Any]:
        """Return an outcome as a row with the columns of every outcome table; each table selects its own columns."""
        row: dict[str, Any] = {name: getattr(outcome, name) for name in outcome.__slots__}
        row |= dict.fromkeys(("completed_at", "expired_at", "cancelled_at"), outcome.ended_us)
        row |= {"started_at": outcome.started_us, "deadline": outcome.deadline_us, "wait_ms": outcome.wait_ms}
        row |= {"reason": outcome.completed_by, "after_end": self._is_after_end(outcome.deadline_us)}
        row["partitions"] = [{name: getattr(part, name) for name in part.__slots__} for part in outcome.partitions]
        return row

    def _is_after_end(self, time_us: int) -> bool:
        end_us = self.plan.trace_end_us
        return end_us is not None and time_us > end_us // 1000 * 1000

    def tick(self, events: int, latest_us: int, horizon_ms: int) -> Iterator[OutputChunk]:
        return iter(())

    def schema(self, table: str) -> pa.Schema:
        return TABLES[table]

    def decode_table(self, name: str, payloads: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        for payload in payloads:
            with pa.ipc.open_stream(payload) as stream:
                yield from stream


def _events(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows as events. Of the frequent types, only the fields that the rules need become objects."""
    for batch in rows.to_batches(max_chunksize=1 << 12):
        types = batch.column("type")
        events: list[dict[str, Any]] = [{}] * len(batch)
        is_other = np.ones(len(batch), dtype=bool)
        for kind, (columns, fields) in _NEEDED.items():
            of_kind = pc.equal(types, kind)
            narrow = batch.filter(of_kind).select(columns)
            if fields and len(narrow):
                narrow = _with_fields(narrow, fields)
            is_kind = of_kind.to_numpy(zero_copy_only=False)
            is_other &= ~is_kind
            _place(events, is_kind, narrow)
        _place(events, is_other, batch.filter(pa.array(is_other)))
        yield from events


def _with_fields(batch: pa.RecordBatch, fields: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with these fields of its `partitions` only."""
    column = batch.column("partitions")
    entries = pa.StructArray.from_arrays([pc.struct_field(column.values, name) for name in fields], fields)
    lists = pa.ListArray.from_arrays(column.offsets, entries)
    return batch.set_column(batch.schema.get_field_index("partitions"), "partitions", lists)


def _place(events: list[dict[str, Any]], where: npt.NDArray[np.bool_], rows: pa.RecordBatch) -> None:
    """Put the rows, as objects, into the places of `events` that the mask `where` selects."""
    for at, event in zip(np.flatnonzero(where).tolist(), rows.to_pylist(), strict=True):
        events[at] = event


def _table_of(outcome: Outcome) -> str:
    return "cancellations" if outcome.cancelled else "expirations" if outcome.expired else "completions"


def _table(rows: Sequence[dict[str, Any]], name: str, run_id: str) -> pa.Table:
    schema = TABLES[name]
    columns = [
        pa.array([run_id] * len(rows) if field.name == "run_id" else [row[field.name] for row in rows], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _serialize(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _status(state: ShareReplay, outcomes: Sequence[Outcome]) -> bytes:
    """Return the update of the status file (see `status_update`): outcomes of a call, gauges, and oldest operations."""
    counts = Counter(map(_table_of, outcomes))
    expired = Counter((each.deadline_us // 1_000_000, each.broker) for each in outcomes if each.expired)
    last = max((second for second, _ in expired), default=0)
    update: dict[str, Any] = {table: counts[table] for table in ENDS}
    update["expired"] = [
        [second, broker, PURGATORY, count]
        for (second, broker), count in sorted(expired.items())
        if second > last - EXPIRATION_SECONDS
    ]
    update["open"] = len(state.open)
    update["purgatories"] = [[broker, PURGATORY, watched, delayed] for broker, watched, delayed in state.gauges()]
    update["oldest"] = []
    listed = Counter[int]()
    for operation in state.open.values():
        request = operation.request
        listed[request.broker] += 1
        if listed[request.broker] <= _LISTED_WAITS:
            update["oldest"].append(
                {
                    "broker": request.broker,
                    "purgatory": PURGATORY,
                    "kind": request.kind,
                    "operation_id": request.operation_id,
                    "request_id": request.request_id,
                    "client_id": request.client_id,
                    "key": request.key,
                    "since_us": request.started_us,
                    "deadline_ms": operation.deadline_ms,
                    "lacks": pending_reason(operation),
                    "replicas": [],
                }
            )
    return json.dumps(update, separators=(",", ":")).encode()


def pending_reason(operation: DelayedShareFetch) -> str:
    """Return why a share fetch is waiting, as text: of its partitions, that in which most records are held."""
    if pending := operation.pending_reads:
        more = f" (and {len(pending) - 1} more)" if len(pending) > 1 else ""
        return f"{pending[0]}: a read of remote storage{more}"
    reasons = sorted(
        (_pending_reason(partition) for partition in operation.share_partitions.values()),
        key=lambda reason: -reason[0],
    )
    if not reasons:
        return "records"
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{reasons[0][1]}{more}"


def _pending_reason(partition: SharePartition) -> tuple[int, str]:
    """Return the number of records in flight that are not available, and why the partition has none to acquire."""
    if not partition.is_active:
        what = "no longer led by the broker" if partition.is_fenced else "the state of the group is being read"
        return 0, f"{partition.key}: {what}"
    held, archiving = Counter[str](), 0
    for batch in partition.batches:
        for first, last, state in batch.states():
            if state.state is RecordState.ACQUIRED:
                held[state.member_id] += last + 1 - first
            elif state.state is RecordState.ARCHIVING:
                archiving += last + 1 - first
    limit = partition.limits.partition_max_record_locks
    is_full = partition.in_flight >= limit
    what = f"{partition.in_flight:,} of {limit:,} records in flight" if is_full else "no records"
    holder = "".join(f", {count:,} held by {member}" for member, count in held.most_common(1))
    queued = f", {archiving:,} on their way to the dead-letter queue" if archiving else ""
    return held.total() + archiving, f"{partition.key}: {what}{holder}{queued}"
