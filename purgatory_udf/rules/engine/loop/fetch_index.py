"""Where events find a waiting fetch, so that few are tried.

Kafka tries every fetch of a key's list at every check (see `fetch`). Here a part hangs in its key's heap by the
position of the end from which on it may matter (its *slack*): all parts together lack some bytes; before the sum can be
had, one key at least must grow by its share of them. A fetch of one partition has a share of all, so it is tried just
when it is complete. Where the share is only a few batches, a fetch of several partitions is *counted* instead: its
parts are in plain lists, and whatever a key grows by is taken from what the fetch lacks.
What makes A, B, E, F or C true, and what breaks "an end only grows, within one segment", makes a fetch *odd*: from then
on it is tried at every check of any of its keys. Such are truncations, rolls, a new epoch, a high watermark that moves
into the next segment, a last stable offset that rises unseen, an end that is unknown.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.rules.engine.jit.compiled_functions import inlined, number, rule
from purgatory_udf.rules.engine.loop import engine_purgatory as lists
from purgatory_udf.rules.engine.loop import fetch_answers, waiter_queues
from purgatory_udf.rules.engine.loop.arena import (
    COUNTED,
    FETCHES,
    NONE,
    NOTHING_YET,
    World,
    key_at,
    operation_at,
    part_at,
)
from purgatory_udf.rules.engine.loop.codes import FOREVER, UNKNOWN, Reader

_READERS = number(len(Reader))
# A share of fewer batches than this is counted: to share out anew costs as much as to count many of them.
_WORTH_SHARING = 16


@inlined
def is_odd(part: Any, end: int, end_seg: int, end_pos: int) -> bool:
    """Whether the end is not where growth alone would lead on from: unknown, of another segment, or taken anew."""
    moved = part.start_seg != end_seg or part.start_pos > end_pos
    taken_anew = part.offset == end and part.start_pos != end_pos
    return end == UNKNOWN or part.offset > end or part.again > 0 or moved or taken_anew


@inlined
def gained(part: Any, end_pos: int) -> int:
    """Bytes between where the part begins and the reader's end."""
    return min(end_pos - part.start_pos, part.size)


@inlined
def _share(lacking: int, sharing: int) -> int:
    """Of what is lacking, that of each key that can bring any."""
    return -(-lacking // max(1, sharing))


@inlined
def is_counted(w: World, count: int, lacking: int, sharing: int) -> bool:
    """Whether each one's share is a few batches. What can never be had here (see `shares`) is not counted."""
    if count <= 1 or lacking >= FOREVER // 2:
        return False
    return _share(lacking, sharing) * w.appends < _WORTH_SHARING * w.appended


@inlined
def hang(w: World, o: int, lacking: int, odd: bool, counted: bool, sharing: int) -> None:
    """Where events find the fetch: among the odd ones, by its slack, or where its parts are already, to be counted.
    `sharing`: how many of its keys share what it lacks."""
    if odd:
        lists.make_odd(w, o)
    elif counted:
        operation_at(w, o).lacking = lacking
    else:
        _share_out(w, o, lacking, _share(lacking, sharing))


@inlined
def hang_anew(w: World, o: int, lacking: int) -> None:
    """It was tried, and is not complete: by where its keys' ends are now."""
    operation = operation_at(w, o)
    sharing = NOTHING_YET
    odd = False
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        key = key_at(w, part.key)
        waiter_queues.remove_from_heap(w, at, key)
        end, end_seg, end_pos = fetch_answers.reader_end(key, operation.mode)
        part.wants = gained(part, end_pos)
        odd |= is_odd(part, end, end_seg, end_pos)
        sharing += 1 - part.throttled
    counted = not odd and is_counted(w, operation.count, lacking, sharing)
    if counted:
        # One that has its maximum, or is throttled, gains nothing any more, and is only there to be shaken.
        for at in range(operation.first, operation.first + operation.count):
            k = part_at(w, at).key
            waiter_queues.append_to_list(w, k, key_at(w, k), at, COUNTED + operation.mode)
    hang(w, o, lacking, odd, counted, sharing)


@inlined
def _share_out(w: World, o: int, lacking: int, share: int) -> None:
    """Hang every part at the position up to which its key may grow before the sum must be looked at again."""
    operation = operation_at(w, o)
    for at in range(operation.first, operation.first + operation.count):
        part = part_at(w, at)
        _, _, end_pos = fetch_answers.reader_end(key_at(w, part.key), operation.mode)
        wants = end_pos + share
        if part.throttled or lacking >= FOREVER // 2 or (operation.total == 1 and part.size < operation.least):
            wants = FOREVER
        waiter_queues.push_to_heap(w, at, FETCHES + operation.mode, wants)


@rule
def shake(w: World, k: int, reader: int) -> None:
    """All fetches of this kind of reader that wait on the key are odd from now on."""
    while waiter_queues.first_in_heap(w, k, FETCHES + reader) != NONE:
        lists.make_odd(w, part_at(w, waiter_queues.first_in_heap(w, k, FETCHES + reader)).operation)
    while waiter_queues.first_in_list(w, k, COUNTED + reader) != NONE:
        lists.make_odd(w, part_at(w, waiter_queues.first_in_list(w, k, COUNTED + reader)).operation)


@rule
def shake_all(w: World, k: int) -> None:
    for reader in range(_READERS):
        shake(w, k, reader)
