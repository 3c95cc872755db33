"""Starting and killing commands as processes; their progress is observed through the files that they write."""

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

# Files by which tables and checkpoints grow: Delta commits, offsets and commits of batches, state. Each is a *moment*.
_MOMENT = re.compile(
    r"/_delta_log/\d{20}\.json$|/(offsets|commits|sources/\d+)/\d+$|/state/.*\.(changelog|zip)$|/_SUCCESS$"
)
_POLL_S = 0.005
# Exit statuses after a signal, which Java or Python may receive first.
STOPPED_STATUSES = (130, 143, -signal.SIGTERM)


class Victim(StrEnum):
    """Processes to kill.

    DRIVER is the whole command. JVM is Spark's process alone, which on one machine is also the executor. WORKER is a
    Python process that works on a batch: on a cluster Spark repeats its task, on one machine the command fails.
    EXECUTOR is a process of a cluster's worker.
    """

    DRIVER = "driver"
    JVM = "jvm"
    WORKER = "python worker"
    EXECUTOR = "executor"


LOCAL_VICTIMS = (Victim.DRIVER, Victim.DRIVER, Victim.JVM, Victim.WORKER)
# A command that follows has processed all its input after this time without a new file, in seconds.
QUIET_S = 8


@dataclass(frozen=True)
class Command:
    """A command of the product to kill.

    Attributes:
        name: Unique name.
        words: Arguments without --out.
        tables: Tables to compare with those of the undisturbed run.
        audited: Whether `audit` can check the result.
        follows: Whether the command runs until it is stopped.
        feed: Gives the command another portion of input when it has processed all of it; False after the last one.
        prepare_input: Creates the input.
        prepare_output: Creates the contents of the output folder before the first start.
        files: Files to compare byte for byte.
        spark_optional: Whether the command can be resumed without Spark.
        without_spark: Whether the command is started without Spark.
        victims: Processes to choose from.
        sessions: Session ids of other processes that work for the command.
    """

    name: str
    words: tuple[str, ...]
    tables: tuple[str, ...]
    audited: bool = False
    follows: bool = False
    feed: Callable[[], bool] = lambda: False
    prepare_input: Callable[[], None] = lambda: None
    prepare_output: Callable[[Path], object] = lambda out: None
    files: tuple[str, ...] = ()
    spark_optional: bool = False
    without_spark: bool = False
    victims: tuple[Victim, ...] = LOCAL_VICTIMS
    sessions: tuple[int, ...] = ()


@dataclass(frozen=True)
class FullRun:
    """Output folder of an undisturbed run, and its number of moments."""

    out: Path
    moments: int


def start(words: tuple[str, ...], quiet: bool = False) -> subprocess.Popen[bytes]:
    """Start `./spark-submit.sh` in a new session, without environment variables of Python and Spark.

    Its standard error is a pipe, or dropped if `quiet`.
    """
    # Variables of a Spark session in this process would select the Python of its workers; a cluster's have another one.
    spark_prefixes = ("PYSPARK_", "SPARK_", "PYTHON")
    return subprocess.Popen(
        [str(ROOT / "spark-submit.sh"), *words],
        env={name: value for name, value in os.environ.items() if not name.startswith(spark_prefixes)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
        start_new_session=True,
    )


def start_command(command: Command, out: Path) -> subprocess.Popen[bytes]:
    """Start the command, with settings for short jobs; without any option of Spark, it runs without Spark."""
    if not out.exists():
        command.prepare_output(out)
    return start((*(() if command.without_spark else small_spark.ARGUMENTS), *command.words, "--out", str(out)))


def run_to_end(command: Command, out: Path) -> FullRun:
    """Run a command without disturbance; it must succeed."""
    process = start_command(command, out)
    if command.follows:
        wait_until(lambda: False, process, out, command)
        os.killpg(process.pid, signal.SIGTERM)
    _, output = process.communicate()
    stopped = command.follows and process.returncode in STOPPED_STATUSES
    # An import that had finished before a kill refuses to run again.
    finished = process.returncode == 2 and b"exists; choose another --out" in output
    if process.returncode != 0 and not stopped and not finished:
        raise SystemExit(f"{command.name}: exit status {process.returncode}:\n{output.decode(errors='replace')}")
    return FullRun(out, len(moments(out)))


def kill_at_moment(command: Command, out: Path, moment: int, victim: Victim) -> bool:
    """Start the command and kill the victim after a number of moments; return whether the command lived that long.

    A command that has lost a worker or an executor continues if it can.
    """
    before = len(moments(out))
    process = start_command(command, out)
    try:
        if not wait_until(lambda: len(moments(out)) >= before + moment, process, out, command):
            return False
        if victim is Victim.DRIVER:
            os.killpg(process.pid, signal.SIGKILL)
            return True
        victims = list(session_processes({process.pid, *command.sessions}, _IS_VICTIM[victim]))
        for pid in victims:
            _kill(pid)
        if victim in (Victim.WORKER, Victim.EXECUTOR):
            # If Spark repeats the tasks, the command may finish.
            wait_until(lambda: False, process, out, command)
        return bool(victims)
    finally:
        kill_session(process)


def moments(out: Path) -> list[Path]:
    """Return the files that mark moments."""
    paths = []
    for folder, _, files in os.walk(out):
        paths += [Path(folder, file) for file in files if is_moment(f"{folder}/{file}")]
    return paths


def is_moment(file: str) -> bool:
    """Return whether a file marks a moment."""
    return bool(_MOMENT.search(file))


def differences(command: Command, whole: Path, out: Path) -> list[str]:
    """Return the differences from the undisturbed run."""
    problems = [difference for table in command.tables if (difference := _table_difference(whole / table, out / table))]
    problems += [f"{name}: differs" for name in command.files if _bytes(whole / name) != _bytes(out / name)]
    if command.audited and (expected := _run_counts(whole)) != (actual := _run_counts(out)):
        problems.append(f"runs: {actual}, not {expected}")
    return problems


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _run_counts(out: Path) -> list[tuple[str, ...]]:
    """Return job, status and counts of each run."""
    rows = DeltaTable(str(out / "runs")).to_pyarrow_table(columns=["job", "status", "counts"]).to_pylist()
    return sorted(tuple(map(str, row.values())) for row in rows)


def _table_difference(whole: Path, out: Path) -> str:
    """Return the difference of a table, or an empty text; a table may be missing in both outputs."""
    if not whole.exists() and not out.exists():
        return ""
    expected, actual = Counter(rows(whole)), Counter(rows(out))
    lost, extra = expected - actual, actual - expected
    if not lost and not extra:
        return ""
    duplicated = sum(min(count, expected[row]) for row, count in extra.items())
    example = next(iter(lost or extra))
    others = extra.total() - duplicated
    return f"{out.name}: {lost.total()} rows lost, {duplicated} duplicated, {others} others, such as {example[:300]}"


def rows(table: Path) -> list[str]:
    """Return the rows of a table as sorted texts."""
    return sorted(map(str, DeltaTable(str(table)).to_pyarrow_table().to_pylist()))


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[bytes], out: Path, command: Command) -> bool:
    """Wait for a condition; return False if the command has exited or has no input left."""
    seen, since = 0, time.monotonic()
    while not reached():
        if has_ended(process):
            return False
        if command.follows and seen != (seen := len(moments(out))):
            since = time.monotonic()
        if command.follows and seen and time.monotonic() - since > QUIET_S:
            if not command.feed():
                return False
            since = time.monotonic()
    return True


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a few milliseconds and return whether the process has exited."""
    try:
        process.communicate(timeout=_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the command's session and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _is_jvm(words: str) -> bool:
    return "org.apache.spark.deploy.SparkSubmit" in words


def _is_worker(words: str) -> bool:
    return "pyspark.daemon" in words


def _is_executor(words: str) -> bool:
    return "CoarseGrainedExecutorBackend" in words


_IS_VICTIM: dict[Victim, Callable[[str], bool]] = {
    Victim.JVM: _is_jvm,
    Victim.WORKER: _is_worker,
    Victim.EXECUTOR: _is_executor,
}


def session_processes(sessions: set[int], matches: Callable[[str], bool]) -> Iterator[int]:
    """Yield the ids of processes in the sessions that have a matching command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _session(entry) in sessions and matches(_command_line(entry)):
            yield int(entry.name)


def _session(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return -1


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
