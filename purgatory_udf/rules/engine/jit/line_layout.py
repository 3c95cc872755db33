"""Layouts of lines of text, and what `line_scanner` reads from such lines, as columns of integers.

A `LineLayout` has the elements of a line in order: fixed text, numbers, strings, optional parts and lists. A line with
another layout is not read, for example a line with white space or escaped characters.

A line has a time, text up to `LineLayout.marker`, and the elements. Scalars of a line become a row of `Scan.scalars`,
and the items of its lists rows of `Scan.items`. Strings are replaced by numbers, which are places in `Scan.strings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from purgatory_udf.rules.engine.jit import Int64Enum

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Number:
    """An integer; it is skipped if it has no name."""

    name: str | None = None


@dataclass(frozen=True)
class Milliseconds:
    """A time in milliseconds with up to three decimals, which is read in microseconds; skipped if it has no name."""

    name: str | None = None


@dataclass(frozen=True)
class Text:
    """A string in quotation marks, of ASCII characters without a backslash; skipped if it has no name.

    `default` is the number of the string for `null`; by default `null` is not read.
    """

    name: str | None = None
    default: int | None = None


@dataclass(frozen=True)
class Optional:
    """`start` and the elements after it, which a line may lack."""

    start: str
    elements: tuple[Any, ...] = ()


@dataclass(frozen=True)
class End:
    """The end of the line. The elements after an `Optional` with this element are for lines without its text."""


@dataclass(frozen=True)
class Each:
    """A list in brackets, in which each item has these elements."""

    elements: tuple[Any, ...]
    may_be_empty: bool = True


@dataclass(frozen=True)
class Item:
    """The elements of a row of `Scan.items`.

    Attributes:
        kind: The number of the kind of item, in the first column of the row.
        columns: Names of the further columns. They are consecutive names of the layout.
        kept: Number of leading columns with values from outside the item, such as the topic of a partition.
        elements: The elements.
    """

    kind: int
    columns: tuple[str, ...]
    kept: int
    elements: tuple[Any, ...]


class Op(Int64Enum):
    """What an instruction reads; the meaning of its two arguments is in brackets."""

    # Fixed text [token].
    TOKEN = 0
    # Fixed text [token, next instruction if the line has other text].
    OPTION = 1
    # An integer [scalar].
    NUMBER = 2
    # Milliseconds [scalar].
    MILLISECONDS = 3
    # A string [scalar].
    TEXT = 4
    # A string or null [scalar, number for null].
    NULLABLE = 5
    # A string that is skipped.
    SKIPPED = 6
    # The start of a list [next instruction after an empty list; -1 if it may not be empty].
    LIST = 7
    # The end of an item [first instruction of an item].
    NEXT = 8
    # Nothing: a row of items is complete [kind, first scalar of the row, number of scalars].
    ROW = 9
    # Nothing: scalars get their default values [first, last + 1].
    DEFAULTS = 10
    # The end of the line.
    END = 11


# Scalars of each line before those of the layout: whether the line was read, the 14 digits of date and time, the
# fraction of the second, its number of digits, and the text between the fraction and the marker.
READ, SECOND, FRACTION, DIGITS, AROUND = range(5)
_FIRST_NAMED = 5
# A scalar for values that are skipped.
_SKIPPED = "skipped"


@dataclass(frozen=True)
class LineLayout:
    """The layout of a line.

    Attributes:
        marker: ASCII text before the elements.
        names: Names of the scalars, with default values.
        elements: Elements up to the end of the line.
    """

    marker: str
    names: Mapping[str, int]
    elements: tuple[Any, ...]
    _program: list[tuple[int, int, int, int]] = field(default_factory=list)
    _tokens: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> int:
        """Return the column of `Scan.scalars` that has the scalar."""
        return self._places[name]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: _FIRST_NAMED + place for place, name in enumerate([*self.names, _SKIPPED])}

    @cached_property
    def program(self) -> tuple[Numbers, npt.NDArray[np.uint8], Numbers, Numbers, npt.NDArray[np.uint8]]:
        """Instructions, tokens, bounds of the tokens, defaults and marker."""
        self._add(Op.DEFAULTS, _FIRST_NAMED, _FIRST_NAMED + len(self.names))
        self._add_all(self.elements)
        self._add(Op.END)
        tokens = [token.encode() for token in self._tokens]
        defaults = np.array([0] * _FIRST_NAMED + [*self.names.values(), 0], np.int64)
        bounds = np.append(0, np.cumsum([len(token) for token in tokens])).astype(np.int64)
        return (
            np.array(self._program, np.int64),
            as_bytes(b"".join(tokens)),
            bounds,
            defaults,
            as_bytes(self.marker.encode()),
        )

    def _add(self, op: Op, first: int = 0, second: int = 0, third: int = 0) -> int:
        self._program.append((int(op), first, second, third))
        return len(self._program) - 1

    def _set_second(self, place: int, value: int) -> None:
        op, first, _, third = self._program[place]
        self._program[place] = op, first, value, third

    def _token(self, text: str) -> int:
        return self._tokens.setdefault(text, len(self._tokens))

    def _add_all(self, elements: Sequence[Any]) -> None:
        for element in elements:
            self._add_element(element)

    def _add_element(self, element: Any) -> None:
        match element:
            case str():
                self._add(Op.TOKEN, self._token(element))
            case Number(name):
                self._add(Op.NUMBER, self.place(name or _SKIPPED))
            case Milliseconds(name):
                self._add(Op.MILLISECONDS, self.place(name or _SKIPPED))
            case Text(None, None):
                self._add(Op.SKIPPED)
            case Text(name, None):
                self._add(Op.TEXT, self.place(name or _SKIPPED))
            case Text(name, int(default)):
                self._add(Op.NULLABLE, self.place(name or _SKIPPED), default)
            case Optional(text, elements):
                option = self._add(Op.OPTION, self._token(text))
                self._add_all(elements)
                self._set_second(option, len(self._program))
            case End():
                self._add(Op.END)
            case Each(elements, may_be_empty):
                start = self._add(Op.LIST, 0, -1)
                self._add_all(elements)
                self._add(Op.NEXT, 0, start + 1)
                if may_be_empty:
                    self._set_second(start, len(self._program))
            case Item(kind, columns, kept, elements):
                first = self.place(columns[0])
                self._add(Op.DEFAULTS, first + kept, first + len(columns))
                self._add_all(elements)
                self._add(Op.ROW, kind, first, len(columns))
            case _:
                raise TypeError(f"unknown element of a layout: {element!r}")


@dataclass(frozen=True)
class Scan:
    """Lines that were read.

    Attributes:
        numbers: Their numbers among the lines given.
        scalars: A row for each of these lines; `READ` to `AROUND`, and `LineLayout.place`, are its columns.
        items: A row for each item: its kind and its columns.
        bounds: The numbers of the first items of each line, and the number of items.
        strings: Strings by number. String 0 stands for a missing string; each other string occurs once.
    """

    numbers: Numbers
    scalars: Numbers
    items: Numbers
    bounds: Numbers
    strings: list[str]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Scan:
        """Return the chosen lines."""
        if chosen.all():
            return self
        counts = np.diff(self.bounds)
        bounds = np.append(0, np.cumsum(counts[chosen]))
        # Lines that were not read have no items.
        items = self.items if bounds[-1] == len(self.items) else self.items[np.repeat(chosen, counts)]
        return Scan(self.numbers[chosen], self.scalars[chosen], items, bounds, self.strings)


class Lines(Sequence[bytes]):
    """Lines of a text, each of which is cut out only when it is needed.

    Attributes:
        text: The text, in which there may be line ends and further lines.
        starts: The place of the first byte of each line.
        ends: The place after the last byte of each line.
    """

    __slots__ = ("ends", "starts", "text")

    def __init__(self, text: bytes | memoryview, starts: Numbers, ends: Numbers) -> None:
        self.text, self.starts, self.ends = text, starts, ends

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> Lines:
        """Return lines in this form."""
        if isinstance(lines, Lines):
            return lines
        ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
        return cls(b"".join(lines), np.append(0, ends)[:-1], ends)

    @classmethod
    def of_text(cls, text: bytes, size: int) -> Lines:
        r"""Return the lines of the first `size` bytes of a text; `\n` separates them."""
        ends = []
        end = text.find(b"\n", 0, size)
        while end >= 0:
            ends.append(end)
            end = text.find(b"\n", end + 1, size)
        numbers = np.array([-1, *ends, size], np.int64)
        return cls(text, numbers[:-1] + 1, numbers[1:])

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice) -> Lines: ...

    def __getitem__(self, number: int | slice) -> bytes | Lines:
        if isinstance(number, slice):
            return Lines(self.text, self.starts[number], self.ends[number])
        return bytes(self.text[self.starts[number] : self.ends[number]])

    def __iter__(self) -> Iterator[bytes]:
        for begin, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield bytes(self.text[begin:end])

    def at(self, numbers: Numbers) -> Lines:
        """Return the lines with these numbers."""
        return Lines(self.text, self.starts[numbers], self.ends[numbers])


def as_bytes(text: bytes | memoryview) -> npt.NDArray[np.uint8]:
    """Return a view of a text."""
    return np.frombuffer(text, np.uint8)
