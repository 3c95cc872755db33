"""Logs between calls: laid out with room for what a call brings before it, and let go of what nobody can ask for after.

A fetch never counts more than its partition maximum, and never more than `fetch.max_bytes`. A batch that lies further
than that behind both the high watermark and the last stable offset is merged with its neighbour: a fetch starting there
still finds at least its maximum ahead of it. One that is larger than that stays, and so does the one before it: it is
given whole to whoever begins there (see `answers`). Batches without bytes are merged at once.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.loop.compiled import entry, inlined
from purgatory_udf.loop.words import UNKNOWN
from purgatory_udf.loop.world import Records


@entry
def lay_out(keys: Records, more: Records, held: Records, held_rolls: Records, batches: Records, rolls: Records) -> None:
    """`batches`, `rolls` (out): what is held, each key's with room for `more` behind it."""
    begin = roll_begin = 0
    for k in range(len(keys)):
        key = keys[k]
        for nth in range(key.end_batch):
            batches[begin + nth] = held[key.batch_begin + nth]
        key.batch_begin = begin
        begin += key.end_batch + more[k].batches
        for nth in range(key.roll_count):
            rolls[roll_begin + nth] = held_rolls[key.roll_begin + nth]
        key.roll_begin = roll_begin
        roll_begin += key.roll_count + more[k].rolls


@entry
def trim(
    keys: Records, batches: Records, rolls: Records, members: Records, of_keys: Records, retain_bytes: int
) -> tuple[int, int]:
    """Move what stays to the front of its table, key after key, and in-sync sets to `of_keys`; how many batches and
    rolls that are."""
    in_use = in_use_rolls = in_use_members = 0
    for k in range(len(keys)):
        key = keys[k]
        begin, end, reach = in_use, key.batch_begin + key.end_batch, UNKNOWN
        bound = _bound(key, retain_bytes)
        for at in range(key.batch_begin, end):
            batch = batches[at]
            if at + 1 < end and batches[at + 1].pos == batch.pos:
                continue
            if in_use > begin and batch.pos <= bound and _are_small(batches[in_use - 1], batch, retain_bytes):
                in_use -= 1
                reach = max(reach, batches[in_use].end)
            # Most often nothing before it has gone.
            if in_use != at:
                batches[in_use] = batch
            in_use += 1
        key.batch_begin, key.end_batch = begin, in_use - begin

        begin, end = in_use_rolls, key.roll_begin + key.roll_count
        for at in range(key.roll_begin, end):
            if at + 1 == end or rolls[at + 1]["base"] > reach:
                rolls[in_use_rolls] = rolls[at]
                in_use_rolls += 1
        key.roll_begin, key.roll_count = begin, in_use_rolls - begin

        begin = in_use_members
        for at in range(key.isr_begin, key.isr_begin + max(0, key.isr_count)):
            of_keys[in_use_members] = members[at]
            in_use_members += 1
        key.isr_begin = begin
    return in_use, in_use_rolls


@inlined
def _are_small(left: Any, right: Any, retain_bytes: int) -> bool:
    return left["size"] <= retain_bytes and right["size"] <= retain_bytes


@inlined
def _bound(key: Any, retain_bytes: int) -> int:
    """The position that lies further behind the watermarks than a fetch can reach."""
    if key.hw == UNKNOWN:
        return UNKNOWN
    return min(key.hw_pos, key.lso_pos) - retain_bytes
