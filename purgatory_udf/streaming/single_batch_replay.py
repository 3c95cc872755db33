"""A trace of one batch, replayed in this process: the query's own steps, from packing to its sink, without Spark.

Groups that are handed all there ever is of their keys need nothing of a stream: no state from before, no timers, no
watermark. What such a batch writes names its transaction as a stream's does. So a run that is interrupted goes on, here
or in Spark, with the tables that are not there yet.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from purgatory_udf.backend import input_size
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import local
from purgatory_udf.backend.file_system import files_of
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.event_source import Survey, TraceSurvey
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.stateful_adapter import state_function
from purgatory_udf.streaming.stateful_rules import OutputChunk
from purgatory_udf.streaming.streaming_query import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

GROUPING = "broker"

_OUTPUT_CHUNKS = pa.schema(
    [
        ("table", pa.string()),
        ("group", pa.string()),
        ("time_us", pa.int64()),
        ("rows", pa.int64()),
        ("payload", pa.binary()),
    ]
)


def require_possible(spark: SparkSession, options: ReplayOptions, layout: Layout, trace: TraceSurvey) -> None:
    """A run of several batches, in groups of its own, or that a stream has begun, is Spark's."""
    if not local(spark):
        return
    known = None if options.overwrite else run_records.load(spark, layout.table("runs"), "replay")
    if options.follow or options.config.grouping not in ("auto", GROUPING):
        raise NeedsSparkError("a stream")
    if known is not None and (
        known.configuration.get("grouping") != GROUPING or files_of(spark).exists(f"{layout.machinery}/checkpoints")
    ):
        raise NeedsSparkError("a run that a stream has begun")
    if trace.survey.events > options.config.batch_events:
        raise NeedsSparkError("several batches")
    if _watches(spark, options.events) > input_size.REPLAYED_WATCHES:
        raise NeedsSparkError("more watches than memory should hold")


def _watches(spark: SparkSession, events: str) -> int:
    """At most. Files do not tell: the same partitions, asked for again and again, take no room there."""
    total = spark.read.format("delta").load(events).agg(sf.sum(sf.size("partitions"))).first()
    assert total is not None
    return int(total[0] or 0)


class OneBatch:
    """In place of a group's state: nothing was before, and nothing comes after."""

    exists = False
    hasTimedOut = False  # noqa: N815

    @property
    def get(self) -> tuple[Any, ...]:
        raise AssertionError("there is no state")

    def update(self, value: tuple[Any, ...]) -> None:
        pass

    def remove(self) -> None:
        pass

    def setTimeoutTimestamp(self, ms: int) -> None:  # noqa: N802
        pass

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        return 0


class OneBatchQuery(Query):
    """Of a trace that is one batch."""

    def to_end(self, survey: Survey) -> None:
        log.info("%s: %s events", self.title, f"{survey.events:,}")
        values: dict[str, list[bytes]] = defaultdict(list)
        for batch in self.arriving().toArrow().to_batches():
            for group, payload in zip(batch.column("group").to_pylist(), batch.column("payload"), strict=True):
                values[group].append(payload.as_py())
        here = local(self.spark)
        assert here is not None
        chunks = pa.Table.from_pylist([row._asdict() for row in self._chunks(values)], schema=_OUTPUT_CHUNKS)
        self.sink.write(here.frame_of(chunks), 0)

    def _chunks(self, values: dict[str, list[bytes]]) -> Iterator[OutputChunk]:
        call = state_function(self.sink.rules)
        for group, payloads in values.items():
            for frame in call((group,), iter([pd.DataFrame({"payload": payloads})]), OneBatch()):
                yield from map(OutputChunk._make, zip(*(frame[name] for name in frame.columns), strict=True))
