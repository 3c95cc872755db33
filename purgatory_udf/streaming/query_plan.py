"""Which queries a run has, over the same events: of partitions one where groups are brokers, else one for the groups,
and one behind them; of consumer groups one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import local
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.loop.engine_state import EngineSettings
from purgatory_udf.rules.engine.partition_engine import purge_intervals
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.storage import event_staging
from purgatory_udf.storage.checkpoints import Snapshots
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.batch_sink import CoordinatorGauges, Sink
from purgatory_udf.streaming.event_source import delta_stream
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.partition_rules import OperationScope, PartitionRules
from purgatory_udf.streaming.single_batch_replay import OneBatchQuery
from purgatory_udf.streaming.stateful_rules import INPUT_SCHEMA, AnyRules, Plan
from purgatory_udf.streaming.status_file import StatusFiles
from purgatory_udf.streaming.streaming_query import Query, packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of partitions, of the brokers behind them, of consumer groups.
QUERIES = (PARTITIONS, BROKERS, GROUPS) = ("partitions", event_staging.BEHIND, "groups")


@dataclass(frozen=True)
class Queries:
    """`began_ms`: when the trace began."""

    spark: SparkSession
    config: Config
    layout: Layout
    run: Run
    plan: Plan
    began_ms: int
    events: Callable[[], DataFrame]
    status_files: StatusFiles | None = None

    def of_partitions(self, most_bytes: int, closes: bool = False) -> list[Query]:
        """`most_bytes`: how far behind a fetch may ask; `closes`: nothing else of the run writes gauges."""
        config = self.config.model_copy(update={"grouping": self.run.configuration["grouping"]})
        retain_bytes = min(most_bytes, config.fetch.max_bytes)
        rules = PartitionRules(self.plan, config, EngineSettings(purge_intervals(config), self.began_ms, retain_bytes))
        if config.grouping == "broker":
            closes = closes and self.plan.is_one_batch
            return [self._query("replay", self._packed(rules), self._sink(PARTITIONS, rules, closes=closes))]
        event_staging.create_relay(self.spark, self.layout, INPUT_SCHEMA)

        def relayed() -> DataFrame:
            return delta_stream(self.spark, self.layout.relay, since=0, shrinks=True)

        shares, rest = replace(rules, scope=OperationScope.WHOLE), replace(rules, scope=OperationScope.SPLIT)
        return [
            self._query("replay", self._packed(shares), self._sink(PARTITIONS, shares)),
            self._query(BROKERS, relayed, self._sink(BROKERS, rest)),
        ]

    def of_groups(self) -> Query:
        rules = GroupRules(self.plan, self.config)
        end_us = self.plan.trace_end_us
        gauge_state = GaugeState(
            self.config.group.purge_interval, self.began_ms, None if end_us is None else end_us // 1000
        )
        gauges = CoordinatorGauges(gauge_state, Snapshots(self.spark, self.layout.coordinators), self.run.run_id)
        return self._query(GROUPS, self._packed(rules), self._sink(GROUPS, rules, gauges=gauges))

    def _packed(self, rules: AnyRules) -> Callable[[], DataFrame]:
        return lambda: packed(self.events(), rules)

    def _query(self, title: str, arriving: Callable[[], DataFrame], sink: Sink) -> Query:
        made = OneBatchQuery if local(self.spark) else Query
        return made(self.spark, title, arriving, self.config.max_disorder_ms, sink)

    def _sink(self, name: str, rules: AnyRules, closes: bool = False, gauges: CoordinatorGauges | None = None) -> Sink:
        stream_id = f"{self.run.run_id}/{self.run.configuration['stream']}/{name}"
        return Sink(name, self.layout, stream_id, rules, self.config.drain, closes, gauges, self.status_files)
