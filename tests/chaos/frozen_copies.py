"""Copies of an output folder at many moments of one run, each as a kill at that moment would leave it.

A kill does not undo writes to files. A copy made while all processes of a command are suspended is therefore, file for
file, the result of a kill at that moment, and a single run gives hundreds of copies.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.killed_commands import (
    STOPPED_STATUSES,
    Command,
    is_moment,
    kill_session,
    session_processes,
    start_command,
    wait_until,
)

# Fraction of changes to other files that also get a copy; without Spark every change, as there are few.
_OTHER_FILES_FRACTION, _OTHER_FILES_FRACTION_LOCAL = 0.3, 1.0


def copy_at_moments(command: Command, out: Path, copies: Path, rng: random.Random) -> list[Path]:
    """Run the command and return copies of its output folder in time order.

    There is a copy for each moment at which a table or a checkpoint has grown, and for some other changes of files.
    """
    copies.mkdir(parents=True, exist_ok=True)
    result: list[Path] = []
    seen: set[str] = set()
    fraction = _OTHER_FILES_FRACTION_LOCAL if command.without_spark else _OTHER_FILES_FRACTION

    def copy_if_changed() -> bool:
        nonlocal seen
        now = _names(out)
        if now == seen:
            return False
        if any(map(is_moment, now - seen)) or (now and rng.random() < fraction):
            with _suspended(process.pid):
                now = _names(out)
                result.append(copies / f"{len(result):04}")
                shutil.copytree(out, result[-1], symlinks=True)
        seen = now
        return False

    process = start_command(command, out)
    try:
        wait_until(copy_if_changed, process, out, command)
        if command.follows:
            os.killpg(process.pid, signal.SIGTERM)
        _, output = process.communicate()
        if process.returncode != 0 and not (command.follows and process.returncode in STOPPED_STATUSES):
            raise SystemExit(f"{command.name}: exit status {process.returncode}:\n{output.decode(errors='replace')}")
    finally:
        kill_session(process)
    return result


def _names(out: Path) -> set[str]:
    """Return the names of files except checksums, which belong to another file."""
    return {f"{folder}/{file}" for folder, _, files in os.walk(out) for file in files if not file.endswith(".crc")}


@contextmanager
def _suspended(session: int) -> Iterator[None]:
    """Suspend all processes of a session."""
    stopped = set(session_processes({session}, lambda words: True))
    for pid in stopped:
        _signal(pid, signal.SIGSTOP)
    while any(_is_running(pid) for pid in stopped):
        time.sleep(0.001)
    try:
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _is_running(pid: int) -> bool:
    """Return whether a thread of the process is running.

    Stopped or dead threads are not running, nor threads (state D) that wait for a new, stopped child process.
    """
    try:
        states = [task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in _tasks(pid)]
    except OSError:
        return False
    return any(state not in "TtZXD" for state in states)


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
