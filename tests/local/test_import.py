"""A request log that is taken apart without Spark becomes the same tables, row for row, and Spark goes on with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs import ingest
from purgatory_udf.errors import NeedsSparkError
from purgatory_udf.query import locally
from purgatory_udf.storage.staging import in_time_order
from tests.outcome_folder import SAMPLE
from tests.requestlog.conftest import piece as piece
from tests.requestlog.conftest import replayed as replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.requestlog.conftest import Piece, Replayed

TABLES = ("events", "recorded", "rejected_events")


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    """Those of an event's table in their order; the others have none. Only runs are called otherwise."""
    found = DeltaTable(str(out / name)).to_pyarrow_table().drop_columns(["run_id"]).to_pylist()
    return found if name == "events" else sorted(found, key=repr)


def taken_in(out: Path, *words: str) -> str:
    assert ingest.main.status(["--from", "request-log", *words, "--out", str(out)]) == 0
    (counted,) = DeltaTable(str(out / "runs")).to_pyarrow_table().column("counts").to_pylist()
    return str(counted)


def test_the_tables_are_sparks(
    spark: SparkSession, replayed: Replayed, piece: Piece, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locally():
        taken_in(tmp_path, str(piece.logs[0].parent), *piece.beside)
    assert capsys.readouterr().out.replace(str(tmp_path), str(replayed.out)) == replayed.imported
    for name in TABLES:
        assert rows(tmp_path, name) == rows(replayed.out, name)
    assert len(rows(tmp_path, "events")) > 1_000
    assert not (tmp_path / "_ingest").exists()
    assert in_time_order(spark, f"{tmp_path}/events")
    told = spark.read.format("delta").load(f"{tmp_path}/events")
    assert told.schema == spark.read.format("delta").load(f"{replayed.out}/events").schema


def test_what_is_no_request_is_rejected_alike_and_names_are_hidden_alike(
    spark: SparkSession, piece: Piece, tmp_path: Path
) -> None:
    """In files of a few events, of a log with lines that cannot be read, over an earlier import."""
    log = tmp_path / "request-1.log"
    lines = piece.logs[0].read_text().splitlines()[:600]
    log.write_text("\n".join([*lines[:300], lines[300][: len(lines[300]) // 2], *lines[301:]]) + "\n")
    words = [str(log), "--anonymise", "--events-per-file", "200", "--set", "max_rejected=50", "--overwrite"]
    counts = []
    for out in (tmp_path / "theirs", tmp_path / "theirs", tmp_path / "ours", tmp_path / "ours"):
        if out.name == "theirs":
            counts.append(taken_in(out, *words))
        else:
            with locally():
                counts.append(taken_in(out, *words))
    assert len(set(counts)) == 1 and json.loads(counts[0])["rejected"] > 0
    for name in TABLES:
        assert rows(tmp_path / "ours", name) == rows(tmp_path / "theirs", name)
    files = len(list((tmp_path / "ours" / "events").glob("*.parquet")))
    assert files == len(list((tmp_path / "theirs" / "events").glob("*.parquet"))) > 1


def test_what_was_interrupted_is_made_anew_and_what_is_there_is_kept(
    piece: Piece, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--from", "request-log", str(piece.logs[0]), "--out", str(tmp_path)]
    with locally():
        # As a kill leaves it: rows of a table that never was.
        (tmp_path / "_ingest").mkdir()
        (tmp_path / "recorded").mkdir()
        (tmp_path / "recorded" / "part-0.parquet").write_bytes(b"half")
        assert ingest.main.status(words) == 0
        before = DeltaTable(str(tmp_path / "events")).file_uris()
        assert ingest.main.status(words) == 2
        assert "exists; choose another --out, or --overwrite" in capsys.readouterr().err
        assert DeltaTable(str(tmp_path / "events")).file_uris() == before


def test_lines_of_events_become_sparks_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Of two files, with lines that are none, in files of the table of a few events."""
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:300], "no event", '{"time_us": 1, "type": "fetch"}']) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(lines[300:]) + "\n")
    words = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--events-per-file", "500", "--max-rejected", "1"]
    assert ingest.main.status([*words, "--out", str(tmp_path / "theirs")]) == 0
    with locally():
        assert ingest.main.status([*words, "--out", str(tmp_path / "ours")]) == 0
    for name in ("events", "rejected_events", "runs"):
        ours, theirs = (_timeless(tmp_path / out, name) for out in ("ours", "theirs"))
        assert ours == theirs, name
    assert len(rows(tmp_path / "ours", "events")) == len(lines) and len(rows(tmp_path / "ours", "rejected_events")) == 2
    assert in_time_order(spark, f"{tmp_path}/ours/events")


def _timeless(out: Path, name: str) -> list[dict[str, Any]]:
    """Events in their order; of a run, what does not tell when it was."""
    table = DeltaTable(str(out / name)).to_pyarrow_table()
    told = [one for one in table.column_names if one not in ("started_at", "finished_at", "wall_seconds")]
    found: list[dict[str, Any]] = table.select(told).to_pylist()
    return found if name == "events" else sorted(found, key=repr)


def test_what_only_spark_decides_is_left_to_it(tmp_path: Path) -> None:
    """Rows of Parquet; events that are late; before anything is there."""
    late = [{"time_us": time_us, "type": "clock"} for time_us in (2_000_000, 1_000_000)]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in late))
    for words in (["--from", "parquet", str(tmp_path)], [str(tmp_path / "trace.jsonl")]):
        with locally(), pytest.raises(NeedsSparkError):
            ingest.main.status([*words, "--out", str(tmp_path / "out")])
        assert not (tmp_path / "out" / "events").exists()
