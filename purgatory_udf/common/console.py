"""Tables for the console: with rules on a terminal, as aligned plain text otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Box
from rich.text import Text

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table with a title; columns of numbers are right-aligned and have thousands separators."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def lines(self, terminal: bool | None = None) -> list[str]:
        """Return the lines of the table, formatted for a terminal if `terminal` (default: if stdout is one)."""
        cells = [[_text(cell) for cell in row] for row in self.rows]
        right = [all(isinstance(row[at], int | float | None) for row in self.rows) for at in range(len(self.columns))]
        if sys.stdout.isatty() if terminal is None else terminal:
            return self._boxed(cells, right)
        widths = [max(len(line[at]) for line in [self.columns, *cells]) for at in range(len(self.columns))]
        aligned = [
            "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in [self.columns, *cells]
        ]
        return [self.title, *(f"  {line}" for line in aligned)]

    def _boxed(self, cells: list[list[str]], right: list[bool]) -> list[str]:
        box = Box(box=SIMPLE_HEAD, title=self.title, title_justify="left", title_style="bold")
        for column, to_right in zip(self.columns, right, strict=True):
            box.add_column(column, justify="right" if to_right else "left", overflow="fold")
        for row in cells:
            box.add_row(*map(Text, row))
        console = Console(file=StringIO(), force_terminal=True, width=Console().width)
        console.print(box)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue().rstrip("\n").split("\n")


def printable(text: str) -> str:
    """Return the text with control characters escaped, since names come from untrusted traces."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return printable(cell) if isinstance(cell, str) else f"{cell:,}"
