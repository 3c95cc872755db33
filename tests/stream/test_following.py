"""A replay that follows a table: the same tables as of the whole trace, and what can be asked of it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from purgatory_udf.audit import audit
from purgatory_udf.config import Config
from purgatory_udf.live import boards
from purgatory_udf.live.top import show
from purgatory_udf.loop.engine import event_table
from purgatory_udf.metrics.options import MetricsOptions
from purgatory_udf.report.run import write_report
from purgatory_udf.storage import runs
from purgatory_udf.storage.staging import write_in_time_order
from purgatory_udf.stream.inspection import inspect
from purgatory_udf.stream.options import ReplayOptions
from purgatory_udf.stream.replay import run_replay
from tests import oracle_groups, oracle_traces
from tests.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event = dict[str, Any]

TABLES = ("completions", "expirations", "watches", "purgatory_gauges", "group_transitions")
CONFIG = Config.model_validate({"drain": False, "group": {"min_session_timeout_ms": 0, "purge_interval": 50}})


def trace() -> list[Event]:
    """Partitions and groups side by side, each as recorded; an hour later the time is told, twice: what a batch says of
    it is known to the next one."""
    partitions, groups = oracle_traces.load("tiny-2").events, oracle_groups.load("tiny-3").events
    first, other = (min(event["time_us"] for event in some) for some in (partitions, groups))
    moved = [event | {"time_us": event["time_us"] - other + first, "broker": 0} for event in groups]
    events = sorted([*partitions, *moved], key=lambda event: (event["time_us"], event["seq"]))
    end_us = events[-1]["time_us"]
    events += [{"type": "clock", "time_us": end_us + seconds * 1_000_000} for seconds in (3600, 3601)]
    return [{"broker": 0} | event | {"seq": seq} for seq, event in enumerate(events, 1)]


def portions(events: list[Event]) -> list[list[Event]]:
    """Three, cut between milliseconds; the last one is the last event."""
    *events, last = events
    at = len(events) * 2 // 3
    while events[at]["time_us"] // 1000 == events[at - 1]["time_us"] // 1000:
        at += 1
    return [events[:at], events[at:], [last]]


def append(spark: SparkSession, folder: Path, events: list[Event]) -> str:
    frame = spark.createDataFrame(event_table([event | {"event_time": event["time_us"]} for event in events]))
    write_in_time_order(frame, str(folder / "events"), len(events), 10_000, "append")
    return str(folder / "events")


@contextmanager
def following(spark: SparkSession, options: ReplayOptions) -> Iterator[None]:
    """The command in a thread of its own, from when both its queries run until they are stopped."""
    died: list[BaseException] = []

    def run() -> None:
        try:
            run_replay(spark, options)
        except BaseException as error:
            died.append(error)

    replay = threading.Thread(target=run)
    replay.start()
    try:
        while len(spark.streams.active) < 2 and replay.is_alive():
            replay.join(0.1)
        yield
    finally:
        for query in spark.streams.active:
            query.stop()
        replay.join()
    assert died == []


def caught_up(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.processAllAvailable()


def rows(out: Path, name: str) -> pa.Table:
    """A table without its run, in one order."""
    table = DeltaTable(str(out / name)).to_pyarrow_table().drop_columns(["run_id"])
    plain = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    return table.sort_by([(column, "ascending") for column in plain])


@pytest.fixture(scope="module")
def followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that grew in portions, followed by a replay that was stopped once on the way; asked while it ran."""
    folder = tmp_path_factory.mktemp("followed")
    out = folder / "out"
    parts = portions(trace())
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
    told = boards.read(str(out))
    assert told["partitions"].groups["broker-0"]["open"] > 0
    assert listed.open >= told["partitions"].groups["broker-0"]["open"]
    assert sorted(told["groups"].rebalances) == ["0/g1", "0/g2"]


@pytest.mark.parametrize("name", TABLES)
def test_a_followed_replay_ends_with_the_tables_of_the_whole_trace(followed: Path, whole: Path, name: str) -> None:
    expected = rows(whole, name)
    assert len(expected) > 10
    assert rows(followed / "out", name) == expected


@pytest.fixture(scope="module")
def whole(spark: SparkSession, followed: Path) -> Path:
    out = followed / "whole"
    run_replay(spark, ReplayOptions(str(followed / "events"), str(out), CONFIG))
    return out


def test_counts_in_runs_are_those_of_the_whole_trace(spark: SparkSession, followed: Path, whole: Path) -> None:
    found, expected = (runs.load(spark, str(out / "runs"), "replay") for out in (followed / "out", whole))
    assert found is not None and expected is not None
    counted = ("events", "operations", "completions", "expirations", "cancellations", "open")
    assert {name: found.counts[name] for name in counted} == {name: expected.counts[name] for name in counted}
    assert found.counts["groups"]["transitions"] == expected.counts["groups"]["transitions"]
    assert (found.status, expected.status) == (runs.RUNNING, runs.FINISHED)


def test_top_shows_what_was_known_last(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(str(followed / "out"), once=True, every=1.0, rows=3)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Run run-") and said[0].endswith("the replay has stopped")
    assert "Purgatories" in said
