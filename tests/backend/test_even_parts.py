"""`cut_apart`: rows are split into parts of about the same amount of work."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from purgatory_udf.backend.local import sheet
from purgatory_udf.backend.local.sheet import Arranged, cut_apart

LONG = "d" * 900


@pytest.mark.parametrize(
    ("together", "expected"),
    [
        # The long text is longer than all others together.
        ((), [["a", "a", "b", "b", "c"], [LONG, "d"]]),
        (("broker",), [["a", "a", "b", "b"], ["c", LONG, "d"]]),
        # Rows without a session are kept together like those of a session.
        (("broker", "session"), [["a", "a", "b", "b"], ["c", LONG], ["d"]]),
        (("all",), [["a", "a", "b", "b", "c", LONG, "d"]]),
    ],
)
def test_rows_with_same_keys_stay_together(
    together: tuple[str, ...], expected: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet, "LEAST_BYTES", 1)
    monkeypatch.setattr(sheet, "LEAST_ALONE_BYTES", 1)
    monkeypatch.setattr(sheet, "_ROW_BYTES", 30)
    rows = pa.table(
        {
            "broker": [1, 1, 1, 1, 2, 2, 2],
            "session": ["s", "s", "s", None, None, None, "s"],
            "all": [0] * 7,
            "text": [text for part in expected for text in part],
        }
    )
    parts = cut_apart(Arranged(rows), together, 2)
    assert [part().column("text").to_pylist() for part in parts] == expected
    # The result is the same if the rows have to be sorted first.
    backwards = np.arange(rows.num_rows, dtype=np.uint64)[::-1]
    parts = cut_apart(Arranged(rows.take(backwards), backwards), together, 2)
    assert [part().column("text").to_pylist() for part in parts] == expected


def test_small_input_is_one_part() -> None:
    rows = pa.table({"text": ["a"] * 1_000})
    for small in (rows, rows.slice(0, 0)):
        assert [part() for part in cut_apart(Arranged(small), (), 4)] == [small]
