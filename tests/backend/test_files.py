"""Folders of imports, and Delta tables in files with given boundaries and statistics."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from purgatory_udf.backend.file_system import LocalFiles, staging_folder
from purgatory_udf.backend.local_delta import create_with_files, cut_at_intervals
from purgatory_udf.common.errors import UserError


@pytest.mark.parametrize(
    ("times", "count", "expected"),
    [
        ([1, 2, 3, 1000, 1001, 2000], 1, [[1, 2, 3, 1000, 1001, 2000]]),
        ([1, 2, 3, 1000, 1001, 2000], 2, [[1, 2, 3], [1000, 1001, 2000]]),
        # A millisecond is never split, so there are fewer parts.
        ([1, 2, 3, 1000, 1001, 2000], 6, [[1, 2, 3], [1000, 1001], [2000]]),
        ([1, 2, 999], 3, [[1, 2, 999]]),
        ([], 1, []),
    ],
)
def test_rows_are_split_between_milliseconds(times: list[int], count: int, expected: list[list[int]]) -> None:
    rows = pa.table({"time_us": pa.array(times, pa.int64())})
    assert [part.column("time_us").to_pylist() for part in cut_at_intervals(rows, "time_us", count, 1000)] == expected


def test_commit_lists_files_in_order_with_statistics(tmp_path: Path) -> None:
    times = [1, 2000, 3000, 3001]
    at = pa.array(times).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"time_us": times, "at": at, "seq": [4, 3, 2, 1], "name": ["a", "b", None, "d"]})
    parts = list(cut_at_intervals(rows, "time_us", 2, 1000))
    create_with_files(parts, str(tmp_path), ("time_us", "at", "seq"), {"note": "text"}, rows.schema)
    written = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    assert written.to_table().equals(rows)
    # Statistics must not hide a file that has a matching row.
    for column in rows.column_names:
        for place, value in enumerate(rows.column(column)):
            which = pc.field(column) == value if value.is_valid else pc.field(column).is_null()
            assert written.to_table(filter=which).equals(rows.slice(place, 1)), (column, value)
    (log,) = (tmp_path / "_delta_log").glob("*.json")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    stats = [json.loads(entry["add"]["stats"]) for entry in entries if "add" in entry]
    assert [(of_file["numRecords"], of_file["minValues"], of_file["maxValues"]) for of_file in stats] == [
        (2, _range(1, 3), _range(2000, 4)),
        (2, _range(3000, 1), _range(3001, 2)),
    ]
    assert [entry["commitInfo"]["note"] for entry in entries if "commitInfo" in entry] == ["text"]


def _range(time_us: int, seq: int) -> dict[str, int | str]:
    return {"time_us": time_us, "at": f"1970-01-01T00:00:00.{time_us:06}Z", "seq": seq}


@pytest.mark.parametrize(
    ("error", "remains"), [(None, False), (UserError("no events"), False), (KeyboardInterrupt(), True)]
)
def test_staging_folder_is_emptied(error: BaseException | None, remains: bool, tmp_path: Path) -> None:
    """After an interrupt, the empty folder shows that the import is incomplete."""
    folder = tmp_path / "staged"
    (folder / "of-another-import").mkdir(parents=True)
    with suppress(UserError, KeyboardInterrupt), staging_folder(LocalFiles(), str(folder)):
        assert not [*folder.iterdir()]
        (folder / "rows").mkdir()
        (folder / "rows" / "0.arrow").write_bytes(b"rows")
        if error is not None:
            raise error
    assert folder.exists() is remains
    assert not remains or not [*folder.iterdir()]
