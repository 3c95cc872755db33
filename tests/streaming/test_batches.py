"""Batches are told of once each, however long the query goes on."""

from __future__ import annotations

from pyspark.sql.streaming.listener import StreamingQueryProgress

from purgatory_udf.streaming.query_monitor import BatchProgress

_SHOWN = 100


def progress(batch: int, rows: int) -> StreamingQueryProgress:
    """As Spark says it."""
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    source = {"description": "", "startOffset": "", "endOffset": "", "latestOffset": "", "numInputRows": rows, **rates}
    return StreamingQueryProgress.fromJson(
        {
            "id": "8d4a7f3c-0000-0000-0000-000000000000", "runId": "8d4a7f3c-0000-0000-0000-000000000001",
            "name": "replay", "timestamp": "2026-01-01T00:00:00.000Z", "batchId": batch, "batchDuration": 1,
            "durationMs": {}, "eventTime": {}, "stateOperators": [], "sources": [source],
            "sink": {"description": "", "numOutputRows": -1}, "numInputRows": rows, **rates,
        }
    )  # fmt: skip


def test_of_a_query_that_goes_on_no_more_is_kept_in_mind_than_spark_shows() -> None:
    batches, shown = BatchProgress(), []
    history = [progress(batch, rows=3) for batch in range(1_000)]
    for end in range(1, len(history) + 1, 7):
        shown += [each.batchId for each in batches.new(history[max(0, end - _SHOWN) : end])]
        assert len(batches) <= _SHOWN
    assert shown == list(range(995))
    assert batches.events == 995 * 3


def test_a_query_without_input_and_its_next_batch_go_by_the_same_number() -> None:
    batches = BatchProgress()
    idle, done = progress(4, rows=0), progress(4, rows=9)
    shown = [each.numInputRows for recent in ([idle], [idle, done], [idle, done]) for each in batches.new(recent)]
    assert (shown, batches.events) == ([0, 9], 9)
