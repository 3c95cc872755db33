"""The phase of each broker's timer within the milliseconds of the log, estimated from operations that expired.

Kafka counts a timeout from the start of the millisecond of its monotonic clock in which the operation entered the
timer: an operation that starts late in that millisecond waits less. The phase is the offset between these milliseconds
and those of the log. It is not logged, but is constant while the broker runs, and the lateness of expired operations
shows it as a sawtooth: the later in a millisecond an operation starts, the earlier it expires, up to the next
millisecond. Without the sawtooth, a spread of one millisecond remains, because the reaper sleeps for whole milliseconds
as well.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

# Number of parts of a millisecond.
PARTS = 20
# Minimum number of operations. Random lateness of 500 operations on a busy host may look like a sawtooth.
FEWEST = 1_000
# Minimum amplitude, relative to that of the whole sawtooth. Recordings with a sawtooth have 0.84 to 0.98; with shuffled
# starts, a thousand operations have at most 0.44.
CLEAR = 0.5
# Amplitude of the first harmonic of a sawtooth of height 1.
_WHOLE = 1 / (2 * math.pi)


def phase_of(late_ms: Sequence[float]) -> float | None:
    """Return the phase in milliseconds, from 0 to 1, or None if there is no clear sawtooth.

    `late_ms` has the lateness of a broker's operations for each part of the millisecond in which they started.
    """
    turns = (-2j * math.pi * (part + 0.5) / len(late_ms) for part in range(len(late_ms)))
    harmonic = sum(late * cmath.exp(turn) for late, turn in zip(late_ms, turns, strict=True)) / len(late_ms)
    if abs(harmonic) < CLEAR * _WHOLE:
        return None
    return (cmath.phase(harmonic) / (2 * math.pi) + 0.25) % 1


def phases(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the phase in milliseconds of each broker that has one; `rows` are those of `fidelity/timer_parts`.

    A log with whole milliseconds gives no phase: the start of an operation is the time of its line minus the wait, so
    the starts would agree with any wait.
    """
    estimates = {}
    for broker, of_broker in groupby(rows, key=lambda row: int(row["broker"])):
        parts = list(of_broker)
        operations, fine = (sum(row[name] for row in parts) for name in ("operations", "fine"))
        if operations >= FEWEST and len(parts) == PARTS and fine > operations / 2:
            phase = phase_of([row["late_ms"] for row in parts])
            if phase is not None:
                estimates[broker] = phase
    return estimates
