"""What each replica's log looked like after every row: ends, watermarks, segments, standing, for all keys at once.

A *view* is what one try of an operation would see. Within a *round* everything in it only grows, so every question
"when first?" is a binary search. A round ends where something may fall or the in-sync set changes: a truncation, a
leader or in-sync change, the first last stable offset. Those are rare; the common call is one round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.columnar.logs import FIRST_SEGMENT, FOLLOWERS, VIEW, Logs, position_of, segment_of
from purgatory_udf.columnar.lookup import Index, bounds, last_said, running_max, running_sum
from purgatory_udf.loop.words import FOREVER, UNKNOWN, Code, Error

PRODUCE_CHECK, FETCH_CHECK, DELETE_CHECK = 1, 2, 4

_STANDING = np.zeros(64, dtype=np.int64)
_STANDING[[Code.NOT_LEADER, Code.OFFLINE, Code.DELETED]] = (
    Error.NOT_LEADER_OR_FOLLOWER,
    Error.KAFKA_STORAGE_ERROR,
    Error.UNKNOWN_TOPIC_OR_PARTITION,
)


def _among(*codes: Code) -> Array:
    """By code, whether it is one of these."""
    table = np.zeros(max(Code) + 1, dtype=bool)
    table[list(codes)] = True
    return table


_SAYS_STANDING = _among(Code.LEADER, Code.ONLINE, Code.NOT_LEADER, Code.OFFLINE, Code.DELETED)
_OPENS = _among(Code.TRUNCATE, Code.LEADER, Code.ISR)
_MAY_OPEN = _among(Code.TRUNCATE, Code.LEADER, Code.ISR, Code.LAST_STABLE)
_TELLS_IN_SYNC = _among(Code.LEADER, Code.ISR)


@dataclass
class Round:
    """One round's rows in key order, the view before each key's first row and after every row."""

    rows: Frame
    begins: Array
    before: Frame
    after: Frame
    checks: Array
    turned: Array  # rows after which a waiting operation's condition may hold, or fall, though nobody is woken
    told: Array  # rows that a waiting fetch may notice at all
    cut: Array  # by key: where this round's truncation cut its log, else FOREVER
    _positions: Index
    _batches: Frame
    _bases: Index
    _rolls: Frame
    _rolls_by_row: Array
    _rolls_begin: Array

    def view(self, keys: Array, rows: Array) -> Frame:
        """The view after the row; where the row lies before the key's first, the view that the round began with."""
        inside = rows >= self.begins[keys]
        if inside.all():
            return self.after.take(rows)
        at = np.where(inside, rows + len(self.before), keys)
        both = Frame.concat([self.before, self.after]) if len(self.after) else self.before
        return both.take(at)

    def position(self, keys: Array, offsets: Array, end: Array, end_pos: Array) -> Array:
        """Where the batch that holds the offset starts, in bytes; at or beyond the log end, the end's position."""
        return position_of(self._positions, self._batches, keys, offsets, end, end_pos)

    def segment(self, keys: Array, offsets: Array, rolls_known: Array) -> Array:
        """The base of the offset's segment, among the key's first `rolls_known` rolls."""
        return segment_of(self._bases, self._rolls, self._rolls_begin, keys, offsets, rolls_known)

    def rolls_known(self, rows: Array) -> Array:
        return self._rolls_by_row[rows]


def _previous(values: Array, initial: Array, keys: Array, begins: Array) -> Array:
    """Each row's value before it."""
    shifted = np.empty_like(values)
    shifted[1:] = values[:-1]
    first = begins[:-1][begins[:-1] < begins[1:]]
    shifted[first] = initial[keys[first]]
    return shifted


def round_numbers(rows: Frame, replicas: Frame, begins: Array) -> Array:
    """In which round of its key each row lies."""
    opening = _OPENS[rows.code]
    stable = (rows.code == Code.LAST_STABLE) & (replicas.lso_said[rows.key] == 0)
    if stable.any():
        opening |= stable & (running_sum(rows.key, stable.astype(np.int64), begins) == 1)
    if not opening.any():
        return np.zeros(len(rows), dtype=np.int64)
    return running_sum(rows.key, opening.astype(np.int64), begins)


def advance(logs: Logs, rows: Frame) -> Round:
    """Apply one round's rows (sorted by key, then order) to the logs, which are changed in place."""
    replicas = logs.replicas
    keys = len(replicas)
    begins = bounds(rows.key, keys)
    before = replicas.only(VIEW.names)
    cut = _open(logs, rows, begins)
    replicas = logs.replicas
    key, code = rows.key, rows.code

    says = _SAYS_STANDING[code]
    said = last_said(key, says, begins)
    standing = np.where(said >= 0, _STANDING[code[said]], replicas.standing[key])

    appends = ((code == Code.PRODUCE) & (rows.error == 0) & (rows.mode < 2)) | (code == Code.LOG_END)
    end = running_max(key, np.where(appends, rows.offset, UNKNOWN), replicas.end)
    appended = end > _previous(end, replicas.end, key, begins)
    grown = running_sum(key, np.where(appended, rows.size, 0), begins)
    end_pos = replicas.end_pos[key] + grown

    new = np.flatnonzero(appended)
    batches = Frame.concat(
        [logs.batches, Frame({"key": key[new], "end": end[new], "pos": end_pos[new] - rows.size[new]})]
    )
    if len(new) and len(logs.batches):
        batches = batches.take(np.lexsort((batches.end, batches.key)))
    positions = Index(batches.key, batches.end)

    rolls, rolls_begin, rolls_by_row, rolled = _roll(logs.rolls, rows, begins, keys)
    bases = Index(rolls.key, rolls.base)
    end_seg = segment_of(bases, rolls, rolls_begin, key, np.where(end == UNKNOWN, FOREVER, end), rolls_by_row)
    end_seg = np.where(end == UNKNOWN, UNKNOWN, end_seg)

    derived = _derived_watermark(logs, rows, end, standing)
    explicit = np.where(code == Code.HIGH_WATERMARK, rows.offset, UNKNOWN)
    hw = running_max(key, np.maximum(derived, explicit), replicas.hw)
    hw_before = _previous(hw, replicas.hw, key, begins)
    hw_taken = (hw > hw_before) | ((code == Code.HIGH_WATERMARK) & (rows.offset >= hw_before))

    def metadata(offset: Array, taken: Array, seg: Array, pos: Array) -> tuple[Array, Array]:
        """Segment and position of an offset as they were when it was last taken."""
        at = np.flatnonzero(taken)
        found_seg, found_pos = np.zeros((2, len(key)), dtype=np.int64)
        found_seg[at] = segment_of(bases, rolls, rolls_begin, key[at], offset[at], rolls_by_row[at])
        found_pos[at] = position_of(positions, batches, key[at], offset[at], end[at], end_pos[at])
        last = last_said(key, taken, begins)
        return np.where(last >= 0, found_seg[last], seg[key]), np.where(last >= 0, found_pos[last], pos[key])

    hw_seg, hw_pos = metadata(hw, hw_taken, replicas.hw_seg, replicas.hw_pos)

    own = replicas.lso_said[key] == 1
    stable = (code == Code.LAST_STABLE) & own
    if own.any():
        lso = running_max(key, np.where(stable, rows.offset, UNKNOWN), replicas.lso)
        lso_before = _previous(lso, replicas.lso, key, begins)
        lso_taken = stable & (rows.offset >= lso_before)
        lso_seg, lso_pos = metadata(lso, lso_taken, replicas.lso_seg, replicas.lso_pos)
        lso, lso_seg, lso_pos = np.where(own, lso, hw), np.where(own, lso_seg, hw_seg), np.where(own, lso_pos, hw_pos)
    else:
        lso, lso_seg, lso_pos, lso_taken = hw, hw_seg, hw_pos, stable

    starts = code == Code.LOG_START
    log_start = replicas.log_start[key]
    if starts.any():
        log_start = running_max(key, np.where(starts, rows.offset, UNKNOWN), replicas.log_start)

    after = Frame(
        {
            "end": end, "end_seg": end_seg, "end_pos": end_pos,
            "hw": hw, "hw_seg": hw_seg, "hw_pos": hw_pos,
            "lso": lso, "lso_seg": lso_seg, "lso_pos": lso_pos,
            "log_start": log_start, "standing": standing, "epoch": replicas.epoch[key], "short": replicas.short[key],
        }
    )  # fmt: skip
    woken = hw_taken | says
    checks = PRODUCE_CHECK * woken + FETCH_CHECK * (woken | appended) + DELETE_CHECK * (woken | starts)
    seg_moved = lso_taken & ((lso_seg != _previous(lso_seg, before.lso_seg, key, begins)) | (replicas.lso[key] < 0))
    turned = rolled | ((code == Code.TRUNCATE) & (cut[key] < FOREVER)) | seg_moved
    told = (checks > 0) | turned | lso_taken

    result = Round(
        rows, begins, before, after, checks, turned, told, cut,
        positions, batches, bases, rolls, rolls_by_row, rolls_begin,
    )  # fmt: skip
    _close(logs, result, standing)
    return result


def _open(logs: Logs, rows: Frame, begins: Array) -> Array:
    """Apply what opens a round to the state it begins with; returns where each key's log is cut."""
    keys = len(logs.replicas)
    cut = np.full(keys, FOREVER, dtype=np.int64)
    first = begins[:-1][begins[:-1] < begins[1:]]
    code = rows.code[first]
    opens = _MAY_OPEN[code]
    if not opens.any():
        return cut
    replicas = logs.replicas = Frame({name: column.copy() for name, column in logs.replicas.columns.items()})
    key = rows.key[first]

    stable = key[code == Code.LAST_STABLE]
    new = stable[replicas.lso_said[stable] == 0]
    replicas.lso_said[new], replicas.lso[new] = 1, UNKNOWN

    told = first[_TELLS_IN_SYNC[code]]
    if len(told):
        _in_sync(logs, rows.take(told))

    cuts = first[code == Code.TRUNCATE]
    cuts = cuts[(replicas.end[rows.key[cuts]] != UNKNOWN) & (rows.offset[cuts] < replicas.end[rows.key[cuts]])]
    if len(cuts):
        where, offset = rows.key[cuts], rows.offset[cuts]
        cut[where] = offset
        _truncate(logs, where, offset, cut)
    return cut


def _truncate(logs: Logs, keys: Array, offsets: Array, cut: Array) -> None:
    """The log ends at the offset; the batch that held it goes whole; watermarks above it come down with it."""
    replicas = logs.replicas
    index = Index(logs.batches.key, logs.batches.end)
    pos = position_of(index, logs.batches, keys, offsets, replicas.end[keys], replicas.end_pos[keys])
    logs.batches = logs.batches.take(logs.batches.end <= cut[logs.batches.key])
    logs.rolls = logs.rolls.take(logs.rolls.base <= cut[logs.rolls.key])
    begin = bounds(logs.rolls.key, len(replicas))
    seg = segment_of(Index(logs.rolls.key, logs.rolls.base), logs.rolls, begin, keys, offsets, np.diff(begin)[keys])
    replicas.end[keys], replicas.end_pos[keys] = offsets, pos
    for name in ("hw", "lso"):
        above = replicas.columns[name][keys] > offsets
        replicas.columns[name][keys[above]] = offsets[above]
        replicas.columns[name + "_seg"][keys[above]] = seg[above]
        replicas.columns[name + "_pos"][keys[above]] = pos[above]


def _in_sync(logs: Logs, told: Frame) -> None:
    """A leader or in-sync change: epoch, min_isr and who counts for the high watermark."""
    replicas, followers = logs.replicas, logs.followers
    leads = told.code == Code.LEADER
    dated = leads & (told.epoch != UNKNOWN)
    replicas.epoch[told.key[dated]] = told.epoch[dated]
    named = leads & (told.who != UNKNOWN)
    replicas.min_isr[told.key[named]] = told.who[named]
    members: list[tuple[int, int]] = []
    changed = np.zeros(len(replicas), dtype=bool)
    for key, text in zip(told.key, told.text, strict=True):
        if not text:
            continue
        ids = [int(member) for member in text[1:].split(",") if member]
        changed[key], replicas.isr_size[key] = True, len(ids)
        members += [(key, member) for member in ids if member != replicas.own[key]]
    known = (replicas.isr_size != UNKNOWN) & (replicas.min_isr != UNKNOWN)
    replicas.columns["short"] = (known & (replicas.isr_size < replicas.min_isr)).astype(np.int64)
    if changed.any():
        kept = followers.with_columns(in_sync=np.where(changed[followers.key], 0, followers.in_sync))
        fresh = FOLLOWERS.empty(len(members), fill=UNKNOWN)
        if members:
            fresh.columns["key"], fresh.columns["replica"] = np.array(members, dtype=np.int64).T
        logs.followers = _merged(Frame.concat([kept, fresh.with_columns(in_sync=np.ones(len(members), np.int64))]))


def _merged(followers: Frame) -> Frame:
    """One row per (key, replica): the furthest end and whether it is in sync."""
    if not len(followers):
        return followers
    rows = followers.take(np.lexsort((followers.replica, followers.key)))
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows.key[1:] != rows.key[:-1]) | (rows.replica[1:] != rows.replica[:-1])
    at = np.flatnonzero(first)
    return rows.take(at).with_columns(
        end=np.maximum.reduceat(rows.end, at), in_sync=np.maximum.reduceat(rows.in_sync, at)
    )


def _roll(known: Frame, rows: Frame, begins: Array, keys: int) -> tuple[Frame, Array, Array, Array]:
    """All rolls with this round's, how many of its key each row knows, and which rows rolled."""
    asked = rows.code == Code.SEGMENT_ROLL
    had = bounds(known.key, keys)
    count = np.diff(had)
    if not asked.any():
        return known, had, count[rows.key], asked
    newest = np.full(keys, FIRST_SEGMENT, dtype=np.int64)
    newest[count > 0] = known.base[had[1:][count > 0] - 1]
    base = running_max(rows.key, np.where(asked, rows.offset, UNKNOWN), newest)
    rolled = base > _previous(base, newest, rows.key, begins)
    rolls = Frame.concat([known, Frame({"key": rows.key[rolled], "base": rows.offset[rolled]})])
    rolls = rolls.take(np.lexsort((rolls.base, rolls.key)))
    by_row = count[rows.key] + running_sum(rows.key, rolled.astype(np.int64), begins)
    return rolls, bounds(rolls.key, keys), by_row, rolled


def _progress(rows: Frame, standing: Array) -> Array:
    """Rows in which a follower shows how far it is, on a replica that is there to notice."""
    fetched = (rows.code == Code.FETCH) & (rows.who >= 0)
    return (fetched | (rows.code == Code.REPLICA_END)) & (standing == Error.NONE)


def _derived_watermark(logs: Logs, rows: Frame, end: Array, standing: Array) -> Array:
    """The least log end over the in-sync replicas, row by row; unknown where the trace has not said enough."""
    replicas, key = logs.replicas, rows.key
    counts = (replicas.isr_size[key] != UNKNOWN) & (replicas.short[key] == 0)
    if not counts.any():
        return np.full(len(key), UNKNOWN, dtype=np.int64)
    members = logs.followers.take(logs.followers.in_sync == 1)
    begin = bounds(members.key, len(replicas))
    progress = _progress(rows, standing)
    least = end.copy()
    for slot in range(int(np.diff(begin).max(initial=0))):
        has = begin[:-1] + slot < begin[1:]
        at = np.where(has, begin[:-1] + slot, 0)
        who, reached = members.replica[at], members.end[at]
        mine = progress & has[key] & (rows.who == who[key])
        ends = running_max(key, np.where(mine, rows.offset, UNKNOWN), reached)
        least = np.where(has[key], np.minimum(least, ends), least)
    return np.where(counts, least, UNKNOWN)


def _close(logs: Logs, done: Round, standing: Array) -> None:
    """Leave the state as it is after the round's last rows."""
    rows, begins = done.rows, done.begins
    touched = np.flatnonzero(begins[:-1] < begins[1:])
    last = begins[1:][touched] - 1
    replicas = {name: column.copy() for name, column in logs.replicas.columns.items()}
    for name in VIEW.names:
        replicas[name][touched] = done.after.columns[name][last]
    logs.replicas = Frame(replicas)
    logs.batches, logs.rolls = done._batches, done._rolls
    progress = np.flatnonzero(_progress(rows, standing))
    if len(progress):
        seen = Frame(
            {
                "key": rows.key[progress],
                "replica": rows.who[progress],
                "end": rows.offset[progress],
                "in_sync": np.zeros(len(progress), dtype=np.int64),
            }
        )
        logs.followers = _merged(Frame.concat([logs.followers, seen]))
