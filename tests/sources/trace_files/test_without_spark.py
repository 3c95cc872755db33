"""Import without Spark gives the same tables as with Spark; inputs that it does not support need Spark."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from deltalake import DeltaTable, write_deltalake

from jobs import ingest
from purgatory_udf.backend import spilled_dataset
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.launch import backend_choice
from purgatory_udf.launch.backend_choice import ANY_BYTES, open_local, runs_in_process
from purgatory_udf.sources.trace_files import event_order, trace_import
from purgatory_udf.storage.event_staging import is_in_time_order
from tests.support.outcome_folder import SAMPLE

START = 1_772_442_000_000_000

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_import_equals_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The input has invalid lines, a compressed, a truncated and an empty file; the table has small files."""
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    given = {
        "a.jsonl": "\n".join([*lines[:300], "no event", '{"time_us": 1, "type": "fetch"}']).encode(),
        "b.jsonl.zst": zstandard.compress("\n".join(lines[300:]).encode()),
        "c.jsonl.gz": gzip.compress(b"no event\n" + b"".join(b"%d\n" % number for number in range(1000)))[:-100],
        "d.jsonl": b"",
    }
    for name, content in given.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in given]
    words = [*paths, "--events-per-file", "500", "--max-rejected", "100"]
    assert ingest.main.status([*words, "--out", str(tmp_path / "theirs")]) == 0
    assert ingest.main.status([*words, "--out", (tmp_path / "ours").as_uri()], open_local) == 0
    for name in ("events", "rejected_events", "runs"):
        local, with_spark = (_comparable_rows(tmp_path / out, name) for out in ("ours", "theirs"))
        assert local == with_spark, name
    assert len(_comparable_rows(tmp_path / "ours", "events")) == len(lines)
    reasons = [row["reason"] for row in _comparable_rows(tmp_path / "ours", "rejected_events")]
    assert len(reasons) > 500 and "truncated gzip: its end is missing" in reasons
    assert is_in_time_order(spark, f"{tmp_path}/ours/events")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_folder_name_replaces_no_field(tmp_path: Path, form: str) -> None:
    """An event's own field counts. An event without a field of its type is rejected if a folder names the field."""
    common = {"type": "clock", "broker": 1}
    fetch = {"type": "fetch", "request_id": "f", "max_wait_ms": 0, "min_bytes": 0, "partitions": []}
    given = [common, {**common, "broker": None}, {**common, "broker": 2}, {**common, **fetch}, fetch]
    events = [{"time_us": START + number, **event} for number, event in enumerate(given)]
    file = tmp_path / "isolation=read_committed" / "topic=t" / "color=red" / "broker=1" / f"a.{form}"
    file.parent.mkdir(parents=True)
    if form == "jsonl":
        file.write_text("\n".join(map(json.dumps, events)))
    else:
        columns = ("time_us", "topic", "isolation", *common, *fetch)
        schema = pa.schema([EVENTS.field(name) for name in dict.fromkeys(columns)])
        pq.write_table(pa.Table.from_pylist(events, schema), file)
    assert ingest.main.status([str(file), "--from", form, "--out", str(tmp_path / "out")], open_local) == 1
    rows = _comparable_rows(tmp_path / "out", "events")
    assert [(row["line"], row["broker"]) for row in rows] == [(1, 1), (3, 2)]
    lost = {2: "broker=1", 4: "isolation=read_committed", 5: "isolation=read_committed"}
    reason = "{}: missing, and only in the name of the folder {}; write it to the file, too"
    rejected = {row["line"]: row["reason"] for row in _comparable_rows(tmp_path / "out", "rejected_events")}
    assert rejected == {line: reason.format(folder.split("=")[0], folder) for line, folder in lost.items()}


def _comparable_rows(out: Path, name: str) -> list[dict[str, Any]]:
    """Return events in order, or sorted rows without the columns that differ from run to run."""
    table = DeltaTable(str(out / name)).to_pyarrow_table()
    columns = [
        column
        for column in table.column_names
        if column not in ("started_at", "finished_at", "wall_seconds", "versions")
    ]
    rows: list[dict[str, Any]] = table.select(columns).to_pylist()
    return rows if name == "events" else sorted(rows, key=repr)


def test_unsupported_inputs_need_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, which the launcher sees; a crowded moment, and many late events, before anything is written."""
    moment = json.dumps({"time_us": 1_000_000, "type": "clock", "broker": 1})
    (tmp_path / "trace.jsonl").write_text(f"{moment}\n" * 100)
    monkeypatch.setattr(event_order, "MAX_FILE_RATIO", 0)
    for name in ("large.jsonl", "request.log"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(3 << 30)
    (tmp_path / "trace.parquet").touch()
    out = ["--out", str(tmp_path / "out")]
    topic = ["--from", "kafka", "--bootstrap", "broker:9092", "--topic", "trace"]
    files = (["--from", "parquet", ""], ["large.jsonl"], ["--from", "request-log", "request.log"])
    for words in (topic, *([*form, str(tmp_path / name)] for *form, name in files)):
        assert ingest.main.check([*words, *out]) is None
        chosen = runs_in_process(ingest.main.inputs, [], ANY_BYTES, spark_options=False, settings={}, environ={})
        assert chosen == (words is not topic)
    with pytest.raises(NeedsSparkError, match="a moment has too many events"):
        ingest.main.status([str(tmp_path / "trace.jsonl"), *out], open_local)
    monkeypatch.undo()
    late = json.dumps({"time_us": 1, "type": "clock", "broker": 1})
    (tmp_path / "late.jsonl").write_text(f"{moment}\n{late}\n")
    monkeypatch.setattr(backend_choice, "most_rows_in_memory", lambda: 1)
    with pytest.raises(NeedsSparkError, match="some of 2 events are late or repeat a seq"):
        ingest.main.status([str(tmp_path / "late.jsonl"), *out], open_local)
    assert not (tmp_path / "out" / "events").exists()
    monkeypatch.setattr(backend_choice, "most_rows_in_memory", lambda: 2)
    assert ingest.main.status([str(tmp_path / "late.jsonl"), *out, "--max-rejected", "50"], open_local) == 0


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ("", "the output folder has an empty name; `.` is the current folder"),
        ("a\nb", r"'a\nb': the name of the output folder has a control character, such as a line break"),
    ],
)
def test_output_folder_has_a_usable_name(out: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty name would be the root folder."""
    assert ingest.main.status([str(SAMPLE), "--out", out], open_local) == 2
    assert capsys.readouterr().err.endswith(f"ingest: {error}\n")


@pytest.mark.parametrize(("unit", "per_second"), [("seconds", 1), ("milliseconds", 1_000)])
def test_times_in_another_unit_are_noticed(
    unit: str, per_second: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"time_us": 1_772_442_000 * per_second, "type": "clock", "broker": 1}))
    assert ingest.main.status([str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out")], open_local) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"          time_us seems to be in {unit}; it counts microseconds since 1970"


def test_spilled_import_equals_import_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines are in memory, and in small files; some are rejected, and a step left rows when it was interrupted."""
    monkeypatch.setattr(spilled_dataset, "_FILE_BYTES", 1 << 14)
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:900], "no event"]), encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[900:]).encode()))
    tables = []
    for most in (1 << 40, -1):
        monkeypatch.setattr(trace_import, "IN_MEMORY_BYTES", most)
        out = tmp_path / str(most)
        (out / "_ingest" / "lines").mkdir(parents=True)
        words = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl.gz")]
        words += ["--events-per-file", "100", "--max-rejected", "100", "--out", str(out)]
        assert ingest.main.status(words, open_local) == 0
        assert not (out / "_ingest").exists()
        assert len(DeltaTable(str(out / "events")).file_uris()) > 10
        tables.append([_comparable_rows(out, name) for name in ("events", "rejected_events")])
    assert tables[0] == tables[1]
    assert [len(table) for table in tables[0]] == [len(lines), 1]


def test_import_beside_other_table_named_runs_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_deltalake(str(tmp_path / "runs"), pa.table({"run_id": ["monday"]}))
    assert ingest.main.status([str(SAMPLE), "--out", str(tmp_path), "--overwrite"], open_local) == 2
    assert f"{tmp_path}/runs: not a table of runs: it has no column job" in capsys.readouterr().err
    assert not (tmp_path / "events").exists()


@pytest.mark.parametrize(("in_memory", "repeated"), [(1 << 40, False), (-1, False), (1 << 40, True), (-1, True)])
def test_late_and_repeated_events_are_rejected_without_spark(
    in_memory: int, repeated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files of random times, one of them in time order, in pieces of a few lines; and a line that is no event.

    With `repeated`, two thirds of the events have a `seq` that others may have, too.
    """
    monkeypatch.setattr(trace_import, "IN_MEMORY_BYTES", in_memory)
    monkeypatch.setattr(LocalBackend, "piece_bytes", 2_000)
    numbers = random.Random(43)
    times = {name: [START + numbers.randrange(60_000) * 100 for _ in range(200)] for name in ("a.jsonl", "b.jsonl")}
    times["b.jsonl"].sort()
    expected, refused = [], ["not JSON: Expecting value at column 1"]
    used: dict[int, str] = {}
    for file, (name, of_file) in enumerate(times.items()):
        lines, latest = [], 0
        for number, time_us in enumerate(of_file, 1):
            event: dict[str, Any] = {"time_us": time_us, "type": "clock", "broker": 1}
            if repeated and numbers.random() < 2 / 3:
                event["seq"] = numbers.choice([numbers.randrange(150), file * 2**40 + numbers.randrange(200)])
            lines.append(json.dumps(event))
            seq, place = event.get("seq", file * 2**40 + number), f"{tmp_path / name}:{number}"
            if latest - time_us > 2_000_000:
                refused.append(
                    f"late: time_us {time_us} is {latest - time_us} us behind {latest}, the greatest before it in the "
                    "file (max_disorder_ms is 2000)"
                )
            elif used.setdefault(seq, place) != place:
                placed = "" if "seq" in event else " (this line has no seq; its place in the input is used)"
                refused.append(f"seq: {seq}: already used at {used[seq]}{placed}")
            else:
                expected.append((time_us, seq, str(tmp_path / name), number))
            latest = max(latest, time_us)
        (tmp_path / name).write_text("\n".join([*lines, "no event"] if name == "a.jsonl" else lines))
    out = tmp_path / "out"
    words = [*map(str, sorted(tmp_path.glob("*.jsonl"))), "--max-disorder-ms", "2000", "--events-per-file", "100"]
    assert ingest.main.status([*words, "--max-rejected", "100", "--out", str(out)], open_local) == 0
    events, rejected, runs = (_comparable_rows(out, name) for name in ("events", "rejected_events", "runs"))
    assert [(row["time_us"], row["seq"], row["source"], row["line"]) for row in events] == sorted(expected)
    assert sorted(row["reason"] for row in rejected) == sorted(refused)
    for row in rejected:
        if row["reason"].startswith("late"):
            assert json.loads(row["raw"])["time_us"] == times["a.jsonl"][row["line"] - 1]
        elif row["reason"].startswith("seq"):
            assert "no seq" in row["reason"] or f"seq: {json.loads(row['raw'])['seq']}: " in row["reason"]
    assert any("no seq" in reason for reason in refused) == repeated
    assert len(refused) > 100 and len(DeltaTable(str(out / "events")).file_uris()) > 1
    for rule in ("late", "seq"):
        count = sum(reason.startswith(rule) for reason in refused)
        assert not count or f": {count}" in repr(runs)
    assert str(len(expected)) in repr(runs)
