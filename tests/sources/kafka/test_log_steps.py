"""Steps of a followed log give the same tables with Spark and in this process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from purgatory_udf.backend.backend import backend_of
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.sources import follow_topic
from purgatory_udf.sources.follow_topic import LogSteps
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.storage.event_staging import is_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from tests.support import recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDING, LINES = "W3-groups", 500
TABLES_OF_A_LOG = ("events", "recorded", "rejected_events")
LOCAL, SPARK = 10**9, -1


@pytest.fixture(scope="module")
def portions() -> list[list[tuple[int, int, str]]]:
    """Three portions of two brokers' lines, in the order in which they were written; one line is truncated."""
    lines = [
        (line, broker, offset) for broker in (1, 2) for offset, line in enumerate(islice(_lines_of(broker), LINES))
    ]
    messages = [(broker, offset, line) for line, broker, offset in sorted(lines)]
    broker, offset, line = messages[100]
    messages[100] = broker, offset, line[: len(line) // 2]
    return [messages[:500], messages[500:800], messages[800:]]


def _lines_of(broker: int) -> list[str]:
    return [
        line.rstrip("\n") for line in recorded.lines(recorded.data_file("traces", RECORDING, f"request-{broker}.log"))
    ]


def _followed(
    spark: SparkSession,
    out: Path,
    portions: Sequence[Sequence[tuple[int, int, str]]],
    max_local_bytes: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, list[dict[str, Any]]]:
    """Follow the log with one portion per step, the last one twice, as after a kill; return the tables."""
    for name in TABLES_OF_A_LOG:
        backend_of(spark).delta(Layout(str(out)).table(name)).create(Layout(str(out)).table(name), TABLES[name])
    topic = KafkaTopic("localhost:1", "lines", Messages.REQUEST_LOG)
    options = RequestLogOptions(["lines"], str(out), hold_ms=3_000, events_per_file=100)
    run = Run("followed", "ingest", {}, {})
    steps = LogSteps(spark, Layout(str(out)), run, topic, options, f"{out}/_kafka/held")
    numbered = [*enumerate(zip(portions, max_local_bytes, strict=True))]
    for step, (portion, most) in [*numbered, numbered[-1]]:
        monkeypatch.setattr(follow_topic, "FOLLOWED_BYTES", most)
        steps.write(spark.createDataFrame(list(portion), "partition INT, offset BIGINT, value STRING"), step)
    tables = {name: DeltaTable(str(out / name)).to_pyarrow_table().to_pylist() for name in TABLES_OF_A_LOG}
    return {name: sorted(rows, key=repr) for name, rows in tables.items()} | {"summary": [{"": steps.summary()[1:]}]}


@pytest.mark.nightly
def test_log_steps_give_same_tables_without_spark(
    spark: SparkSession,
    portions: list[list[tuple[int, int, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = _followed(spark, tmp_path / "local", portions, [LOCAL] * 3, monkeypatch)
    mixed = _followed(spark, tmp_path / "mixed", portions, [SPARK, LOCAL, SPARK], monkeypatch)
    assert mixed == local
    assert len(local["events"]) > 100 and local["rejected_events"]
    assert is_in_time_order(spark, str(tmp_path / "mixed" / "events"))
    assert spark.read.format("delta").load(str(tmp_path / "mixed" / "events")).count() == len(local["events"])
