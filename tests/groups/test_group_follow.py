"""Groups of a table that grows while it is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.purgatory.gauges import changed
from purgatory_udf.reference.replay import replay
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.stream.queries import Queries
from purgatory_udf.stream.replay import create_tables
from purgatory_udf.stream.rules import Plan
from purgatory_udf.stream.running import stop_all
from purgatory_udf.stream.source import delta_stream
from tests.groups.cells import every_cell
from tests.groups.test_group_replay import CONFIG, gauges, told, told_by, write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_followed_table_tells_what_its_events_and_their_clock_have_decided(
    spark: SparkSession, tmp_path: Path
) -> None:
    cells = every_cell()
    late = {"type": "clock", "time_us": 3_600_000_000, "seq": len(cells) + 1}
    # What a batch says of the time is known to the batch after it.
    later = late | {"time_us": 3_601_000_000, "seq": len(cells) + 2}
    layout, run = Layout(str(tmp_path)), Run("run-1", "replay", {}, {"stream": "stream-1"})
    create_tables(spark, layout, groups=True)
    events = write_trace(spark, tmp_path, cells[:300], per_batch=10_000)
    began_ms = cells[0]["time_us"] // 1000
    stream = delta_stream(spark, events, since=delta.began(spark, events))
    plan = Plan(run.run_id, False, None, follows=True)
    query = Queries(spark, CONFIG, layout, run, plan, began_ms, lambda: stream).of_groups().start()
    try:
        for more in ([*cells[300:], late], [later]):
            write_trace(spark, tmp_path, more, per_batch=10_000, mode="append")
            query.processAllAvailable()
    finally:
        stop_all([query])
    expected = replay([*cells, late], CONFIG.model_copy(update={"drain": False}))
    assert told(tmp_path) == told_by(expected)
    assert gauges(tmp_path) == changed(expected.gauges)
