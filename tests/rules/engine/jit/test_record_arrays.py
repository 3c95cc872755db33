"""Records copied as bytes equal the ones that numpy copies field by field."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.rules.engine.jit.records import (
    DType,
    Records,
    allocate_tables,
    concat_records,
    copy_records,
    copy_to_front,
    repeat_record,
    sorted_unique,
    take_records,
)
from purgatory_udf.rules.engine.loop.arena import BATCH, KEY, REQUEST_PART, TABLES

_NUMBERS = st.lists(st.integers(0, 99), max_size=120).map(lambda numbers: np.array(numbers, np.int32))


def _rows(dtype: DType, count: int, seed: int = 1) -> Records:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size * count), dtype).copy()


@pytest.mark.parametrize("dtype", TABLES.values(), ids=TABLES)
def test_copies_keep_every_byte(dtype: DType) -> None:
    rows, more = _rows(dtype, 7), _rows(dtype, 3, seed=2)
    before = rows.tobytes()
    indices = np.array([6, 0, 0, 3])
    copies_by_operation = {
        "copied": (copy_records(rows), before),
        "a part": (copy_records(rows[2:5]), rows[2:5].tobytes()),
        "by indices": (take_records(rows, indices), rows[indices].tobytes()),
        "by a mask": (take_records(rows, _mask(indices, 7)), rows[[0, 3, 6]].tobytes()),
        "joined": (concat_records([rows, rows[:0], more]), before + more.tobytes()),
        "repeated": (repeat_record(rows[2:3], 3), 3 * rows[2:3].tobytes()),
    }
    for how, (copies, expected) in copies_by_operation.items():
        assert copies.dtype == dtype, how
        assert copies.tobytes() == expected, how
        copies.view(np.uint8)[:] = 0
    assert rows.tobytes() == before


def _mask(indices: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, bool)
    mask[indices] = True
    return mask


def test_empty_arrays_stay_empty() -> None:
    none = np.zeros(0, BATCH)
    assert len(copy_records(none)) == len(take_records(none, np.zeros(0, np.int64))) == len(concat_records([none])) == 0
    assert [len(table) for table in allocate_tables({"none": (REQUEST_PART, 0), "three": (KEY, 3)}).values()] == [0, 3]


def test_allocated_tables_start_at_cache_lines() -> None:
    """Tables do not overlap: writing to one changes no other."""
    tables = allocate_tables({name: (dtype, 3) for name, dtype in TABLES.items()})
    rows = {name: _rows(dtype, 2, seed) for seed, (name, dtype) in enumerate(TABLES.items())}
    for name, table in tables.items():
        table.view(np.uint8)[:] = 0
        copy_to_front(rows[name], table)
    for name, table in tables.items():
        dtype = TABLES[name]
        assert (len(table), table.dtype, table.ctypes.data % 64) == (3, dtype, 0)
        assert table.tobytes() == rows[name].tobytes() + bytes(dtype.itemsize)


@given(_NUMBERS, st.sampled_from([100, 1_000, 100_000]))
def test_unique_numbers_are_sorted(numbers: npt.NDArray[np.int32], below: int) -> None:
    unique = sorted_unique(numbers, below)
    assert unique.tolist() == sorted(set(numbers.tolist()))
    assert unique.dtype == numbers.dtype
