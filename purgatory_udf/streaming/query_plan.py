"""The queries of a run, all over the same events.

Partitions are one query where groups are brokers. Grouped by partition or shard, a first query decides what a group
sees whole, and a second, by broker, the operations that span several groups. Consumer groups are one more query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from purgatory_udf.backend.backend import Backend, LocalBackend, SparkBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import engine_settings
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.storage import event_staging
from purgatory_udf.storage.checkpoints import Snapshots
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.batch_sink import CoordinatorGauges, Sink
from purgatory_udf.streaming.event_source import Survey, TraceSource, delta_stream
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.partition_rules import OperationScope, PartitionRules
from purgatory_udf.streaming.single_batch_replay import LocalQuery
from purgatory_udf.streaming.stateful_rules import INPUT_SCHEMA, AnyRules, Plan
from purgatory_udf.streaming.status_file import StatusFiles
from purgatory_udf.streaming.streaming_query import Query, packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Names of the queries: partitions, the brokers behind them, consumer groups.
QUERIES = (PARTITIONS, BROKERS, GROUPS) = ("partitions", event_staging.READER, "groups")


class ReplayQuery(Protocol):
    """A query that replays a finished trace: Spark's, or this process's."""

    @property
    def sink(self) -> Sink:
        """Sink of the results."""

    def to_end(self, survey: Survey) -> None:
        """Process all events."""


MakeQuery = Callable[[str, Sink], ReplayQuery]


def replay_queries(backend: Backend, source: TraceSource, config: Config) -> MakeQuery:
    """Return a function that creates a query with a title and a sink over the events of a finished trace."""
    if isinstance(backend, LocalBackend):
        return lambda title, sink: LocalQuery(backend, title, source.path, sink)
    assert isinstance(backend, SparkBackend)
    return stream_queries(backend, lambda: source.stream(backend), config)


def stream_queries(
    backend: SparkBackend, events: Callable[[], DataFrame], config: Config
) -> Callable[[str, Sink], Query]:
    """Return a function that creates a query with a title and a sink over a stream of events."""

    def make(title: str, sink: Sink) -> Query:
        if sink.name == BROKERS:
            arriving = lambda: delta_stream(backend.spark, sink.layout.relay, since=0, shrinks=True)  # noqa: E731
        else:
            arriving = lambda: packed(events(), sink.rules)  # noqa: E731
        return Query(backend, title, arriving, config.max_disorder_ms, sink)

    return make


@dataclass(frozen=True)
class Queries:
    """Common parts of a run's queries; `trace_start_ms` is the start time of the trace."""

    backend: Backend
    config: Config
    layout: Layout
    run: Run
    plan: Plan
    trace_start_ms: int
    status_files: StatusFiles | None = None

    def partition_sinks(self, most_bytes: int, least_bytes: int, closes: bool = False) -> list[tuple[str, Sink]]:
        """Return title and sink of the queries of partitions.

        Args:
            most_bytes: The greatest limit of a partition's read. Append positions are kept for that many bytes.
            least_bytes: The smallest limit. Larger batches are kept.
            closes: Whether no other query of the run writes gauges.
        """
        config = self.config.model_copy(update={"grouping": self.run.configuration["grouping"]})
        limits = (min(limit, config.fetch.max_bytes) for limit in (most_bytes, least_bytes))
        rules = PartitionRules(self.plan, config, engine_settings(config, self.trace_start_ms, *limits))
        if config.grouping == "broker":
            return [("replay", self._sink(PARTITIONS, rules, closes=closes and self.plan.is_one_batch))]
        event_staging.create_relay(self.backend, self.layout, INPUT_SCHEMA)
        shares, rest = replace(rules, scope=OperationScope.WHOLE), replace(rules, scope=OperationScope.SPLIT)
        return [("replay", self._sink(PARTITIONS, shares)), (BROKERS, self._sink(BROKERS, rest))]

    def group_sink(self) -> tuple[str, Sink]:
        """Return title and sink of the query of consumer groups."""
        rules = GroupRules(self.plan, self.config)
        end_us = self.plan.trace_end_us
        state = GaugeState(
            self.config.group.purge_interval, self.trace_start_ms, None if end_us is None else end_us // 1000
        )
        gauges = CoordinatorGauges(state, Snapshots(self.backend, self.layout.coordinators), self.run.run_id)
        return GROUPS, self._sink(GROUPS, rules, gauges=gauges)

    def _sink(self, name: str, rules: AnyRules, closes: bool = False, gauges: CoordinatorGauges | None = None) -> Sink:
        stream_id = f"{self.run.run_id}/{self.run.configuration['stream']}/{name}"
        drain, status_files = self.config.drain, self.status_files
        return Sink(name, self.backend, self.layout, stream_id, rules, drain, closes, gauges, status_files)
