"""Import, replay and comparison of a request log give the same tables with and without Spark, row for row."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobs import fidelity, ingest
from purgatory_udf.backend import dataset, process_pool, spilled_dataset
from purgatory_udf.backend.backend import LocalBackend, SparkBackend
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.importing import import_tables, log_import
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.storage import event_staging
from purgatory_udf.storage.event_staging import is_in_time_order
from tests.backend.test_replay import TABLES, rows_of, run_of, run_replay_job
from tests.sources.request_log.conftest import broker_options
from tests.support.run_twice import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.sources.request_log.conftest import Piece, Replayed

IMPORTED_TABLES = ("events", "recorded", "rejected_events")


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table without the run id: events in order, others sorted, as they have no order."""
    table_rows = DeltaTable(str(out / name)).to_pyarrow_table().drop_columns(["run_id"]).to_pylist()
    return table_rows if name == "events" else sorted(table_rows, key=repr)


def import_log(out: Path, *words: str) -> str:
    assert ingest.main.status(["--from", "request-log", *words, "--out", str(out)]) == 0
    (counted,) = DeltaTable(str(out / "runs")).to_pyarrow_table().column("counts").to_pylist()
    return str(counted)


@pytest.mark.nightly
def test_import_equals_spark(
    spark: SparkSession, replayed_on_spark: Replayed, piece: Piece, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_log(tmp_path, str(piece.logs[0].parent), *piece.options)
    assert capsys.readouterr().out.replace(str(tmp_path), str(replayed_on_spark.out)) == replayed_on_spark.imported
    for name in IMPORTED_TABLES:
        assert rows(tmp_path, name) == rows(replayed_on_spark.out, name)
    assert len(rows(tmp_path, "events")) > 1_000
    assert not (tmp_path / "_ingest").exists()
    assert is_in_time_order(spark, f"{tmp_path}/events")
    events = spark.read.format("delta").load(f"{tmp_path}/events")
    assert events.schema == spark.read.format("delta").load(f"{replayed_on_spark.out}/events").schema


@pytest.mark.nightly
def test_rejections_and_pseudonyms_equal_spark(spark: SparkSession, piece: Piece, tmp_path: Path) -> None:
    """The log has a truncated line, the files are small, and the local import overwrites an earlier one."""
    log = tmp_path / "request-1.log"
    lines = piece.logs[0].read_text().splitlines()[:600]
    log.write_text("\n".join([*lines[:300], lines[300][: len(lines[300]) // 2], *lines[301:]]) + "\n")
    words = [str(log), "--anonymise", "--events-per-file", "200", "--set", "max_rejected=50", "--overwrite"]
    counts = [import_log(tmp_path / "theirs", *words)]
    counts += [import_log(tmp_path / "ours", *words) for _ in range(2)]
    assert len(set(counts)) == 1 and json.loads(counts[0])["rejected"] > 0
    for name in IMPORTED_TABLES:
        assert rows(tmp_path / "ours", name) == rows(tmp_path / "theirs", name)
    assert len(DeltaTable(str(tmp_path / "ours" / "events")).file_uris()) > 1


@pytest.mark.nightly
def test_import_on_cluster_is_equal(
    replayed_on_spark: Replayed, piece: Piece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster, Spark writes the events; on one machine, the Python workers do."""
    monkeypatch.setattr(SparkBackend, "is_on_this_machine", lambda self, *paths: False)
    import_log(tmp_path, str(piece.logs[0].parent), *piece.options)
    for name in IMPORTED_TABLES:
        assert rows(tmp_path, name) == rows(replayed_on_spark.out, name)


def test_interrupted_import_restarts(piece: Piece, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--from", "request-log", str(piece.logs[0]), "--out", str(tmp_path)]
    # As after a kill: data files of a table that was not committed.
    (tmp_path / "_ingest").mkdir()
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "part-0.parquet").write_bytes(b"half")
    assert ingest.main.status(words, open_local) == 0
    before = DeltaTable(str(tmp_path / "events")).file_uris()
    assert ingest.main.status(words, open_local) == 2
    assert "exists; choose another --out, or replace it with --overwrite" in capsys.readouterr().err
    assert DeltaTable(str(tmp_path / "events")).file_uris() == before


@pytest.mark.nightly
def test_replay_equals_spark(replayed_on_spark: Replayed, tmp_path: Path) -> None:
    """A real recording, without a drain at its end."""
    assert run_replay_job(replayed_on_spark.out / "events", tmp_path, "--no-drain") == 0
    for name in TABLES:
        ours, theirs = (DeltaTable(str(out / name)).to_pyarrow_table() for out in (tmp_path, replayed_on_spark.out))
        assert ours.schema == theirs.schema, name
        assert rows_of(tmp_path, name) == rows_of(replayed_on_spark.out, name), name
    assert len(rows_of(tmp_path, "completions")) > 1_000
    ours, theirs = run_of(tmp_path), run_of(replayed_on_spark.out)
    # Spark groups few events by partition, and its checkpoint records that; a local replay has no checkpoint.
    assert theirs["configuration"].pop("grouping") in ("broker", "partition")
    assert ours["configuration"].pop("grouping") == "broker"
    assert ours == theirs


@pytest.mark.nightly
def test_fidelity_equals_spark(replayed_on_spark: Replayed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shutil.copytree(replayed_on_spark.out, out, ignore=shutil.ignore_patterns("fidelity", "*.html"))
    capsys.readouterr()
    ours = Answer(out, fidelity.main, broker_options(), open_local)
    ours.output = capsys.readouterr().out
    assert ours.output.replace(str(out), str(replayed_on_spark.out)) == replayed_on_spark.compared
    page = (replayed_on_spark.out / "fidelity.html").read_text()
    assert ours.files["fidelity.html"].replace(str(out), str(replayed_on_spark.out)) == page
    assert rows_of(out, "fidelity") == rows_of(replayed_on_spark.out, "fidelity")
    assert len(rows_of(out, "fidelity")) > 1_000


def test_spilled_import_equals_import_in_memory(piece: Piece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are in memory, and in small files (not compressed), of which an import never sorts all events.

    In memory, all events are sorted at once.
    """
    monkeypatch.setattr(spilled_dataset, "_FILE_BYTES", 1 << 16)
    for module in (dataset, process_pool):
        monkeypatch.setattr(module, "cores", lambda: 1)
    sorts: list[list[int]] = []
    sort_events = event_staging.sort_by_time

    def count_and_sort(events: pa.Table) -> pa.Table:
        sorts[-1].append(len(events))
        return sort_events(events)

    monkeypatch.setattr(import_tables, "sort_by_time", count_and_sort)
    tables, summaries = [], []
    for name, in_memory in (("memory", 1 << 40), ("files", -1)):
        monkeypatch.setattr(log_import, "IN_MEMORY_BYTES", in_memory)
        sorts.append([])
        out = tmp_path / name
        topics, batches, isr = piece.options[1::2]
        options = RequestLogOptions([str(piece.logs[0].parent)], str(out), topics, batches, isr, events_per_file=500)
        summary = log_import.ingest_request_log(LocalBackend(), options).summary()
        summaries.append([line.replace(str(out), "") for line in summary])
        assert not (out / "_ingest").exists()
        stored = [DeltaTable(str(out / name)).to_pyarrow_table() for name in ("events", "recorded", "rejected_events")]
        tables.append([sorted(map(repr, table.to_pylist())) for table in stored])
    assert tables[1] == tables[0]
    assert summaries[1] == summaries[0]
    together, *apart = sorts
    assert len(together) == 1 and all(len(sizes) > 10 and sum(sizes) == together[0] for sizes in apart)


def test_threads_read_lines_and_write_events(
    piece: Piece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The tables are the same as those of one thread, and no millisecond is divided between files."""
    request.addfinalizer(compiled_parser.unload)
    compiled_parser.load()
    monkeypatch.setattr(dataset, "_LEAST_BYTES", 1)
    parts_in_threads, in_threads = [], process_pool._made_by_threads

    def count_parts(work: Any, parts: Any, count: int) -> Any:
        parts_in_threads.append(len(parts))
        return in_threads(work, parts, count)

    monkeypatch.setattr(process_pool, "_made_by_threads", count_parts)
    tables, files = [], []
    for threads in (1, 3):
        for module in (dataset, process_pool):
            monkeypatch.setattr(module, "cores", lambda threads=threads: threads)
        monkeypatch.setattr(dataset, "_MOST_IN_ONE_THREAD", 0 if threads > 1 else 1 << 40)
        out = tmp_path / str(threads)
        options = RequestLogOptions([str(piece.logs[0].parent)], str(out), piece_bytes=1 << 16)
        log_import.ingest_request_log(LocalBackend(), options)
        stored = {name: DeltaTable(str(out / name)) for name in ("events", "recorded")}
        rows = [stored["events"].to_pyarrow_table().sort_by("seq"), stored["recorded"].to_pyarrow_table()]
        tables.append([rows[0].to_pylist(), rows[1].sort_by("operation_id").to_pylist()])
        parts = [pq.read_table(file, columns=["seq", "time_us"]).to_pydict() for file in stored["events"].file_uris()]
        files.append(sorted(parts, key=lambda part: part["seq"][0]))
    assert tables[0] == tables[1] and list(map(len, files)) == [1, 3]
    # Pieces of the logs, and then files of the events.
    assert parts_in_threads[0] > 3 and parts_in_threads[1:] == [3]
    assert [seq for part in files[1] for seq in part["seq"]] == files[0][0]["seq"]
    assert all(before["time_us"][-1] // 1000 < after["time_us"][0] // 1000 for before, after in pairwise(files[1]))


@pytest.mark.parametrize(
    ("sizes", "workers", "pieces"),
    [
        ([14, 17, 13], 2, [3, 3, 2]),
        ([14, 17, 13], 4, [3, 3, 2]),
        ([16, 16], 2, [2, 2]),
        ([17], 3, [3]),
        # Shorter ones than 4 MB take more time.
        ([14, 17, 13], 16, [2, 3, 2]),
        ([0, 3], 2, [0, 1]),
        ([], 2, []),
    ],
)
def test_workers_read_the_same_number_of_pieces(sizes: list[int], workers: int, pieces: list[int]) -> None:
    each = log_import._piece_bytes([size << 20 for size in sizes], 8 << 20, workers)
    assert [-(-(size << 20) // each) for size in sizes] == pieces
