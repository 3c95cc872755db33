"""A replay that follows a table, by shard: the same tables as of the whole trace, and what can be asked of it and taken
away from it meanwhile. (By broker, one that an earlier version began is gone on with: `faults/test_upgrades`.)
"""

from __future__ import annotations

import io
import subprocess
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs.maintain import main as maintain
from purgatory_udf.backend.dialect import locally
from purgatory_udf.launch.spark_session import session_for
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming import status_file
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.top_screen import show_top
from tests.rules.groups.cells import every_cell
from tests.rules.groups.test_group_replay import decided_by, decided_in, gauges
from tests.streaming import left_open
from tests.streaming.followed import (
    BY_SHARD,
    CONFIG,
    TABLES,
    Event,
    append,
    caught_up,
    following,
    portions,
    rows,
    trace,
)
from tests.support.delta_lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
# The brokers of every cell of the coordinator's table, and of what only newer events say.
ELSEWHERE, NEWER = 1, 2


@cache
def grown() -> list[Event]:
    """The trace, and beside it, each at a broker of its own, every cell of the coordinator's table, and a few events
    that say what only newer ones do."""
    events = trace()
    begin_us = events[0]["time_us"]
    for broker, more in ((ELSEWHERE, every_cell()), (NEWER, left_open.EVENTS)):
        moved_us = begin_us - more[0]["time_us"]
        events += [event | {"time_us": event["time_us"] + moved_us, "broker": broker} for event in more]
    events.sort(key=lambda event: event["time_us"])
    return [event | {"seq": seq} for seq, event in enumerate(events, 1)]


def grown_portions() -> list[list[Event]]:
    """Cut where the trace alone is cut."""
    *events, last = grown()
    until_us = portions(trace())[0][-1]["time_us"]
    first = [event for event in events if event["time_us"] <= until_us]
    return [first, events[len(first) :], [last]]


@dataclass(frozen=True)
class Relay:
    """What lay between the two queries before `maintain`, what after it, and what it said."""

    before: list[str]
    after: list[str]
    said: str


@dataclass(frozen=True)
class Followed:
    """A table that grew, and the output beside it."""

    events: str
    out: Path
    relay: Relay


@pytest.fixture(scope="module")
def followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """A table that grew in portions, followed by a replay that was stopped once on the way; asked while it ran, and
    `maintain` run beside it."""
    folder = tmp_path_factory.mktemp("followed")
    out = folder / "out"
    first, middle, last = grown_portions()
    events = append(spark, folder, first)
    options = ReplayOptions(events, str(out), BY_SHARD, follow=True)
    with following(spark, options):
        caught_up(spark)
        answers(out)
    with following(spark, options):
        append(spark, folder, middle)
        _both_caught_up(spark)
        relay = maintained(out)
        append(spark, folder, last)
        _both_caught_up(spark)
    return Followed(events, out, relay)


def _both_caught_up(spark: SparkSession) -> None:
    """The second query, too, with what the first one has written meanwhile."""
    caught_up(spark)
    caught_up(spark)


def maintained(out: Path) -> Relay:
    relay, said = Path(Layout(str(out)).relay), io.StringIO()
    before = relayed(relay)
    with redirect_stdout(said), locally():
        assert maintain.status(["--out", str(out)]) == 0
    return Relay(before, relayed(relay), said.getvalue())


def relayed(relay: Path) -> list[str]:
    """Batches, in their order."""
    return sorted((path.name for path in relay.glob("until_ms=*")), key=lambda name: int(name.partition("=")[2]))


def answers(out: Path) -> None:
    """What can be asked of a replay that goes on, groups included, by commands of their own. (What is open, where it is
    kept by broker: in `faults/test_upgrades`, too.)"""
    asked(out, "report")
    assert (out / "report.html").is_file()
    # The report is of the metrics of this moment, which it writes down.
    metrics = Lake(out / "_report")
    purgatories = metrics.rows("SELECT DISTINCT purgatory FROM metrics_purgatories")
    assert {*purgatories} == {("Produce",), ("Fetch",), ("Heartbeat",), ("Rebalance",)}
    assert metrics.rows("SELECT 1 FROM metrics_rebalances")
    asked(out, "audit")  # A broken law would not be its success.
    rebalances = sorted(status_file.read_status_files(str(out))["groups"].rebalances)
    assert [name for name in rebalances if name.startswith("0/")] == ["0/g1", "0/g2"]


def asked(out: Path, question: str) -> None:
    done = subprocess.run(
        [ROOT / "spark-submit.sh", question, "--out", out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def whole(followed: Followed) -> Path:
    """The whole trace replayed at once, in one process."""
    out = followed.out.with_name("whole")
    with locally():
        run_replay(session_for("tests"), ReplayOptions(followed.events, str(out), CONFIG))
    return out


@pytest.mark.parametrize("name", TABLES)
def test_a_followed_replay_ends_with_the_tables_of_the_whole_trace(followed: Followed, whole: Path, name: str) -> None:
    expected = rows(whole, name)
    assert len(expected) > 10
    assert rows(followed.out, name) == expected


def test_what_the_second_query_has_taken_is_taken_away_by_maintain_while_both_go_on(followed: Followed) -> None:
    """And no answer with it, as the tables say."""
    before, after = followed.relay.before, followed.relay.after
    # Meanwhile the first query may have relayed more.
    gone = [name for name in before if name not in after]
    assert gone and gone == before[: len(gone)]
    assert after, "what came last may have to go through yet"
    layout = Layout(str(followed.out))
    assert f"taken away: {layout.relay}: what went through" in followed.relay.said
    assert DeltaTable(layout.answers).to_pyarrow_table().num_rows == 0


def test_counts_in_runs_are_those_of_the_whole_trace(spark: SparkSession, followed: Followed, whole: Path) -> None:
    actual, expected = (run_records.load(spark, str(out / "runs"), "replay") for out in (followed.out, whole))
    assert actual is not None and expected is not None
    counted = ("events", "operations", "completions", "expirations", "cancellations", "open")
    assert {name: actual.counts[name] for name in counted} == {name: expected.counts[name] for name in counted}
    assert actual.counts["groups"]["transitions"] == expected.counts["groups"]["transitions"]
    assert (actual.status, expected.status) == (run_records.RUNNING, run_records.FINISHED)


def test_a_fetch_is_given_one_batch_whole_unless_its_maximum_is_hard(followed: Followed) -> None:
    columns = ("request_id", "completed_by", "bytes", "answered_bytes")

    def told_of(table: str) -> list[tuple[Any, ...]]:
        there = [row for row in rows(followed.out, table).to_pylist() if row["broker"] == NEWER]
        return [tuple(row[name] for name in columns) for row in there]

    assert told_of("completions") == [(left_open.WHOLE, "min_bytes", 100, 2_000)]
    assert told_of("expirations") == [(left_open.HARD, "timeout", 100, 100)]


@pytest.fixture(scope="module")
def reference() -> Replay:
    """Of the cells, up to when the clock was told."""
    known = [event for event in grown() if event["broker"] == ELSEWHERE]
    clock = next(event for event in grown() if event["type"] == "clock")
    return replay([*known, clock | {"broker": ELSEWHERE}], CONFIG)


def test_every_cell_of_the_coordinators_table_is_told_as_its_events_and_their_clock_have_decided(
    followed: Followed, reference: Replay
) -> None:
    outcomes, transitions = decided_in(followed.out)
    there = [outcome for outcome in outcomes if outcome.broker == ELSEWHERE]
    assert len(there) > 300
    assert (there, [change for change in transitions if change.broker == ELSEWHERE]) == decided_by(reference)


def test_the_gauges_of_the_cells_purgatories_are_the_references(followed: Followed, reference: Replay) -> None:
    read = [gauge for gauge in gauges(followed.out) if gauge.broker == ELSEWHERE]
    assert {gauge.purgatory for gauge in read} == {"Heartbeat", "Rebalance"}
    assert read == gauge_changes(reference.gauges)


def test_top_shows_what_was_known_last(followed: Followed, capsys: pytest.CaptureFixture[str]) -> None:
    show_top(str(followed.out), once=True, every=1.0, rows=3)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Run run-") and said[0].endswith("the replay has stopped")
    assert "Purgatories" in said
