"""The state that a group of keys keeps between calls, and `step`, which runs one call on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import INT32_MAX, REMOTE_FETCH_MAX_WAIT_MS
from purgatory_udf.rules.engine.jit.records import (
    Records,
    allocate_tables,
    attribute_view,
    concat_records,
    copy_records,
    copy_to_front,
    empty_records,
    repeat_record,
    take_records,
)
from purgatory_udf.rules.engine.loop.arena import (
    BUCKETS_PER_TIMER,
    GROWTH,
    HEAP_STRIDE,
    LINGERING,
    LIST_COUNT,
    NONE,
    OPEN,
    TABLES,
    WHEELS,
    empty_table,
    make_arena,
)
from purgatory_udf.rules.engine.loop.clock_advance import GAUGE_INTERVAL_MS
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Code, Error
from purgatory_udf.rules.engine.loop.engine_call import (
    Call,
    Capacity,
    KeyNames,
    concat_strings,
    measure_capacity,
    no_strings,
)
from purgatory_udf.rules.engine.loop.event_loop import run
from purgatory_udf.rules.engine.loop.state_layout import (
    init_rings,
    keep_open,
    lay_out_logs,
    rebuild_links,
    sort_by_outcome,
    trim_logs,
)
from purgatory_udf.rules.purgatory.clock import Pauses


@dataclass
class Decisions:
    """The result of a call: operations that ended, with their parts, and gauge readings.

    The tables also contain operations that are still open; `completed`, `expired` and `cancelled` are row numbers.
    """

    all_operations: Records
    all_parts: Records
    completed: Records  # rows of `all_operations`
    expired: Records
    cancelled: Records
    request_ids: pa.Array  # by an operation's `text`
    client_ids: pa.Array
    errors: pa.Array  # by a part's `text`
    names: KeyNames
    readings: Records
    purgatories: Records
    ended_parts: int  # at least the number of parts of the operations that ended

    @property
    def ended(self) -> Records:
        """Rows of the operations that ended: completed, expired, then cancelled ones."""
        return np.concatenate([self.completed, self.expired, self.cancelled])

    @property
    def operations(self) -> Records:
        """A copy of the operations that ended."""
        return take_records(self.all_operations, self.ended)


@dataclass
class State:
    """The state of one group of keys: keys with their logs, open operations, and purgatories (tables as in `arena`)."""

    names: KeyNames = field(default_factory=KeyNames)
    now_ms: int = 0
    keys: Records = field(default_factory=empty_table("keys"))
    batches: Records = field(default_factory=empty_table("batches"))
    rolls: Records = field(default_factory=empty_table("rolls"))
    nodes: Records = field(default_factory=empty_table("nodes"))
    in_sync: Records = field(default_factory=empty_table("in_sync"))
    operations: Records = field(default_factory=empty_table("operations"))
    parts: Records = field(default_factory=empty_table("parts"))
    purgatories: Records = field(default_factory=empty_table("purgatories"))
    bucket_bits: Records = field(default_factory=empty_table("bucket_bits"))
    request_ids: pa.Array = field(default_factory=no_strings)
    client_ids: pa.Array = field(default_factory=no_strings)
    errors: pa.Array = field(default_factory=no_strings)

    @property
    def open_operations(self) -> Records:
        """The open operations, without ended ones that linger until their reads have returned."""
        lingering = self.operations["state"] == LINGERING
        return self.operations[~lingering] if lingering.any() else self.operations

    @property
    def next_deadline_ms(self) -> int:
        """The earliest deadline of an open operation, or `FOREVER`."""
        return int(self.operations["deadline"].min()) if len(self.operations) else FOREVER

    @property
    def next_reading_ms(self) -> int:
        """The time of the next gauge reading that will differ from the last one without any event, or `FOREVER`."""
        purgatories = self.purgatories
        purge = purgatories["estimated"] - purgatories["delayed"] > purgatories["interval"]
        changed = purgatories["watched"] != purgatories["read_watched"]
        changed |= purgatories["delayed"] != purgatories["read_delayed"]
        due = changed | purge | (purgatories["purged"] > 0)
        return int(purgatories["next_step_ms"][due].min()) if due.any() else FOREVER


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine, the same for all groups of a run.

    Attributes:
        purge_intervals: Kafka's purge interval of each kind of purgatory, in operations.
        trace_start_ms: Time of the trace's first event; reapers wake from then on.
        retain_bytes: The largest limit of a partition's read. Batches further than this behind the watermarks and the
            end of their segment may be merged.
        smallest_limit: The smallest limit of a partition's read. Batches larger than this are not merged.
        remote_wait_ms: The maximum wait of remote fetches in milliseconds; None: each fetch's own maximum wait.
        reads_all: Whether a remote fetch reads all of its remote partitions, or only the first.
        pauses: The times at which brokers stood still.
    """

    purge_intervals: dict[Code, int]
    trace_start_ms: int
    retain_bytes: int = INT32_MAX
    smallest_limit: int = 0
    remote_wait_ms: int | None = REMOTE_FETCH_MAX_WAIT_MS
    reads_all: bool = True
    pauses: Pauses = field(default_factory=Pauses)


def pause_records(pauses: Pauses) -> Records:
    """Return the pauses as a table, by broker and time."""
    rows = [(pause.paused_ms, pause.resumed_ms, pause.broker) for pause in pauses]
    table = np.zeros(len(rows), TABLES["pauses"])
    for name, column in zip(("paused_ms", "resumed_ms", "broker"), zip(*rows, strict=True), strict=False):
        table[name] = column
    return table


def step(state: State, call: Call, horizon_ms: int, settings: EngineSettings) -> Decisions:
    """Apply a call's events to the state, and return the operations that ended and the gauge readings.

    Args:
        state: The group's state; changed in place.
        call: Events of the group's keys, not earlier than those of previous calls.
        horizon_ms: The time up to which operations expire, inclusive. The caller guarantees that later calls contain
            no event before this millisecond; events within it are possible.
        settings: The run's settings.
    """
    capacity = call.capacity or measure_capacity(call.events, call.request_parts, len(call.names))
    tables, arenas = _build_arena(state, call, capacity, settings)
    rebuild_links(arenas)
    run(arenas, len(call), horizon_ms)
    return _collect(state, call, tables, arenas[0], settings)


def _number_keys(state: State, names: KeyNames) -> Records:
    """Return the row numbers of these keys in the state. Keys that the state does not have are added to it."""
    if not len(state.names):
        state.keys, state.names = _new_keys(names), names
        return np.arange(len(names), dtype=np.int32).view(TABLES["key_numbers"])
    known = dict(zip(state.names, count(), strict=False))
    old = len(known)
    numbers = np.array([known.setdefault(name, len(known)) for name in names], np.int32)
    if len(known) > old:
        new = names.take(np.flatnonzero(numbers >= old))
        state.keys, state.names = concat_records([state.keys, _new_keys(new)]), state.names.append(new)
    return numbers.view(TABLES["key_numbers"])


def _new_keys(names: KeyNames) -> Records:
    """Return new keys with their initial values: replicas lead and are online, and topics have no leaders."""
    keys, brokers = repeat_record(_unknown_key(), len(names)), names.columns.brokers
    keys["broker"] = brokers
    keys["log_start"][brokers == UNKNOWN] = 0
    return keys


@cache
def _unknown_key() -> Records:
    key = np.zeros(1, TABLES["keys"])
    for field_ in ("end", "end_seg", "hw", "hw_seg", "lso", "lso_seg", "log_start", "epoch", "min_isr", "isr_count"):
        key[field_] = UNKNOWN
    key["local_start"] = UNKNOWN
    for field_ in ("hw_batch", "lso_batch", "nodes", "dead_nodes", "throttle_nodes", "last_append"):
        key[field_] = NONE
    return key


def _add_purgatories(state: State, purgatory_keys: Records, settings: EngineSettings) -> None:
    """Add the purgatories that the state does not have yet, as if their reapers had run since the trace started."""
    purgatories = state.purgatories
    known = set(zip(purgatories["broker"].tolist(), purgatories["code"].tolist(), strict=True))
    new = [key for key in purgatory_keys.tolist() if key not in known]
    if not new:
        return
    trace_start_ms = settings.trace_start_ms // GAUGE_INTERVAL_MS * GAUGE_INTERVAL_MS
    added = np.zeros(len(new), TABLES["purgatories"])
    added["broker"], added["code"] = zip(*new, strict=True)
    added["interval"] = [settings.purge_intervals[Code(code)] for _, code in new]
    added["wheel_ms"] = added["last_wake_ms"] = trace_start_ms
    added["next_step_ms"] = trace_start_ms + GAUGE_INTERVAL_MS
    added["next_bucket_ms"] = FOREVER
    state.purgatories = concat_records([state.purgatories, added])
    state.bucket_bits = concat_records([state.bucket_bits, np.zeros(len(added) * WHEELS, TABLES["bucket_bits"])])
    state.now_ms = max(state.now_ms, trace_start_ms)


def _build_arena(
    state: State, call: Call, capacity: Capacity, settings: EngineSettings
) -> tuple[dict[str, Records], Records]:
    """Allocate the tables of a call, copy the state into them, and return them with their arena."""
    key_numbers = _number_keys(state, call.names)
    _add_purgatories(state, capacity.purgatory_keys, settings)
    keys, operations = len(state.keys), len(state.operations) + capacity.operations
    parts = len(state.parts) + capacity.parts
    sizes = {
        "operations": operations,
        "keys": keys,
        "heap_roots": keys * int(HEAP_STRIDE),
        "batches": len(state.batches) + int(capacity.growth["batches"].sum()) + keys,
        "rolls": len(state.rolls) + int(capacity.growth["rolls"].sum()),
        "nodes": len(state.nodes) + len(state.parts) + capacity.nodes,
        "parts": parts,
        "queue_links": parts + keys * int(LIST_COUNT),
        "timer_links": operations + len(state.purgatories) * int(BUCKETS_PER_TIMER),
        "outcomes": operations,
        "readings": 2 * operations + 2 * parts + 16,
    }
    tables = allocate_tables({name: (TABLES[name], count) for name, count in sizes.items()})
    for name in ("keys", "operations", "parts", "nodes"):
        copy_to_front(getattr(state, name), tables[name])
    tables["heap_roots"]["part"] = NONE
    tables["outcomes"].view(np.int8).fill(OPEN)
    init_rings(tables["queue_links"], parts)
    init_rings(tables["timer_links"], operations)
    growth = np.zeros(keys, GROWTH)
    growth[key_numbers["key"]] = capacity.growth
    logs = (tables["batches"], tables["rolls"])
    lay_out_logs(attribute_view(tables["keys"]), attribute_view(growth), state.batches, state.rolls, *logs)
    tables |= {
        "events": call.events,
        "request_parts": call.request_parts,
        "leader_and_isr": call.leader_and_isr,
        "key_numbers": key_numbers,
        "labels": _number_labels(state, call, capacity),
        "in_sync": concat_records([state.in_sync, call.in_sync]),
        "purgatories": state.purgatories,
        "bucket_bits": state.bucket_bits,
        "pauses": pause_records(settings.pauses),
    }
    return tables, make_arena(
        tables,
        now=state.now_ms * 1000,
        retain_bytes=settings.retain_bytes,
        smallest_limit=settings.smallest_limit,
        operations=len(state.operations),
        parts=len(state.parts),
        nodes=len(state.nodes),
        purgatories=len(state.purgatories),
        overdue=int(NONE),
        check_order=int(NONE),
        text_base=len(state.request_ids),
        error_base=len(state.errors),
        member_base=len(state.in_sync),
        remote_wait_ms=UNKNOWN if settings.remote_wait_ms is None else settings.remote_wait_ms,
        reads_all=settings.reads_all,
    )


def _number_labels(state: State, call: Call, capacity: Capacity) -> Records:
    """Return a number for each request id of the state and the call; equal ids have equal numbers.

    Only the results of reads need them, so without such events the array is empty.
    """
    if not capacity.read_ends:
        return np.zeros(0, TABLES["labels"])
    ids = concat_strings(state.request_ids, call.request_ids).dictionary_encode()
    # The import requires a request id, but tables can have null.
    return np.array(ids.indices.fill_null(-1), np.int32).view(TABLES["labels"])


def _collect(state: State, call: Call, tables: dict[str, Records], arena: Any, settings: EngineSettings) -> Decisions:
    """Collect the decisions of a call, and copy open operations back to the state."""
    operations, parts = tables["operations"][: arena["operations"]], tables["parts"][: arena["parts"]]
    completed, expired, cancelled = _rows_by_outcome(tables["outcomes"][: len(operations)], arena)
    request_ids = concat_strings(state.request_ids, call.request_ids)
    client_ids = concat_strings(state.client_ids, call.client_ids)
    errors, ended_parts = concat_strings(state.errors, call.errors), int(arena["ended_parts"])
    decided = Decisions(
        operations, parts, completed, expired, cancelled, request_ids, client_ids, errors, state.names,
        tables["readings"][: arena["readings"]], state.purgatories, ended_parts,
    )  # fmt: skip
    ended = len(completed) + len(expired) + len(cancelled)
    kept = empty_records(len(operations) - ended + int(arena["lingering"]), operations.dtype)
    kept_parts = empty_records(len(parts) - ended_parts + int(arena["lingering_parts"]), parts.dtype)
    if len(kept):
        rows, part_rows = keep_open(
            attribute_view(operations),
            attribute_view(parts),
            attribute_view(kept),
            attribute_view(kept_parts),
            int(arena["now"]),
        )
        kept, kept_parts = kept[:rows], kept_parts[:part_rows]
    with_error = np.flatnonzero(kept_parts["error"] == int(Error.RECORDED)) if len(errors) else np.zeros(0, np.int64)
    state.request_ids, state.client_ids = (
        _take_strings(strings, kept["text"]) for strings in (request_ids, client_ids)
    )
    state.errors = _take_strings(errors, kept_parts["text"][with_error])
    kept["text"] = np.arange(len(kept))
    kept_parts["text"][with_error] = np.arange(len(with_error))
    state.operations, state.parts = kept, kept_parts
    state.now_ms = int(arena["now"]) // 1000
    state.nodes = copy_records(tables["nodes"][: arena["nodes"]])
    _trim_state(state, tables, settings)
    return decided


def _take_strings(strings: pa.Array, which: Records) -> pa.Array:
    return strings.take(pa.array(which)) if len(which) else no_strings()


def _rows_by_outcome(outcomes: Records, arena: Any) -> tuple[Records, Records, Records]:
    """Return the rows of completed, expired and cancelled operations."""
    completed, expired = int(arena["completed"]), int(arena["expired"])
    rows = np.empty(completed + expired + int(arena["cancelled"]), np.int32)
    sort_by_outcome(attribute_view(outcomes), completed, expired, rows)
    return rows[:completed], rows[completed : completed + expired], rows[completed + expired :]


def _trim_state(state: State, tables: dict[str, Records], settings: EngineSettings) -> None:
    """Copy the keys back to the state, with compacted logs and in-sync sets."""
    keys, members = copy_records(tables["keys"]), tables["in_sync"]
    state.keys = keys
    # No two keys share an in-sync set.
    kept_members = empty_records(len(members), members.dtype)
    batches, rolls = tables["batches"], tables["rolls"]
    kept = empty_records(int(keys["end_batch"].sum()), batches.dtype)
    in_use, in_use_rolls, in_use_members = trim_logs(
        attribute_view(keys),
        attribute_view(batches),
        attribute_view(rolls),
        attribute_view(members),
        attribute_view(kept),
        attribute_view(kept_members),
        settings.retain_bytes,
        settings.smallest_limit,
    )
    # Usually nearly all of it is in use, and a view wastes little.
    state.batches = kept[:in_use] if 2 * in_use > len(kept) else copy_records(kept[:in_use])
    state.rolls, state.in_sync = copy_records(rolls[:in_use_rolls]), kept_members[:in_use_members]
