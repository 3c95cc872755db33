"""Ordered maps of integers, to which many changes are applied one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from purgatory_udf.rules.engine.jit.code_cache import entry_point

Numbers = npt.NDArray[np.int64]

# Kinds of changes: one sets and removes keys, or replaces all keys, or also removes all keys at its end.
UPDATE, REPLACE, CLEAR = range(3)


class MapChanges(NamedTuple):
    """Changes of maps, for one map after the other.

    The value of a key is a place in `keys`. The attributes named bounds have the first place of each map or change,
    and the place after the last one.

    Attributes:
        map_bounds: The changes of each map.
        kinds: `UPDATE`, `REPLACE` or `CLEAR`, one per change.
        keys: Keys that are in maps before the changes, then keys that changes set.
        kept_bounds: The bounds of the former by map. In a map, each key occurs once.
        set_bounds: The bounds of the latter by change. A key that is not in the map goes to its end.
        removed: Keys that changes remove; ignored for `REPLACE`.
        removed_bounds: The same by change.
        moved: Keys that go to the end of the map after a change, if they are in it; only for `UPDATE`.
        moved_bounds: The same by change.
    """

    map_bounds: Numbers
    kinds: Numbers
    keys: Numbers
    kept_bounds: Numbers
    set_bounds: Numbers
    removed: Numbers
    removed_bounds: Numbers
    moved: Numbers
    moved_bounds: Numbers


class ListedValues(NamedTuple):
    """Values of maps in the order of their keys.

    Attributes:
        values: The values after each change, before keys are moved.
        bounds: Their bounds by change.
        left: The values after the last change.
        left_bounds: Their bounds by map.
    """

    values: Numbers
    bounds: Numbers
    left: Numbers
    left_bounds: Numbers


def apply(changes: MapChanges, number_of_keys: int, is_compiled: bool) -> ListedValues:
    """Apply changes to maps.

    Args:
        changes: The changes.
        number_of_keys: All keys are less than this number.
        is_compiled: Whether to use compiled code.
    """
    count = len(changes.kinds)
    # Most fetch sessions list few partitions; if there is not enough room, the second call has enough.
    room = min(count * number_of_keys, 1 << 20)
    while True:
        outputs = [np.zeros(size, np.int64) for size in (count + 1, len(changes.keys), len(changes.map_bounds))]
        slots = np.empty(number_of_keys + len(changes.moved), np.int64)
        scratch = slots, np.full(number_of_keys, -1), np.empty(number_of_keys, np.int64)
        arrays: list[Any] = [*map(np.ascontiguousarray, changes), *scratch, np.empty(room, np.int64), *outputs]
        if is_compiled:
            needed = _compiled_list_values(*arrays)
        else:
            # Python takes an element from a list in a third of the time.
            arrays = [array.tolist() for array in arrays]
            needed = list_values(*arrays)
        if needed <= room:
            values, bounds, left, left_bounds = (np.asarray(array, np.int64) for array in arrays[-4:])
            return ListedValues(values[:needed], bounds, left[: left_bounds[-1]], left_bounds)
        room = needed


def list_values(
    map_bounds: Any,
    kinds: Any,
    keys: Any,
    kept_bounds: Any,
    set_bounds: Any,
    removed: Any,
    removed_bounds: Any,
    moved: Any,
    moved_bounds: Any,
    slots: Any,
    slot_of: Any,
    value_of: Any,
    values: Any,
    bounds: Any,
    left: Any,
    left_bounds: Any,
) -> int:
    """Write the fields of `ListedValues` for those of `MapChanges`. Return the length that `values` should have.

    `slots` has room for the keys of a map in order, and `value_of` for the value of each key. `slot_of` is the slot of
    each key in the map, -1 for a key that is not in it, as every key is at the start. A key that is removed or moved
    leaves its old slot as it was. When the map is listed, keys move up to fill these slots.
    """
    count = 0
    number_left = 0
    for number in range(len(map_bounds) - 1):
        size = 0
        for place in range(kept_bounds[number], kept_bounds[number + 1]):
            slots[size] = keys[place]
            slot_of[keys[place]] = size
            value_of[keys[place]] = place
            size += 1
        for change in range(map_bounds[number], map_bounds[number + 1]):
            kind = kinds[change]
            if kind == REPLACE:
                for slot in range(size):
                    slot_of[slots[slot]] = -1
                size = 0
            for place in range(set_bounds[change], set_bounds[change + 1]):
                key = keys[place]
                if slot_of[key] < 0:
                    slots[size] = key
                    slot_of[key] = size
                    size += 1
                value_of[key] = place
            if kind != REPLACE:
                for place in range(removed_bounds[change], removed_bounds[change + 1]):
                    slot_of[removed[place]] = -1
            if kind == CLEAR:
                for slot in range(size):
                    slot_of[slots[slot]] = -1
                size = 0
            used = 0
            for slot in range(size):
                key = slots[slot]
                if slot_of[key] == slot:
                    slots[used] = key
                    slot_of[key] = used
                    used += 1
                    if count < len(values):
                        values[count] = value_of[key]
                    count += 1
            size = used
            bounds[change + 1] = count
            if kind == UPDATE:
                for place in range(moved_bounds[change], moved_bounds[change + 1]):
                    key = moved[place]
                    if slot_of[key] >= 0:
                        slots[size] = key
                        slot_of[key] = size
                        size += 1
        for slot in range(size):
            key = slots[slot]
            if slot_of[key] == slot:
                left[number_left] = value_of[key]
                number_left += 1
                slot_of[key] = -1
        left_bounds[number + 1] = number_left
    return count


_compiled_list_values = entry_point(list_values)
