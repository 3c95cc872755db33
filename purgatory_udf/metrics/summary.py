"""The metrics as some lines to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.metrics.overview import Totals, overview, totals

if TYPE_CHECKING:
    from purgatory_udf.metrics.run import Metrics

_NOT_YET = {
    "purgatory_gauges": "purgatory sizes (none has been read)",
    "group_transitions": "rebalances (the trace has no groups, or their turn has not come)",
    "events": "who joined last (the replayed events are not where they were)",
}


def summary(metrics: Metrics) -> list[str]:
    """Totals, then the essence of every table that has any, then what could not be said yet."""
    sums = totals(metrics)
    blocks = [[_head(metrics, sums)]]
    blocks += [table.lines() for table in overview(metrics, sums) if table.rows]
    missing = [_NOT_YET[name] for name in metrics.tables.missing if name in _NOT_YET]
    blocks += [[f"Without: {'; '.join(missing)}"]] if missing else []
    blocks.append([f"Tables: {', '.join(sorted(metrics.frames))} in {metrics.tables.layout.out}"])
    return [line for block in blocks for line in ["", *block]][1:]


def _head(metrics: Metrics, totals: Totals) -> str:
    tables = metrics.tables
    state = "" if tables.finished else " (still running, or interrupted: what it has written so far)"
    late = f" ({totals.after_end:,} of them after the trace's end)" if totals.after_end else ""
    share = f"{totals.waited_percent} % had to wait"
    return (
        f"Run {tables.run.run_id}{state}: {totals.operations:,} operations, {share}, {totals.expired:,} expired{late}"
    )
