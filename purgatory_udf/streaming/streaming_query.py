"""One query, whatever its rules: packed rows to groups, groups' outcomes to tables; run to its end, or followed.

arriving ─┐
          ├─► watermark ─► by group ─► adapter ─► chunks ─► sink ─► tables
control ──┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupStateTimeout

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.common.worker_memory import freeze_in_workers
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.checkpoints import prepared, rests_at_ms
from purgatory_udf.storage.delta_tables import asked
from purgatory_udf.streaming.batch_errors import shorten_errors
from purgatory_udf.streaming.batch_sink import Sink
from purgatory_udf.streaming.event_source import Survey, delta_stream
from purgatory_udf.streaming.query_monitor import monitor_query
from purgatory_udf.streaming.stateful_adapter import OUTPUT_SCHEMA, STATE_SCHEMA, state_function
from purgatory_udf.streaming.stateful_rules import CLOCK, INPUT_SCHEMA, AnyRules, input_chunk_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_TIMERS_ALONE = "spark.sql.streaming.noDataMicroBatches.enabled"


def packed(events: DataFrame, rules: AnyRules) -> DataFrame:
    """Events as one value per group and Arrow batch."""
    work = freeze_in_workers(input_chunk_function(rules))
    return events.select(*rules.input_columns(events.columns)).mapInArrow(work, from_arrow_schema(INPUT_SCHEMA))


@dataclass(frozen=True)
class Query:
    """`arriving` makes the packed rows' stream; `title` is what the progress line calls it."""

    spark: SparkSession
    title: str
    arriving: Callable[[], DataFrame]
    max_disorder_ms: int
    sink: Sink

    @property
    def name(self) -> str:
        return self.sink.name

    def start(self) -> StreamingQuery:
        """Over a table that still grows. A batch for timers alone is only made by the process that has made the batch
        before it; where an earlier process was killed between the two, a row that says nothing new has one made."""
        delta_tables.create(self.spark, self._control, INPUT_SCHEMA)
        writer = self._writer()
        watermark = rests_at_ms(self.spark, self.sink.layout.checkpoint(self.name))
        if watermark:
            self._tell((watermark + 1) * 1000)
        return writer.start()

    def to_end(self, survey: Survey) -> None:
        """Over all events there are; then, if they came in several batches, once more with the clock run out."""
        if self._at_once:
            self._run(survey, timers=False)
            return
        delta_tables.create(self.spark, self._control, INPUT_SCHEMA)
        if asked(self.spark, self._control, self._is_empty):
            self._run(survey, timers=False)
        # Told again if it was told before: a batch for timers alone follows a batch of the same process only, so a run
        # that was killed between the two would never come to it.
        assert survey.last_us is not None
        self._run_out_the_clock(survey.last_us)
        self._run(survey, timers=True)

    @property
    def _at_once(self) -> bool:
        return self.sink.rules.plan.is_one_batch

    @property
    def _control(self) -> str:
        return self.sink.layout.control(self.name)

    def _run(self, survey: Survey, timers: bool) -> None:
        """Over what there is. A last batch without events, for timers alone, is worth its while only at the end."""
        self.spark.conf.set(_TIMERS_ALONE, timers)
        try:
            query = self._writer().trigger(availableNow=True).start()
        finally:
            self.spark.conf.unset(_TIMERS_ALONE)
        monitor_query(query, self.title, survey)

    def _is_empty(self, session: SparkSession) -> bool:
        """Whether nobody was told yet that the clock has run out."""
        return not session.read.format("delta").load(self._control).head(1)

    def _run_out_the_clock(self, last_us: int) -> None:
        """One row of no key, past the last deadline that there can be, so that every timer fires. What follows from
        that, however late, follows in the same call."""
        self._tell(last_us + (INT32_MAX + 2000) * 1000)

    def _tell(self, time_us: int) -> None:
        """That it is as late as this."""
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)

        def add(session: SparkSession) -> None:
            row = session.createDataFrame([(CLOCK, time, b"")], from_arrow_schema(INPUT_SCHEMA))
            row.write.format("delta").mode("append").save(self._control)

        asked(self.spark, self._control, add)

    def _writer(self) -> DataStreamWriter:
        checkpoint = prepared(self.spark, self.sink.layout.checkpoint(self.name))
        return (
            self._by_group()
            .writeStream.foreachBatch(shorten_errors(self.sink.write))
            .option("checkpointLocation", checkpoint)
            .queryName(self.name)
        )

    def _by_group(self) -> DataFrame:
        rows = self.arriving().select(*INPUT_SCHEMA.names)
        if not self._at_once:
            # A trace of one batch ends within it: nobody has to be told the time afterwards.
            rows = rows.unionByName(delta_stream(self.spark, self._control).select(*INPUT_SCHEMA.names))
        return (
            rows.withWatermark("event_time", f"{self.max_disorder_ms + 1} milliseconds")
            .groupBy("group")
            .applyInPandasWithState(
                freeze_in_workers(state_function(self.sink.rules)),
                OUTPUT_SCHEMA,
                STATE_SCHEMA,
                "append",
                GroupStateTimeout.EventTimeTimeout,
            )
        )
