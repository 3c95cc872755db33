"""When a purgatory purges: at the first wake-up of its reaper at which more operations may be dead than the interval.

Kafka compares its estimate (operations watched since the last purge, and those delayed then) with those delayed now.
The difference is how many watched operations have ended since the last purge. So only the wake-up after the end that
exceeds the interval matters: it is looked up for every end, and the purges are a walk from one such end to the next.
"""

from __future__ import annotations

import numpy as np

from purgatory_udf.frames.frame import Array, Frame
from purgatory_udf.timeline.moments import BY_CLOCK, Timeline, seen_from

IDLE_MS = 200


def purges(ends: Timeline, wake_ups: Timeline, interval: int, start_ms: int, turn: int) -> Frame:
    """Moments of purges, and `ended`: how many of the ends each has behind it."""
    t, seq, sub = _next_wakes(ends, wake_ups, start_ms, turn)
    ended = ends.number_until(t, seq, sub)
    following = (ended + interval).tolist()
    found = []
    end = interval
    while end < len(following):
        found.append(end)
        end = following[end]
    at = np.array(found, dtype=np.int64)
    return Frame({"t": t[at], "seq": seq[at], "sub": sub[at], "ended": ended[at]})


def _next_wakes(ends: Timeline, wake_ups: Timeline, start_ms: int, turn: int) -> tuple[Array, Array, Array]:
    """The first wake-up at or after each end: by a bucket, or 200, 400, … ms after the last one if that is earlier."""
    rows, wakes = ends.rows, wake_ups.rows
    at = wake_ups.first_from(rows.key, rows.t, rows.seq, rows.sub)
    last_ms = np.append(start_ms, wakes.t // 1000)[at]
    # An end in a later turn of the clock than this reaper's is not seen before the next millisecond.
    seen = seen_from(rows.t, rows.seq) + ((rows.seq == BY_CLOCK) & (rows.sub > turn))
    rounds = -((last_ms - seen) // IDLE_MS)
    idle = (last_ms + rounds * IDLE_MS) * 1000
    never = 2**62
    bucket, bucket_seq = np.append(wakes.t, never)[at], np.append(wakes.seq, BY_CLOCK)[at]
    bucket_sub = np.append(wakes.sub, 0)[at]
    first = (idle < bucket) | ((idle == bucket) & ((bucket_seq != BY_CLOCK) | (bucket_sub > turn)))
    return np.where(first, idle, bucket), np.where(first, BY_CLOCK, bucket_seq), np.where(first, turn, bucket_sub)
