"""Lines are read if they have the layout. `.ci/branches` runs these tests uncompiled, with checked accesses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.rules.engine.jit import line_scanner
from purgatory_udf.rules.engine.jit.line_layout import (
    AROUND,
    DIGITS,
    FRACTION,
    SECOND,
    Each,
    Item,
    LineLayout,
    Lines,
    Milliseconds,
    Number,
    Optional,
    Text,
)
from purgatory_udf.rules.engine.jit.line_scanner import scan

TIME = "2026-11-21T02:54:20.123"
LAYOUT = LineLayout(
    " read:",
    {"a": 0, "b": -1, "ms": 0, "name": 0, "other": 9, "topic": 0, "place": 5, "extra": 6},
    (
        '{"a":',
        Number("a"),
        Optional(',"b":', (Number("b"),)),
        ',"ms":',
        Milliseconds("ms"),
        ',"name":',
        Text("name"),
        Optional(',"other":', (Text("other", 0),)),
        Optional(',"skipped":', (Number(), "+", Milliseconds(), "+", Text())),
        ',"list":',
        Each(
            (
                Text("topic"),
                ":",
                Each(
                    (Item(3, ("topic", "place", "extra"), 1, (Number("place"), Optional("+", (Number("extra"),)))),),
                    may_be_empty=False,
                ),
            )
        ),
        "}",
    ),
)
END = ',"list":[]}'


def _line(text: str, time: str = TIME) -> bytes:
    return f"{time} x read:{text}".encode()


def _read(*lines: bytes) -> list[dict[str, Any]]:
    """Return scalars and items of the lines, with strings for the numbers of strings."""
    found = scan(Lines.of(lines), LAYOUT, 3)
    read = []
    for place, row in enumerate(found.scalars.tolist()):
        line = {name: row[LAYOUT.place(name)] for name in ("a", "b", "ms", "name", "other")}
        line |= {name: found.strings[line[name]] for name in ("name",)}
        items = found.items[found.bounds[place] : found.bounds[place + 1]].tolist()
        line["items"] = [[kind, found.strings[topic], *others] for kind, topic, *others in items]
        read.append({"line": int(found.numbers[place]), **line})
    return read


def _is_read(text: str, time: str = TIME) -> bool:
    return len(scan(Lines.of([_line(text, time)]), LAYOUT, 3).numbers) == 1


def test_lines_become_scalars_and_items() -> None:
    lines = (
        '{"a":-7,"b":8,"ms":1.5,"name":"n","other":"n","list":["t":[1,2+3],"u":[4]]}',
        "another line",
        '{"a":0,"ms":-12,"name":"","list":["t":[5]]}',
    )
    first, second = _read(*map(_line, lines))
    assert first == {
        "line": 0,
        "a": -7,
        "b": 8,
        "ms": 1_500,
        "name": "n",
        "other": 2,
        "items": [[3, "t", 1, 6], [3, "t", 2, 3], [3, "u", 4, 6]],
    }
    assert second == {"line": 2, "a": 0, "b": -1, "ms": -12_000, "name": "", "other": 9, "items": [[3, "t", 5, 6]]}


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ('"ms":1.123', True),
        ('"ms":1.', False),
        ('"ms":1.1234', False),
        ('"ms":01', False),
        ('"ms":-', False),
        ('"ms":999999999999.999', True),
        ('"ms":1000000000000', False),
        ('"ms":1e3', False),
        ('"ms":null', False),
        ('"b":999999999999999999,"ms":1', True),
        ('"b":1000000000000000000,"ms":1', False),
        ('"ms":1,"b":1', False),
        ('"ms": 1', False),
    ],
)
def test_numbers(text: str, is_read: bool) -> None:
    assert _is_read(f'{{"a":1,{text},"name":"n"{END}') is is_read


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ('"name":"n~ "', True),
        ('"name":"\\\\"', False),
        ('"name":"é"', False),
        ('"name":"\t"', False),
        ('"name":null', False),
        ('"name":n', False),
        ('"name":"n","other":null', True),
        ('"name":"n","other":nul', False),
        ('"name":"n","skipped":1+1.5+"x"', True),
        ('"name":"n","skipped":1+1.5+x', False),
    ],
)
def test_strings(text: str, is_read: bool) -> None:
    assert _is_read(f'{{"a":1,"ms":1,{text}{END}') is is_read


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ('["t":[1]]', True),
        ("[]", True),
        ('["t":[]]', False),
        ('["t":[1,]]', False),
        ('["t":[1]', False),
        ('["t":[1] ]', False),
        ("null", False),
        ("[", False),
        ("", False),
    ],
)
def test_lists(text: str, is_read: bool) -> None:
    assert _is_read(f'{{"a":1,"ms":1,"name":"n","list":{text}}}') is is_read


@pytest.mark.parametrize(
    ("time", "read"),
    [
        ("2026-11-21T02:54:20.123", [20261121025420, 123_000, 3]),
        ("[2026-11-21 02:54:20,123456]", [20261121025420, 123_456, 6]),
        ("2026-11-21T02:54:20.1234567", None),
        ("2026-11-21T02:54:20.12", None),
        ("2026-11-21T02:54:20;123", None),
        ("2026-11-21x02:54:20.123", None),
        ("2026/11-21T02:54:20.123", None),
        ("2026-11-21T02.54:20.123", None),
        ("202x-11-21T02:54:20.123", None),
        ("", None),
    ],
)
def test_times(time: str, read: list[int] | None) -> None:
    scalars = scan(Lines.of([_line(f'{{"a":1,"ms":1,"name":"n"{END}', time)]), LAYOUT, 3).scalars
    assert scalars[:, [SECOND, FRACTION, DIGITS]].tolist() == ([read] if read else [])


def test_text_before_marker_is_ascii() -> None:
    text = f'read:{{"a":1,"ms":1,"name":"n"{END}'
    lines = [f"{TIME} [x] {text}", f"{TIME} [é] {text}", f"{TIME} [x]{text}"]
    found = scan(Lines.of([line.encode() for line in lines]), LAYOUT, 3)
    assert (found.numbers.tolist(), [found.strings[found.scalars[0, AROUND]]]) == ([0], [" [x]"])


def test_line_ending_within_string_is_left_out() -> None:
    assert not _is_read('{"a":1,"ms":1,"name":"n')


def test_line_has_nothing_after_elements() -> None:
    text = f'{{"a":1,"ms":1,"name":"n"{END}'
    assert [_is_read(each) for each in (text, text + " ", text + text)] == [True, False, False]


def test_line_with_too_many_strings_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_scanner, "_MOST_STRINGS", 4)
    lines = [_line(f'{{"a":1,"ms":1,"name":"{name}"{END}') for name in ("n", "o", "p", "n")]
    assert [line["line"] for line in _read(*lines)] == [0, 1, 3]


def test_strings_with_same_slot_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_scanner, "_MOST_STRINGS", 128)
    names = [f"{number}" for number in range(120)]
    lines = [_line(f'{{"a":1,"ms":1,"name":"{name}"{END}') for name in names]
    assert [line["name"] for line in _read(*lines, *lines)] == [*names, *names]


def test_line_with_too_many_items_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [_line(f'{{"a":1,"ms":1,"name":"n","list":["t":[{items}]]}}') for items in ("1", "1,2,3,4", "5")]
    monkeypatch.setattr(line_scanner, "_ITEM_BYTES", sum(map(len, lines)) // 3)
    assert [line["line"] for line in _read(*lines)] == [0, 2]


def test_unknown_element_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown element of a layout: 5"):
        scan(Lines.of([b"x"]), LineLayout("", {}, (5,)), 1)


@given(st.data())
def test_damaged_line_leaves_others_intact(data: st.DataObject) -> None:
    """No line is read beyond its end."""
    line = _line('{"a":-7,"b":8,"ms":1.5,"name":"n","other":"n","list":["t":[1,2+3],"u":[4]]}')
    place = data.draw(st.integers(0, len(line)))
    damage = data.draw(st.sampled_from([b"", b"0", b'"', b"[", b"]", b"-", b".", b",", b"\xff", b"null"]))
    removed = data.draw(st.integers(0, 40))
    (expected,) = _read(line)
    read = _read(line[:place], line, line[:place] + damage + line[place + removed :], line)
    by_line = {each["line"]: {**each, "line": 0, "other": 0} for each in read}
    assert by_line[1] == by_line[3] == {**expected, "other": 0}


def test_no_lines() -> None:
    found = scan(Lines.of([]), LAYOUT, 3)
    assert (len(found.numbers), found.bounds.tolist(), np.shape(found.scalars)[0]) == (0, [0], 0)


@pytest.mark.parametrize("text", [b"", b"a", b"\n", b"a\n\nbc\n", b"a\r\nb"])
def test_lines_of_text_are_cut_when_needed(text: bytes) -> None:
    lines, expected = Lines.of_text(text + b"\nz", len(text)), text.split(b"\n")
    assert [lines[number] for number in range(len(lines))] == [*lines] == [*lines[:]] == expected
    assert [*lines.at(np.array([len(lines) - 1, 0]))] == [expected[-1], expected[0]]
    assert [*Lines.of(lines)] == [*Lines.of(expected)] == expected


def test_lines_may_be_part_of_text() -> None:
    lines = [_line('{"a":1,"ms":1,"name":"n"' + END), b"x", _line('{"a":2,"ms":1,"name":"m"' + END)]
    text = b"\n".join(lines)
    for part in (Lines.of(lines), Lines.of_text(text, len(text)), Lines.of([b"y", *lines, b"z"])[1:-1]):
        found = scan(part, LAYOUT, 3)
        assert found.numbers.tolist() == [0, 2]
        assert found.scalars[:, LAYOUT.place("a")].tolist() == [1, 2]
        names = found.scalars[:, LAYOUT.place("name")].tolist()
        assert [found.strings[number] for number in names] == ["n", "m"]
