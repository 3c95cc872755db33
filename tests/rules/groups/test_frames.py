"""Frames: lazy selection and concatenation equal eager copies, and columns are copied only when read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.rules.groups.column_frames import Array, Frame
from tests.support.examples import examples

Rows = list[tuple[int, str]]


class CountingArray(np.ndarray):
    """A column that counts how often its rows are copied."""

    copies = 0

    def take(self, *args: Any, **more: Any) -> Array:  # type: ignore[override]
        self.copies += 1
        return np.asarray(self).take(*args, **more)


def frame(rows: Rows) -> Frame:
    return Frame(
        {
            "number": np.array([number for number, _ in rows], dtype=np.int64),
            "text": np.array([text for _, text in rows], dtype=object),
        }
    )


def rows_of(built: Frame) -> Rows:
    return list(zip(built.number.tolist(), built.text.tolist(), strict=True))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(st.integers(0, 50), max_size=8)),
        st.tuples(st.just("mask"), st.lists(st.booleans(), min_size=1, max_size=6)),
        st.tuples(st.just("slice"), st.tuples(st.integers(0, 6), st.integers(0, 6))),
        st.tuples(st.just("join"), st.lists(st.tuples(st.integers(0, 9), st.text(max_size=2)), max_size=4)),
        st.tuples(st.just("number"), st.integers(-9, 9)),
        st.tuples(st.just("read"), st.sampled_from(["number", "text"])),
        st.tuples(st.just("copy"), st.none()),
    ),
    max_size=12,
)


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=2)), max_size=6), STEPS)
def test_frame_operations_match_list_operations(rows: Rows, steps: list[tuple[str, Any]]) -> None:
    built = frame(rows)
    for step, value in steps:
        if step == "rows" and rows:
            at = [place % len(rows) for place in value]
            built, rows = built.take(np.array(at, dtype=np.int64)), [rows[place] for place in at]
        elif step == "mask":
            mask = [value[place % len(value)] for place in range(len(rows))]
            built, rows = (
                built.take(np.array(mask, dtype=bool)),
                [row for row, retained in zip(rows, mask, strict=True) if retained],
            )
        elif step == "slice":
            built, rows = built.take(slice(*value)), rows[slice(*value)]
        elif step == "join":
            built, rows = Frame.concat([built, frame(value)]), rows + value
        elif step == "number":
            built, rows = built.with_columns(number=np.full(len(rows), value)), [(value, text) for _, text in rows]
        elif step == "read":
            assert len(getattr(built, value)) == len(rows)
        elif step == "copy":
            built = built.copy()
        assert len(built) == len(rows)
    assert rows_of(built) == rows


def test_column_is_copied_once_when_read() -> None:
    read, other = (np.arange(6).view(CountingArray) for _ in range(2))
    selected = Frame({"read": read, "other": other}).take(np.array([5, 3, 1])).take(np.array([True, False, True]))
    joined = Frame.concat([selected, selected.take(np.array([0]))])
    assert joined.take(np.array([2, 1])).read.tolist() == [5, 1]
    assert joined.take(np.array([0])).read.tolist() == [5]
    assert (read.copies, other.copies) == (2, 0), "one copy for each of the concatenated frames"


def test_slices_share_one_copy_of_column() -> None:
    column = np.arange(6).view(CountingArray)
    selected = Frame({"number": column}).take(np.array([5, 3, 1]))
    slices = [selected.take(slice(at, at + 1)).number.tolist() for at in range(3)]
    assert (slices, column.copies) == ([[5], [3], [1]], 1)


def test_replaced_column_does_not_affect_earlier_selection() -> None:
    whole = frame([(1, "a"), (2, "b")])
    selected = whole.take(np.array([1]))
    whole.columns["number"] = np.array([8, 9])
    assert (selected.number.tolist(), whole.number.tolist()) == ([2], [8, 9])
    assert (list(whole), list(whole.columns)) == (["number", "text"], ["number", "text"])


def test_merge_has_columns_of_both_frames() -> None:
    merged = frame([(1, "a")]).merge(Frame({"number": np.array([7]), "more": np.array([3])}))
    assert {name: column.tolist() for name, column in merged.columns.items()} == {
        "number": [7],
        "text": ["a"],
        "more": [3],
    }


def test_copy_references_no_other_array() -> None:
    retained = frame([(number, "") for number in range(100)]).take(slice(0, 2)).copy()
    assert [column.base for column in retained.columns.values()] == [None, None]


def test_missing_column_is_named_in_error() -> None:
    empty = frame([])
    with pytest.raises(AttributeError, match=r"^colour$"):
        _ = empty.colour
    with pytest.raises(KeyError, match=r"^'colour'$"):
        _ = empty.columns["colour"]
