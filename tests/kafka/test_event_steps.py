"""Messages are judged many at once as each by itself."""

from __future__ import annotations

import json

import pyarrow as pa

from purgatory_udf.kafka import event_steps
from tests.contract.examples import WHOLE


def test_messages_are_judged_many_at_once_as_each_by_itself() -> None:
    texts = [json.dumps(event) for event in WHOLE.values()]
    texts[3:3] = ["", "  ", "not at all", '{"type": "clock"}', '{"type": "clock", "time_us": 1.0}', "[1]"]
    messages = [{"partition": number % 2, "offset": number, "value": text} for number, text in enumerate(texts)]
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
    batch = pa.RecordBatch.from_pylist(messages, schema=schema)
    found = [row for judged in event_steps._judge(iter([batch])) for row in judged.to_pylist()]
    alone = [row for message in messages if (row := event_steps._judged(message)) is not None]
    wanted = pa.RecordBatch.from_pylist(alone, schema=event_steps.JUDGED).to_pylist()
    assert sorted(found, key=lambda row: int(row["kafka_offset"])) == wanted
    assert [row["reason"] for row in wanted if row["reason"]] == [
        "not JSON: Expecting value at column 1",
        "time_us: missing: expected an integer >= 1",
        "time_us: 1.0: expected an integer >= 1",
        "expected an object, got array",
    ]
