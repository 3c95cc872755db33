"""What a group of keys remembers between calls: its keys' logs, what is open, and the gauges' purgatories."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.rules.engine.jit.intrinsics import chosen, copied, joined, put, repeated, side_by_side
from purgatory_udf.rules.engine.jit.records import Records, named
from purgatory_udf.rules.engine.loop.arena import (
    HEAPS,
    LISTS,
    MORE,
    NONE,
    OPEN,
    TABLES,
    TIMER,
    WHEELS,
    none_of,
    world_of,
)
from purgatory_udf.rules.engine.loop.call_cleanup import by_arrival, keep, lay_out, link, no_neighbours, trim
from purgatory_udf.rules.engine.loop.clock_advance import STEP_MS
from purgatory_udf.rules.engine.loop.codes import ANY_BROKER, FOREVER, UNKNOWN, Code, Error
from purgatory_udf.rules.engine.loop.engine_call import Call, Room, all_texts, no_texts, room_for
from purgatory_udf.rules.engine.loop.event_loop import run


@dataclass
class Decisions:
    """What a call decided: operations that ended, each with its parts, and gauges where they changed. Ended operations
    lie where the loop left them, among the open ones."""

    all_operations: Records
    all_parts: Records
    completed: Records  # places of operations
    expired: Records
    cancelled: Records
    request_ids: pa.Array  # by `text` of the operations
    client_ids: pa.Array
    errors: pa.Array  # by `text` of the parts
    names: list[str]
    readings: Records
    purgatories: Records

    @property
    def ended(self) -> Records:
        """Places of operations: those that completed, those that expired, those whose broker stopped."""
        return np.concatenate([self.completed, self.expired, self.cancelled])

    @property
    def operations(self) -> Records:
        """A copy of those that ended."""
        return chosen(self.all_operations, self.ended)


@dataclass
class State:
    names: list[str] = field(default_factory=list)
    now_ms: int = 0
    keys: Records = field(default_factory=none_of("keys"))
    batches: Records = field(default_factory=none_of("batches"))
    rolls: Records = field(default_factory=none_of("rolls"))
    nodes: Records = field(default_factory=none_of("nodes"))
    in_sync: Records = field(default_factory=none_of("in_sync"))
    operations: Records = field(default_factory=none_of("operations"))
    parts: Records = field(default_factory=none_of("parts"))
    purgatories: Records = field(default_factory=none_of("purgatories"))
    queued: Records = field(default_factory=none_of("queued"))
    request_ids: pa.Array = field(default_factory=no_texts)
    client_ids: pa.Array = field(default_factory=no_texts)
    errors: pa.Array = field(default_factory=no_texts)

    @property
    def next_deadline_ms(self) -> int:
        """The earliest deadline, or a time that never comes."""
        return int(self.operations["deadline"].min()) if len(self.operations) else FOREVER

    @property
    def next_reading_ms(self) -> int:
        """When a gauge will be read otherwise than it was, though nothing more ends; or a time that never comes."""
        purgatories = self.purgatories
        purge = purgatories["estimated"] - purgatories["delayed"] > purgatories["interval"]
        changed = purgatories["watched"] != purgatories["read_watched"]
        changed |= purgatories["delayed"] != purgatories["read_delayed"]
        due = changed | purge | (purgatories["purged"] > 0)
        return int(purgatories["next_step_ms"][due].min()) if due.any() else FOREVER


@dataclass(frozen=True)
class Limits:
    """What the loop has to know of the run: purge intervals by kind, when the trace began, and how many bytes behind
    the watermarks a reader can tell apart."""

    intervals: dict[Code, int]
    began_ms: int
    retain_bytes: int = INT32_MAX


def step(state: State, call: Call, horizon_ms: int, limits: Limits) -> Decisions:
    """Decide everything that the call decides; the state keeps the rest.

    The caller promises that these keys get no further event earlier than the horizon (events of the horizon's own
    millisecond may follow): what is due by then expires.
    """
    room = call.room or room_for(call.events, call.asked, len(call.names))
    tables, world = _world(state, call, room, limits)
    link(world)
    run(world, len(call), horizon_ms)
    return _close(state, call, tables, world[0], limits)


def _number(state: State, names: list[str]) -> Records:
    """The keys' places in the state; keys seen for the first time get theirs."""
    if not state.names:
        state.keys, state.names = _unknown(names), names
        return np.arange(len(names), dtype=np.int32).view(TABLES["places"])
    known = dict(zip(state.names, count(), strict=False))
    new = [name for name in names if name not in known]
    if new:
        state.keys = joined([state.keys, _unknown(new)])
        known.update(zip(new, count(len(known)), strict=False))
        state.names = [*state.names, *new]
    return np.fromiter(map(known.__getitem__, names), np.int32, len(names)).view(TABLES["places"])


def _unknown(names: list[str]) -> Records:
    """Replicas of which nothing has been said: led, online, every offset unknown; topics without a leader."""
    keys = repeated(_of_nothing_said(), len(names))
    brokers = [name.partition("/")[0] for name in names]
    numbers = {broker: UNKNOWN if broker == ANY_BROKER else int(broker) for broker in set(brokers)}
    keys["broker"] = np.fromiter(map(numbers.__getitem__, brokers), np.int32, len(brokers))
    if ANY_BROKER in numbers:
        keys["log_start"][keys["broker"] == UNKNOWN] = 0
    return keys


@cache
def _of_nothing_said() -> Records:
    key = np.zeros(1, TABLES["keys"])
    for field_ in ("end", "end_seg", "hw", "hw_seg", "lso", "lso_seg", "log_start", "epoch", "min_isr", "isr_count"):
        key[field_] = UNKNOWN
    for field_ in ("hw_batch", "lso_batch", "nodes", "lists", "throttles", "stamped"):
        key[field_] = NONE
    return key


def _meet(state: State, homes: Records, limits: Limits) -> None:
    """Purgatories that are needed for the first time. Their reapers have been waking since the trace began."""
    purgatories = state.purgatories
    known = set(zip(purgatories["broker"].tolist(), purgatories["code"].tolist(), strict=True))
    new = [home for home in homes.tolist() if home not in known]
    if not new:
        return
    began_ms = limits.began_ms // STEP_MS * STEP_MS
    added = np.zeros(len(new), TABLES["purgatories"])
    added["broker"], added["code"] = zip(*new, strict=True)
    added["interval"] = [limits.intervals[Code(code)] for _, code in new]
    added["wheel_ms"] = added["last_wake_ms"] = began_ms
    added["next_step_ms"] = began_ms + STEP_MS
    added["next_bucket_ms"] = FOREVER
    state.purgatories = joined([state.purgatories, added])
    state.queued = joined([state.queued, np.zeros(len(added) * WHEELS, TABLES["queued"])])
    state.now_ms = max(state.now_ms, began_ms)


def _world(state: State, call: Call, room: Room, limits: Limits) -> tuple[dict[str, Records], Records]:
    places = _number(state, call.names)
    _meet(state, room.homes, limits)
    keys, operations = len(state.keys), len(state.operations) + room.operations
    parts = len(state.parts) + room.parts
    rooms = {
        "operations": operations,
        "keys": keys,
        "roots": keys * int(HEAPS),
        "batches": len(state.batches) + int(room.more["batches"].sum()) + keys,
        "rolls": len(state.rolls) + int(room.more["rolls"].sum()),
        "nodes": len(state.nodes) + len(state.parts) + room.nodes,
        "parts": parts,
        "links": parts + keys * int(LISTS),
        "turns": operations + len(state.purgatories) * int(TIMER),
        "ended": operations,
        "readings": 2 * operations + 2 * parts + 16,
    }
    tables = side_by_side({name: (TABLES[name], count) for name, count in rooms.items()})
    for name in ("keys", "operations", "parts", "nodes"):
        put(getattr(state, name), tables[name])
    tables["roots"]["part"] = NONE
    tables["ended"].view(np.int8).fill(OPEN)
    no_neighbours(tables["links"], parts)
    no_neighbours(tables["turns"], operations)
    more = np.zeros(keys, MORE)
    more[places["key"]] = room.more
    laid_out = (tables[name] for name in ("batches", "rolls"))
    lay_out(named(tables["keys"]), named(more), state.batches, state.rolls, *laid_out)
    tables |= {
        "events": call.events,
        "asked": call.asked,
        "told": call.told,
        "places": places,
        "in_sync": joined([state.in_sync, call.in_sync]),
        "purgatories": state.purgatories,
        "queued": state.queued,
    }
    return tables, world_of(
        tables,
        now=state.now_ms * 1000,
        retain_bytes=limits.retain_bytes,
        operations=len(state.operations),
        parts=len(state.parts),
        nodes=len(state.nodes),
        purgatories=len(state.purgatories),
        due=int(NONE),
        checking=int(NONE),
        texts=len(state.request_ids),
        errors=len(state.errors),
        members=len(state.in_sync),
    )


def _close(state: State, call: Call, tables: dict[str, Records], world: Any, limits: Limits) -> Decisions:
    operations, parts = tables["operations"][: world["operations"]], tables["parts"][: world["parts"]]
    completed, expired, cancelled = _ends(tables["ended"][: len(operations)], world)
    request_ids = all_texts(state.request_ids, call.request_ids)
    client_ids = all_texts(state.client_ids, call.client_ids)
    errors = all_texts(state.errors, call.errors)
    decided = Decisions(
        operations, parts, completed, expired, cancelled, request_ids, client_ids, errors, state.names,
        tables["readings"][: world["readings"]], state.purgatories,
    )  # fmt: skip
    ended = len(completed) + len(expired) + len(cancelled)
    kept = np.empty(len(operations) - ended, operations.dtype)
    of_kept = np.empty(len(parts) - int(world["ended_parts"]), parts.dtype)
    if len(kept):
        keep(named(operations), named(parts), named(kept), named(of_kept))
    erring = np.flatnonzero(of_kept["error"] == Error.RECORDED) if len(errors) else np.zeros(0, np.int64)
    state.request_ids, state.client_ids = (_taken(texts, kept["text"]) for texts in (request_ids, client_ids))
    state.errors = _taken(errors, of_kept["text"][erring])
    kept["text"] = np.arange(len(kept))
    of_kept["text"][erring] = np.arange(len(erring))
    state.operations, state.parts = kept, of_kept
    state.now_ms = int(world["now"]) // 1000
    state.nodes = copied(tables["nodes"][: world["nodes"]])
    _let_go(state, tables, limits.retain_bytes)
    return decided


def _taken(texts: pa.Array, which: Records) -> pa.Array:
    return texts.take(pa.array(which)) if len(which) else no_texts()


def _ends(endings: Records, world: Any) -> tuple[Records, Records, Records]:
    """Places of operations: those that completed, those that expired, those that were cancelled."""
    completed, expired = int(world["completed"]), int(world["expired"])
    places = np.empty(completed + expired + int(world["cancelled"]), np.int32)
    by_arrival(named(endings), completed, expired, places)
    return places[:completed], places[completed : completed + expired], places[completed + expired :]


def _let_go(state: State, tables: dict[str, Records], retain_bytes: int) -> None:
    """Of batches that no answer can depend on any more, and of everything else that is not in use."""
    keys, members = copied(tables["keys"]), tables["in_sync"]
    state.keys = keys
    # A set is one key's.
    of_keys = np.empty(len(members), members.dtype)
    batches, rolls = tables["batches"], tables["rolls"]
    kept = np.empty(int(keys["end_batch"].sum()), batches.dtype)
    in_use, in_use_rolls, in_use_members = trim(
        named(keys), named(batches), named(rolls), named(members), named(kept), named(of_keys), retain_bytes
    )
    # Most often all but a few.
    state.batches = kept[:in_use] if 2 * in_use > len(kept) else copied(kept[:in_use])
    state.rolls, state.in_sync = copied(rolls[:in_use_rolls]), of_keys[:in_use_members]
