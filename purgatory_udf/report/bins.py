"""How coarse a picture's time axis is: as fine as the metrics, but never more columns than a screen can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A column is then some four pixels wide.
MOST_BINS = 240
# Steps between which people see at once what one column stands for, in milliseconds.
_NICE_MS = tuple(
    step * unit
    for unit, steps in ((1, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1000, (1, 2, 5, 10, 15, 30)))
    for step in steps
) + tuple(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))


def bin_ms(windows: DataFrame, window_ms: int) -> int:
    """The least nice multiple of the window with which all windows make no more than `MOST_BINS` columns."""
    start = sf.unix_millis("window_start")
    first = windows.agg(sf.min(start), sf.max(start)).first()
    assert first is not None
    span_ms = (first[1] - first[0] if first[0] is not None else 0) + window_ms
    nice = [step for step in _NICE_MS if step % window_ms == 0 and span_ms / step <= MOST_BINS]
    return nice[0] if nice else -(-span_ms // (MOST_BINS * window_ms)) * window_ms


def binned(moment: str, width_ms: int) -> Column:
    """The beginning of the moment's column, in milliseconds since the epoch: no time zone has a say in it."""
    ms = sf.unix_millis(moment)
    return (ms - sf.pmod(ms, sf.lit(width_ms))).alias("t")
