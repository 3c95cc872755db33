"""`maintain` compacts the events of a followed import, and replays of these give the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.maintain import main
from purgatory_udf.backend.backend import LocalBackend, backend_of
from purgatory_udf.backend.delta_store import SparkDelta
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import content_commits, is_in_time_order
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.event_source import EventTable
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.streaming.growing_table import (
    CONFIG,
    TABLES,
    append_events,
    growing_trace,
    process_all_available,
    replay_in_thread,
    sorted_rows,
    split_trace,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.backend.backend import Backend

FOLLOWS = Run("ingest-broker-log", "ingest", {"kafka": "host:9092", "topic": "broker-log"}, {})


@pytest.fixture
def imported(spark: SparkSession, tmp_path: Path) -> Path:
    """Output folder of an import that follows a topic."""
    run_records.save(spark, str(tmp_path / "runs"), FOLLOWS)
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted((folder / "events").glob("*.parquet"))


def first_commit(spark: SparkSession, events: str) -> int | None:
    """Return the first version of a read by commits; Spark and this process must read the same history."""
    assert SparkDelta(spark).history(events) == backend_of(spark).delta(events).history(events)
    since = content_commits(spark, events)
    return since[0].version if since else None


@pytest.mark.nightly
@pytest.mark.long
def test_compacted_events_give_the_same_tables(spark: SparkSession, imported: Path) -> None:
    first, middle, last = split_trace(growing_trace())
    followed, anew, whole = (imported / name for name in ("followed", "anew", "whole"))
    events = append_events(spark, imported, first)
    replay = ReplayOptions(events, str(followed), CONFIG, follow=True)
    with replay_in_thread(spark, replay):
        process_all_available(spark)
    for event in (middle[: len(middle) // 2], middle[len(middle) // 2 :]):
        append_events(spark, imported, event)
    added = files(imported)

    assert main.status(["--out", str(imported)], open_local) == 0
    assert len(DeltaTable(events).file_uris()) == 1 < len(added)
    assert (first_commit(spark, events), is_in_time_order(spark, events)) == (0, False)

    append_events(spark, imported, last)
    with replay_in_thread(spark, replay):  # It resumes by commits, which still have their files.
        process_all_available(spark)
    for file in added:  # As a vacuum a week later does.
        file.unlink()
    assert first_commit(spark, events) is None
    with replay_in_thread(spark, ReplayOptions(events, str(anew), CONFIG, follow=True)):
        process_all_available(spark)

    run_replay(LocalBackend(), ReplayOptions(events, str(whole), CONFIG))
    for name in TABLES:
        expected = sorted_rows(whole, name)
        assert len(expected) > 10
        assert sorted_rows(followed, name) == expected, name
        assert sorted_rows(anew, name) == expected, name


def test_incomplete_log_is_not_read_by_commits(spark: SparkSession, imported: Path) -> None:
    first, middle, _ = split_trace(growing_trace())
    append_events(spark, imported, first)
    events = append_events(spark, imported, middle)
    assert (first_commit(spark, events), is_in_time_order(spark, events)) == (0, True)
    DeltaTable(events).create_checkpoint()
    (imported / "events/_delta_log" / f"{0:020}.json").unlink()
    assert (first_commit(spark, events), is_in_time_order(spark, events)) == (None, False)


def test_events_of_finished_import_are_not_compacted(spark: SparkSession, imported: Path) -> None:
    first, middle, _ = split_trace(growing_trace())
    append_events(spark, imported, first)
    events = append_events(spark, imported, middle)
    run_records.save(spark, str(imported / "runs"), FOLLOWS.finished({}))
    before = DeltaTable(events).version()
    assert main.status(["--out", str(imported)], open_local) == 0
    assert (DeltaTable(events).version(), len(files(imported))) == (before, 2)


def test_replay_waits_for_table(without_spark: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            write_deltalake(str(tmp_path / "events"), pa.Table.from_pylist([], schema=EVENTS))

    caplog.set_level("INFO")
    for _ in range(2):
        EventTable(without_spark, str(tmp_path / "events")).wait(sleep)
    assert waits == [1.0] * 3
    table = f"{tmp_path}/events"
    assert caplog.messages == [f"waiting for the table {table}, which ingest --follow creates; Ctrl-C stops waiting"]
