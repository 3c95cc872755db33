"""What a kill leaves, at every moment of one run: its processes are stopped for a blink, and its folder is copied.

A process that is killed takes nothing back of what it has written to its files. So a copy that is made while none of
a command's processes runs is, file for file, what a kill at this moment would have left; and one run that comes to its
end gives hundreds of them.
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

from tests.chaos.killing import STOPPED, Command, at_work, begun, is_moment, swept_away, until

# Of files that are on their way, of how many a copy is made; without Spark there are few, and it is over soon.
_OTHERS, _OTHERS_HERE = 0.3, 1.0


def freeze(command: Command, out: Path, copies: Path, chance: random.Random) -> list[Path]:
    """Run the command to its end; copies of its folder in their order: one for each moment at which a table or a
    checkpoint has grown, and for some at which another file has come or gone."""
    copies.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    seen: set[str] = set()
    others = _OTHERS_HERE if command.here else _OTHERS

    def look() -> bool:
        nonlocal seen
        now = _names(out)
        if now == seen:
            return False
        if any(map(is_moment, now - seen)) or (now and chance.random() < others):
            with _standing_still(running.pid):
                now = _names(out)
                made.append(copies / f"{len(made):04}")
                shutil.copytree(out, made[-1], symlinks=True)
        seen = now
        return False

    running = begun(command, out)
    try:
        until(look, running, out, command)
        if command.follows:
            os.killpg(running.pid, signal.SIGTERM)
        _, said = running.communicate()
        if running.returncode != 0 and not (command.follows and running.returncode in STOPPED):
            raise SystemExit(f"{command.name} ended with {running.returncode}:\n{said.decode(errors='replace')}")
    finally:
        swept_away(running)
    return made


def _names(out: Path) -> set[str]:
    """Without checksums, each of which comes with its file."""
    return {f"{folder}/{file}" for folder, _, files in os.walk(out) for file in files if not file.endswith(".crc")}


@contextmanager
def _standing_still(session: int) -> Iterator[None]:
    """None of the session's processes runs."""
    stopped = set(at_work({session}, lambda words: True))
    for pid in stopped:
        _signal(pid, signal.SIGSTOP)
    while any(_runs(pid) for pid in stopped):
        time.sleep(0.001)
    try:
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _runs(pid: int) -> bool:
    """Whether any of its threads is neither stopped nor dead, nor (D) waits for a process that it has just made, which
    is stopped itself."""
    try:
        states = [task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in _tasks(pid)]
    except OSError:
        return False
    return any(state not in "TtZXD" for state in states)


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _signal(pid: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)
