"""`BatchProgress`: each batch of a query is reported once."""

from __future__ import annotations

from pyspark.sql.streaming.listener import StreamingQueryProgress

from purgatory_udf.streaming.progress_line import BatchProgress

_SHOWN = 100


def progress(batch: int, rows: int) -> StreamingQueryProgress:
    """Return a progress report like those of Spark."""
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


def test_forgets_batches_that_spark_no_longer_reports() -> None:
    batches, shown = BatchProgress(), []
    history = [progress(batch, rows=3) for batch in range(1_000)]
    for end in range(1, len(history) + 1, 7):
        shown += [each.batchId for each in batches.new_reports(history[max(0, end - _SHOWN) : end])]
        assert len(batches) <= _SHOWN
    assert shown == list(range(995))
    assert batches.events == 995 * 3


def test_idle_report_and_next_batch_share_number() -> None:
    batches = BatchProgress()
    idle, done = progress(4, rows=0), progress(4, rows=9)
    shown = [
        each.numInputRows for recent in ([idle], [idle, done], [idle, done]) for each in batches.new_reports(recent)
    ]
    assert (shown, batches.events) == ([0, 9], 9)
