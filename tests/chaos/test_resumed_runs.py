"""States that a kill leaves between two steps, made by hand, and the repetition of the step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

from purgatory_udf.backend.backend import backend_of
from purgatory_udf.common.configuration import load_config
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.sources.follow_topic import EventSteps
from purgatory_udf.sources.kafka_topic import KafkaTopic
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming import checkpoints
from purgatory_udf.streaming.event_source import Survey
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from purgatory_udf.streaming.streaming_query import Query
from tests.streaming.growing_table import process_all_available, replay_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US = 1_700_000_000_000_000


def _fetches(*starts_ms: int) -> list[dict[str, Any]]:
    """Return fetches that time out after 100 ms."""
    part = {"topic": "t", "partition": 0, "fetch_offset": 5, "max_bytes": 1000}
    limits = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1000, "isolation": "read_uncommitted", "replica_id": -1}
    common = {"type": "fetch", "broker": 1, "request_id": "r", "client_id": "c", **limits, "partitions": [part]}
    times = [START_US + ms * 1000 for ms in starts_ms]
    return [
        common | {"time_us": time_us, "event_time": time_us, "seq": seq} for seq, time_us in enumerate(times, start=1)
    ]


def test_timers_run_after_killed_replay_resumes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    0 ── fetch ── 50 ── fetch ── 60 ── fetch ── end of the trace ── clock row ──✗── 100, 150, 160: their timers
    """
    run = Query._run

    def run_without_timers(query: Query, known: Survey, timers: bool) -> None:
        run(query, known, timers=False)
        if timers:
            raise KeyboardInterrupt

    events = spark.createDataFrame(event_table(_fetches(0, 50, 60)))
    write_in_time_order(events, str(tmp_path / "events"), 3, 1)
    config = load_config(None, ["batch_events=1", "grouping=broker"])
    options = ReplayOptions(str(tmp_path / "events"), str(tmp_path / "out"), config)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Query, "_run", run_without_timers)
        run_replay(spark, options)
    assert DeltaTable(str(tmp_path / "out" / "expirations")).to_pyarrow_table().num_rows == 0
    assert run_replay(spark, options).counts["expirations"] == 3
    ended = DeltaTable(str(tmp_path / "out" / "expirations")).to_pyarrow_table()
    assert sorted(zip(ended["operation_id"].to_pylist(), ended["wait_ms"].to_pylist(), strict=True)) == [
        (1, 100),
        (2, 100),
        (3, 100),
    ]


@pytest.mark.nightly
def test_timers_run_after_followed_replay_resumes(spark: SparkSession, tmp_path: Path) -> None:
    """The timers run without a further event, because there may be none for hours.

    0 ── fetch ── 50 ── fetch ── 300 ── fetch at another broker ──✗── 100, 150: timers of the first two
    """
    *fetches, other = _fetches(0, 50, 300)
    events = spark.createDataFrame(event_table([*fetches, other | {"broker": 2}]))
    write_in_time_order(events, str(tmp_path / "events"), 3, 3)
    config = load_config(None, ["drain=false", "grouping=broker"])
    options = ReplayOptions(str(tmp_path / "events"), str(tmp_path / "out"), config, follow=True)
    timers_alone = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(timers_alone, "false")
    try:
        with replay_in_thread(spark, options):
            process_all_available(spark)
    finally:
        spark.conf.unset(timers_alone)
    assert DeltaTable(str(tmp_path / "out" / "expirations")).to_pyarrow_table().num_rows == 0
    for _ in range(2):
        with replay_in_thread(spark, options):
            process_all_available(spark)
        ended = DeltaTable(str(tmp_path / "out" / "expirations")).to_pyarrow_table()
        assert sorted(ended["operation_id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("offsets", "commits", "rests_at_ms"),
    [
        ({}, {}, None),
        ({"0": ""}, {}, None),
        ({"0": "", "1": ""}, {"0": 'v1\n{"nextBatchWatermarkMs":7}'}, None),
        ({"0": "", "1": ""}, {"0": 'v1\n{"nextBatchWatermarkMs":7}', "1": 'v1\n{"nextBatchWatermarkMs":9}'}, 9),
        ({"0": ""}, {"0": ""}, None),
        ({"0": ""}, {"0": 'v1\n{"nextBatch'}, None),
    ],
)
def test_checkpoint_rests_at_last_finished_batch(
    without_spark: SparkSession,
    tmp_path: Path,
    offsets: dict[str, str],
    commits: dict[str, str],
    rests_at_ms: int | None,
) -> None:
    for folder, entries in (("offsets", offsets), ("commits", commits)):
        for name, content in entries.items():
            entry = tmp_path / folder / name
            entry.parent.mkdir(exist_ok=True)
            entry.write_text(content)
    assert checkpoints.next_watermark_ms(without_spark, str(tmp_path)) == rests_at_ms


@pytest.fixture
def steps(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """A function that takes a step of a topic's import, as in a new process."""
    layout, run = Layout(str(tmp_path)), Run("run", "ingest", {}, {})
    for name in ("events", "rejected_events"):
        backend_of(spark).delta(layout.table(name)).create(layout.table(name), TABLES[name])

    def step(number: int, *times_ms: int) -> None:
        values = [json.dumps({"type": "clock", "time_us": START_US + ms * 1000}) for ms in times_ms]
        rows = [(0, number * 100 + place, value) for place, value in enumerate(values)]
        messages = spark.createDataFrame(rows, "partition INT, offset BIGINT, value STRING")
        options, topic = IngestOptions([], str(tmp_path)), KafkaTopic("nowhere:1", "t")
        EventSteps(spark, layout, run, topic, options, str(tmp_path / "steps")).write(messages, number)

    yield step


def test_repeated_step_rejects_no_own_event(steps: Any, tmp_path: Path) -> None:
    steps(0, 10, 20)
    steps(1, 30, 40)
    steps(1, 30, 40)  # The step was killed before it was recorded as finished.
    steps(2, 50, 35)
    events = DeltaTable(str(tmp_path / "events")).to_pyarrow_table().sort_by("seq")
    assert [(us - START_US) // 1000 for us in events["time_us"].to_pylist()] == [10, 20, 30, 40, 50]
    assert events["seq"].to_pylist() == [1, 2, 3, 4, 5]
    late = DeltaTable(str(tmp_path / "rejected_events")).to_pyarrow_table()
    assert late["line"].to_pylist() == [201]


def test_unfinished_first_entry_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    for query, file in (("unfinished", "offsets/.0.1234.tmp"), ("finished", "offsets/0")):
        place = tmp_path / query / file
        place.parent.mkdir(parents=True)
        place.touch()
        assert checkpoints.prepare_checkpoint(spark, str(tmp_path / query)) == str(tmp_path / query)
    assert not (tmp_path / "unfinished" / "offsets").exists()
    assert (tmp_path / "finished" / "offsets" / "0").exists()


def test_commit_without_offsets_is_damaged_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    for file in ("offsets/0", "commits/0", "commits/1"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(FileNotFoundError, match=r"/offsets/1 does not exist, although its batch has finished"):
        checkpoints.prepare_checkpoint(spark, str(tmp_path))


@pytest.mark.parametrize(
    "left",
    [
        "_delta_log/.00000000000000000000.json.1234.tmp",
        "_delta_log/_staged_commits/.gone",
        "part-00000-1234.snappy.parquet",
    ],
)
def test_table_is_created_over_partial_one(spark: SparkSession, tmp_path: Path, left: str) -> None:
    (tmp_path / "watches" / left).parent.mkdir(parents=True)
    (tmp_path / "watches" / left).touch()
    backend_of(spark).delta(str(tmp_path / "watches")).create(str(tmp_path / "watches"), TABLES["watches"])
    assert DeltaTable(str(tmp_path / "watches")).version() == 0


def test_damaged_table_keeps_its_files(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):
        write_deltalake(str(tmp_path / "watches"), TABLES["watches"].empty_table(), mode="append")
    (tmp_path / "watches" / "_delta_log" / "00000000000000000000.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    with suppress(Exception):
        backend_of(spark).delta(str(tmp_path / "watches")).create(str(tmp_path / "watches"), TABLES["watches"])
    assert [path for path in before if not path.exists()] == []


def test_start_time_does_not_depend_on_time_zone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start time identifies the steps of a run, so it must not change when a step is repeated."""
    started_at = datetime(2026, 10, 25, 0, 30, 0, 123456, UTC)  # 02:30 in Berlin occurs twice; this is the first one.
    run = Run("run", "ingest", {}, {}, started_at=started_at)
    run_records.save(spark, str(tmp_path / "runs"), run.finished({}))
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Europe/Berlin")
            time.tzset()
            loaded = run_records.load(spark, str(tmp_path / "runs"), "ingest")
    finally:
        time.tzset()
    assert loaded is not None and loaded.started_at == started_at
    assert loaded.finished_at is not None and abs(datetime.now(UTC) - loaded.finished_at).total_seconds() < 3600
