"""Reads lines of text with a known layout (`line_layout`), compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import inlined, int64, load_int64
from purgatory_udf.rules.engine.jit.line_layout import (
    AROUND,
    DIGITS,
    FRACTION,
    READ,
    SECOND,
    LineLayout,
    Lines,
    Op,
    Scan,
    as_bytes,
)

# A number of up to 18 digits fits into 64 bits.
_MOST_DIGITS = 18
# Times of Kafka are less than 1e12 ms.
_MOST_MS_DIGITS = 12
# More than the bytes of the longest time, with a bracket before it.
_TIME_BYTES = 30
_FULL = -1
_QUOTE, _BACKSLASH, _SPACE, _FIRST_NON_ASCII = 34, 92, 32, 128
_MINUS, _DOT, _COMMA, _COLON, _ZERO, _NINE, _T = 45, 46, 44, 58, 48, 57, 84
_OPEN, _CLOSE = 91, 93
# FNV-1a of 31 bits: the product of two numbers stays below 2**63, so uncompiled code gets the same.
_HASH, _FACTOR, _HASH_BITS = 0x11C9DC5, 16777619, 0x7FFFFFFF


@inlined
def _string_number(data: Any, begin: int, end: int, hashed: int, slots: Any, places: Any) -> int:
    """Return the number of a string; `_FULL` without room for a new string. `places[0, 1]` is the number of strings."""
    slot = hashed & (len(slots) - 1)
    while slots[slot] != 0:
        number = slots[slot]
        other = places[number, 0]
        if places[number, 1] - other == end - begin:
            same = 0
            while same < end - begin and data[other + same] == data[begin + same]:
                same += 1
            if same == end - begin:
                return int64(number)
        slot = (slot + 1) & (len(slots) - 1)
    number = places[0, 1] + 1
    if number == len(places):
        return int64(_FULL)
    slots[slot] = number
    places[0, 1] = number
    places[number, 0] = begin
    places[number, 1] = end
    return int64(number)


@inlined
def _has(data: Any, at: int, end: int, tokens: Any, first: int, size: int) -> bool:
    """Return whether the text at a place is `size` bytes of `tokens` from `first` on."""
    if at + size > end:
        return False
    same = 0
    text, token = data.ctypes.data + at, tokens.ctypes.data + first
    while same + 8 <= size and load_int64(text + same, 0) == load_int64(token + same, 0):
        same += 8
    while same < size and data[at + same] == tokens[first + same]:
        same += 1
    return same == size


@inlined
def _after_time(data: Any, at: int, end: int, row: Any) -> int:
    """Read `2026-11-21T02:54:20.123` into the row, and return the place after it; -1 for other text.

    The fraction has 3 to 6 digits.
    """
    if end - at < _TIME_BYTES:
        return int64(-1)
    if data[at] == _OPEN:
        at += 1
    second = int64(0)
    for place in range(19):
        character = int64(data[at + place])
        if place == 4 or place == 7:
            is_usual = character == _MINUS
        elif place == 10:
            is_usual = character in (_T, _SPACE)
        elif place == 13 or place == 16:
            is_usual = character == _COLON
        else:
            is_usual = _ZERO <= character <= _NINE
            second = second * 10 + (character - _ZERO)
        if not is_usual:
            return int64(-1)
    if data[at + 19] != _DOT and data[at + 19] != _COMMA:
        return int64(-1)
    at += 20
    digits, fraction = int64(0), int64(0)
    while digits < 7 and _ZERO <= data[at] <= _NINE:
        fraction = fraction * 10 + (int64(data[at]) - _ZERO)
        at += 1
        digits += 1
    if not 3 <= digits <= 6:
        return int64(-1)
    row[SECOND] = second
    row[DIGITS] = digits
    for _ in range(digits, 6):
        fraction *= 10
    row[FRACTION] = fraction
    return int64(at)


@inlined
def _after_marker(data: Any, at: int, end: int, marker: Any, row: Any, slots: Any, places: Any) -> int:
    """Read the text up to the first marker into the row, and return the place after it; -1 without a marker."""
    begin = at
    hashed = int64(_HASH)
    while at + len(marker) <= end:
        character = int64(data[at])
        if character == marker[0] and _has(data, at, end, marker, 0, len(marker)):
            row[AROUND] = _string_number(data, begin, at, hashed, slots, places)
            return int64(at + len(marker)) if row[AROUND] != _FULL else int64(-1)
        if character >= _FIRST_NON_ASCII:
            return int64(-1)
        hashed = ((hashed ^ character) * _FACTOR) & _HASH_BITS
        at += 1
    return int64(-1)


@inlined
def _after_number(data: Any, at: int, end: int, most: int, decimals: int, row: Any, place: int) -> int:
    """Read a number into the row, and return the place after it; -1 for other text.

    It has at most `most` digits, and perhaps up to `decimals` decimals, with which it is read as an integer. Further
    digits are left, so the next instruction fails.
    """
    is_negative = at < end and data[at] == _MINUS
    if is_negative:
        at += 1
    begin = at
    value = int64(0)
    while at < end and at - begin < most and _ZERO <= data[at] <= _NINE:
        value = value * 10 + (int64(data[at]) - _ZERO)
        at += 1
    size = at - begin
    if size == 0 or (size > 1 and data[begin] == _ZERO):
        return int64(-1)
    found = int64(0)
    if decimals and at < end and data[at] == _DOT:
        at += 1
        while at < end and found < decimals and _ZERO <= data[at] <= _NINE:
            value = value * 10 + (int64(data[at]) - _ZERO)
            at += 1
            found += 1
        if found == 0:
            return int64(-1)
    for _ in range(found, decimals):
        value *= 10
    row[place] = -value if is_negative else value
    return int64(at)


@inlined
def _after_text(data: Any, at: int, end: int, row: Any, place: int, slots: Any, places: Any) -> int:
    """Read a string into the row, and return the place after it; -1 for other text. It is skipped if `place` is -1."""
    if at >= end or data[at] != _QUOTE:
        return int64(-1)
    at += 1
    begin = at
    hashed = int64(_HASH)
    while at < end:
        character = int64(data[at])
        if character == _QUOTE:
            break
        if character == _BACKSLASH or character < _SPACE or character >= _FIRST_NON_ASCII:
            return int64(-1)
        hashed = ((hashed ^ character) * _FACTOR) & _HASH_BITS
        at += 1
    if at == end:
        return int64(-1)
    if place >= 0:
        number = _string_number(data, begin, at, hashed, slots, places)
        if number == _FULL:
            return int64(-1)
        row[place] = number
    return int64(at + 1)


@inlined
def _is_null(data: Any, at: int, end: int) -> bool:
    return at + 4 <= end and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108


@entry_point
def scan_lines(
    data: Any,
    starts: Any,
    ends: Any,
    program: Any,
    tokens: Any,
    token_bounds: Any,
    defaults: Any,
    marker: Any,
    scalars: Any,
    items: Any,
    bounds: Any,
    slots: Any,
    places: Any,
) -> int:
    """Read lines into `scalars` and `items`, and return the number of strings.

    Args:
        data: A text.
        starts: The place of the first byte of each line in it.
        ends: The place after the last byte of each line.
        program: The instructions of the layout.
        tokens: Its tokens.
        token_bounds: The start of each token, and the length of all tokens.
        defaults: Default values of the scalars.
        marker: The marker of the layout.
        scalars: A row for each line, which is filled.
        items: Rows of items, which are filled.
        bounds: First item of each line, and the number of items, which are filled.
        slots: Table of strings by hash, all 0; its size is a power of two.
        places: Start of each string and the place after it, all 0.
    """
    count = int64(0)
    for line in range(len(ends)):
        begin, end = starts[line], ends[line]
        row = scalars[line]
        row[READ] = 0
        at = _after_time(data, begin, end, row)
        if at >= 0:
            at = _after_marker(data, at, end, marker, row, slots, places)
        step = int64(0)
        first = count
        while at >= 0:
            op, argument, second = program[step, 0], program[step, 1], program[step, 2]
            step += 1
            if op == Op.TOKEN or op == Op.OPTION:
                start = token_bounds[argument]
                size = token_bounds[argument + 1] - start
                if _has(data, at, end, tokens, start, size):
                    at += size
                elif op == Op.OPTION:
                    step = second
                else:
                    at = int64(-1)
            elif op == Op.NUMBER:
                at = _after_number(data, at, end, int64(_MOST_DIGITS), int64(0), row, argument)
            elif op == Op.MILLISECONDS:
                at = _after_number(data, at, end, int64(_MOST_MS_DIGITS), int64(3), row, argument)
            elif op == Op.TEXT or op == Op.NULLABLE or op == Op.SKIPPED:
                if op == Op.NULLABLE and _is_null(data, at, end):
                    row[argument] = second
                    at += 4
                else:
                    at = _after_text(data, at, end, row, int64(-1) if op == Op.SKIPPED else argument, slots, places)
            elif op == Op.LIST:
                if at + 1 >= end or data[at] != _OPEN:
                    at = int64(-1)
                elif second >= 0 and data[at + 1] == _CLOSE:
                    at += 2
                    step = second
                else:
                    at += 1
            elif op == Op.NEXT:
                if at < end and data[at] == _COMMA:
                    at += 1
                    step = second
                elif at < end and data[at] == _CLOSE:
                    at += 1
                else:
                    at = int64(-1)
            elif op == Op.DEFAULTS:
                for place in range(argument, second):
                    row[place] = defaults[place]
            elif op == Op.ROW:
                if count == len(items):
                    at = int64(-1)
                else:
                    items[count, 0] = argument
                    for place in range(program[step - 1, 3]):
                        items[count, place + 1] = row[second + place]
                    count += 1
            else:
                if at == end:
                    row[READ] = 1
                break
        if row[READ] == 0:
            count = first
        bounds[line + 1] = count
    return int64(places[0, 1])


# Lines with more strings or items are not read. Half of the slots stay free.
_MOST_STRINGS = 1 << 13
# No item of Kafka's is shorter.
_ITEM_BYTES = 32


def scan(lines: Lines, layout: LineLayout, item_columns: int) -> Scan:
    """Read the lines that have the layout.

    Args:
        lines: Any lines.
        layout: The layout.
        item_columns: The largest number of columns of an item.
    """
    program, tokens, token_bounds, defaults, marker = layout.program
    scalars = np.empty((len(lines), len(defaults)), np.int64)
    items = np.empty((int(np.sum(lines.ends - lines.starts)) // _ITEM_BYTES, item_columns + 1), np.int64)
    bounds = np.zeros(len(lines) + 1, np.int64)
    places = np.zeros((_MOST_STRINGS, 2), np.int64)
    slots = np.zeros(2 * _MOST_STRINGS, np.int64)
    of_layout = program, tokens, token_bounds, defaults, marker
    count = scan_lines(
        as_bytes(lines.text), lines.starts, lines.ends, *of_layout, scalars, items, bounds, slots, places
    )
    strings = ["", *(bytes(lines.text[begin:end]).decode("ascii") for begin, end in places[1 : count + 1].tolist())]
    found = Scan(np.arange(len(lines)), scalars, items[: bounds[-1]], bounds, strings)
    return found.where(scalars[:, READ] == 1)
