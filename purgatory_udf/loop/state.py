"""What a group of keys remembers between calls: its keys' logs, what is open, and the gauges' purgatories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from purgatory_udf.config import INT32_MAX
from purgatory_udf.loop.call import Call, no_texts
from purgatory_udf.loop.entering import MORE, TOTALS, enter
from purgatory_udf.loop.leaving import CANCELLED, EXPIRED, OPEN, SHARE, count, leave
from purgatory_udf.loop.links import link
from purgatory_udf.loop.reaper import STEP_MS
from purgatory_udf.loop.run import run
from purgatory_udf.loop.tables import named, world_of
from purgatory_udf.loop.words import ANY_BROKER, FOREVER, UNKNOWN, Code, parts_of
from purgatory_udf.loop.world import (
    BATCH,
    HEAPS,
    KEY,
    MEMBER,
    NODE,
    NONE,
    OPERATION,
    PART,
    PLACE,
    PURGATORY,
    QUEUED,
    READING,
    ROLL,
    ROOT,
    TIMER,
    WHEEL,
    WHEELS,
    Records,
)


@dataclass
class Found:
    """What a call found: operations that ended, each with its parts, and gauges where they changed. Ended operations
    lie where the loop left them, among the open ones."""

    all_operations: Records
    all_parts: Records
    ended: Records  # places of operations: those that completed, those that expired, those whose broker stopped
    request_ids: pa.Array  # by `text` of the operations
    client_ids: pa.Array
    errors: pa.Array  # by `text` of the parts
    names: list[str]
    readings: Records
    purgatories: Records

    @property
    def operations(self) -> Records:
        """A copy of those that ended."""
        return self.all_operations[self.ended]


@dataclass
class State:
    names: list[str] = field(default_factory=list)
    now_ms: int = 0
    keys: Records = field(default_factory=lambda: np.zeros(0, KEY))
    batches: Records = field(default_factory=lambda: np.zeros(0, BATCH))
    rolls: Records = field(default_factory=lambda: np.zeros(0, ROLL))
    nodes: Records = field(default_factory=lambda: np.zeros(0, NODE))
    in_sync: Records = field(default_factory=lambda: np.zeros(0, MEMBER))
    operations: Records = field(default_factory=lambda: np.zeros(0, OPERATION))
    parts: Records = field(default_factory=lambda: np.zeros(0, PART))
    purgatories: Records = field(default_factory=lambda: np.zeros(0, PURGATORY))
    queued: Records = field(default_factory=lambda: np.zeros(0, QUEUED))
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
        one = self.purgatories
        purge = one["estimated"] - one["delayed"] > one["interval"]
        changed = (one["watched"] != one["read_watched"]) | (one["delayed"] != one["read_delayed"])
        due = changed | purge | (one["purged"] > 0)
        return int(one["next_step_ms"][due].min()) if due.any() else FOREVER


@dataclass(frozen=True)
class Limits:
    """What the loop has to know of the run: purge intervals by kind, when the trace began, and how many bytes behind
    the watermarks a reader can tell apart."""

    intervals: dict[Code, int]
    began_ms: int
    retain_bytes: int = INT32_MAX


def step(state: State, call: Call, horizon_ms: int, limits: Limits) -> Found:
    """Decide everything that the call decides; the state keeps the rest.

    The caller promises that these keys get no further event earlier than the horizon (events of the horizon's own
    millisecond may follow): what is due by then expires.
    """
    entered = _entered(state, call, limits)
    tables, world = _world(state, call, entered, limits.retain_bytes)
    link(world)
    run(world, len(call), horizon_ms)
    return _close(state, call, tables, world[0], limits)


def _number(state: State, names: list[str]) -> Records:
    """The keys' places in the state; keys seen for the first time get theirs."""
    known = {name: place for place, name in enumerate(state.names)}
    new = [name for name in names if name not in known]
    if new:
        state.keys = np.concatenate([state.keys, _unknown(new)])
        known |= {name: place for place, name in enumerate(new, len(state.names))}
        state.names = [*state.names, *new]
    return np.array([known[name] for name in names], dtype=np.int32).view(PLACE)


def _unknown(names: list[str]) -> Records:
    """Replicas of which nothing has been said: led, online, every offset unknown; topics without a leader."""
    keys = np.zeros(len(names), KEY)
    for field_ in ("end", "end_seg", "hw", "hw_seg", "lso", "lso_seg", "log_start", "epoch", "min_isr", "isr_count"):
        keys[field_] = UNKNOWN
    for field_ in ("hw_batch", "lso_batch", "nodes", "lists", "throttles", "stamped", "asked"):
        keys[field_] = NONE
    brokers = [parts_of(name)[0] for name in names]
    topics = np.array([broker == ANY_BROKER for broker in brokers], bool)
    keys["broker"] = [UNKNOWN if broker == ANY_BROKER else int(broker) for broker in brokers]
    keys["log_start"][topics] = 0
    return keys


@dataclass
class _Entered:
    """Which of the state's keys each of a call's is, and what its events need room for."""

    places: Records
    more: Records
    totals: Any


def _entered(state: State, call: Call, limits: Limits) -> _Entered:
    places = _number(state, call.names)
    entered = _Entered(places, named(np.zeros(len(state.keys), MORE)), named(np.zeros(1, TOTALS)))
    missing = np.empty(len(call.events), np.int64)
    enter(
        named(call.events), named(call.asked), named(places), named(state.purgatories), entered.more, missing,
        entered.totals,
    )  # fmt: skip
    _meet(state, call.events[missing[: entered.totals[0].purgatories]], limits)
    return entered


def _meet(state: State, requests: Records, limits: Limits) -> None:
    """Purgatories that are needed for the first time. Their reapers have been waking since the trace began."""
    if not len(requests):
        return
    began_ms = limits.began_ms // STEP_MS * STEP_MS
    added = np.zeros(len(requests), PURGATORY)
    for place, request in enumerate(requests):
        added[place]["broker"], added[place]["code"] = request["broker"], request["code"]
        added[place]["interval"] = limits.intervals[Code(int(request["code"]))]
    added["wheel_ms"] = added["last_wake_ms"] = began_ms
    added["next_step_ms"] = began_ms + STEP_MS
    added["next_bucket_ms"] = FOREVER
    state.purgatories = np.concatenate([state.purgatories, added])
    state.queued = np.concatenate([state.queued, np.zeros(len(added) * WHEELS, QUEUED)])
    state.now_ms = max(state.now_ms, began_ms)


def _roomy(counts: Records, more: Records, held: Records, begins: Records) -> tuple[Records, Records]:
    """Rows by key laid out anew, each key's with room for more: the rows, and where each key's begin."""
    room = counts + more
    begin = np.cumsum(room) - room
    rows = np.empty(int(room.sum()), held.dtype)
    if counts.sum():
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows[np.repeat(begin, counts) + inside] = held[np.repeat(begins, counts) + inside]
    return rows, begin


def _world(state: State, call: Call, entered: _Entered, retain_bytes: int) -> tuple[dict[str, Records], Records]:
    keys, totals = state.keys, entered.totals[0]
    more = entered.more
    batches, keys["batch_begin"] = _roomy(keys["batch_count"], more["batches"], state.batches, keys["batch_begin"])
    rolls, keys["roll_begin"] = _roomy(keys["roll_count"], more["rolls"], state.rolls, keys["roll_begin"])
    operations = np.empty(len(state.operations) + totals.operations, OPERATION)
    parts = np.empty(len(state.parts) + totals.parts, PART)
    operations[: len(state.operations)], parts[: len(state.parts)] = state.operations, state.parts
    nodes = np.empty(len(state.nodes) + len(state.parts) + totals.nodes, NODE)
    nodes[: len(state.nodes)] = state.nodes
    roots, wheels = np.empty(len(keys) * int(HEAPS), ROOT), np.empty(len(state.purgatories) * int(TIMER), WHEEL)
    roots["part"], wheels["first"] = NONE, NONE
    tables = {
        "events": call.events,
        "asked": call.asked,
        "places": entered.places,
        "keys": keys,
        "batches": batches,
        "rolls": rolls,
        "nodes": nodes,
        "in_sync": np.concatenate([state.in_sync, call.in_sync]),
        "operations": operations,
        "parts": parts,
        "roots": roots,
        "purgatories": state.purgatories,
        "queued": state.queued,
        "wheels": wheels,
        "readings": np.empty(2 * len(operations) + 2 * len(parts) + 16, READING),
    }
    return tables, world_of(
        tables,
        now_ms=state.now_ms,
        retain_bytes=retain_bytes,
        operations=len(state.operations),
        parts=len(state.parts),
        nodes=len(state.nodes),
        purgatories=len(state.purgatories),
        due=NONE,
        checking=NONE,
        texts=len(state.request_ids),
        errors=len(state.errors),
        members=len(state.in_sync),
    )


def _close(state: State, call: Call, tables: dict[str, Records], world: Any, limits: Limits) -> Found:
    operations, parts = tables["operations"][: world["operations"]], tables["parts"][: world["parts"]]
    request_ids = pa.concat_arrays([state.request_ids, call.request_ids])
    client_ids = pa.concat_arrays([state.client_ids, call.client_ids])
    errors = pa.concat_arrays([state.errors, call.errors])
    ended, kept, of_kept = _apart(operations, parts)
    found = Found(
        operations, parts, ended, request_ids, client_ids, errors, state.names,
        tables["readings"][: world["readings"]], state.purgatories,
    )  # fmt: skip

    state.request_ids, state.client_ids = (
        request_ids.take(pa.array(kept["text"])),
        client_ids.take(pa.array(kept["text"])),
    )
    kept["text"] = np.arange(len(kept))
    named = np.flatnonzero(of_kept["text"] >= 0)
    state.errors = errors.take(pa.array(of_kept["text"][named]))
    of_kept["text"][named] = np.arange(len(named))
    state.operations, state.parts = kept, of_kept
    state.now_ms = int(world["now_ms"])
    state.nodes = tables["nodes"][: world["nodes"]].copy()
    keys = state.keys
    keys["hw_batch"] = keys["lso_batch"] = keys["stamped"] = keys["asked"] = NONE
    keys["hung"] = 0
    _trim(state, tables, limits.retain_bytes)
    return found


def _apart(operations: Records, parts: Records) -> tuple[Records, Records, Records]:
    """Where operations lie that have ended; and those that are open, with their parts."""
    shares, begins = (named(np.zeros(int(OPEN) + 1, SHARE)) for _ in range(2))
    count(named(operations), shares)
    many, of_many = shares["operations"].tolist(), shares["parts"].tolist()
    for kind in (EXPIRED, CANCELLED):
        begins["operations"][kind] = sum(many[:kind])
    ended = np.empty(sum(many[:OPEN]), np.int64)
    kept, of_kept = named(np.empty(many[OPEN], OPERATION)), named(np.empty(of_many[OPEN], PART))
    leave(named(operations), named(parts), begins, ended, kept, of_kept)
    return ended, kept, of_kept


def _rows_by_key(keys: Records, what: str) -> tuple[Records, Records]:
    """Places of what all keys have, key after key; and whose each is."""
    counts = keys[f"{what}_count"].astype(np.int64)
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(keys[f"{what}_begin"].astype(np.int64), counts) + inside, np.repeat(np.arange(len(keys)), counts)


def _trim(state: State, tables: dict[str, Records], retain_bytes: int) -> None:
    """Let go of batches that no answer can depend on any more, and of everything else that is not in use.

    A fetch never counts more than its partition maximum, and never more than `fetch.max_bytes`. A batch that lies
    further than that behind both the high watermark and the last stable offset is merged with its neighbour: a fetch
    starting there still finds at least its maximum ahead of it. One that is larger than that stays, and so does the one
    before it: it is given whole to whoever begins there (see `answers`). Batches without bytes are merged at once.
    """
    keys = state.keys
    rows, owner = _rows_by_key(keys, "batch")
    batches = tables["batches"][rows]
    held = np.ones(len(batches), dtype=bool)
    held[:-1] = (owner[1:] != owner[:-1]) | (batches["pos"][1:] != batches["pos"][:-1])
    batches, owner = batches[held], owner[held]
    stable_pos = np.where(keys["lso_own"] == 1, keys["lso_pos"], keys["hw_pos"])
    bound = np.where(keys["hw"] == UNKNOWN, UNKNOWN, np.minimum(keys["hw_pos"], stable_pos) - retain_bytes)
    gone = np.zeros(len(batches), dtype=bool)
    same, following = owner[1:] == owner[:-1], batches["pos"][1:]
    large = batches["size"] > retain_bytes
    far = same & (following <= bound[owner[1:]]) & ~(large[:-1] | large[1:])
    gone[:-1] = far
    reach = np.full(len(keys), UNKNOWN, dtype=np.int64)
    np.maximum.at(reach, owner[:-1][far], batches["end"][:-1][far])
    state.batches = batches[~gone]
    keys["batch_count"] = np.bincount(owner[~gone], minlength=len(keys))
    keys["batch_begin"] = np.cumsum(keys["batch_count"]) - keys["batch_count"]

    rows, owner = _rows_by_key(keys, "roll")
    rolls = tables["rolls"][rows]
    stale = np.zeros(len(rolls), dtype=bool)
    stale[:-1] = (owner[1:] == owner[:-1]) & (rolls["base"][1:] <= reach[owner[1:]])
    state.rolls = rolls[~stale]
    keys["roll_count"] = np.bincount(owner[~stale], minlength=len(keys))
    keys["roll_begin"] = np.cumsum(keys["roll_count"]) - keys["roll_count"]

    told = keys["isr_count"] >= 0
    counts = np.where(told, keys["isr_count"], 0)
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    state.in_sync = tables["in_sync"][np.repeat(keys["isr_begin"].astype(np.int64), counts) + inside]
    keys["isr_begin"] = np.cumsum(counts) - counts
