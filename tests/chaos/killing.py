"""Commands that are killed: processes are watched from outside, by the files that they make."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deltalake import DeltaTable

from tests.support import small_spark

ROOT = Path(__file__).resolve().parents[2]

# The files by which tables and checkpoints grow: commits of Delta, what a batch is about to do and has done, state.
_MOMENT = re.compile(
    r"/_delta_log/\d{20}\.json$|/(offsets|commits|sources/\d+)/\d+$|/state/.*\.(changelog|zip)$|/_SUCCESS$"
)
_LOOK_EVERY_S = 0.005
# How a command ends that was asked to: Java got the signal first, or Python did.
STOPPED = (130, 143, -signal.SIGTERM)


class Victim(StrEnum):
    """DRIVER: the whole command at once. JVM: Spark's process alone (on one machine also the executor). WORKER: one of
    the Python processes that work on a batch: on a cluster Spark does that task again, on one machine the command ends.
    EXECUTOR: a process of a cluster's worker."""

    DRIVER = "driver"
    JVM = "jvm"
    WORKER = "python worker"
    EXECUTOR = "executor"


ON_ONE_MACHINE = (Victim.DRIVER, Victim.DRIVER, Victim.JVM, Victim.WORKER)
# After how many seconds without a new file a command that follows has done all there is to do.
QUIET_S = 8


@dataclass(frozen=True)
class Command:
    """`words` without --out; `tables` are compared, and `audited` says whether the laws can be asked.

    One that `follows` never ends by itself; it is fed one portion more whenever it has done all there was, until
    `feed` returns False. `prepare` makes what it reads, `furnish` what lies in its folder before it is given there.
    `sessions` are those of processes that work for it beside its own. What is `small` can be gone on with without
    Spark, too; what is `here` is begun so. `files` are compared byte for byte.
    """

    name: str
    words: tuple[str, ...]
    tables: tuple[str, ...]
    audited: bool = False
    follows: bool = False
    feed: Callable[[], bool] = lambda: False
    prepare: Callable[[], None] = lambda: None
    furnish: Callable[[Path], object] = lambda out: None
    files: tuple[str, ...] = ()
    small: bool = False
    here: bool = False
    victims: tuple[Victim, ...] = ON_ONE_MACHINE
    sessions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Whole:
    """What an undisturbed run left, and how many moments it had."""

    out: Path
    moments: int


def start(words: tuple[str, ...], quiet: bool = False) -> subprocess.Popen[bytes]:
    """`./spark-submit.sh` with these words, in a session of its own, as a user without settings starts it; what it says
    on stderr stays to be read, or is dropped."""
    # A session of Spark's in this process tells its workers which Python is theirs: those of a cluster have another.
    ours = ("PYSPARK_", "SPARK_", "PYTHON")
    return subprocess.Popen(
        [str(ROOT / "spark-submit.sh"), *words],
        env={name: value for name, value in os.environ.items() if not name.startswith(ours)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
        start_new_session=True,
    )


def begun(command: Command, out: Path) -> subprocess.Popen[bytes]:
    """The command, with the settings of what is soon over; who gives Spark none has it done without."""
    if not out.exists():
        command.furnish(out)
    return start((*(() if command.here else small_spark.WORDS), *command.words, "--out", str(out)))


def run_to_end(command: Command, out: Path) -> Whole:
    """The command must succeed."""
    running = begun(command, out)
    if command.follows:
        until(lambda: False, running, out, command)
        os.killpg(running.pid, signal.SIGTERM)
    _, said = running.communicate()
    stopped = command.follows and running.returncode in STOPPED
    # Killed when all was done: an import is not made twice.
    made = running.returncode == 2 and b"exists; choose another --out" in said
    if running.returncode != 0 and not stopped and not made:
        raise SystemExit(f"{command.name} ended with {running.returncode}:\n{said.decode(errors='replace')}")
    return Whole(out, len(moments(out)))


def killed(command: Command, out: Path, moment: int, victim: Victim) -> bool:
    """Start the command and kill the victim when the folder has grown by so many moments; whether it lived to that.

    A command that lost a worker or an executor goes on as it can.
    """
    before = len(moments(out))
    running = begun(command, out)
    try:
        if not until(lambda: len(moments(out)) >= before + moment, running, out, command):
            return False
        if victim is Victim.DRIVER:
            os.killpg(running.pid, signal.SIGKILL)
            return True
        victims = list(at_work({running.pid, *command.sessions}, _IS[victim]))
        for pid in victims:
            _kill(pid)
        if victim in (Victim.WORKER, Victim.EXECUTOR):
            # Where Spark does the tasks again, the command need not notice.
            until(lambda: False, running, out, command)
        return bool(victims)
    finally:
        swept_away(running)


def moments(out: Path) -> list[Path]:
    """The files that are there by now; one that vanishes meanwhile was one."""
    paths = []
    for folder, _, files in os.walk(out):
        paths += [Path(folder, file) for file in files if is_moment(f"{folder}/{file}")]
    return paths


def is_moment(file: str) -> bool:
    return bool(_MOMENT.search(file))


def differences(command: Command, whole: Path, out: Path) -> list[str]:
    """What is otherwise than in the undisturbed run; nothing if all is well."""
    wrong = [said for table in command.tables if (said := _difference(whole / table, out / table))]
    wrong += [f"{name}: another page" for name in command.files if _bytes(whole / name) != _bytes(out / name)]
    if command.audited and (expected := _counted(whole)) != (actual := _counted(out)):
        wrong.append(f"runs: {actual}, not {expected}")
    return wrong


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _counted(out: Path) -> list[tuple[str, ...]]:
    """How each job ended, and what it has counted."""
    rows = DeltaTable(str(out / "runs")).to_pyarrow_table(columns=["job", "status", "counts"]).to_pylist()
    return sorted(tuple(map(str, row.values())) for row in rows)


def _difference(whole: Path, out: Path) -> str:
    """Of one table; nothing where it is the same, or is in neither."""
    if not whole.exists() and not out.exists():
        return ""
    expected, actual = Counter(rows(whole)), Counter(rows(out))
    lost, more = expected - actual, actual - expected
    if not lost and not more:
        return ""
    doubled = sum(min(count, expected[row]) for row, count in more.items())
    example = next(iter(lost or more))
    return (
        f"{out.name}: {lost.total()} rows lost, {doubled} doubled, {more.total() - doubled} others; as {example[:300]}"
    )


def rows(table: Path) -> list[str]:
    return sorted(map(str, DeltaTable(str(table)).to_pyarrow_table().to_pylist()))


def until(reached: Callable[[], bool], running: subprocess.Popen[bytes], out: Path, command: Command) -> bool:
    """Whether it was reached before the command ended, or had nothing more to do."""
    seen, since = 0, time.monotonic()
    while not reached():
        if has_ended(running):
            return False
        if command.follows and seen != (seen := len(moments(out))):
            since = time.monotonic()
        if command.follows and seen and time.monotonic() - since > QUIET_S:
            if not command.feed():
                return False
            since = time.monotonic()
    return True


def has_ended(running: subprocess.Popen[bytes]) -> bool:
    """Waits a moment for it."""
    try:
        running.communicate(timeout=_LOOK_EVERY_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def swept_away(running: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def _is_jvm(words: str) -> bool:
    return "org.apache.spark.deploy.SparkSubmit" in words


def _is_worker(words: str) -> bool:
    return "pyspark.daemon" in words


def _is_executor(words: str) -> bool:
    return "CoarseGrainedExecutorBackend" in words


_IS: dict[Victim, Callable[[str], bool]] = {
    Victim.JVM: _is_jvm,
    Victim.WORKER: _is_worker,
    Victim.EXECUTOR: _is_executor,
}


def at_work(sessions: set[int], wanted: Callable[[str], bool]) -> Iterator[int]:
    """Processes of these sessions whose command line is wanted."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _session(entry) in sessions and wanted(_words(entry)):
            yield int(entry.name)


def _session(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return -1


def _words(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
