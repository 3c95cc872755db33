"""Groups on Spark: every cell of the coordinator's table, small batches and crashes give the reference's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from purgatory_udf.backend.backend import SparkBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import Gauge, Outcome, Transition
from purgatory_udf.contract.tables import CANCELLATIONS, COMPLETIONS, EVENTS, EXPIRATIONS, GROUP_TRANSITIONS, RECORDED
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from purgatory_udf.storage.event_staging import write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming import batch_sink, streaming_query
from purgatory_udf.streaming.batch_sink import BatchWriter
from purgatory_udf.streaming.checkpoints import Snapshots
from purgatory_udf.streaming.event_source import EventTable, Survey, TraceSource
from purgatory_udf.streaming.group_disagreements import explained, write_disagreements
from purgatory_udf.streaming.replay_run import create_tables, group_counts, run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from purgatory_udf.streaming.stateful_adapter import Plan
from purgatory_udf.streaming.streaming_query import Queries, replay_queries
from tests.rules.groups.cells import Event, every_cell
from tests.support.outcome_rows import outcomes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Decided = tuple[list[Outcome], list[Transition]]

by_spark, by_this_process = BatchWriter._spark_write, BatchWriter._local_write

CONFIG = Config.model_validate({"group": {"min_session_timeout_ms": 0, "purge_interval": 50}})


def _place(change: Transition) -> tuple[Any, ...]:
    return change.group, change.at_us, change.generation, change.to_state, change.members


def decided_by(result: Replay) -> Decided:
    """Return operations sorted by id, and transitions, with those of one millisecond in a fixed order."""
    return sorted(result.outcomes, key=lambda outcome: outcome.operation_id), sorted(result.transitions, key=_place)


def _table(out: Path, name: str) -> pa.Table:
    return DeltaTable(str(out / name)).to_pyarrow_table()


def decided_in(out: Path) -> Decided:
    completions = _table(out, "completions").cast(COMPLETIONS)
    expirations, cancellations = _table(out, "expirations"), _table(out, "cancellations")
    outcomes = outcomes_of(completions, expirations.cast(EXPIRATIONS), cancellations.cast(CANCELLATIONS))
    rows = _table(out, "group_transitions").cast(GROUP_TRANSITIONS)
    changes = [
        Transition(
            **{name: row[name] for name in ("group", "broker", "from_state", "to_state", "reason", "generation")},
            at_us=at_us,
            members=tuple(row["members"]),
        )
        for row, at_us in zip(rows.to_pylist(), rows["at"].cast(pa.int64()).to_pylist(), strict=True)
    ]
    return outcomes, sorted(changes, key=_place)


def gauges(out: Path) -> list[Gauge]:
    """Return the gauges of the groups' purgatories, in order of time."""
    rows = _table(out, "purgatory_gauges")
    times = rows["at"].cast(pa.int64()).to_pylist()
    readings = [
        Gauge(row["broker"], row["purgatory"], at_us // 1000, row["watched"], row["delayed"], row["purged"])
        for row, at_us in zip(rows.to_pylist(), times, strict=True)
    ]
    return sorted(readings, key=lambda gauge: (gauge.at_ms, gauge.purgatory))


def write_trace(
    spark: SparkSession, folder: Path, events: list[Event], per_batch: int, mode: str = "errorifexists"
) -> str:
    rows = [{"broker": 0, "event_time": event["time_us"]} | event for event in events]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=EVENTS))
    write_in_time_order(frame, str(folder / "events"), len(events), per_batch, mode)
    return str(folder / "events")


@pytest.fixture(scope="module")
def cells() -> list[Event]:
    return every_cell()


@pytest.fixture(scope="module")
def reference(cells: list[Event]) -> Replay:
    return replay(cells, CONFIG)


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, cells: list[Event]) -> Path:
    """Return the folder of a replay of every cell in one batch.

    The recorded answer of a join equals the replay's. That of a heartbeat has an error that a stable group never gives.
    """
    folder = tmp_path_factory.mktemp("replayed")
    events = write_trace(spark, folder, cells, per_batch=10_000)
    (heartbeat,) = (event for event in cells if event["group"] == "Stable: heartbeat" and event["type"] == "heartbeat")
    (leave,) = (event for event in cells if event["group"] == "Empty: leave" and event["time_us"] == 10_000_000)
    recorded = [
        {"operation_id": cells[0]["seq"], "api": "JOIN_GROUP", "recorded_error": "NONE", "recorded_generation": 1},
        {"operation_id": heartbeat["seq"], "api": "HEARTBEAT", "recorded_error": "REBALANCE_IN_PROGRESS"},
        {"operation_id": leave["seq"], "api": "LEAVE_GROUP", "recorded_error": "NONE"},
    ]
    answers = spark.createDataFrame(pa.Table.from_pylist(recorded, schema=RECORDED))
    answers.write.format("delta").save(str(folder / "recorded"))
    run_replay(spark, ReplayOptions(events, str(folder), CONFIG))
    return folder


def test_every_cell_matches_reference(replayed: Path, reference: Replay) -> None:
    assert decided_in(replayed) == decided_by(reference)


def test_gauges_match_reference(replayed: Path, reference: Replay) -> None:
    readings = gauges(replayed)
    assert {gauge.purgatory for gauge in readings} == {"Heartbeat", "Rebalance"}
    assert readings == gauge_changes(reference.gauges)


def test_disagreements_are_listed_by_explain(spark: SparkSession, replayed: Path) -> None:
    title, heads, line = explained(spark, str(replayed), "Stable: heartbeat")
    assert title == "Group Stable: heartbeat: responses that differ, as recorded and as replayed"
    assert heads.split() == ["asked", "broker", "request", "api", "member", "disagreement", "recorded", "replayed"]
    assert line.split()[:2] == ["1970-01-01", "00:00:10.000000"]
    assert line.split()[4:] == ["heartbeat", "b", "error", "REBALANCE_IN_PROGRESS", "NONE"]
    assert explained(spark, str(replayed), "Stable: commit") == [
        "Group Stable: commit: the replayed responses agree with all recorded ones"
    ]
    with pytest.raises(UserError, match="the replay has no group unknown"):
        explained(spark, str(replayed), "unknown")


class KilledError(Exception):
    pass


def stop_after_first_batch(running: StreamingQuery, title: str, known: Survey | None) -> int:
    """Stop the query of the coordinators after its first batch; replaces `monitor_query`."""
    while not running.recentProgress and not running.awaitTermination(1):
        pass
    running.stop()
    raise KilledError


def die_between_tables(write: Callable[..., Callable[[], None]]) -> Callable[..., Callable[[], None]]:
    """Return a writer of tables that fails before the last table; the others may have been written."""

    def dying(writer: BatchWriter, rows: Any, table: str, *more: Any) -> Callable[[], None]:
        def die() -> None:
            raise KilledError

        return die if table == "expirations" else write(writer, rows, table, *more)

    return dying


def die_before_completion(*_: object) -> None:
    """Fail in the last step of a sink, after all tables are written."""
    raise KilledError


# What is killed: the class or module, the name of its function, and what that does instead.
DEATHS: dict[str, tuple[Any, str, Any]] = {
    "batch": (streaming_query, "monitor_query", stop_after_first_batch),
    "tables of Spark": (BatchWriter, "_spark_write", die_between_tables(by_spark)),
    "tables of this process": (BatchWriter, "_local_write", die_between_tables(by_this_process)),
    "snapshot": (Snapshots, "keep", die_before_completion),
}


@pytest.mark.parametrize(
    "kills", [("batch", "snapshot"), pytest.param(tuple(DEATHS), marks=pytest.mark.nightly)], ids=len
)
def test_killed_and_resumed_run_matches_reference(
    kills: tuple[str, ...],
    spark: SparkSession,
    tmp_path: Path,
    cells: list[Event],
    reference: Replay,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = write_trace(spark, tmp_path, cells, per_batch=len(cells) // 3)
    layout, run = Layout(str(tmp_path)), Run("run-1", "replay", {}, {"stream": "stream-1"})
    shards = CONFIG.model_copy(update={"grouping": "shard", "grouping_shards": 3})
    backend = SparkBackend(spark)
    create_tables(backend, layout, groups=True)

    def resume() -> dict[str, Any]:
        """Resume as a new process does, which does not know the earlier writes."""
        known = EventTable(backend, events, CONFIG.fetch.max_bytes).survey
        assert known.first_us is not None
        plan, source = Plan(run.run_id, False, known.last_us), TraceSource(events, 1)
        title, sink = Queries(backend, shards, layout, run, plan, known.first_us // 1000).group_sink()
        replay_queries(backend, source, shards)(title, sink).to_end(known)
        write_disagreements(backend, layout, run)
        return group_counts(backend, layout, sink)

    expected = decided_by(reference)
    incomplete = []
    for kill in kills:
        where, name, death = DEATHS[kill]
        with monkeypatch.context() as patch, pytest.raises((KilledError, StreamingQueryException)):
            patch.setattr(where, name, death)
            if name == "_spark_write":  # Otherwise Spark writes larger batches only.
                patch.setattr(batch_sink, "MOST_LOCAL_ROWS", -1)
            resume()
        incomplete.append(decided_in(tmp_path) != expected)
    # The last kill comes after all tables have been written.
    assert all(incomplete[:-1])
    counts = resume()
    assert decided_in(tmp_path) == expected
    read = gauges(tmp_path)
    assert [gauge for gauge in read if gauge.at_ms <= reference.end_ms] == gauge_changes(reference.gauges)
    ends = Counter(
        "cancelled" if outcome.cancelled else "expired" if outcome.expired else "completed" for outcome in expected[0]
    )
    assert {name: count for name, count in counts.items() if name != "disagreements"} == {
        "operations": len(expected[0]),
        "completions": ends["completed"],
        "expirations": ends["expired"],
        "cancellations": ends["cancelled"],
        "open": 0,
        "transitions": len(expected[1]),
    }
    assert resume() == counts, "resuming a finished run does nothing"
