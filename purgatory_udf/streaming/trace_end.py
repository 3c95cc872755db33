"""End of a replay's tables: the end of the trace, or in a drained run, of the last operation."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.delta_store import EPOCH, Condition
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.purgatory.clock import STEP_MS
from purgatory_udf.storage.output_folder import Layout

# The column with the time of a row. A watch that did not expire ended at its completion, not at its deadline.
_TIME = {
    "completions": "completed_at",
    "expirations": "expired_at",
    "cancellations": "cancelled_at",
    "watches": "deadline",
    "purgatory_gauges": "at",
    "group_transitions": "at",
    "group_answers": "answered_at",
}


def until(rows: pa.RecordBatch, table: str, end_ms: int) -> pa.RecordBatch:
    """Return the rows that happened by the end of this millisecond."""
    by_then = pc.less(rows.column(_TIME[table]).cast(pa.int64()), (end_ms + 1) * 1000)
    if table == "watches":
        by_then = pc.or_(by_then, pc.not_equal(rows.column("status"), "expired"))
    return rows.filter(by_then)


def close_gauges(backend: Backend, layout: Layout, config: Config, last_us: int, latest_us: int | None = None) -> None:
    """Delete readings later than the end of the trace, or, in a drained run, than its last operation.

    Args:
        backend: Backend of the tables.
        layout: The run's tables.
        config: The run's configuration.
        last_us: Time of the trace's last event, in epoch microseconds.
        latest_us: When the last operation ended; None if that must be read from the tables.
    """
    until_ms = last_us // 1000
    if config.drain:
        until_ms = closing_ms(last_us, _last_end_us(backend, layout) if latest_us is None else latest_us)
    table = layout.table("purgatory_gauges")
    late = [Condition("at", ">", EPOCH + timedelta(milliseconds=until_ms))]
    if backend.delta(table).count(table, late):
        backend.delta(table).delete(table, late)


def closing_ms(last_us: int, latest_us: int | None) -> int:
    """Return the time of the first gauge reading after the trace and every operation have ended."""
    return -(-max((latest_us or 0) // 1000, last_us // 1000 + 1) // STEP_MS) * STEP_MS


def _last_end_us(backend: Backend, layout: Layout) -> int:
    """Return when the last operation ended, in epoch microseconds; cancelled ones end before the trace does."""
    ends = backend.query(
        "SELECT max(ended_at) AS ended_at FROM (SELECT completed_at AS ended_at FROM {completions} "
        "UNION ALL SELECT expired_at AS ended_at FROM {expirations}) AS ended",
        {name: layout.table(name) for name in ("completions", "expirations")},
    ).to_pylist()
    last = ends[0]["ended_at"]
    return 0 if last is None else int((last - EPOCH) / timedelta(microseconds=1))
