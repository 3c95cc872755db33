"""One try of each operation, for many operations at once: Kafka's cases as expressions over a watch and a view.

Watches and views are aligned frames: row i of one is tried against row i of the other.
"""

from __future__ import annotations

import numpy as np

from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.loop.words import STANDING_RULE, THROTTLED, UNKNOWN, Error, Reader, Rule

_RULE_OF_STANDING = np.zeros(100, dtype=np.int64)
for _error, _rule in STANDING_RULE.items():
    _RULE_OF_STANDING[_error] = _rule


def reader_end(mode: Array, view: Frame) -> tuple[Array, Array, Array]:
    """Offset, segment and position of the end that counts for the reader: log end, high watermark or last stable."""
    reader = mode & 3
    follower, committed = reader == Reader.FOLLOWER, reader == Reader.COMMITTED

    def pick(end: str, watermark: str, stable: str) -> Array:
        other = np.where(committed, view.columns[stable], view.columns[watermark]) if committed.any() else None
        return np.where(follower, view.columns[end], view.columns[watermark] if other is None else other)

    return pick("end", "hw", "lso"), pick("end_seg", "hw_seg", "lso_seg"), pick("end_pos", "hw_pos", "lso_pos")


def fetch_try(watch: Frame, view: Frame) -> tuple[Array, Array]:
    """What forces the fetch to complete because of this partition (0: nothing), and the bytes that it adds.

    A) the broker does not lead it; B) does not know it; E) its directory is offline; F) the request's epoch is fenced;
    C) the fetch lies beyond the end, or on an older segment than the end, unless the replica is throttled.
    D) (bytes of all partitions >= min bytes) is for the caller, who sees them all.
    """
    end, seg, pos = reader_end(watch.mode, view)
    known, free = end != UNKNOWN, watch.mode < THROTTLED
    behind = known & (watch.offset < end)
    rule = _RULE_OF_STANDING[view.standing]
    open_ = rule == 0
    rule = np.where(open_ & (watch.epoch != UNKNOWN) & (watch.epoch < view.epoch), Rule.FENCED_EPOCH, rule)
    open_ = rule == 0
    rule = np.where(open_ & known & (watch.offset > end), Rule.TRUNCATED, rule)
    rule = np.where(open_ & behind & free & (watch.seg < seg), Rule.OLDER_SEGMENT, rule)
    counts = behind & free & (watch.seg == seg) & (rule == 0)
    return rule, np.where(counts, np.minimum(pos - watch.pos, watch.size), 0)


def fetch_first_try(watch: Frame, view: Frame) -> tuple[Array, Array]:
    """As `fetch_try`, with the errors that only the read on arrival meets."""
    rule, size = fetch_try(watch, view)
    sound = _RULE_OF_STANDING[view.standing] == 0
    said = sound & (watch.epoch != UNKNOWN) & (view.epoch != UNKNOWN)
    unknown_epoch = said & (watch.epoch > view.epoch)
    out = sound & (rule != Rule.FENCED_EPOCH) & ~unknown_epoch & _out_of_range(watch, view)
    rule = np.where(unknown_epoch, Rule.UNKNOWN_EPOCH, np.where(out, Rule.OFFSET_OUT_OF_RANGE, rule))
    return rule, np.where(rule == 0, size, 0)


def _out_of_range(watch: Frame, view: Frame) -> Array:
    beyond = (view.end != UNKNOWN) & (watch.offset > view.end)
    return beyond | ((view.log_start != UNKNOWN) & (watch.offset < view.log_start))


def fetch_answer(watch: Frame, view: Frame, start: Array) -> tuple[Array, Array]:
    """The partition's error and readable bytes; `start` is the fetch offset's position looked up anew."""
    end, _, pos = reader_end(watch.mode, view)
    said = (watch.epoch != UNKNOWN) & (view.epoch != UNKNOWN)
    error = np.where(_out_of_range(watch, view), Error.OFFSET_OUT_OF_RANGE, Error.NONE)
    if said.any():
        error = np.where(said & (watch.epoch > view.epoch), Error.UNKNOWN_LEADER_EPOCH, error)
        error = np.where(said & (watch.epoch < view.epoch), Error.FENCED_LEADER_EPOCH, error)
    stands = view.standing == Error.NONE
    error = np.where(stands, error, view.standing)
    readable = stands & (watch.mode < THROTTLED) & (end != UNKNOWN) & (watch.offset < end)
    return error, np.where(readable, np.minimum(watch.size, np.maximum(0, pos - start)), 0)


def produce_try(watch: Frame, view: Frame) -> tuple[Array, Array]:
    """A) the replica's standing decides; B) the high watermark reached the offset. Rule 0: still pending."""
    reached = (view.hw != UNKNOWN) & (view.hw >= watch.offset)
    short = reached & (view.short == 1)
    error = np.where(
        view.standing != Error.NONE, view.standing, np.where(short, Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Error.NONE)
    )
    met = np.where(short, Rule.NOT_ENOUGH_REPLICAS, np.where(reached, Rule.HIGH_WATERMARK, Rule.TIMEOUT))
    return np.where(view.standing != Error.NONE, _RULE_OF_STANDING[view.standing], met), error


def delete_try(watch: Frame, view: Frame) -> tuple[Array, Array]:
    """As a produce, with the low watermark in place of the high one."""
    reached = (view.log_start != UNKNOWN) & (view.log_start >= watch.offset)
    met = np.where(reached, Rule.LOW_WATERMARK, Rule.TIMEOUT)
    return np.where(view.standing != Error.NONE, _RULE_OF_STANDING[view.standing], met), view.standing
