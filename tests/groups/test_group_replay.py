"""The group query on Spark: two sizes of batches, a crash in between, and the same tables as the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle_groups
import pyarrow as pa
import pytest
from batches import Event
from pyspark.errors import StreamingQueryException

from purgatory_udf.columnar.outcome_rows import outcomes_of
from purgatory_udf.config import Config
from purgatory_udf.groups.tables import Tables
from purgatory_udf.outcomes import Outcome, Transition
from purgatory_udf.reference.replay import replay
from purgatory_udf.stream import delta, groups
from purgatory_udf.stream.group_queries import table_of
from purgatory_udf.stream.groups import replay_groups
from purgatory_udf.stream.layout import Layout
from purgatory_udf.stream.runs import Run
from purgatory_udf.stream.staging import write_in_time_order
from purgatory_udf.stream.survey import Survey, survey
from purgatory_udf.tables import COMPLETIONS, EVENTS, EXPIRATIONS, GROUP_TRANSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Told = tuple[list[Outcome], list[Transition]]


class GroupRun:
    """A replay of a trace's groups into an output folder of its own; run again, it goes on where it stopped."""

    def __init__(self, spark: SparkSession, out: Path, events: list[Event], per_batch: int) -> None:
        self._spark, self._layout = spark, Layout(str(out))
        self._run = Run("run-1", "replay", {}, {"stream": "stream-1"})
        table = pa.Table.from_pylist(
            [{"broker": 0, "event_time": event["time_us"]} | event for event in events], schema=EVENTS
        )
        frame = spark.createDataFrame(table)
        write_in_time_order(frame, self._layout.table("events"), len(events), per_batch)
        for name, schema in (("completions", COMPLETIONS), ("expirations", EXPIRATIONS)):
            delta.create(spark, self._layout.table(name), schema)
        self._found = survey(frame)

    def go_on(self, config: Config) -> dict[str, Any]:
        events = self._layout.table("events")
        return replay_groups(self._spark, config, self._layout, self._run, self._found, events, 1)

    def told(self) -> Told:
        """Operations by their ids, and state changes: of one millisecond in any order."""
        outcomes = outcomes_of(self._table("completions", COMPLETIONS), self._table("expirations", EXPIRATIONS))
        rows = self._table("group_transitions", GROUP_TRANSITIONS)
        times = rows["at"].cast(pa.int64()).to_pylist()
        changes = [
            Transition(
                **{name: row[name] for name in ("group", "broker", "from_state", "to_state", "reason", "generation")},
                at_us=at_us,
                members=tuple(row["members"]),
            )
            for row, at_us in zip(rows.to_pylist(), times, strict=True)
        ]
        return outcomes, sorted(changes, key=_place)

    def _table(self, name: str, schema: pa.Schema) -> pa.Table:
        frame = self._spark.read.format("delta").load(self._layout.table(name))
        return frame.toArrow().cast(schema)


def _place(change: Transition) -> tuple[Any, ...]:
    return change.group, change.at_us, change.generation, change.to_state, change.members


class KilledError(Exception):
    pass


def die_after_the_first_batch(query: StreamingQuery, title: str, found: Survey | None) -> int:
    """In place of `follow_to_end`, with the query of the coordinators."""
    while not query.recentProgress and not query.awaitTermination(1):
        pass
    query.stop()
    raise KilledError


def die_between_two_tables(packets: DataFrame, table: str, tables: Tables) -> DataFrame:
    """In place of `table_of`."""
    if table == "expirations":
        raise KilledError
    return table_of(packets, table, tables)


def test_batches_of_any_size_and_a_run_killed_twice_give_the_tables_of_the_reference(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = oracle_groups.load("tiny-1")
    result = replay(trace.events, trace.config)
    outcomes = sorted(result.outcomes, key=lambda one: one.operation_id)
    expected = outcomes, sorted(result.transitions, key=_place)

    whole = GroupRun(spark, tmp_path / "whole", trace.events, per_batch=1000)
    counts = whole.go_on(trace.config)
    assert whole.told() == expected
    assert {name: counts[name] for name in ("operations", "completions", "expirations", "open", "transitions")} == {
        "operations": len(outcomes),
        "completions": sum(not one.expired for one in outcomes),
        "expirations": sum(one.expired for one in outcomes),
        "open": 0,
        "transitions": len(result.transitions),
    }

    killed = GroupRun(spark, tmp_path / "killed", trace.events, per_batch=60)
    for name, death in (("follow_to_end", die_after_the_first_batch), ("table_of", die_between_two_tables)):
        with monkeypatch.context() as patch, pytest.raises((KilledError, StreamingQueryException)):
            patch.setattr(groups, name, death)
            killed.go_on(trace.config)
        assert killed.told() != expected
    assert killed.go_on(trace.config) == counts
    assert killed.told() == expected


def test_a_trace_without_groups_starts_no_query(spark: SparkSession, tmp_path: Path) -> None:
    run = GroupRun(spark, tmp_path / "none", [{"type": "clock", "time_us": 1_000_000, "seq": 1}], per_batch=10)
    assert run.go_on(Config()) == {}
    assert not (tmp_path / "none" / "_replay").exists()
