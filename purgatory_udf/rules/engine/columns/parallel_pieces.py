"""A table's rows taken in by several threads, a piece each, and put together as if one had done it.

A thread numbers the keys that it meets by itself, and has room for all that its rows can bring about. So what a later
piece came to moves up to the piece before it, and its keys get the numbers that they have there, or new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from purgatory_udf.rules.engine.columns.column_access import read
from purgatory_udf.rules.engine.columns.event_records import SLOT, TABLES, WORDS, WORLD, arrive
from purgatory_udf.rules.engine.jit.compiled_functions import entry
from purgatory_udf.rules.engine.jit.intrinsics import move_up
from purgatory_udf.rules.engine.jit.records import Records, named, world_of
from purgatory_udf.rules.engine.loop.arena import HOME, MORE
from purgatory_udf.rules.engine.loop.codes import ANY_BROKER, UNKNOWN, Code, Error
from purgatory_udf.rules.engine.loop.engine_call import Room

# Work that another thread does meanwhile: compiled code and Arrow hold nobody up while they are at it.


Made = TypeVar("Made")

# So many rows are worth a thread; more threads than these wait for memory.
_WORTH_A_THREAD, _THREADS = 1 << 15, 4


def threads_for(rows: int) -> int:
    """At most as many as Arrow would have: what the environment says that a process may. Spark says that to its
    workers, so these have one for each core of a task."""
    return max(1, min(pa.cpu_count(), _THREADS, rows // _WORTH_A_THREAD))


def begun(work: Callable[[], Made]) -> Callable[[], Made]:
    """Waits for what the work makes, or raises what it did."""
    other = ThreadPoolExecutor(1)
    later = other.submit(work)
    other.shutdown(wait=False)
    return later.result


# What a piece comes to, and which of its world's numbers says how much of it there is.
_COUNTED_BY = {
    "events": "event_count",
    "asked": "asked_count",
    "told": "told_count",
    "in_sync": "members",
    "requests": "request_count",
    "named": "named_count",
    "names": "keys",
    "homes": "home_count",
}


class Upto(NamedTuple):
    """How much there is before a row: rows, changes among them, keys that requests ask, in-sync replicas, and names of
    errors."""

    rows: int
    changes: int
    asked: int
    members: int
    named: int

    @property
    def places(self) -> dict[str, int]:
        """Where in its table begins what rows from here on come to, if those before come to as much as they can: a
        change of a leader is one of its topic, too."""
        return {
            "events": self.rows + self.changes,
            "asked": self.asked,
            "told": self.changes,
            "in_sync": self.members,
            "requests": self.rows,
            "named": self.named,
            "names": self.asked + 2 * self.changes,
            "homes": self.rows,
        }


class Arrived(NamedTuple):
    """What all rows came to; `requests`, `named`: the rows of requests, and those of items with an error's name;
    `mixed`: whether any event comes before one that is earlier."""

    names: list[str]
    events: Records
    asked: Records
    told: Records
    in_sync: Records
    requests: Records
    named: Records
    room: Room
    mixed: bool


def arrived(columns: Records, borders: Sequence[Upto], most: int) -> Arrived:
    """The columns' rows between two borders are a piece. `most`: the most bytes that a fetch is given."""
    sizes = borders[-1].places
    room = {name: np.empty(sizes[name], TABLES[name]) for name in _COUNTED_BY}
    pieces = [_Piece(columns, room, begin, end, most) for begin, end in pairwise(borders)]
    others = [begun(piece.arrive) for piece in pieces[1:]]
    pieces[0].arrive()
    for done in others:
        done()
    whole = _Whole(room)
    for piece in pieces:
        whole.add(piece)
    return whole.arrived()


class _Piece:
    def __init__(self, columns: Records, room: dict[str, Records], begin: Upto, end: Upto, most: int) -> None:
        self._rows, self.begin = (begin.rows, end.rows), begin.places
        ends = end.places
        self._tables = {name: rows[self.begin[name] : ends[name]] for name, rows in room.items()}
        slots = np.empty(1 << (2 * len(self._tables["names"])).bit_length(), SLOT)
        self._tables |= {"columns": columns, "words": WORDS.records, "slots": slots}
        self._world = world_of(self._tables, TABLES, WORLD, most=most)

    def arrive(self) -> None:
        arrive(self._world, *self._rows)

    def count(self, number: str) -> int:
        return int(self._world[number][0])

    def found(self, name: str) -> Records:
        return self._tables[name][: self.count(_COUNTED_BY[name])]


class _Whole:
    """What the pieces came to, one behind the other."""

    def __init__(self, room: dict[str, Records]) -> None:
        self._room = room
        self._numbers: dict[str, int] = {}
        self._homes: dict[tuple[int, int], None] = {}
        self._names: list[tuple[Records, Records]] = []
        self._upto: Counter[str] = Counter()
        self._parts = self._nodes = 0
        self._mixed = False

    def add(self, piece: _Piece) -> None:
        names = piece.found("names")
        keys = np.array([self._numbers.setdefault(name, len(self._numbers)) for name in _key_names(names)], np.int32)
        self._names.append((keys, names))
        self._homes |= dict.fromkeys(piece.found("homes").tolist())
        if len(self._names) > 1:
            self._move_up(piece, keys)
        self._upto.update({name: len(piece.found(name)) for name in _COUNTED_BY})
        self._parts += piece.count("parts")
        self._nodes += piece.count("nodes")
        self._mixed |= piece.count("mixed") != 0

    def _move_up(self, piece: _Piece, keys: Records) -> None:
        upto, events = self._upto, self._room["events"]
        piece.found("told")["first"] += upto["in_sync"]
        _tell_keys(named(piece.found("asked")), keys, upto["named"])
        _tell_places(named(piece.found("events")), keys, upto["asked"], upto["told"], upto["requests"])
        for name in ("events", "asked", "told", "in_sync", "requests", "named"):
            move_up(self._room[name], piece.begin[name], upto[name], len(piece.found(name)))
        if upto["events"] and len(piece.found("events")):
            before, after = (events[["t", "seq"]][at] for at in (upto["events"] - 1, upto["events"]))
            self._mixed |= before.item() > after.item()

    def arrived(self) -> Arrived:
        more = np.zeros(len(self._numbers), MORE)
        for keys, names in self._names:
            for field in ("batches", "rolls"):
                more[field][keys] += names[field].astype(more[field].dtype)
        tables = {name: rows[: self._upto[name]] for name, rows in self._room.items()}
        requests = tables["requests"]["row"]
        homes = np.array(list(self._homes), HOME)
        return Arrived(
            list(self._numbers), tables["events"], tables["asked"], tables["told"], tables["in_sync"], requests,
            tables["named"]["row"], Room(more, homes, len(requests), self._parts, self._nodes), self._mixed,
        )  # fmt: skip


def _key_names(keys: Records) -> list[str]:
    fields = (keys[name].tolist() for name in ("topic", "length", "broker", "partition"))
    return [
        f"{ANY_BROKER if broker == UNKNOWN else broker}/{partition}/{read(topic, length)}"
        for topic, length, broker, partition in zip(*fields, strict=True)
    ]


@entry
def _tell_places(events: Records, keys: Records, asked: int, told: int, requests: int) -> None:
    """What else they tell of lies behind so much of the pieces before."""
    for e in range(len(events)):
        event = events[e]
        if event.code <= Code.CREATE_TOPICS:
            event.first += asked
            event.text += requests
        else:
            event.key = keys[event.key]
            if event.told >= 0:
                event.told += told


@entry
def _tell_keys(asked: Records, keys: Records, names: int) -> None:
    for a in range(len(asked)):
        ask = asked[a]
        ask.key = keys[ask.key]
        if ask.error == Error.RECORDED:
            ask.text += names
