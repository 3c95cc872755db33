"""After a call: what has ended, by arrival; what is open stays, as it came, and its parts lie together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from purgatory_udf.rules.engine.jit.compiled_functions import entry, inlined
from purgatory_udf.rules.engine.jit.records import Records, copy_rows
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import expiry_timer, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    CANCELLED,
    COMPLETED,
    COUNTED,
    DEAD_DELETIONS,
    DEAD_FETCHES,
    DEAD_PRODUCES,
    ENDED,
    EXPIRED,
    IN_SYNC,
    NONE,
    THROTTLES,
    key_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN, Code
from purgatory_udf.rules.engine.loop.replica_log import NEVER, begins, turned


@entry
def by_arrival(endings: Records, completed: int, expired: int, places: Records) -> None:
    """`places` (out): of operations that completed, so many, then of those that expired, and of those that were
    cancelled; each as they came, for so they lie."""
    complete, expire, cancel = 0, completed, completed + expired
    for o in range(len(endings)):
        how = endings[o].how
        if how == COMPLETED:
            places[complete] = o
            complete += 1
        elif how == EXPIRED:
            places[expire] = o
            expire += 1
        elif how == CANCELLED:
            places[cancel] = o
            cancel += 1


@entry
def keep(operations: Records, parts: Records, kept: Records, kept_parts: Records) -> None:
    """`kept`, `kept_parts` (out): the operations that have not ended, and their parts."""
    place = first = 0
    for o in range(len(operations)):
        operation = operations[o]
        if operation.state == ENDED:
            continue
        copy_rows(kept, place, operations, o, 1)
        kept[place].first = first
        copy_rows(kept_parts, first, parts, operation.first, operation.count)
        for _ in range(operation.count):
            part = kept_parts[first]
            part.operation, part.child = place, NONE
            first += 1
        place += 1


# Heaps, lists and wheels are links between records. What waits between calls keeps its place, but not its links.


def no_neighbours(rows: Records, begin: int) -> None:
    """From there on they are the roots of rings, and nobody is in these."""
    roots = rows[begin:]
    roots["prev"] = roots["next"] = np.arange(begin, len(rows))


@entry
def link(world: Records) -> None:
    """Hang every part and every operation where its record says that it was; keys know their broker's purgatories."""
    w = world[0]
    for k in range(w.keys_room):
        key = key_at(w, k)
        key.produces = lists.purgatory_of(w, key.broker, Code.PRODUCE)
        key.fetches = lists.purgatory_of(w, key.broker, Code.FETCH)
    for p in range(w.parts):
        part = part_at(w, p)
        if part.heap > NONE:
            if part.heap >= COUNTED:
                waiter_queues.append_to_list(w, part.key, key_at(w, part.key), p, part.heap)
            else:
                waiter_queues.push_to_heap(w, p, part.heap, part.wants)
    for o in range(w.operations):
        operation = operation_at(w, o)
        operation.upheavals = operation.settled_by = NONE
        # Between calls of the loop nothing is due: every open operation is in its timer. Not so in a group's world.
        if operation.bucket != NONE:  # pragma: no branch
            expiry_timer.enter(w, expiry_timer.root_of(w, operation.purgatory, operation.bucket), o)


# Logs between calls: laid out with room for what a call brings before it, and let go of what nobody can ask for after.
#
# A fetch never counts more than its partition maximum, and never more than `fetch.max_bytes`. A batch that lies
# further than that behind both the high watermark and the last stable offset is merged with its neighbour: a fetch
# starting there still finds at least its maximum ahead of it. One that is larger than that stays, and so do the one
# before it and the one behind it, which tell where it begins and ends: it is given whole to whoever begins there (see
# `answers`). Batches without bytes are merged at once.


@entry
def lay_out(keys: Records, more: Records, held: Records, held_rolls: Records, batches: Records, rolls: Records) -> None:
    """`batches`, `rolls` (out): what is held, each key's with room for `more` behind it, and for the batch that never
    ends (see `logs`)."""
    begin = roll_begin = 0
    for k in range(len(keys)):
        key = keys[k]
        copy_rows(batches, begin, held, key.batch_begin, key.end_batch)
        key.batch_begin = begin
        never = batches[begin + key.end_batch]
        never["end"], never["turned"] = NEVER, turned(key.end_pos, 0)
        begin += key.end_batch + more[k].batches + 1
        copy_rows(rolls, roll_begin, held_rolls, key.roll_begin, key.roll_count)
        key.roll_begin = roll_begin
        roll_begin += key.roll_count + more[k].rolls


@entry
def trim(
    keys: Records,
    batches: Records,
    rolls: Records,
    members: Records,
    kept: Records,
    of_keys: Records,
    retain_bytes: int,
) -> tuple[int, int, int]:
    """Batches that stay to `kept`, key after key, rolls to the front of their table, and in-sync sets to `of_keys`; how
    many batches, rolls and members of sets that are."""
    in_use = in_use_rolls = in_use_members = 0
    for k in range(len(keys)):
        key = keys[k]
        begin, first, end, reach = in_use, key.batch_begin, key.batch_begin + key.end_batch, UNKNOWN
        bound = _bound(key, retain_bytes)
        # A log's first end is often told without bytes.
        while first + 1 < end and begins(batches[first + 1]) == begins(batches[first]):
            first += 1
        if _all_stay(batches, first, end, bound):
            in_use += end - first
            copy_rows(kept, begin, batches, first, end - first)
        else:
            stay = begin
            for at in range(first, end):
                pos, following = begins(batches[at]), begins(batches[at + 1])
                if at + 1 < end and pos == following:
                    continue
                small = batches[at].turned < 0 or following - pos <= retain_bytes
                if in_use > stay and pos <= bound and small:
                    in_use -= 1
                    reach = max(reach, kept[in_use].end)
                    if in_use > begin:
                        # What follows it now is not where it ends.
                        before = kept[in_use - 1]
                        before["turned"] = turned(begins(before), 0)
                copy_rows(kept, in_use, batches, at, 1)
                in_use += 1
                if not small:
                    # And so does the one behind it.
                    stay = in_use + 1
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
        _forget(key)
    return in_use, in_use_rolls, in_use_members


@inlined
def _forget(key: Any) -> None:
    """What is of the call alone, and who hangs on the key: he is hung up anew (see `links`)."""
    key.hw_batch = key.lso_batch = key.stamped = NONE
    key.hung = DEAD_PRODUCES * (key.dead_produce > 0)
    key.hung |= DEAD_FETCHES * (key.dead_fetch > 0)
    key.hung |= DEAD_DELETIONS * (key.dead_delete > 0)
    key.hung |= THROTTLES * (key.throttles != NONE)
    key.hung |= IN_SYNC * (key.isr_count >= 0)


@inlined
def _all_stay(batches: Records, first: int, end: int, bound: int) -> bool:
    """Whether none lies that far behind, and none is without bytes."""
    at = first + 1
    while at < end and begins(batches[at]) != begins(batches[at - 1]):
        at += 1
    return at >= end and (first == end or begins(batches[first]) > bound)


@inlined
def _bound(key: Any, retain_bytes: int) -> int:
    """The position that lies further behind the watermarks than a fetch can reach."""
    if key.hw == UNKNOWN:
        return UNKNOWN
    return min(key.hw_pos, key.lso_pos) - retain_bytes
