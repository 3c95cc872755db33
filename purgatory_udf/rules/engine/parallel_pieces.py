"""Parses a table in several threads, one piece of its rows each, with the same result as in one thread.

All threads write to the same tables. The output of a piece starts at the row that it would have if every earlier input
row needed as much space as possible. Each thread numbers the keys of its piece. Afterwards the rows of later pieces are
moved up to close the gaps, and their key numbers are replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import count, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.rules.engine.event_records import ARENA, BLOCK, TABLES, TOPICS, WORDS, parse_events
from purgatory_udf.rules.engine.jit.compiled_functions import entry_point, load_uint8
from purgatory_udf.rules.engine.jit.records import Records, attribute_view, empty_records, make_arena, move_rows
from purgatory_udf.rules.engine.loop.arena import GROWTH, PURGATORY_KEY
from purgatory_udf.rules.engine.loop.codes import LAST_WITH_PARTS, Error
from purgatory_udf.rules.engine.loop.engine_call import Capacity, KeyColumns, KeyNames

# Compiled code and Arrow release the GIL, so the threads run in parallel.


Result = TypeVar("Result")

# Rows that are worth a thread: with fewer, merging the pieces takes as long as two threads save. With more than 4
# threads, memory bandwidth is the limit.
_ROWS_PER_THREAD, _MAX_THREADS = 1 << 16, 4


def threads_for(rows: int) -> int:
    """Return the number of threads for this number of rows.

    It is at most Arrow's own, which the environment can limit: Spark gives its workers one per core of a task.
    """
    return max(1, min(pa.cpu_count(), _MAX_THREADS, rows // _ROWS_PER_THREAD))


def run_in_thread(work: Callable[[], Result]) -> Callable[[], Result]:
    """Start the work in another thread.

    Returns:
        A function that waits for the result and returns it, or raises the exception that the work raised.
    """
    executor = ThreadPoolExecutor(1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future.result


# The output tables, and the arena's scalar with the number of rows in each.
_COUNTERS = {
    "events": "event_count",
    "request_parts": "request_part_count",
    "leader_and_isr": "leader_and_isr_count",
    "in_sync": "members",
    "request_rows": "request_count",
    "error_rows": "error_count",
    "key_names": "keys",
    "purgatory_keys": "purgatory_key_count",
}


_SCALARS = (ARENA.names or ())[2 * len(TABLES) :]


class PieceOffsets(NamedTuple):
    """Counts up to a row of the input: rows, changes, parts of requests, in-sync replicas, and names of errors."""

    rows: int
    changes: int
    request_parts: int
    members: int
    error_rows: int

    @property
    def rows_by_table(self) -> dict[str, int]:
        """The first row in each output table of the piece that starts here.

        It leaves the greatest space that earlier input rows may need; a change, for example, may be a second event of
        its topic.
        """
        return {
            "events": self.rows + self.changes,
            "request_parts": self.request_parts,
            "leader_and_isr": self.changes,
            "in_sync": self.members,
            "request_rows": self.rows,
            "error_rows": self.error_rows,
            "key_names": self.request_parts + 2 * self.changes,
            "purgatory_keys": self.rows,
        }


class ParsedEvents(NamedTuple):
    """The parsed events, as the tables of a call.

    Attributes:
        names: The names of the keys.
        events: The events, in the order of the input.
        request_parts: The parts of the requests.
        leader_and_isr: Leader epochs and in-sync sets of the changes that have them.
        in_sync: The members of the in-sync sets.
        request_rows: The input row of each request.
        error_rows: The input row of each item that has an error recorded by name.
        capacity: The table capacity that the events need.
        unordered: Whether some event is earlier than the one before it.
    """

    names: KeyNames
    events: Records
    request_parts: Records
    leader_and_isr: Records
    in_sync: Records
    request_rows: Records
    error_rows: Records
    capacity: Capacity
    unordered: bool


def parse_in_parallel(columns: Records, starts: Sequence[PieceOffsets], **settings: int) -> ParsedEvents:
    """Parse events in one thread for each piece.

    Args:
        columns: Records of the input columns (`column_access`).
        starts: The start of each piece, then the end of the last.
        settings: Values of the scalars in the parser's arena (`event_records.ARENA`).
    """
    sizes = starts[-1].rows_by_table
    tables = {name: empty_records(sizes[name], TABLES[name]) for name in _COUNTERS}
    pieces = [_Piece(columns, tables, begin, end, settings) for begin, end in pairwise(starts)]
    waits = [run_in_thread(piece.parse) for piece in pieces[1:]]
    pieces[0].parse()
    for wait in waits:
        wait()
    merged = _MergedPieces(tables)
    for piece in pieces:
        merged.add(piece)
    return merged.parsed()


class _Piece:
    def __init__(
        self,
        columns: Records,
        tables: dict[str, Records],
        begin: PieceOffsets,
        end: PieceOffsets,
        settings: dict[str, int],
    ) -> None:
        self._rows, self.begin = (begin.rows, end.rows), begin.rows_by_table
        ends = end.rows_by_table
        self._tables = {name: rows[self.begin[name] : ends[name]] for name, rows in tables.items()}
        slots = 1 << (2 * len(self._tables["key_names"])).bit_length()
        self._tables |= {"columns": columns, "words": WORDS.records}
        self._tables |= {
            name: empty_records(count, TABLES[name])
            for name, count in (("slots", slots), ("block_rows", BLOCK), ("topics", TOPICS))
        }
        self._arena = make_arena(self._tables, TABLES, ARENA, **settings)

    def parse(self) -> None:
        parse_events(self._arena, *self._rows)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The scalars of the arena after parsing."""
        return dict(zip(_SCALARS, self._arena.view(np.int64).tolist()[-len(_SCALARS) :], strict=True))

    def rows(self, name: str) -> Records:
        return self._tables[name][: self.counts[_COUNTERS[name]]]


class _MergedPieces:
    """The output tables, in which the rows of the pieces follow each other without gaps."""

    def __init__(self, tables: dict[str, Records]) -> None:
        self._tables = tables
        self._numbers: dict[tuple[int, int, str], int] = {}
        self._purgatory_keys: dict[tuple[int, int], None] = {}
        self._names = KeyNames()
        self._named: list[tuple[Records, Records]] = []
        self._counts: Counter[str] = Counter()
        self._parts = self._nodes = self._read_ends = 0
        self._unordered = False

    def add(self, piece: _Piece) -> None:
        named = piece.rows("key_names")
        keys = self._number_keys(_key_names(named))
        self._named.append((keys, named))
        self._purgatory_keys |= dict.fromkeys(piece.rows("purgatory_keys").tolist())
        if len(self._named) > 1:
            self._move_rows(piece, keys)
        self._counts.update({name: piece.counts[counter] for name, counter in _COUNTERS.items()})
        self._parts += piece.counts["parts"]
        self._nodes += piece.counts["nodes"]
        self._read_ends += piece.counts["read_ends"]
        self._unordered |= piece.counts["unordered"] != 0

    def _number_keys(self, names: KeyNames) -> Records:
        """Return the numbers of a piece's keys. No two keys of a piece have the same name."""
        known = len(self._names)
        if not known:
            self._names = names
            return np.arange(len(names), dtype=np.int32)
        if not self._numbers:
            self._numbers = dict(zip(_tuples(self._names), count(), strict=False))
        numbers = self._numbers
        keys = np.array([numbers.setdefault(name, len(numbers)) for name in _tuples(names)], np.int32)
        self._names = self._names.append(names.take(np.flatnonzero(keys >= known)))
        return keys

    def _move_rows(self, piece: _Piece, keys: Records) -> None:
        counts, events = self._counts, self._tables["events"]
        piece.rows("leader_and_isr")["first"] += counts["in_sync"]
        _shift_parts(attribute_view(piece.rows("request_parts")), keys, counts["error_rows"])
        _shift_events(
            attribute_view(piece.rows("events")),
            keys,
            counts["request_parts"],
            counts["leader_and_isr"],
            counts["request_rows"],
        )
        for name in ("events", "request_parts", "leader_and_isr", "in_sync", "request_rows", "error_rows"):
            move_rows(self._tables[name], piece.begin[name], counts[name], len(piece.rows(name)))
        if counts["events"] and len(piece.rows("events")):
            before, after = (events[["t", "seq"]][at] for at in (counts["events"] - 1, counts["events"]))
            self._unordered |= before.item() > after.item()

    def parsed(self) -> ParsedEvents:
        growth = np.zeros(len(self._names), GROWTH)
        for keys, named in self._named:
            for field in ("batches", "rolls"):
                growth[field][keys] += named[field].astype(growth[field].dtype)
        tables = {name: rows[: self._counts[name]] for name, rows in self._tables.items()}
        request_rows = tables["request_rows"]["row"]
        purgatory_keys = np.array(list(self._purgatory_keys), PURGATORY_KEY)
        return ParsedEvents(
            self._names,
            tables["events"],
            tables["request_parts"],
            tables["leader_and_isr"],
            tables["in_sync"],
            request_rows,
            tables["error_rows"]["row"],
            Capacity(growth, purgatory_keys, len(request_rows), self._parts, self._nodes, self._read_ends),
            self._unordered,
        )


def _tuples(names: KeyNames) -> Iterator[tuple[int, int, str]]:
    """Return broker, partition and topic of each key, in a fraction of the time that its name would take."""
    brokers, partitions, topics = names.columns
    return zip(brokers.tolist(), partitions.tolist(), topics.to_pylist(), strict=True)


def _key_names(named: Records) -> KeyNames:
    """Return the names of a piece's keys, given as its rows of `key_names`."""
    size = int(named["length"].sum(dtype=np.int64))
    if size > INT32_MAX:
        raise OverflowError(f"the topics of {len(named)} keys have {size} bytes, more than an Arrow array can have")
    offsets, text = np.empty(len(named) + 1, np.int32), np.empty(size, np.uint8)
    _copy_topics(attribute_view(named), offsets, text)
    topics = pa.StringArray.from_buffers(len(named), pa.py_buffer(offsets), pa.py_buffer(text))
    return KeyNames(columns=KeyColumns(named["broker"].copy(), named["partition"].copy(), topics))


@entry_point
def _copy_topics(named: Records, offsets: Records, target: Records) -> None:
    """Copy the topics of keys to `target`, and fill `offsets` with Arrow's offsets."""
    size = offsets[0] = 0
    for key in range(len(named)):
        text, length = named[key].topic, named[key].length
        for copied in range(length):
            target[size + copied] = load_uint8(text, copied)
        size += length
        offsets[key + 1] = size


@entry_point
def _shift_events(events: Records, keys: Records, request_parts: int, leader_and_isr: int, request_rows: int) -> None:
    """Replace the key numbers of a piece's events by `keys`, and shift their row numbers.

    The shifts are the numbers of rows of earlier pieces in the tables of these names.
    """
    for e in range(len(events)):
        event = events[e]
        if event.code <= LAST_WITH_PARTS:
            event.first += request_parts
            event.text += request_rows
        else:
            event.key = keys[event.key]
            if event.leader_and_isr >= 0:
                event.leader_and_isr += leader_and_isr


@entry_point
def _shift_parts(request_parts: Records, keys: Records, names: int) -> None:
    """Replace the key numbers of a piece's parts by `keys`, and shift the rows of error names by `names`."""
    for a in range(len(request_parts)):
        part = request_parts[a]
        part.key = keys[part.key]
        if part.error == Error.RECORDED:
            part.text += names
