"""`maintain` puts together the events that an import goes on adding to: who follows them notices nothing, and who
begins only when their first commits or files are gone takes what is there at once, for the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jobs.maintain import main
from purgatory_udf.backend.backend import LocalBackend, backend_of
from purgatory_udf.backend.delta_store import SparkDelta
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.storage import run_records
from purgatory_udf.storage.delta_tables import content_commits
from purgatory_udf.storage.event_staging import is_in_time_order
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay
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

FOLLOWS = Run("ingest-broker-log", "ingest", {"kafka": "host:9092", "topic": "broker-log"}, {})


@pytest.fixture
def imported(spark: SparkSession, tmp_path: Path) -> Path:
    """What an import that follows a topic has written so far."""
    run_records.save(spark, str(tmp_path / "runs"), FOLLOWS)
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted((folder / "events").glob("*.parquet"))


def first_commit(spark: SparkSession, events: str) -> int | None:
    """With which to begin to read it commit by commit. Spark and this process read the log alike."""
    assert SparkDelta(spark).history(events) == backend_of(spark).delta(events).history(events)
    since = content_commits(spark, events)
    return since[0].version if since else None


@pytest.mark.long
def test_who_follows_goes_on_and_who_begins_later_finds_all_of_it(spark: SparkSession, imported: Path) -> None:
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
    with replay_in_thread(spark, replay):  # From where it was, by commits whose files are still there.
        process_all_available(spark)
    for file in added:  # As a week later.
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


def test_a_table_whose_log_has_lost_its_first_commits_is_not_read_commit_by_commit(
    spark: SparkSession, imported: Path
) -> None:
    first, middle, _ = split_trace(growing_trace())
    append_events(spark, imported, first)
    events = append_events(spark, imported, middle)
    assert (first_commit(spark, events), is_in_time_order(spark, events)) == (0, True)
    DeltaTable(events).create_checkpoint()
    (imported / "events/_delta_log" / f"{0:020}.json").unlink()
    assert (first_commit(spark, events), is_in_time_order(spark, events)) == (None, False)


def test_events_that_were_imported_at_once_stay_a_batch_to_a_file(spark: SparkSession, imported: Path) -> None:
    first, middle, _ = split_trace(growing_trace())
    append_events(spark, imported, first)
    events = append_events(spark, imported, middle)
    run_records.save(spark, str(imported / "runs"), FOLLOWS.finished({}))
    before = DeltaTable(events).version()
    assert main.status(["--out", str(imported)], open_local) == 0
    assert (DeltaTable(events).version(), len(files(imported))) == (before, 2)
