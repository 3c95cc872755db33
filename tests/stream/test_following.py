"""A replay that follows a table: the same tables as of the whole trace, and what can be asked of it meanwhile."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jobs.maintain import main as maintain
from purgatory_udf.audit import audit
from purgatory_udf.config import Config
from purgatory_udf.live import boards
from purgatory_udf.live.top import show
from purgatory_udf.metrics.options import MetricsOptions
from purgatory_udf.purgatory.gauges import changed
from purgatory_udf.reference.replay import Replay, replay
from purgatory_udf.report.run import write_report
from purgatory_udf.storage import runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.stream.inspection import inspect
from purgatory_udf.stream.options import ReplayOptions
from purgatory_udf.stream.replay import run_replay
from tests.groups.cells import every_cell
from tests.groups.test_group_replay import gauges, told, told_by
from tests.lake import Lake
from tests.stream.followed import CONFIG, TABLES, Event, append, caught_up, following, portions, rows, trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where every cell of the coordinator's table is.
ELSEWHERE = 1


@cache
def grown() -> list[Event]:
    """The trace, and every cell of the coordinator's table beside it, at a broker of their own."""
    events, cells = trace(), every_cell()
    moved_us = events[0]["time_us"] - cells[0]["time_us"]
    events += [event | {"time_us": event["time_us"] + moved_us, "broker": ELSEWHERE} for event in cells]
    events.sort(key=lambda event: event["time_us"])
    return [event | {"seq": seq} for seq, event in enumerate(events, 1)]


def grown_portions() -> list[list[Event]]:
    """Cut where the trace alone is cut."""
    *events, last = grown()
    until_us = portions(trace())[0][-1]["time_us"]
    first = [event for event in events if event["time_us"] <= until_us]
    return [first, events[len(first) :], [last]]


@pytest.fixture(scope="module")
def followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that grew in portions, followed by a replay that was stopped once on the way; asked while it ran."""
    folder = tmp_path_factory.mktemp("followed")
    out = folder / "out"
    parts = grown_portions()
    events = append(spark, folder, parts[0])
    options = ReplayOptions(events, str(out), CONFIG, follow=True)
    with following(spark, options):
        caught_up(spark)
        answers(spark, out)
    with following(spark, options):
        for part in parts[1:]:
            append(spark, folder, part)
            caught_up(spark)
    return folder


def answers(spark: SparkSession, out: Path) -> None:
    """Everything that can be asked of a replay that goes on, groups included."""
    assert write_report(spark, str(out), MetricsOptions(), out / "report.html").is_file()
    # The report is of the metrics of this moment, which it writes down.
    metrics = Lake(out / "_report")
    purgatories = metrics.rows("SELECT DISTINCT purgatory FROM metrics_purgatories")
    assert {*purgatories} == {("Produce",), ("Fetch",), ("Heartbeat",), ("Rebalance",)}
    assert metrics.rows("SELECT 1 FROM metrics_rebalances")
    assert [finding for finding in audit(spark, str(out)) if finding.broken] == []
    listed = inspect(spark, str(out), 10)
    known = boards.read(str(out))
    assert known["partitions"].groups["broker-0"]["open"] > 0
    assert listed.open >= known["partitions"].groups["broker-0"]["open"]
    rebalances = sorted(known["groups"].rebalances)
    assert [name for name in rebalances if name.startswith("0/")] == ["0/g1", "0/g2"]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, followed: Path) -> Path:
    out = followed / "whole"
    run_replay(spark, ReplayOptions(str(followed / "events"), str(out), CONFIG))
    return out


@pytest.mark.parametrize("name", TABLES)
def test_a_followed_replay_ends_with_the_tables_of_the_whole_trace(followed: Path, whole: Path, name: str) -> None:
    expected = rows(whole, name)
    assert len(expected) > 10
    assert rows(followed / "out", name) == expected


def test_counts_in_runs_are_those_of_the_whole_trace(spark: SparkSession, followed: Path, whole: Path) -> None:
    found, expected = (runs.load(spark, str(out / "runs"), "replay") for out in (followed / "out", whole))
    assert found is not None and expected is not None
    counted = ("events", "operations", "completions", "expirations", "cancellations", "open")
    assert {name: found.counts[name] for name in counted} == {name: expected.counts[name] for name in counted}
    assert found.counts["groups"]["transitions"] == expected.counts["groups"]["transitions"]
    assert (found.status, expected.status) == (runs.RUNNING, runs.FINISHED)


@pytest.fixture(scope="module")
def reference() -> Replay:
    """Of the cells, up to when the clock was told."""
    known = [event for event in grown() if event["broker"] == ELSEWHERE]
    clock = next(event for event in grown() if event["type"] == "clock")
    return replay([*known, clock | {"broker": ELSEWHERE}], CONFIG)


def test_every_cell_of_the_coordinators_table_is_told_as_its_events_and_their_clock_have_decided(
    followed: Path, reference: Replay
) -> None:
    outcomes, transitions = told(followed / "out")
    there = [outcome for outcome in outcomes if outcome.broker == ELSEWHERE]
    assert len(there) > 300
    assert (there, [change for change in transitions if change.broker == ELSEWHERE]) == told_by(reference)


def test_the_gauges_of_the_cells_purgatories_are_the_references(followed: Path, reference: Replay) -> None:
    read = [gauge for gauge in gauges(followed / "out") if gauge.broker == ELSEWHERE]
    assert {gauge.purgatory for gauge in read} == {"Heartbeat", "Rebalance"}
    assert read == changed(reference.gauges)


def test_top_shows_what_was_known_last(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(str(followed / "out"), once=True, every=1.0, rows=3)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Run run-") and said[0].endswith("the replay has stopped")
    assert "Purgatories" in said


def relayed(relay: Path) -> list[str]:
    """Batches, in their order."""
    return sorted((path.name for path in relay.glob("until_ms=*")), key=lambda name: int(name.partition("=")[2]))


def test_what_the_second_query_by_shard_has_taken_is_taken_away_by_maintain_while_both_go_on_and_no_answer_with_it(
    spark: SparkSession, tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, relay = tmp_path / "out", Path(Layout(str(tmp_path / "out")).relay)
    by_shard = Config.model_validate(CONFIG.model_dump() | {"grouping": "shard", "grouping_shards": 2})
    first, *more = grown_portions()
    events = append(spark, tmp_path, first)
    with following(spark, ReplayOptions(events, str(out), by_shard, follow=True)):
        caught_up(spark)
        taken = 0
        for part in more:
            append(spark, tmp_path, part)
            caught_up(spark)
            caught_up(spark)  # What the first query has written meanwhile.
            before = relayed(relay)
            assert maintain.status(["--out", str(out)]) == 0
            # Meanwhile the first query may have relayed more.
            gone = [name for name in before if not (relay / name).exists()]
            assert gone == before[: len(gone)]
            assert relayed(relay), "what came last may have to go through yet"
            taken += len(gone)
        assert taken
        assert f"taken away: {relay}: what went through" in capsys.readouterr().out
    assert DeltaTable(Layout(str(out)).told).to_pyarrow_table().num_rows == 0
    for name in TABLES:
        assert rows(out, name) == rows(whole, name), name
