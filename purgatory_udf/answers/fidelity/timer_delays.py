"""What becomes of the ends of expired operations by a broker's timer, which counts whole milliseconds.

Kafka counts a delay from the beginning of the millisecond of its monotonic clock in which the operation was put into
the timer: what came late in that millisecond waits that much less. Where those milliseconds begin within those of the
log, the broker's phase, is in no log; but it stays the same while the broker runs, and what expired tells it: the later
in a millisecond it started, the earlier it ended, until with the next one that falls back, a sawtooth. A spread of a
millisecond remains: the reaper sleeps for whole milliseconds too, from wherever within one it looked last.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A millisecond is looked at in so many parts.
PARTS = 20
# Of 500 operations on a busy host, chance alone may look like a sawtooth.
FEWEST = 1_000
# How much of the sawtooth must be there, of 1: the recordings it was found in show 0.84 to 0.98, and with their starts
# shuffled at most 0.44 of a thousand operations.
CLEAR = 0.5
# The first harmonic of a sawtooth that is one high.
_WHOLE = 1 / (2 * math.pi)


def phase_of(late_ms: Sequence[float]) -> float | None:
    """The phase in ms, from 0 to 1, of the broker whose operations were late by this, by the part of the millisecond in
    which they started; None where no sawtooth is to be seen."""
    turns = (-2j * math.pi * (part + 0.5) / len(late_ms) for part in range(len(late_ms)))
    harmonic = sum(late * cmath.exp(turn) for late, turn in zip(late_ms, turns, strict=True)) / len(late_ms)
    if abs(harmonic) < CLEAR * _WHOLE:
        return None
    return (cmath.phase(harmonic) / (2 * math.pi) + 0.25) % 1


def phases(expired: DataFrame) -> dict[int, float]:
    """By broker, in ms. `expired` has `broker`, `started_at`, `written_at` and by how much each operation was late,
    `difference_ms`.

    Stamps of whole milliseconds tell none: as a start is dated from its line's stamp, back over the wait, their starts
    would agree with any wait."""
    part = sf.floor(sf.unix_micros("started_at") % 1000 * PARTS / 1000)
    rows = (
        expired.groupBy("broker", part.alias("part"))
        .agg(
            sf.percentile_approx("difference_ms", 0.5).alias("late"),
            sf.count("*").alias("n"),
            sf.count_if(sf.unix_micros("written_at") % 1000 != 0).alias("fine"),
        )
        .orderBy("broker", "part")
        .collect()
    )
    by_broker = {}
    for broker in {row.broker for row in rows}:
        its_rows = [row for row in rows if row.broker == broker]
        seen, fine = sum(row.n for row in its_rows), sum(row.fine for row in its_rows)
        if seen >= FEWEST and len(its_rows) == PARTS and fine > seen / 2:
            phase = phase_of([row.late for row in its_rows])
            if phase is not None:
                by_broker[broker] = phase
    return by_broker


def started_within(phase_by_broker: Mapping[int, float]) -> Column:
    """How long after the beginning of a millisecond of its broker's clock an operation started, in ms: by so much its
    delay ends before its deadline. 0 where the phase is not known."""
    within = sf.lit(0.0)
    for broker, phase in phase_by_broker.items():
        start = (sf.unix_micros("started_at") % 1000) / 1000
        within = sf.when(sf.col("broker") == broker, sf.pmod(start + phase, sf.lit(1.0))).otherwise(within)
    return within
