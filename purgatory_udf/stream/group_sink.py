"""Where the groups' batches go: each table once, however often a batch is repeated after a crash, and the gauges.

Who waits, and when purgatories read what, follows from all of a broker's groups together. It is little, whatever the
batch: so it is worked out here, and kept for the next batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.groups.ledger import Ledger
from purgatory_udf.groups.tables import GroupTables
from purgatory_udf.live.boards import Boards
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.snapshots import Snapshots
from purgatory_udf.stream.group_adapter import COUNTED
from purgatory_udf.stream.group_queries import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

GAUGES = "purgatory_gauges"


@dataclass
class GroupSink:
    """`stream_id` is the run's own: Delta knows by it which batches a table has."""

    spark: SparkSession
    layout: Layout
    stream_id: str
    tables: GroupTables
    ledger: Ledger
    boards: Boards | None = None

    def __post_init__(self) -> None:
        self._snapshots = Snapshots(self.spark, self.layout.coordinators)

    def write(self, batch: DataFrame, number: int) -> None:
        """The function for `foreachBatch`."""
        # Delta skips a write it has seen and would leave the frame unread, which Spark takes for lost state.
        batch = batch.persist()
        try:
            calls = batch.select("watermark_ms", *COUNTED, "waits", "said").collect()
            self._write(batch.select("payload"), calls, number)
        finally:
            batch.unpersist()

    def _write(self, packets: DataFrame, calls: list[Row], number: int) -> None:
        frames: dict[str, Any] = {}
        for table in COUNTED:
            if any(call[table] for call in calls):
                frames[table] = table_of(packets, table, self.tables)
        gauges = self._gauges(calls, number)
        if gauges is not None:
            frames[GAUGES] = gauges
        if frames:
            # Most of a small write is planning and committing, of which one table need not wait for another.
            with ThreadPoolExecutor(len(frames)) as pool:
                list(pool.map(lambda table: self._append(frames[table], table, number), frames))
        self._snapshots.keep(number, self.ledger.to_bytes())
        if self.boards is not None and calls:
            at_ms = max(call.watermark_ms for call in calls)
            self.boards.note("groups", number, at_ms, self._sayings(calls))

    def _gauges(self, calls: list[Row], number: int) -> DataFrame | None:
        before = self._snapshots.before(number)
        if before is not None:
            self.ledger.take_up(before)
        if not calls:
            return None
        values = [bytes(call.waits) for call in calls if call.waits is not None]
        rows = self.ledger.tell(values, max(call.watermark_ms for call in calls), self.tables.run_id)
        if not self.tables.drain and self.tables.trace_end_us is not None:
            rows = rows.filter(pc.less_equal(rows["at"].cast(pa.int64()), self.tables.trace_end_us))
        return self.spark.createDataFrame(rows).coalesce(1) if len(rows) else None

    def _append(self, rows: DataFrame, table: str, number: int) -> None:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", f"{self.stream_id}/groups/{table}")
            .option("txnVersion", number)
            .save(self.layout.told if table == "told" else self.layout.table(table))
        )

    def _sayings(self, calls: list[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
        for call in calls:
            counts = {"completions": call.completions, "expirations": call.expirations}
            yield "", counts | {"transitions": call.group_transitions} | json.loads(call.said or "{}")
        yield "coordinators", {"open": self.ledger.open, "purgatories": self.ledger.standing()}

    def left_open(self) -> int:
        """Of a trace that has ended: how many operations end only after it."""
        latest = self._snapshots.latest()
        if latest is not None:
            self.ledger.take_up(latest)
        return self.ledger.left_open
