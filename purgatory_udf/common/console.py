"""Tables and progress for the console: styled and animated on a terminal, otherwise plain text and log lines."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from purgatory_udf.common.local_files import read_totals

if TYPE_CHECKING:
    from rich.status import Status

Cell = str | int | float | None
log = logging.getLogger(__name__)

Tasks = Callable[[], tuple[int, int]]

LOOK_EVERY = 0.5
# Seconds of a phase until the first log line about its progress, and the longest interval between two such lines.
FIRST_LINE_AFTER, LINE_EVERY = 5.0, 60.0
# Seconds until the steps of a command are shown on a terminal.
SHOWN_AFTER = 1.0

# What a panic of a Rust library prints; libraries for Python also raise it as an error.
_PANIC = re.compile(
    rb"\n?thread '[^\n]*panicked at [^\n]*\n[^\n]*\n(?:stack backtrace:\n(?: +[^\n]*\n)*)?(?:note: [^\n]*\n)*"
)
_panics = threading.Lock()


@dataclass(frozen=True)
class Table:
    """A table with a title. Columns of numbers are right-aligned and have thousands separators."""

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
        # Its import takes longer than the rest of a table, and output to a file or pipe does not need it.
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as Box
        from rich.text import Text

        box = Box(box=SIMPLE_HEAD, title=self.title, title_justify="left", title_style="bold")
        for column, to_right in zip(self.columns, right, strict=True):
            box.add_column(column, justify="right" if to_right else "left", overflow="fold")
        for row in cells:
            box.add_row(*map(Text, row))
        console = Console(file=StringIO(), force_terminal=True, width=Console().width)
        console.print(box)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue().rstrip("\n").split("\n")


# A request of a request log is named by its file and line; imports with pseudonyms number the files.
_PLACE = re.compile(r"(?:.*/(?P<name>[^/]+)|(?P<log>[^/]+\.(?:log|txt|out)[\w.-]*|log-\d+)):(?P<line>\d+)\Z", re.DOTALL)


def request_label(request_id: str) -> str:
    """Return the readable form of a request's id: `line 7 of request-2.log` for `/logs/request-2.log:7`."""
    place = _PLACE.match(request_id)
    return f"line {place['line']} of {place['name'] or place['log']}" if place else request_id


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 line` or `2,000 lines`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def printable(text: str) -> str:
    """Return the text with control characters escaped, since names come from untrusted traces."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return printable(cell) if isinstance(cell, str) else f"{cell:,}"


class Phases:
    """Context manager and callback for the text of each phase, such as `reading 3 files`.

    A thread adds the numbers of lines read and of finished tasks of Spark: on a terminal at short intervals, otherwise
    as log lines after 5, 15, 35 and 75 s of a phase, and then each minute.
    """

    def __init__(self, tasks: Tasks, stream: TextIO | None = None, every: float = LOOK_EVERY) -> None:
        self._tasks = tasks
        self._every = every
        self._phase = ""
        self._stop = threading.Event()
        self._status = _status_line(stream or sys.stderr)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._read_before = read_totals.sums()
        self._interval = self._due = FIRST_LINE_AFTER

    def __enter__(self) -> Phases:
        if self._status:
            self._status.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._status:
            self._status.stop()

    def __call__(self, phase: str) -> None:
        self._phase, self._read_before = phase, read_totals.sums()
        self._interval, self._due = FIRST_LINE_AFTER, time.monotonic() + FIRST_LINE_AFTER
        if self._status:
            self._status.update(phase)
        else:
            log.info(phase)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            progress = self._progress() if self._status or time.monotonic() >= self._due else ""
            if not progress:
                continue
            if self._status:
                self._status.update(f"{self._phase} · {progress}")
                continue
            log.info("%s", progress)
            self._interval = min(2 * self._interval, LINE_EVERY)
            self._due = time.monotonic() + self._interval

    def _progress(self) -> str:
        """Return what the phase has done so far: finished tasks, or lines read; empty if neither is known."""
        tasks = _finished(self._tasks)
        if tasks:
            return tasks
        size, lines = (now - before for now, before in zip(read_totals.sums(), self._read_before, strict=True))
        return f"{lines:,} lines, {size / 1e6:,.0f} MB of text" if size else ""


class CommandSteps:
    """Context manager that shows the step of a command with many queries, which usually takes a few seconds.

    `report_step` reports steps to it. A thread shows the newest one with the number of finished tasks of Spark: on a
    terminal after the first second, otherwise as a log line after 5, 15, 35 and 75 s, and then each minute.
    """

    def __init__(self, tasks: Tasks, stream: TextIO | None = None, every: float = LOOK_EVERY) -> None:
        self._tasks, self._stream, self._every = tasks, stream or sys.stderr, every
        self._step = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CommandSteps:
        _shown.append(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shown.remove(self)
        self._stop.set()
        self._thread.join()

    def __call__(self, step: str) -> None:
        self._step = step

    def _watch(self) -> None:
        if not self._stream.isatty():
            interval = FIRST_LINE_AFTER
            while not self._stop.wait(interval):
                if self._step:
                    log.info("%s", self._text())
                interval = min(2 * interval, LINE_EVERY)
            return
        status = None if self._stop.wait(SHOWN_AFTER) else _status_line(self._stream)
        if status:
            status.update(self._text())
            with status:
                while not self._stop.wait(self._every):
                    status.update(self._text())

    def _text(self) -> str:
        return " · ".join(filter(None, [self._step, _finished(self._tasks)]))


_shown: list[CommandSteps] = []


def report_step(step: str) -> None:
    """Show what the command does now, such as `computing waits`, if it shows its steps."""
    for steps in _shown:
        steps(step)


def _finished(tasks: Tasks) -> str:
    """Return how many tasks are finished, or an empty text without tasks."""
    done, all_tasks = tasks()
    return f"{done:,} of {all_tasks:,} tasks" if all_tasks else ""


def _status_line(stream: TextIO) -> Status | None:
    """Return an animated line on a terminal; None for other streams."""
    if not stream.isatty():
        return None
    from rich.console import Console

    console = Console(file=stream)
    return console.status("") if console.is_terminal else None


@contextmanager
def hidden_panics() -> Iterator[None]:
    """Remove panics of Rust libraries from stderr in the `with` block; everything else is printed at its end.

    Only one block at a time hides them. Blocks of other threads meanwhile run as they are.
    """
    if not _panics.acquire(blocking=False):
        yield
        return
    try:
        with tempfile.TemporaryFile() as printed:
            sys.stderr.flush()
            stderr = os.dup(2)
            os.dup2(printed.fileno(), 2)
            try:
                yield
            except Exception:
                time.sleep(0.1)  # A library's other threads may panic just after the error.
                raise
            finally:
                sys.stderr.flush()
                os.dup2(stderr, 2)
                os.close(stderr)
                printed.seek(0)
                rest = memoryview(_PANIC.sub(b"", printed.read()))
                while rest:
                    rest = rest[os.write(2, rest) :]
    finally:
        _panics.release()
