"""`python -m tests.chaos.storage_faults`: runs a replay, or the command named by `--of`, on failing storage.

With each fault, the command must fail with one sentence that names the remedy, and without a stack trace. After the
remedy, the same command must finish with the tables of an undisturbed run. The same holds for missing and damaged files
(`tests.chaos.damaged_files`), except for files that are not needed.

A full disk is a small `tmpfs` mount, and a read-only disk a read-only bind mount; both need root, or
`unshare --map-root-user --mount`. A clock that was set back is simulated by files with times of the next day. Faults
that are not possible on this machine are reported as such.
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

from purgatory_udf.storage.output_folder import output_lock
from tests.chaos.crash_commands import commands, local_commands
from tests.chaos.damaged_files import damage_trials
from tests.chaos.killed_commands import STOPPED_STATUSES, Command, kill_session, moments, start_command
from tests.chaos.shared_session import SharedSession

# Size of a disk with enough space; a replay of the sample needs a few megabytes.
_ENOUGH_SPACE = "256m"
_DAY_S = 86_400
_LOG_TIME = re.compile(r'("(?:timestamp|modificationTime|deletionTimestamp)":)(\d{13})\b')


class UnavailableFaultError(Exception):
    """A fault is not possible on this machine, for the reason in the message."""


@dataclass(frozen=True)
class FaultTrial:
    """A command to run with a fault, and the output of its undisturbed run, `whole`, which had `moments` moments."""

    command: Command
    session: SharedSession
    whole: Path
    moments: int
    folder: Path
    cleanup: ExitStack

    @property
    def without_spark(self) -> bool:
        return self.command.without_spark

    def resume_problems(self, out: Path) -> list[str]:
        """Repeat the command and return the problems of its result."""
        error = self.session.finish(self.command, out, self.without_spark)
        return [error] if error else self.compare(out)

    def compare(self, out: Path) -> list[str]:
        """Return the differences from the undisturbed run."""
        return self.session.compare(self.command, self.whole, out)

    def failure_problems(self, out: Path, sentence: str) -> list[str]:
        """Run the command, which must fail with the sentence, and return the problems."""
        return _problems(self.start(out), sentence)

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        """Start the command; it is killed at the end of the trial."""
        process = start_command(self.command, out)
        self.cleanup.callback(lambda: kill_session(process) if process.poll() is None else None)
        return process

    def start_until(self, share: float, out: Path) -> subprocess.Popen[bytes]:
        """Start the command and wait until that share of its moments is reached."""
        process = self.start(out)
        while len(moments(out)) < self.moments * share and process.poll() is None:
            _wait_briefly(process)
        return process


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.storage_faults", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--only",
        choices=("storage", *STORAGE, "damage"),
        action="append",
        help="fault to try, repeatable  [default: all]",
    )
    parser.add_argument("--without-spark", action="store_true", help="run commands without Spark")
    parser.add_argument("--of", metavar="COMMAND", help="command of tests.chaos.crashes to run  [default: a replay]")
    parser.add_argument("--most", type=int, default=100, help="number of files to damage")
    parser.add_argument("--after", type=int, default=0, help="number of files to skip first")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    broken = 0
    try:
        for fault, problems in _trials(options, folder):
            broken += bool(problems)
            print(f"{fault:40} {'; '.join(problems) or 'passed'}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if broken else 0


def _trials(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each fault and its problems."""
    session = SharedSession(folder / "session")
    only = set(options.only or ("storage", "damage"))
    chosen = [name for name in STORAGE if only & {name, "storage"}]
    if chosen:
        whole = folder / "whole"
        known = (local_commands if options.without_spark else commands)(folder / "input")
        name = options.of or ("replay at once with groups" if options.without_spark else "replay")
        if name not in known:
            raise SystemExit(f"--of {name}: expected one of {', '.join(known)}")
        command = known[name]
        if error := session.finish(command, whole, options.without_spark):
            raise SystemExit(error)
        with ExitStack() as cleanup:
            trial = FaultTrial(command, session, whole, len(moments(whole)), folder, cleanup)
            for fault in chosen:
                try:
                    yield fault, STORAGE[fault](trial)
                except UnavailableFaultError as reason:
                    print(f"{fault:40} not possible: {reason}", flush=True)
    if "damage" in only:
        yield from damage_trials(
            session, folder, random.Random(options.seed), options.after, options.most, options.without_spark
        )


def full_disk(trial: FaultTrial) -> list[str]:
    """The disk is full when most of the output is written."""
    return _fill_disk(trial, _size(trial.whole) * 7 // 10)


def full_disk_early(trial: FaultTrial) -> list[str]:
    """The disk is full during the import of the trace."""
    return _fill_disk(trial, _size(trial.whole) // 10)


def _fill_disk(trial: FaultTrial, free_bytes: int) -> list[str]:
    with mounted(trial.folder / "small", f"{free_bytes // 1000}k") as place:
        out = place / "out"
        problems = trial.failure_problems(out, "the disk is full; free some space and run the same command again")
        _mount("-o", f"remount,size={_ENOUGH_SPACE}", str(place))
        return problems + trial.resume_problems(out)


def read_only(trial: FaultTrial) -> list[str]:
    """The disk becomes read-only during the run, or before the start of a command without Spark, which is too short."""
    out = trial.folder / "read-only"
    problems: list[str] = []
    if trial.without_spark:
        out.mkdir()
    else:
        process = trial.start_until(0.5, out)
    with write_protected(out):
        if not trial.without_spark:
            problems = _problems(process, "make it writable")
        problems += trial.failure_problems(out, "cannot be written: Read-only file system; fix this")
    return problems + trial.resume_problems(out)


def second_command(trial: FaultTrial) -> list[str]:
    """A second command writes to the same output folder."""
    out = trial.folder / "two"
    job = trial.command.words[0]
    sentence = f"is writing to it; wait until that {job} has finished, or stop it"
    if trial.command.spark_optional:
        # The first command would finish before the second one starts, so this process holds the lock instead.
        with output_lock(str(out), job):
            problems = trial.failure_problems(out, sentence)
        return problems + trial.resume_problems(out)
    first = trial.start_until(0.01, out)
    problems = trial.failure_problems(out, sentence)
    _, output = first.communicate()
    if first.returncode != 0:
        problems.append(f"the first command: exit status {first.returncode}: {output.decode(errors='replace')}")
    return problems + trial.compare(out)


def clock_set_back(trial: FaultTrial) -> list[str]:
    """The command is killed, and then all files get times of the next day."""
    out = trial.folder / "yesterday"
    process = trial.start_until(0.6, out)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for file in (path for path in out.rglob("*") if path.is_file()):
        written = file.stat()
        if file.parent.name == "_delta_log" and file.suffix == ".json":
            file.write_text(_LOG_TIME.sub(lambda match: f"{match[1]}{int(match[2]) + _DAY_S * 1000}", file.read_text()))
            # The checksum is of the old contents.
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        if file.exists():
            os.utime(file, (written.st_atime + _DAY_S, written.st_mtime + _DAY_S))
    return trial.resume_problems(out)


STORAGE: dict[str, Callable[[FaultTrial], list[str]]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (full_disk, full_disk_early, read_only, second_command, clock_set_back)
}


def _problems(process: subprocess.Popen[bytes], sentence: str) -> list[str]:
    """Return problems of a failed command: the last line must have the sentence, and there must be no stack trace."""
    _, output = process.communicate()
    lines = output.decode(errors="replace").strip().splitlines() or [""]
    problems = []
    if process.returncode in (0, *STOPPED_STATUSES):
        problems.append(f"exit status {process.returncode}")
    if sentence not in lines[-1]:
        problems.append(f"last line: {lines[-1]}")
    if any(line.startswith(("Traceback", "\tat ", "Exception in")) for line in lines):
        problems.append(f"a stack trace of {len(lines)} lines: {lines[0]}")
    return problems


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """Mount a disk of that size in memory."""
    place.mkdir(exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={size}", "none", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableFaultError(f"cannot mount: {error}") from None
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextmanager
def write_protected(place: Path) -> Iterator[None]:
    """Make a folder read-only by its path; files that are open already, such as the lock, remain writable."""
    try:
        _mount("--bind", str(place), str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableFaultError(f"cannot mount: {error}") from None
    try:
        # The remount fails while a file that was opened after the mount is open for writing.
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
    """Return the size of an output on a disk with pages of 4 KiB."""
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in out.rglob("*") if file.is_file())


def _wait_briefly(process: subprocess.Popen[bytes]) -> None:
    """Wait for 20 ms, or until the process has exited."""
    try:
        process.wait(0.02)
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    sys.exit(main())
