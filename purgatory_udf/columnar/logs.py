"""What is remembered of each replica between calls: its log's ends and watermarks, batches, segments, followers.

How the batch map stays small: a fetch never counts more than its partition maximum, and never more than
`fetch.max_bytes`. A batch that lies further than that behind both the high watermark and the last stable offset is
merged with its neighbour: a fetch starting there still finds at least its maximum ahead of it, which is all that is
asked. Batches without bytes are merged at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.columnar.frame import Array, Frame, Layout
from purgatory_udf.columnar.lookup import Index
from purgatory_udf.loop.words import UNKNOWN

VIEW = Layout(
    (
        "end", "end_seg", "end_pos",
        "hw", "hw_seg", "hw_pos",
        "lso", "lso_seg", "lso_pos",
        "log_start", "standing", "epoch", "short",
    )
)  # fmt: skip
REPLICA = Layout((*VIEW.numbers, "lso_said", "min_isr", "isr_size", "own"))
BATCHES = Layout(("key", "end", "pos"))
ROLLS = Layout(("key", "base"))
FOLLOWERS = Layout(("key", "replica", "end", "in_sync"))

FIRST_SEGMENT = 0  # what lies before the first roll that the trace tells of


def fresh_replicas(brokers: list[int]) -> Frame:
    """Replicas of which nothing has been said: led, online, every offset unknown."""
    frame = REPLICA.empty(len(brokers), fill=UNKNOWN)
    for name in ("end_pos", "hw_pos", "lso_pos", "standing", "short", "lso_said"):
        frame.columns[name] = np.zeros(len(brokers), dtype=np.int64)
    frame.columns["own"] = np.array(brokers, dtype=np.int64)
    return frame


@dataclass
class Logs:
    """Everything that the keys' logs carry from call to call; the frames' `key` is the row of `replicas`."""

    replicas: Frame
    batches: Frame
    rolls: Frame
    followers: Frame

    @staticmethod
    def nothing() -> Logs:
        return Logs(fresh_replicas([]), BATCHES.empty(), ROLLS.empty(), FOLLOWERS.empty())


def position_of(index: Index, batches: Frame, keys: Array, offsets: Array, end: Array, end_pos: Array) -> Array:
    """Where the batch that holds the offset starts, in bytes; at or beyond the log end, the end's position."""
    inside = (offsets < end) & (end != UNKNOWN)
    if not len(batches):
        return end_pos
    at = index.first_at_least(keys, offsets + 1)
    inside &= at < len(batches)
    at = np.where(inside, at, 0)
    # An offset of a batch that a truncation cut stands at the end: no batch of its key lies beyond it.
    return np.where(inside & (batches.key[at] == keys), batches.pos[at], end_pos)


def segment_of(index: Index, rolls: Frame, begin: Array, keys: Array, offsets: Array, known: Array) -> Array:
    """The base of the offset's segment, among the key's first `known` rolls."""
    if not len(rolls):
        return np.full(len(keys), FIRST_SEGMENT, dtype=np.int64)
    covered = index.first_at_least(keys, offsets + 1) - begin[keys]
    count = np.minimum(covered, known)
    return np.where(count > 0, rolls.base[np.maximum(begin[keys] + count - 1, 0)], FIRST_SEGMENT)


def positions_now(logs: Logs, keys: Array, offsets: Array) -> Array:
    """Where offsets lie as the logs are."""
    replicas, index = logs.replicas, Index(logs.batches.key, logs.batches.end)
    return position_of(index, logs.batches, keys, offsets, replicas.end[keys], replicas.end_pos[keys])


def trim(logs: Logs, retain_bytes: int) -> None:
    """Drop the batches and rolls that no answer can depend on any more (see the top)."""
    batches, replicas = logs.batches, logs.replicas
    if len(batches):
        bound = np.where(replicas.hw == UNKNOWN, UNKNOWN, np.minimum(replicas.hw_pos, replicas.lso_pos) - retain_bytes)
        bound = np.where((replicas.lso == UNKNOWN) & (replicas.lso_said == 1), UNKNOWN, bound)
        same = batches.key[1:] == batches.key[:-1]
        following = batches.pos[1:]
        gone = same & ((following <= bound[batches.key[1:]]) | (following == batches.pos[:-1]))
        far = np.flatnonzero(same & (following <= bound[batches.key[1:]]))
        reach = np.full(len(replicas), UNKNOWN, dtype=np.int64)
        np.maximum.at(reach, batches.key[far], batches.end[far])
        logs.batches = batches.take(np.flatnonzero(np.append(~gone, True)))
        rolls = logs.rolls
        if len(rolls) > 1:
            stale = (rolls.key[1:] == rolls.key[:-1]) & (rolls.base[1:] <= reach[rolls.key[1:]])
            logs.rolls = rolls.take(np.flatnonzero(np.append(~stale, True)))
