"""Rows chosen and moved as bytes are the rows that numpy chooses field by field."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.rules.engine.jit.intrinsics import chosen, copied, distinct, joined, put, repeated, side_by_side
from purgatory_udf.rules.engine.jit.records import Kind, Records
from purgatory_udf.rules.engine.loop.arena import ASKED, BATCH, KEY, TABLES

_NUMBERS = st.lists(st.integers(0, 99), max_size=120).map(lambda numbers: np.array(numbers, np.int32))


def _rows(kind: Kind, count: int, seed: int = 1) -> Records:
    size = np.dtype(kind).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size * count), kind).copy()


@pytest.mark.parametrize("kind", TABLES.values(), ids=TABLES)
def test_rows_keep_every_byte_and_are_copies(kind: Kind) -> None:
    rows, more = _rows(kind, 7), _rows(kind, 3, seed=2)
    before = rows.tobytes()
    places = np.array([6, 0, 0, 3])
    moved = {
        "copied": (copied(rows), before),
        "a part": (copied(rows[2:5]), rows[2:5].tobytes()),
        "by places": (chosen(rows, places), rows[places].tobytes()),
        "by a mask": (chosen(rows, _mask(places, 7)), rows[[0, 3, 6]].tobytes()),
        "joined": (joined([rows, rows[:0], more]), before + more.tobytes()),
        "repeated": (repeated(rows[2:3], 3), 3 * rows[2:3].tobytes()),
    }
    for how, (those, expected) in moved.items():
        assert those.dtype == kind, how
        assert those.tobytes() == expected, how
        those.view(np.uint8)[:] = 0
    assert rows.tobytes() == before


def _mask(places: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, bool)
    mask[places] = True
    return mask


def test_of_nothing_nothing_is_moved() -> None:
    none = np.zeros(0, BATCH)
    assert len(copied(none)) == len(chosen(none, np.zeros(0, np.int64))) == len(joined([none])) == 0
    assert [len(table) for table in side_by_side({"none": (ASKED, 0), "three": (KEY, 3)}).values()] == [0, 3]


def test_tables_in_one_piece_of_memory_lie_apart_each_at_a_line() -> None:
    tables = side_by_side({name: (kind, 3) for name, kind in TABLES.items()})
    rows = {name: _rows(kind, 2, seed) for seed, (name, kind) in enumerate(TABLES.items())}
    for name, table in tables.items():
        table.view(np.uint8)[:] = 0
        put(rows[name], table)
    for name, table in tables.items():
        kind = TABLES[name]
        assert (len(table), table.dtype, table.ctypes.data % 64) == (3, kind, 0)
        assert table.tobytes() == rows[name].tobytes() + bytes(kind.itemsize)


@given(_NUMBERS, st.sampled_from([100, 1_000, 100_000]))
def test_different_numbers_come_in_order_whether_they_are_few_or_many(
    numbers: npt.NDArray[np.int32], below: int
) -> None:
    those = distinct(numbers, below)
    assert those.tolist() == sorted(set(numbers.tolist()))
    assert those.dtype == numbers.dtype
