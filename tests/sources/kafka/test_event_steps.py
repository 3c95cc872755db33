"""Events from a topic: batches are validated like single messages, and steps give the same tables without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from purgatory_udf.backend.backend import backend_of
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.sources import follow_topic
from purgatory_udf.sources.follow_topic import EventSteps
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions
from purgatory_udf.storage.event_staging import is_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from tests.contract.examples import WHOLE
from tests.support import oracle_traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL, SPARK = 10**9, -1


def test_batch_validation_equals_single_messages() -> None:
    texts = [json.dumps(event) for event in WHOLE.values()]
    texts[3:3] = ["", "  ", "not at all", '{"type": "clock"}', '{"type": "clock", "time_us": 1.0}', "[1]"]
    messages = [{"partition": number % 2, "offset": number, "value": text} for number, text in enumerate(texts)]
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
    batch = pa.RecordBatch.from_pylist(messages, schema=schema)
    together = [row for batch_rows in follow_topic._validate_messages(iter([batch])) for row in batch_rows.to_pylist()]
    alone = [row for message in messages if (row := follow_topic._validated_message(message)) is not None]
    wanted = pa.RecordBatch.from_pylist(alone, schema=follow_topic.VALIDATED).to_pylist()
    assert sorted(together, key=lambda row: int(row["kafka_offset"])) == wanted
    assert [row["reason"] for row in wanted if row["reason"]] == [
        "not JSON: Expecting value at column 1",
        "time_us: missing, expected an integer >= 1",
        "time_us: expected an integer >= 1, got 1.0",
        "expected a JSON object, got array",
    ]


Message = tuple[int, int, str]


@pytest.fixture(scope="module")
def portions() -> list[list[Message]]:
    """Three portions of two partitions, unordered within a portion; one message is invalid, and one a portion late."""
    events = sorted(oracle_traces.load("tiny-2").events, key=lambda event: (event["time_us"], event["seq"]))
    moved = [event | {"time_us": event["time_us"] + 1_000_000} for event in events]
    texts = [json.dumps({name: value for name, value in event.items() if value is not None}) for event in moved]
    texts[10] = texts[10][:20]
    third = len(texts) // 3
    late = texts.pop(third // 2)
    texts.insert(2 * third, late)
    messages = [(offset % 2, offset, text) for offset, text in enumerate(texts)]
    return [messages[:third][::-1], messages[third : 2 * third], messages[2 * third :]]


def _followed(
    spark: SparkSession,
    out: Path,
    portions: Sequence[Sequence[Message]],
    max_local_bytes: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, list[dict[str, Any]]]:
    """Follow the topic with one portion per step, the last one twice, as after a kill; return the tables."""
    for name in ("events", "rejected_events"):
        backend_of(spark).delta(Layout(str(out)).table(name)).create(Layout(str(out)).table(name), TABLES[name])
    topic, options = KafkaTopic("localhost:1", "events", Messages.EVENTS), IngestOptions(["events"], str(out))
    steps = EventSteps(
        spark, Layout(str(out)), Run("followed", "ingest", {}, {}), topic, options, f"{out}/_kafka/steps"
    )
    numbered = [*enumerate(zip(portions, max_local_bytes, strict=True))]
    for step, (portion, most) in [*numbered, numbered[-1]]:
        monkeypatch.setattr(follow_topic, "FOLLOWED_BYTES", most)
        steps.write(spark.createDataFrame(list(portion), "partition INT, offset BIGINT, value STRING"), step)
    tables = {
        name: DeltaTable(str(out / name)).to_pyarrow_table().to_pylist() for name in ("events", "rejected_events")
    }
    return {name: sorted(rows, key=repr) for name, rows in tables.items()} | {
        "summary": [{"": steps.summary()[0][:20]}]
    }


@pytest.mark.nightly
def test_event_steps_give_same_tables_without_spark(
    spark: SparkSession, portions: list[list[Message]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparks = _followed(spark, tmp_path / "spark", portions, [SPARK] * 3, monkeypatch)
    mixed = _followed(spark, tmp_path / "mixed", portions, [LOCAL, SPARK, LOCAL], monkeypatch)
    assert mixed == sparks
    assert len(sparks["events"]) == sum(map(len, portions)) - 2
    assert [row["reason"].partition(":")[0] for row in sparks["rejected_events"]] == ["not JSON", "late"]
    assert is_in_time_order(spark, str(tmp_path / "mixed" / "events"))
