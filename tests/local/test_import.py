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


def test_other_forms_are_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("{}\n")
    with locally(), pytest.raises(NeedsSparkError, match="--from jsonl"):
        ingest.main.status([str(tmp_path / "trace.jsonl"), "--out", str(tmp_path / "out")])
