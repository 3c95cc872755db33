"""A replay that follows a growing table, grouped by shard: its tables equal those of a replay of the whole trace.

Commands query it and `maintain` runs while it is running. `tests/chaos/test_upgrades.py` follows a table grouped by
broker.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs.audit import main as audit
from jobs.maintain import main as maintain
from jobs.report import main as report
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.launch.job import Job
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming import status_file
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from purgatory_udf.streaming.top_screen import show_top
from tests.rules.groups.cells import every_cell
from tests.rules.groups.test_group_replay import decided_by, decided_in, gauges
from tests.streaming import left_open
from tests.streaming.growing_table import (
    BY_SHARD,
    CONFIG,
    TABLES,
    Event,
    append_events,
    growing_trace,
    process_all_available,
    replay_in_thread,
    sorted_rows,
    split_trace,
)
from tests.support.delta_lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

# Broker of the cases of the coordinator's state table, and broker of events with fields that only newer traces have.
COORDINATOR, NEWER = 1, 2


@cache
def whole_trace() -> list[Event]:
    """Return `growing_trace`, the coordinator's cases and `left_open.EVENTS`, at three brokers."""
    events = growing_trace()
    begin_us = events[0]["time_us"]
    for broker, more in ((COORDINATOR, every_cell()), (NEWER, left_open.EVENTS)):
        moved_us = begin_us - more[0]["time_us"]
        events += [event | {"time_us": event["time_us"] + moved_us, "broker": broker} for event in more]
    events.sort(key=lambda event: event["time_us"])
    return [event | {"seq": seq} for seq, event in enumerate(events, 1)]


def trace_portions() -> list[list[Event]]:
    """Return the whole trace, split where `split_trace` splits `growing_trace`."""
    *events, last = whole_trace()
    until_us = split_trace(growing_trace())[0][-1]["time_us"]
    first = [event for event in events if event["time_us"] <= until_us]
    return [first, events[len(first) :], [last]]


@dataclass(frozen=True)
class Followed:
    """The table of events and the output folder."""

    events: str
    out: Path


@pytest.fixture(scope="module")
def followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """A replay that followed a table of three portions and was stopped once. Commands ran at the same time."""
    folder = tmp_path_factory.mktemp("followed")
    out = folder / "out"
    first, middle, last = trace_portions()
    events = append_events(spark, folder, first)
    options = ReplayOptions(events, str(out), BY_SHARD, follow=True)
    with replay_in_thread(spark, options):
        process_all_available(spark)
        query_running_replay(out)
    with replay_in_thread(spark, options):
        append_events(spark, folder, middle)
        process_all_available(spark)
        run_command(out, maintain)
        append_events(spark, folder, last)
        process_all_available(spark)
    return Followed(events, out)


def query_running_replay(out: Path) -> None:
    """Run commands on a running replay. `tests/chaos/test_upgrades.py` checks its open operations."""
    run_command(out, report)
    assert (out / "report.html").is_file()
    # The report has written the metrics that it shows.
    metrics = Lake(out / "_report")
    purgatories = metrics.rows("SELECT DISTINCT purgatory FROM metrics_purgatories")
    assert {*purgatories} == {("Produce",), ("Fetch",), ("Heartbeat",), ("Rebalance",)}
    assert metrics.rows("SELECT 1 FROM metrics_rebalances")
    run_command(out, audit)
    rebalances = sorted(status_file.read_status_files(str(out))["groups"].rebalances)
    assert [name for name in rebalances if name.startswith("0/")] == ["0/g1", "0/g2"]


def run_command(out: Path, command: Job) -> None:
    with redirect_stdout(io.StringIO()) as printed:
        assert command.status(["--out", str(out)], open_local) == 0, printed.getvalue()


@pytest.fixture(scope="module")
def whole(followed: Followed) -> Path:
    """Output of a replay of the whole trace as one batch, without Spark."""
    out = followed.out.with_name("whole")
    run_replay(LocalBackend(), ReplayOptions(followed.events, str(out), CONFIG))
    return out


@pytest.mark.parametrize("name", TABLES)
def test_followed_tables_equal_whole_trace(followed: Followed, whole: Path, name: str) -> None:
    expected = sorted_rows(whole, name)
    assert len(expected) > 10
    assert sorted_rows(followed.out, name) == expected


def test_followed_replay_keeps_no_group_answers(followed: Followed) -> None:
    assert DeltaTable(Layout(str(followed.out)).answers).to_pyarrow_table().num_rows == 0


def test_followed_counts_equal_whole_trace(spark: SparkSession, followed: Followed, whole: Path) -> None:
    actual, expected = (run_records.load(spark, str(out / "runs"), "replay") for out in (followed.out, whole))
    assert actual is not None and expected is not None
    counted = ("events", "operations", "completions", "expirations", "cancellations", "open")
    assert {name: actual.counts[name] for name in counted} == {name: expected.counts[name] for name in counted}
    assert actual.counts["groups"]["transitions"] == expected.counts["groups"]["transitions"]
    assert (actual.status, expected.status) == (run_records.RUNNING, run_records.FINISHED)


def test_hard_maximum_cuts_first_batch(followed: Followed) -> None:
    columns = ("request_id", "completed_by", "bytes", "answered_bytes")

    def outcomes(table: str) -> list[tuple[Any, ...]]:
        newer = [row for row in sorted_rows(followed.out, table).to_pylist() if row["broker"] == NEWER]
        return [tuple(row[name] for name in columns) for row in newer]

    assert outcomes("completions") == [(left_open.WHOLE, "min_bytes", 100, 2_000)]
    assert outcomes("expirations") == [(left_open.HARD, "timeout", 100, 100)]


@pytest.fixture(scope="module")
def reference() -> Replay:
    """The reference's replay of the coordinator's cases, up to the first clock event."""
    cases = [event for event in whole_trace() if event["broker"] == COORDINATOR]
    clock = next(event for event in whole_trace() if event["type"] == "clock")
    return replay([*cases, clock | {"broker": COORDINATOR}], CONFIG)


def test_coordinator_outcomes_equal_reference(followed: Followed, reference: Replay) -> None:
    outcomes, transitions = decided_in(followed.out)
    actual = [outcome for outcome in outcomes if outcome.broker == COORDINATOR]
    assert len(actual) > 300
    assert (actual, [change for change in transitions if change.broker == COORDINATOR]) == decided_by(reference)


def test_coordinator_gauges_equal_reference(followed: Followed, reference: Replay) -> None:
    read = [gauge for gauge in gauges(followed.out) if gauge.broker == COORDINATOR]
    assert {gauge.purgatory for gauge in read} == {"Heartbeat", "Rebalance"}
    assert read == gauge_changes(reference.gauges)


def test_top_shows_last_status(followed: Followed, capsys: pytest.CaptureFixture[str]) -> None:
    show_top(str(followed.out), once=True, every=1.0, rows=3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Run run-") and lines[0].endswith("the replay has stopped")
    assert "Purgatories" in lines
