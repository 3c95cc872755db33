"""Lines of events are taken in without Spark, to Spark's own tables; what is more than that is left to it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from deltalake import DeltaTable

from jobs import ingest
from purgatory_udf.backend.dialect import locally
from purgatory_udf.backend.input_size import LOG_BYTES
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.storage.event_staging import in_time_order
from tests.support.outcome_folder import SAMPLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_lines_of_events_become_sparks_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Of four files, with lines that are none, one of them packed, one empty, and one whose packing is cut short, in
    files of the table of a few events."""
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
    with locally():
        assert ingest.main.status([*words, "--out", (tmp_path / "ours").as_uri()]) == 0
    for name in ("events", "rejected_events", "runs"):
        ours, theirs = (_timeless(tmp_path / out, name) for out in ("ours", "theirs"))
        assert ours == theirs, name
    assert len(_timeless(tmp_path / "ours", "events")) == len(lines)
    reasons = [row["reason"] for row in _timeless(tmp_path / "ours", "rejected_events")]
    assert len(reasons) > 500 and "truncated gzip: the data breaks off" in reasons
    assert in_time_order(spark, f"{tmp_path}/ours/events")


def _timeless(out: Path, name: str) -> list[dict[str, Any]]:
    """Events in their order; of a run, what does not tell when it was, or by what."""
    table = DeltaTable(str(out / name)).to_pyarrow_table()
    columns = [
        column
        for column in table.column_names
        if column not in ("started_at", "finished_at", "wall_seconds", "versions")
    ]
    rows: list[dict[str, Any]] = table.select(columns).to_pylist()
    return rows if name == "events" else sorted(rows, key=repr)


def test_what_only_spark_decides_is_left_to_it(tmp_path: Path) -> None:
    """Rows of Parquet; events that are late; large logs; before anything is there."""
    late = [{"time_us": time_us, "type": "clock"} for time_us in (2_000_000, 1_000_000)]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in late))
    with open(tmp_path / "request.log", "wb") as log:
        log.truncate(LOG_BYTES + 1)
    others = ["--from", "parquet", str(tmp_path)], ["--from", "request-log", str(tmp_path / "request.log")]
    for words in (*others, [str(tmp_path / "trace.jsonl")]):
        with locally(), pytest.raises(NeedsSparkError):
            ingest.main.status([*words, "--out", str(tmp_path / "out")])
        assert not (tmp_path / "out" / "events").exists()
