"""Import of traces: written events, and rejected lines with reasons, independent of pieces."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zstandard
from deltalake import DeltaTable
from pyarrow import parquet as pq

from purgatory_udf.backend.backend import Backend
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.sources.trace_files import trace_import
from purgatory_udf.sources.trace_files.trace_import import ingest
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions, IngestReport
from purgatory_udf.storage.event_staging import write_in_time_order
from tests.contract.examples import WHOLE
from tests.sources.trace_files.tables import Row, events, events_by_file, reasons, rejected
from tests.sources.trace_files.traces import START, Event, as_lines, clock, high_watermark, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ingest = Callable[..., IngestReport]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _ingest_by(session: SparkSession | Backend, out: Path) -> Ingest:
    def run(*paths: Path, **options: Any) -> IngestReport:
        return ingest(session, IngestOptions([str(path) for path in paths], **{"out": str(out), **options}))

    return run


@pytest.fixture
def run_ingest(spark: SparkSession, out: Path) -> Ingest:
    """A function that imports into `out`."""
    return _ingest_by(spark, out)


@pytest.fixture
def ingest_in_process(out: Path) -> Ingest:
    """The same without Spark."""
    return _ingest_by(open_local(), out)


@pytest.mark.parametrize("where", ["run_ingest", "ingest_in_process"])
def test_all_event_types_are_imported(where: str, request: pytest.FixtureRequest, tmp_path: Path, out: Path) -> None:
    run_ingest: Ingest = request.getfixturevalue(where)
    given = [{**event, "time_us": START + place, "seq": 100 - place} for place, event in enumerate(WHOLE.values())]
    path = write(tmp_path / "a.jsonl", given)
    report = run_ingest(path, run_id="monday")
    schema = pa.schema(DeltaTable(out / "events").schema().to_arrow())
    assert [(field.name, field.type) for field in schema] == [(field.name, field.type) for field in EVENTS]
    placed = [
        {"run_id": "monday", "source": str(path), "line": line, **event} for line, event in enumerate(given, start=1)
    ]
    rows = events(out)
    assert [row.pop("event_time").timestamp() for row in rows] == [event["time_us"] / 1e6 for event in given]
    assert rows == pa.Table.from_pylist(placed, EVENTS).drop_columns(["event_time"]).to_pylist()
    assert report == IngestReport(
        run_id="monday",
        files=1,
        lines=len(given),
        accepted=len(given),
        first_us=START,
        last_us=START + len(given) - 1,
        events=f"{out}/events",
        rejected_events=f"{out}/rejected_events",
    )
    assert rejected(out) == []

    # The same events as Parquet, followed by an invalid row.
    bad: Row = {"time_us": START + 99, "type": "clock", "broker": -1}
    path, again = tmp_path / "b.parquet", tmp_path / "again"
    table = DeltaTable(out / "events").to_pyarrow_table()
    pq.write_table(pa.concat_tables([table, pa.Table.from_pylist([bad], EVENTS)]), path, row_group_size=4)
    report = run_ingest(path, source="parquet", out=str(again), run_id="monday")
    assert (report.lines, report.accepted) == (len(given) + 1, len(given))
    assert [{**row, "source": "", "event_time": None} for row in events(again)] == [
        {**row, "source": "", "event_time": None} for row in events(out)
    ]
    (row,) = rejected(again)
    assert (row["source"], row["line"], row["reason"]) == (
        str(path),
        len(given) + 1,
        "broker: expected an integer >= 0, got -1",
    )
    assert json.loads(row["raw"]) == bad


def test_bad_lines_are_rejected_with_reasons(run_ingest: Ingest, tmp_path: Path, out: Path) -> None:
    """The folder has a text file, a complete .zst, a truncated .gz and an empty file."""
    text = [
        b"\xef\xbb\xbf" + as_lines([clock(1_000)]).strip(),
        b'{"config": {"id_seed": 1}}',
        b"",
        as_lines([clock(2_000, type="tick")]).strip(),
        as_lines([high_watermark(2_000, -1)]).strip(),
        as_lines([clock(1_999)]).strip(),
        b"[1]",
        b'{"type": "clock", "time_us": \xff}',
        b"not at all\r",
        as_lines([clock(999)]).strip() + b"\r",
        as_lines([clock(2_000)]).strip(),
    ]
    write(tmp_path / "in" / "a.jsonl", b"\n".join(text))
    write(tmp_path / "in" / "b.json.zst", zstandard.compress(as_lines([clock(1_500)])))
    packed = gzip.compress(as_lines(clock(3_000 + us) for us in range(1000)))
    write(tmp_path / "in" / "c.ndjson.gz", packed[:-100])
    write(tmp_path / "in" / "d.jsonl", b"")
    report = run_ingest(tmp_path / "in")
    times = [row["time_us"] - START for row in events(out)]
    last = times[-1]
    assert times == [1_000, 1_500, 1_999, 2_000, *range(3_000, last + 1)]
    assert 3_500 < last < 3_999
    *of_text, of_packed = rejected(out)
    assert [(row["line"], row["reason"].split(", fetch,")[0], row["raw"]) for row in of_text] == [
        (2, "type: missing, expected one of produce", text[1].decode()),
        (4, "type: expected one of produce", text[3].decode()),
        (5, "offset: expected an integer >= 0, got -1", text[4].decode()),
        (7, "expected a JSON object, got array", "[1]"),
        (8, "not UTF-8: byte 0xff at position 30", '{"type": "clock", "time_us": \ufffd}'),
        (9, "not JSON: Expecting value at column 1", "not at all"),
        (
            10,
            f"late: time_us {START + 999} is 1000 us behind {START + 1_999}, the greatest before it in the file "
            "(max_disorder_ms is 0)",
            text[9].decode().strip(),
        ),
    ]
    assert of_packed["line"] == last - 3_000 + 2
    assert of_packed["reason"] == "truncated gzip: its end is missing"
    assert as_lines([clock(last + 1)]).decode().startswith(of_packed["raw"])
    assert of_packed["source"] == f"{tmp_path}/in/c.ndjson.gz"
    assert report.by_rule == {
        "missing field": 1,
        "invalid value": 2,
        "not an object": 1,
        "not UTF-8": 1,
        "not JSON": 1,
        "late": 1,
        "broken file": 1,
    }
    assert (report.files, report.lines, report.accepted) == (4, len(times) + 8, len(times))


def expected_events(files: list[list[Event]], max_disorder_ms: int) -> tuple[list[tuple[int, int]], list[str]]:
    """Return (time, seq) of the events and `file:line rule` of rejected lines, by a simple loop."""
    kept: dict[int, int] = {}
    refused = []
    for file, given in enumerate(files):
        latest = 0
        for line, event in enumerate(given, start=1):
            seq = event.get("seq", file * 2**40 + line)
            if event["time_us"] < latest - max_disorder_ms * 1000:
                refused.append(f"{file}:{line} late")
            elif seq in kept:
                refused.append(f"{file}:{line} seq")
            else:
                kept[seq] = event["time_us"]
            latest = max(latest, event["time_us"])
    return sorted((time, seq) for seq, time in kept.items()), refused


def shuffled_trace(seed: int) -> list[list[Event]]:
    """Return three files that are slightly out of order; some events have a seq, and some of these are used twice."""
    rng = random.Random(seed)
    files = []
    for file in range(3):
        given = []
        for line in range(200):
            fields = {"seq": rng.randrange(500)} if file < 2 and rng.random() < 0.7 else {}
            given.append(clock(line * 400 + rng.randrange(-2_000, 2_000), **fields))
        files.append(given)
    # Line 150 of the first file has no seq and gets 150; another file uses 150 as well.
    files[0][149].pop("seq", None)
    files[2][3]["seq"] = 150
    return files


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("piece_bytes", "events_per_file", "shuffle_partitions"),
    [(1 << 20, 1000, 2), (1500, 40, 7)],
)
def test_tables_do_not_depend_on_piece_size(
    spark: SparkSession,
    run_ingest: Ingest,
    tmp_path: Path,
    out: Path,
    piece_bytes: int,
    events_per_file: int,
    shuffle_partitions: int,
) -> None:
    files = shuffled_trace(seed=1)
    paths = [write(tmp_path / f"{file}.jsonl", given) for file, given in enumerate(files)]
    spark.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions))
    try:
        report = run_ingest(*paths, max_disorder_ms=1, piece_bytes=piece_bytes, events_per_file=events_per_file)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    kept, refused = expected_events(files, max_disorder_ms=1)
    assert [(row["time_us"], row["seq"]) for row in events(out)] == kept
    given = {(str(path), line): event for path, g in zip(paths, files, strict=True) for line, event in enumerate(g, 1)}
    assert all(given[row["source"], row["line"]]["time_us"] == row["time_us"] for row in events(out))
    rejects = rejected(out)
    assert [f"{Path(row['source']).stem}:{row['line']} {row['reason'].split(':')[0]}" for row in rejects] == refused
    assert [json.loads(row["raw"]) for row in rejects] == [given[row["source"], row["line"]] for row in rejects]
    assert report.by_rule == {
        "late": sum("late" in reason for reason in refused),
        "duplicate seq": sum("seq" in reason for reason in refused),
    }
    assert min(report.by_rule.values()) > 20


@pytest.fixture(scope="module", params=["in process", pytest.param("Spark", marks=pytest.mark.nightly)])
def out_of_order(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, IngestReport]:
    """Three files with late events and repeated seqs, imported with one line per piece, so that checks cross pieces.

    Input and output share a folder.
    """
    session = request.getfixturevalue("spark") if request.param == "Spark" else open_local()
    folder = tmp_path_factory.mktemp("out-of-order")
    given = {
        "a": [clock(0, seq=7), clock(1, seq=2), clock(2, seq=7), clock(3), clock(4, seq=9)],
        "b": [clock(0, seq=9), clock(0, seq=4)],
        "c": [clock(5_000), clock(4_000), clock(5_000), clock(3_999), clock(5_001)],
    }
    paths = [str(write(folder / f"{name}.jsonl", events_of_it)) for name, events_of_it in given.items()]
    return folder, ingest(session, IngestOptions(paths, str(folder / "out"), max_disorder_ms=1, piece_bytes=10))


def test_texts_of_late_lines_are_not_broadcast(
    run_ingest: Ingest, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a million lines exceed the memory that Spark has for a broadcast."""
    joined: list[DataFrame] = []
    with_text = trace_import._with_text

    def kept(*arguments: Any) -> DataFrame:
        joined.append(with_text(*arguments))
        return joined[0]

    monkeypatch.setattr(trace_import, "_with_text", kept)
    report = run_ingest(write(tmp_path / "a.jsonl", [clock(5), clock(1)]))
    assert (report.by_rule, len(rejected(out))) == ({"late": 1}, 1)
    plan = joined[0]._jdf.queryExecution().optimizedPlan().toString()
    assert re.search(r"Join Inner, .*, rightHint=\(strategy=merge\)", plan), plan


def test_repeated_seq_names_first_line(out_of_order: tuple[Path, IngestReport]) -> None:
    folder, report = out_of_order
    assert report.by_rule == {"duplicate seq": 3, "late": 1}
    assert reasons(folder / "out")[:3] == [
        (3, f"seq: 7: already used at {folder}/a.jsonl:1"),
        (1, f"seq: 9: already used at {folder}/a.jsonl:5"),
        (2, f"seq: 4: already used at {folder}/a.jsonl:4"),
    ]
    rows = [row for row in events(folder / "out") if not row["source"].endswith("c.jsonl")]
    assert [(row["time_us"] - START, row["seq"]) for row in rows] == [(0, 7), (1, 2), (3, 4), (4, 9)]


def test_max_disorder_is_exact(
    out_of_order: tuple[Path, IngestReport],
) -> None:
    folder, _ = out_of_order
    assert reasons(folder / "out")[3:] == [
        (
            4,
            f"late: time_us {START + 3_999} is 1001 us behind {START + 5_000}, the greatest before it in the file "
            "(max_disorder_ms is 1)",
        )
    ]
    assert [row["line"] for row in events(folder / "out") if row["source"].endswith("c.jsonl")] == [2, 1, 3, 5]


@pytest.mark.nightly
@pytest.mark.long
def test_many_files_are_in_time_order(spark: SparkSession, out: Path) -> None:
    times = [(START + seq * 950, seq) for seq in range(300)]
    # Generated in Spark, because the rows are read twice, and a Python worker would generate them twice.
    rows = spark.range(len(times)).selectExpr(f"{START} + id * 950 time_us", "id seq")
    rows = rows.selectExpr("timestamp_micros(time_us) event_time", "*")
    write_in_time_order(rows, f"{out}/events", len(times), 1)
    files = events_by_file(out)
    assert len(files) > 250
    assert [(row["time_us"], row["seq"]) for rows in files for row in rows] == times
    milliseconds = [{row["time_us"] // 1000 for row in rows} for rows in files]
    assert sum(map(len, milliseconds)) == len(set().union(*milliseconds))


@pytest.mark.parametrize("where", ["run_ingest", "ingest_in_process"])
def test_wrong_parquet_schema_writes_nothing(
    where: str, request: pytest.FixtureRequest, tmp_path: Path, out: Path
) -> None:
    run_ingest: Ingest = request.getfixturevalue(where)
    good, bad = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"time_us": [START], "type": ["clock"]}), good)
    pq.write_table(pa.table({"time_us": ["noon"], "type": ["clock"]}), bad)
    with pytest.raises(UserError) as caught:
        run_ingest(good, bad, source="parquet")
    assert str(caught.value) == f"{bad}: column time_us is string, expected int64"
    assert not out.exists()


@pytest.mark.parametrize("content", [b"", b"\n \r\n\n"])
def test_empty_input_is_refused(ingest_in_process: Ingest, tmp_path: Path, out: Path, content: bytes) -> None:
    path = write(tmp_path / "a.jsonl", content)
    with pytest.raises(UserError) as caught:
        ingest_in_process(path)
    assert str(caught.value) == f"{path}: no events: the input has no lines"
    assert list(out.glob("*")) == []


def test_finished_ingest_needs_overwrite(ingest_in_process: Ingest, tmp_path: Path, out: Path) -> None:
    for remains in ("_ingest/part-0.parquet", "events/part-0.parquet", "rejected_events/part-0.parquet"):
        write(out / remains, b"cut off")
    path = write(tmp_path / "a.jsonl", [clock(0), clock(7), clock(0)])
    ingest_in_process(path, run_id="tuesday", max_disorder_ms=0)
    assert [[row["time_us"] - START for row in events(out)], len(rejected(out))] == [[0, 7], 1]
    assert sorted(table.name for table in out.iterdir()) == ["events", "rejected_events", "runs"]
    (run,) = DeltaTable(out / "runs").to_pyarrow_table().to_pylist()
    assert (run["run_id"], run["job"], run["status"]) == ("tuesday", "ingest", "finished")
    assert json.loads(run["trace"]) == {"paths": [f"{tmp_path}/a.jsonl"]}
    assert json.loads(run["configuration"]) == {"source": "jsonl", "max_disorder_ms": 0, "events_per_file": 50_000}
    assert json.loads(run["counts"]) == {
        "files": 1,
        "lines": 3,
        "events": 2,
        "rejected": 1,
        "rejected_by_rule": {"late": 1},
        "first_us": START,
        "last_us": START + 7,
    }

    write(path, [clock(5)])
    with pytest.raises(UserError) as caught:
        ingest_in_process(path)
    assert str(caught.value) == f"{out}/events: exists; choose another --out, or replace it with --overwrite"
    assert [len(events(out)), len(rejected(out))] == [2, 1]
    # --overwrite also replaces a table of a newer Delta version that cannot be read.
    (commit,) = (out / "events" / "_delta_log").glob("*.json")
    commit.write_text(commit.read_text().replace('"minReaderVersion":1', '"minReaderVersion":99'))
    ingest_in_process(path, overwrite=True)
    assert [[row["time_us"] - START for row in events(out)], rejected(out)] == [[5], []]
    assert sorted(table.name for table in out.iterdir()) == ["events", "rejected_events", "runs"]


def test_foreign_output_is_not_overwritten(ingest_in_process: Ingest, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [clock(0)])
    with pytest.raises(UserError) as caught:
        ingest_in_process(path, out=str(path))
    assert str(caught.value) == f"{path}: is a file; --out must be a folder"
    write(tmp_path / "mine" / "events" / "precious.txt", b"")
    with pytest.raises(UserError) as caught:
        ingest_in_process(path, out=str(tmp_path / "mine"), overwrite=True)
    assert str(caught.value) == (
        f"{tmp_path}/mine/events: exists, but is not a Delta table; choose another --out or move it away"
    )
    assert (tmp_path / "mine" / "events" / "precious.txt").exists()


def test_input_in_replaced_table_is_refused(ingest_in_process: Ingest, tmp_path: Path, out: Path) -> None:
    """The import would delete its input. Files next to the tables, and tables of other folders, may be read."""
    path = write(out / "trace.jsonl", [clock(0, seq=1)])
    ingest_in_process(path)
    (file,) = (out / "events").glob("*.parquet")
    (tmp_path / "link.parquet").symlink_to(file)
    (tmp_path / "same").symlink_to(out)
    for given, to in ((file, out), (tmp_path / "link.parquet", out), (file, tmp_path / "same")):
        with pytest.raises(UserError) as caught:
            ingest_in_process(given, source="parquet", overwrite=True, out=str(to))
        assert str(caught.value) == f"{given}: is in {to}/events, which the import replaces; choose another --out"
    assert len(events(out)) == 1
    ingest_in_process(out / "events", source="parquet", out=str(tmp_path / "again"))
    ingest_in_process(out, overwrite=True)
    assert len(events(tmp_path / "again")) == len(events(out)) == 1
