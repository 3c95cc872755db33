"""Parses a table in several threads, one piece of its rows each, with the same result as in one thread.

All threads write to the same tables. The output of a piece starts at the row that it would have if every earlier input
row needed as much space as possible. Each thread numbers the keys of its piece, after those of the table's first rows.
Afterwards the rows of later pieces are moved up to close gaps, and their key numbers are replaced. Usually there are no
gaps, and the first rows name all keys, so that the numbers are the same.
"""

from __future__ import annotations

import _thread
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.rules.engine.event_records import ARENA, BLOCK, TABLES, TOPICS, WORDS, number_keys, parse_events
from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import load_uint8
from purgatory_udf.rules.engine.jit.records import Records, attribute_view, empty_records, make_arena, move_rows
from purgatory_udf.rules.engine.loop.arena import GROWTH, PURGATORY_KEY
from purgatory_udf.rules.engine.loop.codes import LAST_WITH_PARTS, Error
from purgatory_udf.rules.engine.loop.engine_call import Capacity, KeyColumns, KeyNames

# Compiled code and Arrow release the GIL, so the threads run in parallel.


Result = TypeVar("Result")

# Rows that are worth a thread: with fewer, starting it takes as long as it saves. With more than 4 threads, memory
# bandwidth is the limit.
_ROWS_PER_THREAD, _MAX_THREADS = 1 << 15, 4


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
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    # `threading.Thread` and executors wait until the thread has started, and take three times as long.
    _thread.start_new_thread(run, ())
    return future.result


# The output tables, and the arena's scalar with the number of rows in each.
_COUNTERS = {
    "events": "event_count",
    "request_parts": "request_part_count",
    "leader_and_isr": "leader_and_isr_count",
    "in_sync": "members",
    "error_rows": "error_count",
    "key_names": "keys",
    "purgatory_keys": "purgatory_key_count",
}

# Rows of these tables are referred to by number, so all pieces number them from the start of the table on.
_REFERENCED = ("request_parts", "leader_and_isr", "in_sync", "error_rows")
_MOVED = ("events", *_REFERENCED)
# If fewer rows than one in this number have a new key, nearly all keys are known.
_MAX_ROWS_PER_NEW_KEY = 16
_SCALARS = (ARENA.names or ())[2 * len(TABLES) :]


class PieceOffsets(NamedTuple):
    """Counts up to a row of the input: rows, changes, parts of requests, in-sync replicas, and names of errors.

    `second_events` and `leader_and_isr` are the changes that may be an event of their topic, too, or have a row of that
    table.
    """

    rows: int
    changes: int
    second_events: int
    leader_and_isr: int
    request_parts: int
    members: int
    error_rows: int

    @property
    def rows_by_table(self) -> dict[str, int]:
        """The first row in each output table of the piece that starts here.

        It leaves the greatest space that earlier input rows may need.
        """
        return {
            "events": self.rows + self.second_events,
            "request_parts": self.request_parts,
            "leader_and_isr": self.leader_and_isr,
            "in_sync": self.members,
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
        error_rows: The input row of each item that has an error recorded by name.
        capacity: The table capacity that the events need.
        unordered: Whether some event is earlier than the one before it.
    """

    names: KeyNames
    events: Records
    request_parts: Records
    leader_and_isr: Records
    in_sync: Records
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
    tables = {name: empty_records(sizes[name], TABLES[name]) for name in _COUNTERS if name != "key_names"}
    # The first piece gets all keys.
    first = _Piece(columns, tables, starts[0], starts[1], sizes["key_names"], settings)
    later = []
    if len(starts) > 2:
        first.parse_most_keys()
        known = len(first.rows("key_names"))
        for begin, end in pairwise(starts[1:]):
            keys = known + end.rows_by_table["key_names"] - begin.rows_by_table["key_names"]
            later.append(_Piece(columns, tables, begin, end, keys, settings))
            later[-1].number_keys(first)
    waits = [run_in_thread(piece.parse) for piece in later]
    first.parse()
    for wait in waits:
        wait()
    merged = _MergedPieces(tables, first)
    for piece in (first, *later):
        merged.add(piece)
    return merged.parsed()


class _Piece:
    """Rows of the input that one thread parses.

    Args:
        columns: Records of the input columns.
        tables: The output tables of all pieces.
        begin: The start of the piece.
        end: Its end.
        keys: The number of keys that the piece may have.
        settings: Values of scalars in the arena.
    """

    def __init__(
        self,
        columns: Records,
        tables: dict[str, Records],
        begin: PieceOffsets,
        end: PieceOffsets,
        keys: int,
        settings: dict[str, int],
    ) -> None:
        self._next, self._end, self.begin = begin.rows, end.rows, begin.rows_by_table
        ends = end.rows_by_table
        self._first = {name: self.begin[name] if name in _REFERENCED else 0 for name in _COUNTERS}
        self._tables = {name: rows[self.begin[name] - self._first[name] : ends[name]] for name, rows in tables.items()}
        self._tables |= {"columns": columns, "words": WORDS.records}
        sizes = {"key_names": keys, "slots": 1 << (2 * keys).bit_length(), "block_rows": BLOCK, "topics": TOPICS}
        self._tables |= {name: empty_records(size, TABLES[name]) for name, size in sizes.items()}
        counters = {_COUNTERS[name]: row for name, row in self._first.items()}
        self._arena = make_arena(self._tables, TABLES, ARENA, **settings, **counters)

    def parse(self) -> None:
        """Parse the rows that are left."""
        self._parse_until(self._end)

    def parse_most_keys(self) -> None:
        """Parse the first rows, until few of them have new keys; at most an eighth of the rows."""
        limit, known, new = self._next + (self._end - self._next) // 8, 0, int(BLOCK)
        while _MAX_ROWS_PER_NEW_KEY * new >= BLOCK and self._next < limit:
            self._parse_until(min(self._next + int(BLOCK), limit))
            keys = len(self.rows("key_names"))
            known, new = keys, keys - known

    def _parse_until(self, end: int) -> None:
        parse_events(self._arena, self._next, end)
        self._next = end

    def number_keys(self, piece: _Piece) -> Records:
        """Return the numbers that the keys of another piece have in this one. New keys are added."""
        names = piece.rows("key_names")
        numbers = np.empty(len(names), np.int32)
        number_keys(self._arena, attribute_view(names), numbers)
        return numbers

    @property
    def counts(self) -> dict[str, int]:
        """The scalars of the arena; the counts of table rows start at the piece's first row."""
        counts = dict(zip(_SCALARS, self._arena.view(np.int64).tolist()[-len(_SCALARS) :], strict=True))
        for name in _REFERENCED:
            counts[_COUNTERS[name]] -= self._first[name]
        return counts

    def rows(self, name: str) -> Records:
        """Return the piece's rows of an output table."""
        return self._tables[name][self._first[name] : int(self._arena[_COUNTERS[name]][0])]


class _MergedPieces:
    """The output tables, in which the rows of the pieces follow each other without gaps."""

    def __init__(self, tables: dict[str, Records], first: _Piece) -> None:
        self._tables, self._first = tables, first
        self._purgatory_keys: dict[tuple[int, int], None] = {}
        self._named: list[tuple[Records, Records]] = []
        self._counts: Counter[str] = Counter()

    def add(self, piece: _Piece) -> None:
        keys = np.arange(len(piece.rows("key_names"))) if piece is self._first else self._first.number_keys(piece)
        self._named.append((keys, piece.rows("key_names")))
        self._purgatory_keys |= dict.fromkeys(piece.rows("purgatory_keys").tolist())
        before, events = self._counts["event_count"], piece.rows("events")
        if before and len(events):
            ends = self._tables["events"][before - 1], events[0]
            earlier, later = ((int(event["t"]), int(event["seq"])) for event in ends)
            self._counts["unordered"] += earlier > later
        if piece is not self._first:
            self._close_gaps(piece, keys)
        self._counts.update(piece.counts)

    def _close_gaps(self, piece: _Piece, keys: Records) -> None:
        """Move the piece's rows up to the end of the earlier ones, and replace its numbers of keys by `keys`."""
        ends = {name: self._counts[_COUNTERS[name]] for name in _MOVED}
        shifts = {name: end - piece.begin[name] if len(piece.rows(name)) else 0 for name, end in ends.items()}
        if not any(shifts.values()) and np.array_equal(keys, np.arange(len(keys))):
            return
        piece.rows("leader_and_isr")["first"] += shifts["in_sync"]
        _shift_parts(attribute_view(piece.rows("request_parts")), keys, shifts["error_rows"])
        _shift_events(attribute_view(piece.rows("events")), keys, shifts["request_parts"], shifts["leader_and_isr"])
        for name, shift in shifts.items():
            if shift:
                move_rows(self._tables[name], piece.begin[name], ends[name], len(piece.rows(name)))

    def parsed(self) -> ParsedEvents:
        names = _key_names(self._first.rows("key_names"))
        growth = np.zeros(len(names), GROWTH)
        for keys, named in self._named:
            for field in ("batches", "rolls"):
                total = growth[field]
                total[keys] += named[field].astype(total.dtype)
        counts, tables = self._counts, {name: self._tables[name][: self._counts[_COUNTERS[name]]] for name in _MOVED}
        purgatory_keys = np.array(list(self._purgatory_keys), PURGATORY_KEY)
        return ParsedEvents(
            names,
            tables["events"],
            tables["request_parts"],
            tables["leader_and_isr"],
            tables["in_sync"],
            tables["error_rows"]["row"],
            Capacity(
                growth,
                purgatory_keys,
                counts["request_count"],
                counts["parts"],
                counts["nodes"],
                counts["read_ends"],
            ),
            counts["unordered"] > 0,
        )


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
def _shift_events(events: Records, keys: Records, request_parts: int, leader_and_isr: int) -> None:
    """Replace the key numbers of a piece's events by `keys`, and shift their row numbers in these tables."""
    for e in range(len(events)):
        event = events[e]
        if event.code <= LAST_WITH_PARTS:
            event.first += request_parts
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
