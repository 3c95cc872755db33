"""`python -m benchmarks.faults`: a replay on storage that fails, and beside another one, through the public command.

Each fault must end the command in one sentence (no stack trace) that says what to do; when that has been done, the same
command must go on and leave the tables of an undisturbed run. So must files that are missing or damaged
(`benchmarks.damage`), unless nothing needs them. Full and read-only disks are small `tmpfs` mounts, for which the
script has to be root, or to be run by `unshare --map-root-user --mount`; a clock that is set back needs Debian's
`faketime`. What cannot be tried here is said.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.crash_commands import commands
from benchmarks.damage import damages
from benchmarks.killing import STOPPED, Command, Whole, differences, moments, run_to_end, start

# What an undisturbed replay of the sample takes is some megabytes.
_ROOMY = "256m"


class NotTriedError(Exception):
    """Why a fault cannot be made on this machine."""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--only", choices=("storage", "damage"), help="disks, clocks and a second replay, or files")
    options.add_argument("--most", type=int, default=100, help="damage so many files")
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
    if asked.only != "damage":
        replay = commands(folder / "input")["replay"]
        whole = run_to_end(replay, folder / "whole")
        for fault in (full_disk, full_disk_early, read_only, second_replay, clock_set_back):
            name = fault.__name__.replace("_", " ")
            try:
                yield name, fault(replay, whole, folder)
            except NotTriedError as why:
                print(f"{name:40} not tried: {why}", flush=True)
    if asked.only != "storage":
        yield from damages(folder, random.Random(asked.seed), asked.most)


def full_disk(replay: Command, whole: Whole, folder: Path) -> list[str]:
    """Full when most is written; then there is room."""
    return _full(replay, whole, folder, _size(whole.out) * 7 // 10)


def full_disk_early(replay: Command, whole: Whole, folder: Path) -> list[str]:
    """Full while the trace is taken in."""
    return _full(replay, whole, folder, _size(whole.out) // 10)


def _full(replay: Command, whole: Whole, folder: Path, room: int) -> list[str]:
    with mounted(folder / "small", f"{room // 1000}k") as place:
        out = place / "out"
        wrong = _ends(replay, out, "the disk is full; make room and give the same command again")
        _mount("-o", f"remount,size={_ROOMY}", str(place))
        return wrong + _goes_on(replay, whole, out)


def read_only(replay: Command, whole: Whole, folder: Path) -> list[str]:
    """From one moment to the next nothing can be written."""
    with mounted(folder / "small", _ROOMY) as place:
        out = place / "out"
        running = start((*replay.words, "--out", str(out)))
        while len(moments(out)) < whole.moments // 2 and running.poll() is None:
            _wait(running)
        for _ in range(50):
            # As long as a file is open for writing, the system refuses.
            if (
                subprocess.run(["mount", "-o", "remount,ro", str(place)], capture_output=True, check=False).returncode
                == 0
            ):
                break
            _wait(running)
        wrong = _said(running, "the output can only be read; make it writable and give the same command again")
        again = _ends(replay, out, "cannot be written: Read-only file system; put that right")
        _mount("-o", "remount,rw", str(place))
        return wrong + again + _goes_on(replay, whole, out)


def second_replay(replay: Command, whole: Whole, folder: Path) -> list[str]:
    out = folder / "two"
    first = start((*replay.words, "--out", str(out)))
    while not moments(out) and first.poll() is None:
        _wait(first)
    wrong = _ends(replay, out, "is writing there; wait until that replay has ended, or stop it")
    _, said = first.communicate()
    if first.returncode != 0:
        wrong.append(f"the first ended with {first.returncode}: {said.decode(errors='replace')}")
    return wrong + differences(replay, whole.out, out)


def clock_set_back(replay: Command, whole: Whole, folder: Path) -> list[str]:
    """Killed in the middle; then it is yesterday."""
    tool = shutil.which("faketime")
    if tool is None:
        raise NotTriedError("there is no faketime")
    out = folder / "yesterday"
    running = start((*replay.words, "--out", str(out)))
    while len(moments(out)) < whole.moments * 6 // 10 and running.poll() is None:
        _wait(running)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    environ = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    back = start((*replay.words, "--out", str(out)), before=(tool, "-f", "-1d"), environ=environ)
    _, said = back.communicate()
    if back.returncode != 0:
        return [f"it ended with {back.returncode}: {said.decode(errors='replace')}"]
    return differences(replay, whole.out, out)


def _goes_on(replay: Command, whole: Whole, out: Path) -> list[str]:
    run_to_end(replay, out)
    return differences(replay, whole.out, out)


def _ends(replay: Command, out: Path, sentence: str) -> list[str]:
    return _said(start((*replay.words, "--out", str(out))), sentence)


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
        wrong.append(f"it told of {len(lines)} lines of stack")
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
