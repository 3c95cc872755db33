"""The data of each chart of a report, as small pandas frames from the queries of `sql/report`.

The database does the counting, so frames are small for traces of any size. Times are in milliseconds since the epoch,
independent of any time zone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.answers.metrics.metrics_run import PARALLEL_QUERIES

if TYPE_CHECKING:
    import pandas as pd

    from purgatory_udf.answers.metrics.metrics_run import Metrics

# A bin is then about four pixels wide.
MAX_BINS = 240
# Round widths of bins, in milliseconds.
_ROUND_MS = tuple(
    step * unit
    for unit, steps in ((1, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1000, (1, 2, 5, 10, 15, 30)))
    for step in steps
) + tuple(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))

# More do not fit on a page.
MAX_PURGATORIES = 8
MAX_TOPICS = 25
MAX_GROUPS = 20
MAX_STATES = 2_000

ON_ARRIVAL, AFTER_A_WAIT, EXPIRED = "completed on arrival", "completed after a wait", "expired"


@dataclass(frozen=True)
class ChartData:
    """A frame for each chart. `bin_ms` is the width of a bin of the time axes in milliseconds."""

    bin_ms: int
    ends: pd.DataFrame
    purgatories: pd.DataFrame
    waits: pd.DataFrame
    topics: pd.DataFrame
    groups: pd.DataFrame


def chart_data(metrics: Metrics) -> ChartData:
    """Query the data of every chart."""
    bin_ms = bin_ms_of(metrics)
    tables = metrics.tables
    queries: list[tuple[str, dict[str, int]]] = [
        ("report/ends", {"bin_ms": bin_ms}),
        ("report/purgatories", {"bin_ms": bin_ms, "most": MAX_PURGATORIES}),
        ("report/waits", {}),
        ("report/topics", {"bin_ms": bin_ms, "most": MAX_TOPICS}),
        ("report/groups", {"most": MAX_GROUPS, "most_states": MAX_STATES}),
    ]
    tables.prepare(*(name for name, _ in queries))
    with ThreadPoolExecutor(PARALLEL_QUERIES) as pool:
        return ChartData(bin_ms, *pool.map(lambda query: tables.query(query[0], **query[1]).to_pandas(), queries))


def topics(metrics: Metrics) -> tuple[pd.DataFrame, int]:
    """Return the data of the chart of expirations by topic, and the width of its bins in milliseconds."""
    bin_ms = bin_ms_of(metrics)
    return metrics.tables.query("report/topics", bin_ms=bin_ms, most=MAX_TOPICS).to_pandas(), bin_ms


def bin_ms_of(metrics: Metrics) -> int:
    """Return the width of a bin for all windows of the metrics, in milliseconds."""
    (row,) = metrics.rows("overview/totals")
    first, last, window_ms = row["first"], row["last"], metrics.options.window_ms
    span_ms = 0 if first is None else round((last - first).total_seconds() * 1000)
    return round_bin_ms(span_ms + window_ms, window_ms)


def round_bin_ms(span_ms: int, window_ms: int) -> int:
    """Return the least round multiple of the window that divides the span into at most `MAX_BINS` bins."""
    widths = [width for width in _ROUND_MS if width % window_ms == 0 and span_ms / width <= MAX_BINS]
    return widths[0] if widths else -(-span_ms // (MAX_BINS * window_ms)) * window_ms
