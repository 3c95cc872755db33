"""Validation of lines by tasks: a row for each line, and one at the end of each piece."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

from purgatory_udf.sources.trace_files.piece_validation import PieceTotals
from purgatory_udf.sources.trace_files.text_lines import byte_pieces, in_tasks
from tests.sources.trace_files.traces import START, as_lines, clock, high_watermark, input_file, validated_rows, write


def without_piece(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without its file and piece."""
    return {name: value for name, value in row.items() if name not in ("file", "piece")}


def test_line_becomes_event_or_rejection(tmp_path: Path) -> None:
    good, better = as_lines([clock(5)]).strip(), as_lines([high_watermark(3, 40, seq=9, broker=2)]).strip()
    path = write(tmp_path / "a.jsonl", good + b"\r\n\n  \n{\xff}\n" + better + b"\n[]")
    assert [without_piece(row) for row in validated_rows(path)] == [
        {"line": 1, "latest": 0, "time_us": START + 5, "broker": 0, "type": "clock"},
        {
            "line": 4,
            "latest": START + 5,
            "rule": "not UTF-8",
            "reason": "not UTF-8: byte 0xff at position 2",
            "raw": "{\ufffd}",
        },
        {
            "line": 5,
            "latest": START + 5,
            "time_us": START + 3,
            "seq": 9,
            "broker": 2,
            "type": "partition",
            "topic": "t",
            "partition": 0,
            "change": "high_watermark",
            "offset": 40,
        },
        {
            "line": 6,
            "latest": START + 5,
            "rule": "not an object",
            "reason": "expected a JSON object, got array",
            "raw": "[]",
        },
        {
            "line": 6,
            "latest": START + 5,
            "rows": 4,
            "events": 2,
            "given": 1,
            "rising": True,
            "first_seq": 9,
            "last_seq": 9,
            "first_us": START + 3,
            "behind_us": 2,
            "by_rule": '{"not UTF-8": 1, "not an object": 1}',
            "times": [START + 3],
        },
    ]


def test_piece_end_records_whether_seq_rises(tmp_path: Path) -> None:
    def end(*seqs: int) -> PieceTotals:
        row = validated_rows(write(tmp_path / "a.jsonl", [clock(seq=seq) for seq in seqs]))[-1]
        return PieceTotals(**row)

    at_once: dict[str, Any] = {"latest": START, "first_us": START, "times": [START]}
    assert end(-5, 3, 8) == PieceTotals(0, 0, 3, **at_once, rows=3, events=3, given=3, first_seq=-5, last_seq=8)
    again = end(3, 3)
    assert again == PieceTotals(0, 0, 2, **at_once, rows=2, events=2, given=2, rising=False, first_seq=3, last_seq=3)
    back = end(3, 9, 4)
    assert back == PieceTotals(0, 0, 3, **at_once, rows=3, events=3, given=3, rising=False, first_seq=3, last_seq=4)


def test_truncated_file_keeps_complete_lines(tmp_path: Path) -> None:
    compressed = gzip.compress(as_lines(clock(us) for us in range(5000)))
    *good, broken, end = validated_rows(write(tmp_path / "a.jsonl.gz", compressed[: len(compressed) // 2]))
    assert [row["time_us"] for row in good] == [START + us for us in range(len(good))]
    assert len(good) > 1000
    assert (broken["line"], broken["rule"]) == (len(good) + 1, "broken file")
    assert broken["reason"] == "truncated gzip: its end is missing"
    assert as_lines([clock(len(good))]).decode().startswith(broken["raw"])
    assert (end["line"], end["rows"], end["events"]) == (len(good) + 1, len(good) + 1, len(good))


def test_pieces_cover_files_and_share_tasks(tmp_path: Path) -> None:
    sizes = {"a.jsonl": 25, "b.jsonl.gz": 25, "c.jsonl": 3, "d.jsonl": 3, "e.jsonl": 0}
    files = [input_file(write(tmp_path / name, b"x" * size)) for name, size in sizes.items()]
    tasks = in_tasks(byte_pieces(files, 10), 10)
    assert [[(piece.file, piece.index, piece.start, piece.end) for piece in task] for task in tasks] == [
        [(0, 0, 0, 8)],
        [(0, 1, 8, 16)],
        [(0, 2, 16, 25)],
        [(1, 0, 0, 25)],
        [(2, 0, 0, 3), (3, 0, 0, 3)],
    ]


def test_executor_modules_need_only_arrow() -> None:
    modules = "piece_validation, text_lines"
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; from purgatory_udf.sources.trace_files import {modules}; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[3],
    ).stdout.split()
    assert {"purgatory_udf.contract.event_checks", "pyarrow"} <= set(loaded)
    assert not {"pydantic", "yaml", "typer", "rich", "pyspark", "delta"} & set(loaded)
