"""`python -m tests.chaos.storage_faults`: commands on failing storage: a replay, or the job named by `--of`.

Each fault must end the command in one sentence (no stack trace) that says what to do; when that has been done, the same
command must go on and leave the tables of an undisturbed run. So must files that are missing or damaged
(`tests.chaos.damaged_files`), unless nothing needs them. A full disk is a small `tmpfs` mount, a read-only one a folder
mounted read-only; both need root, or `unshare --map-root-user --mount`. A clock that was set back is simulated by files
dated tomorrow. Faults that cannot be tried on this machine are reported as such.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from purgatory_udf.storage.output_folder import alone
from tests.chaos.crash_commands import commands, commands_here
from tests.chaos.damaged_files import damages
from tests.chaos.killing import STOPPED, Command, begun, moments, swept_away
from tests.chaos.one_session import OneSession

# What an undisturbed replay of the sample takes is some megabytes.
_ROOMY = "256m"
_DAY_S = 86_400
_SAYS_WHEN = re.compile(r'("(?:timestamp|modificationTime|deletionTimestamp)":)(\d{13})\b')


class NotTriedError(Exception):
    """Why a fault cannot be made on this machine."""


@dataclass(frozen=True)
class Trying:
    """A command that runs into a fault; `whole` is what it leaves undisturbed, at so many `moments`."""

    command: Command
    session: OneSession
    whole: Path
    moments: int
    folder: Path
    over: ExitStack

    @property
    def here(self) -> bool:
        return self.command.here

    def goes_on(self, out: Path) -> list[str]:
        """What is wrong with what the same command makes of it."""
        said = self.session.end(self.command, out, self.here)
        return [said] if said else self.is_whole(out)

    def is_whole(self, out: Path) -> list[str]:
        return self.session.checked(self.command, self.whole, out)

    def ends(self, out: Path, sentence: str) -> list[str]:
        """What is wrong with how the command ends that cannot do its work."""
        return _said(self.begins(out), sentence)

    def begins(self, out: Path) -> subprocess.Popen[bytes]:
        """The command, which is gone when all is over."""
        running = begun(self.command, out)
        self.over.callback(lambda: swept_away(running) if running.poll() is None else None)
        return running

    def has_come_to(self, share: float, out: Path) -> subprocess.Popen[bytes]:
        """The command at work, so much of it done."""
        running = self.begins(out)
        while len(moments(out)) < self.moments * share and running.poll() is None:
            _wait(running)
        return running


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.chaos.storage_faults", description=(__doc__ or "").split("\n")[0]
    )
    options.add_argument("--only", choices=("storage", *STORAGE, "damage"), action="append", help="repeatable")
    options.add_argument("--here", action="store_true", help="without Spark")
    options.add_argument("--of", metavar="COMMAND", help="of storage: a command of tests.chaos.crashes [a replay]")
    options.add_argument("--most", type=int, default=100, help="damage so many files")
    options.add_argument("--after", type=int, default=0, help="and pass over the first so many of them")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    broken = 0
    try:
        for what, wrong in _tried(asked, folder):
            broken += bool(wrong)
            print(f"{what:40} {'; '.join(wrong) or 'well'}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if broken else 0


def _tried(asked: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each fault, and what is wrong with what came of it."""
    session = OneSession(folder / "session")
    only = set(asked.only or ("storage", "damage"))
    chosen = [name for name in STORAGE if only & {name, "storage"}]
    if chosen:
        whole = folder / "whole"
        known = (commands_here if asked.here else commands)(folder / "input")
        asked_of = asked.of or ("replay at once with groups" if asked.here else "replay")
        if asked_of not in known:
            raise SystemExit(f"{asked_of}: none of {', '.join(known)}")
        command = known[asked_of]
        if said := session.end(command, whole, asked.here):
            raise SystemExit(said)
        with ExitStack() as over:
            trying = Trying(command, session, whole, len(moments(whole)), folder, over)
            for name in chosen:
                try:
                    yield name, STORAGE[name](trying)
                except NotTriedError as why:
                    print(f"{name:40} not tried: {why}", flush=True)
    if "damage" in only:
        yield from damages(session, folder, random.Random(asked.seed), asked.after, asked.most, asked.here)


def full_disk(trying: Trying) -> list[str]:
    """Full when most is written; then there is room."""
    return _full(trying, _size(trying.whole) * 7 // 10)


def full_disk_early(trying: Trying) -> list[str]:
    """Full while the trace is taken in."""
    return _full(trying, _size(trying.whole) // 10)


def _full(trying: Trying, room: int) -> list[str]:
    with mounted(trying.folder / "small", f"{room // 1000}k") as place:
        out = place / "out"
        wrong = trying.ends(out, "the disk is full; free some space and run the same command again")
        _mount("-o", f"remount,size={_ROOMY}", str(place))
        return wrong + trying.goes_on(out)


def read_only(trying: Trying) -> list[str]:
    """From one moment to the next nothing can be written; what is over too soon for that finds it so."""
    out = trying.folder / "read-only"
    wrong: list[str] = []
    if trying.here:
        out.mkdir()
    else:
        running = trying.has_come_to(0.5, out)
    with write_protected(out):
        if not trying.here:
            wrong = _said(running, "make it writable")
        wrong += trying.ends(out, "cannot be written: Read-only file system; put that right")
    return wrong + trying.goes_on(out)


def second_command(trying: Trying) -> list[str]:
    out = trying.folder / "two"
    job = trying.command.words[0]
    sentence = f"is writing there; wait until that {job} has ended, or stop it"
    if trying.command.small:
        # It would be over before the other one begins.
        with alone(str(out), job):
            wrong = trying.ends(out, sentence)
        return wrong + trying.goes_on(out)
    first = trying.has_come_to(0.01, out)
    wrong = trying.ends(out, sentence)
    _, said = first.communicate()
    if first.returncode != 0:
        wrong.append(f"the first ended with {first.returncode}: {said.decode(errors='replace')}")
    return wrong + trying.is_whole(out)


def clock_set_back(trying: Trying) -> list[str]:
    """Killed in the middle; then it is yesterday: what lies there is of tomorrow."""
    out = trying.folder / "yesterday"
    running = trying.has_come_to(0.6, out)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    for file in (path for path in out.rglob("*") if path.is_file()):
        written = file.stat()
        if file.parent.name == "_delta_log" and file.suffix == ".json":
            file.write_text(_SAYS_WHEN.sub(lambda said: f"{said[1]}{int(said[2]) + _DAY_S * 1000}", file.read_text()))
            # A checksum of what it said before.
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        if file.exists():
            os.utime(file, (written.st_atime + _DAY_S, written.st_mtime + _DAY_S))
    return trying.goes_on(out)


STORAGE: dict[str, Callable[[Trying], list[str]]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (full_disk, full_disk_early, read_only, second_command, clock_set_back)
}


def _said(running: subprocess.Popen[bytes], sentence: str) -> list[str]:
    """What is wrong with how it ended; nothing if it failed with that sentence as its last line, and no stack trace."""
    _, said = running.communicate()
    lines = said.decode(errors="replace").strip().splitlines() or [""]
    wrong = []
    if running.returncode in (0, *STOPPED):
        wrong.append(f"it ended with {running.returncode}")
    if sentence not in lines[-1]:
        wrong.append(f"it said: {lines[-1]}")
    if any(line.startswith(("Traceback", "\tat ", "Exception in")) for line in lines):
        wrong.append(f"it told of {len(lines)} lines of stack, as {lines[0]}")
    return wrong


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """A disk of that size, in memory."""
    place.mkdir(exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={size}", "none", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotTriedError(f"nothing can be mounted: {error}") from None
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextmanager
def write_protected(place: Path) -> Iterator[None]:
    """Whoever comes by the folder's path finds it so; what is open already (the lock) stays as it is."""
    try:
        _mount("--bind", str(place), str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotTriedError(f"nothing can be mounted: {error}") from None
    try:
        # The system refuses as long as a file is open for writing that was opened since.
        while subprocess.run(
            ["mount", "-o", "remount,bind,ro", str(place)], capture_output=True, check=False
        ).returncode:
            time.sleep(0.01)
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def _size(out: Path) -> int:
    """What its files take on a disk that gives whole pages."""
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in out.rglob("*") if file.is_file())


def _wait(running: subprocess.Popen[bytes]) -> None:
    """A moment, or until it has ended."""
    try:
        running.wait(0.02)
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    sys.exit(main())
