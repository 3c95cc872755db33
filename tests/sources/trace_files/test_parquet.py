"""Traces in Parquet: schema, rows and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet as pq

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import read_row
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.sources.trace_files.piece_validation import validate_piece
from purgatory_udf.sources.trace_files.text_lines import Piece
from purgatory_udf.sources.trace_files.trace_reader import (
    IngestOptions,
    footer_of,
    make_source,
    row_as_text,
    rows_of,
    schema_problem,
)
from tests.contract.examples import WHOLE
from tests.sources.trace_files.traces import input_file, unpacked_rows, write


def rows(path: Path) -> list[dict[str, Any]]:
    file = input_file(path)
    groups = [row["row_group"] for row in footer_of(0, file).to_pylist()]
    pieces = [Piece(0, group, file, 0, 1) for group in groups]
    return [
        row
        for piece in pieces
        for row in unpacked_rows(validate_piece(piece, rows_of(piece), read_row, row_as_text, msgspec.json.encode))
    ]


def problem(path: Path) -> str:
    (row,) = footer_of(3, input_file(path)).to_pylist()
    assert (row["file"], row["row_group"], row["bytes"]) == (3, None, None)
    return str(row["problem"])


@pytest.mark.parametrize("kind", WHOLE)
def test_parquet_row_equals_json_line(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([field for field in EVENTS if field.name in WHOLE[kind]])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([WHOLE[kind]], schema=schema), path)
    event, _ = rows(path)
    assert {name: event[name] for name in schema.names} == pa.Table.from_pylist([WHOLE[kind]], schema).to_pylist()[0]
    (chunk,) = rows_of(Piece(0, 0, input_file(path), 0, 1))
    assert [json.loads(row_as_text(row)) for row in chunk.items] == [WHOLE[kind]]


def test_rows_are_numbered_and_validated(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    times = pa.array([5, 4, -1, None, 9], pa.int64())
    table = pa.table({"time_us": times, "type": ["clock"] * 5, "color": ["red"] * 5})
    pq.write_table(table, path, row_group_size=3)
    columns = ("piece", "line", "latest", "time_us", "reason", "raw")
    assert [tuple(row.get(name) for name in columns) for row in rows(path)] == [
        (0, 1, 0, 5, None, None),
        (0, 2, 5, 4, None, None),
        (0, 3, 5, None, "time_us: expected an integer >= 1, got -1", '{"time_us": -1, "type": "clock"}'),
        (0, 3, 5, None, None, None),
        (1, 1, 0, None, "time_us: missing, expected an integer >= 1", '{"type": "clock"}'),
        (1, 2, 0, 9, None, None),
        (1, 2, 9, None, None, None),
    ]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"type": pa.string()}, "column time_us is missing, expected int64"),
        ({"time_us": pa.int64()}, "column type is missing, expected string"),
        ({"time_us": pa.timestamp("us"), "type": pa.string()}, "column time_us is timestamp[us], expected int64"),
        ({"time_us": pa.float64(), "type": pa.string()}, "column time_us is double, expected int64"),
        ({"time_us": pa.int64(), "type": pa.int8()}, "column type is int8, expected string"),
        ({"time_us": pa.int64(), "type": pa.string(), "isr": pa.string()}, "column isr is string, expected list<"),
        (
            {"time_us": pa.int64(), "type": pa.string(), "isr": pa.list_(pa.string())},
            "column isr[] is string, expected int32",
        ),
        (
            {"time_us": pa.int64(), "type": pa.string(), "partitions": pa.list_(pa.struct([("topic", pa.int64())]))},
            "column partitions[].topic is int64, expected string",
        ),
        (
            {
                "time_us": pa.int64(),
                "type": pa.string(),
                "partitions": pa.list_(pa.struct([("topic", pa.string()), ("topic", pa.string())])),
            },
            "column partitions[].topic occurs 2 times",
        ),
    ],
)
def test_wrong_schema_is_reported_by_column(tmp_path: Path, columns: dict[str, pa.DataType], error: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.schema(list(columns.items())).empty_table(), path)
    assert problem(path).startswith(f"{path}: {error}")


def test_repeated_column_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    names = ["time_us", "color", "color", "type", "broker", "broker"]
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 3 + [pa.array(["clock"])] * 3, names), path)
    assert problem(path) == f"{path}: column broker occurs 2 times"


def test_missing_partition_column_is_reported(tmp_path: Path) -> None:
    """A folder may name a column that the file has, or an unknown one."""
    path = tmp_path / "day=2" / "broker=1" / "a.parquet"
    path.parent.mkdir(parents=True)
    table = pa.table({"time_us": [1], "type": ["clock"], "broker": [1]})
    pq.write_table(table, path)
    assert rows(path)[0]["broker"] == 1
    pq.write_table(table.drop_columns("broker"), path)
    reason = "column broker is missing, and only in the name of the folder broker=1; write it to the files, too"
    assert problem(path) == f"{path}: {reason}"


def test_other_widths_and_encodings_are_accepted() -> None:
    schema = pa.schema(
        [
            ("time_us", pa.uint64()),
            ("request_id", pa.int64()),
            ("type", pa.dictionary(pa.int32(), pa.string())),
            ("broker", pa.int8()),
            ("client_id", pa.large_string()),
            ("group", pa.null()),
            ("isr", pa.large_list(pa.int64())),
            (
                "partitions",
                pa.list_(pa.struct([("topic", pa.string()), ("offset", pa.int16()), ("rack", pa.binary())])),
            ),
            ("color", pa.binary()),
        ]
    )
    assert schema_problem(schema) is None


def test_unknown_nested_fields_are_ignored(tmp_path: Path) -> None:
    """They may have types that JSON does not have, and equal names. A column with a dot is no field of a record."""
    path = tmp_path / "a.parquet"
    columns = {name: pa.array([value]) for name, value in WHOLE["delete_records"].items() if name != "partitions"}
    names = ["topic", "partition", "offset", "at", "at"]
    times = pa.array([b"\xff", None]), pa.array([1, 2], pa.timestamp("ns"))
    records = pa.StructArray.from_arrays([pa.array(["t", "u"]), pa.array([0, -1]), pa.array([4, 5]), *times], names)
    columns = {name: pa.repeat(value[0], 2) for name, value in columns.items()}
    columns["broker.name"] = pa.array([b"\xff", None])
    pq.write_table(pa.table({**columns, "partitions": pa.ListArray.from_arrays([0, 1, 2], records)}), path)
    event, rejected, _ = rows(path)
    assert [(record["topic"], record["partition"], record["offset"]) for record in event["partitions"]] == [("t", 0, 4)]
    assert rejected["reason"] == "partitions[0].partition: expected an integer >= 0, got -1"
    expected = {**WHOLE["delete_records"], "partitions": [{"topic": "u", "partition": -1, "offset": 5}]}
    assert json.loads(rejected["raw"]) == expected


def test_integers_are_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {name: pa.array([value]) for name, value in WHOLE["remote_read"].items()}
    pq.write_table(pa.table({**columns, "request_id": pa.array([2**63], pa.uint64())}), path)
    assert rows(path)[0]["request_id"] == "9223372036854775808"


def test_rows_that_are_not_utf8_are_rejected(tmp_path: Path) -> None:
    """Other rows of the batch are events. Text of unknown columns is not read."""
    path = tmp_path / "a.parquet"
    columns = {name: pa.array([value] * 3) for name, value in WHOLE["delete_records"].items()}
    names = ["topic", "partition", "offset"]
    topics = pa.array([b"t", b"t", b"\xc3\xa4\xff"]).view(pa.string())
    records = pa.StructArray.from_arrays([topics, pa.array([0, 0, 0]), pa.array([4, 4, 4])], names)
    columns["partitions"] = pa.ListArray.from_arrays([0, 1, 2, 3], records)
    columns["client_id"] = pa.array([None, b"\xff\xfe", b"c"]).view(pa.string())
    columns["color"] = pa.array([b"\xff"] * 3).view(pa.string())
    pq.write_table(pa.table(columns), path)
    event, *rejected, _ = rows(path)
    assert (event["line"], event["partitions"][0]["topic"]) == (1, "t")
    assert [(row["line"], row["rule"], row["reason"]) for row in rejected] == [
        (2, "not UTF-8", "client_id: not UTF-8: byte 0xff at position 1"),
        (3, "not UTF-8", "partitions[0].topic: not UTF-8: byte 0xff at position 3"),
    ]
    raw = [json.loads(row["raw"]) for row in rejected]
    assert raw[0]["client_id"] == "\ufffd\ufffd" and raw[1]["partitions"][0]["topic"] == "ä\ufffd"


@pytest.mark.parametrize("content", [b"", b"PAR1", b'{"time_us": 1}\n' * 100])
def test_invalid_parquet_file_is_reported(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "a.parquet", content)
    assert problem(path).startswith(f"{path}: not a Parquet file that can be read: ")


def test_damaged_page_rejects_one_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"time_us": range(1, 30_001), "type": ["clock"] * 30_000})
    pq.write_table(table, path, row_group_size=10_000, use_dictionary=False, compression="gzip")
    content = bytearray(path.read_bytes())
    damaged = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[damaged + 40 : damaged + 400] = bytes(360)
    path.write_bytes(content)
    judged_rows = rows(path)
    events = [row["time_us"] for row in judged_rows if "type" in row]
    assert events[:10_000] + events[-10_000:] == [*range(1, 10_001), *range(20_001, 30_001)]
    (rejected,) = (row for row in judged_rows if "rule" in row)
    assert (rejected["piece"], rejected["rule"], rejected["raw"]) == (1, "broken file", "")
    assert rejected["reason"].startswith("damaged Parquet: row group 1: ")


def test_checksum_shows_damaged_page(tmp_path: Path) -> None:
    """The bytes are a valid time without it."""
    path = tmp_path / "a.parquet"
    table = pa.table({"time_us": [1, 2, 3], "type": ["clock"] * 3})
    pq.write_table(table, path, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    place = content.index((2).to_bytes(8, "little"))
    content[place] = 3
    path.write_bytes(content)
    (rejected,) = (row for row in rows(path) if "rule" in row or "type" in row)
    assert (rejected["rule"], rejected["raw"]) == ("broken file", "")
    assert rejected["reason"].startswith("damaged Parquet: row group 0: ")


def test_old_files_of_delta_table_are_refused(tmp_path: Path) -> None:
    """After a compaction, each event is in an old file and in the new one."""
    table = str(tmp_path / "a b" / "table")
    options = IngestOptions([table], str(tmp_path / "out"), source="parquet")
    for time_us in (1, 2):
        write_deltalake(table, pa.table({"time_us": [time_us], "type": ["clock"]}), mode="append")
    assert len(make_source(open_local(), options).pieces) == 2
    DeltaTable(table).optimize.compact()
    with pytest.raises(UserError) as caught:
        make_source(open_local(), options)
    name, reason = str(caught.value).split(": has rows that are ")
    assert Path(name).parent == Path(table)
    assert reason == (
        f"not in the current version of the Delta table {table}; give the current files only, or read the table with "
        "replay --events"
    )
    (current,) = DeltaTable(table).get_add_actions(flatten=True).column("path").to_pylist()
    options = IngestOptions([f"{table}/{current}"], str(tmp_path / "out"), source="parquet")
    assert len(make_source(open_local(), options).pieces) == 1


def test_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    """Its files have rows that were deleted."""
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"time_us": [1], "type": ["clock"]}))
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    Path(table, "_delta_log", f"{1:020}.json").write_text(json.dumps({"protocol": protocol}))
    options = IngestOptions([table], str(tmp_path / "out"), source="parquet")
    with pytest.raises(UserError, match="has rows that are not in the current version"):
        make_source(open_local(), options)


def test_file_that_changes_during_import_is_reported(tmp_path: Path) -> None:
    """Its footer was read before; then the file is truncated, and then deleted."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"time_us": [1], "type": ["clock"]}), path)
    piece = Piece(0, 0, input_file(path), 0, 1)
    path.write_bytes(path.read_bytes()[:-1])
    (chunk,) = rows_of(piece)
    assert chunk.broken is not None and chunk.broken.reason.startswith("damaged Parquet: row group 0: ")
    path.unlink()
    with pytest.raises(UserError, match=f"^{path}: cannot be read: "):
        next(rows_of(piece))
