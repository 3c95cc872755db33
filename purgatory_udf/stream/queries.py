"""Which queries a run has, over the same events: of partitions one where groups are brokers, else one for the groups,
and one behind them; of consumer groups one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from purgatory_udf.config import Config
from purgatory_udf.grouping.engine import purge_intervals
from purgatory_udf.groups.ledger import Ledger
from purgatory_udf.live.boards import Boards
from purgatory_udf.loop.state import Limits
from purgatory_udf.query import local
from purgatory_udf.storage import relay
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.snapshots import Snapshots
from purgatory_udf.stream.coordinator_gauges import CoordinatorGauges
from purgatory_udf.stream.group_rules import GroupRules
from purgatory_udf.stream.here import OneBatchQuery
from purgatory_udf.stream.packing import PACKED
from purgatory_udf.stream.partition_rules import PartitionRules, Sees
from purgatory_udf.stream.query import Query, packed
from purgatory_udf.stream.rules import AnyRules, Plan
from purgatory_udf.stream.sink import Sink
from purgatory_udf.stream.source import delta_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of partitions, of the brokers behind them, of consumer groups.
QUERIES = (PARTITIONS, BROKERS, GROUPS) = ("partitions", relay.BEHIND, "groups")


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
    boards: Boards | None = None

    def of_partitions(self, most_bytes: int, closes: bool = False) -> list[Query]:
        """`most_bytes`: how far behind a fetch may ask; `closes`: nothing else of the run writes gauges."""
        config = self.config.model_copy(update={"grouping": self.run.configuration["grouping"]})
        retain_bytes = min(most_bytes, config.fetch.max_bytes)
        rules = PartitionRules(self.plan, config, Limits(purge_intervals(config), self.began_ms, retain_bytes))
        if config.grouping == "broker":
            closes = closes and self.plan.at_once
            return [self._query("replay", self._packed(rules), self._sink(PARTITIONS, rules, closes=closes))]
        relay.create(self.spark, self.layout, PACKED)

        def relayed() -> DataFrame:
            return delta_stream(self.spark, self.layout.relay, since=0, shrinks=True)

        shares, rest = replace(rules, sees=Sees.SHARE), replace(rules, sees=Sees.REST)
        return [
            self._query("replay", self._packed(shares), self._sink(PARTITIONS, shares)),
            self._query(BROKERS, relayed, self._sink(BROKERS, rest)),
        ]

    def of_groups(self) -> Query:
        rules = GroupRules(self.plan, self.config)
        end_us = self.plan.trace_end_us
        ledger = Ledger(self.config.group.purge_interval, self.began_ms, None if end_us is None else end_us // 1000)
        gauges = CoordinatorGauges(ledger, Snapshots(self.spark, self.layout.coordinators), self.run.run_id)
        return self._query(GROUPS, self._packed(rules), self._sink(GROUPS, rules, gauges=gauges))

    def _packed(self, rules: AnyRules) -> Callable[[], DataFrame]:
        return lambda: packed(self.events(), rules)

    def _query(self, title: str, arriving: Callable[[], DataFrame], sink: Sink) -> Query:
        made = OneBatchQuery if local(self.spark) else Query
        return made(self.spark, title, arriving, self.config.max_disorder_ms, sink)

    def _sink(self, name: str, rules: AnyRules, closes: bool = False, gauges: CoordinatorGauges | None = None) -> Sink:
        stream_id = f"{self.run.run_id}/{self.run.configuration['stream']}/{name}"
        return Sink(name, self.layout, stream_id, rules, self.config.drain, closes, gauges, self.boards)
