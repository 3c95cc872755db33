"""Missing, truncated or empty files in the output of an interrupted replay, and the repeated command.

The command must either resume and write the tables of an undisturbed run, or fail with one sentence that names the file
and the remedy.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.crash_commands import commands, local_commands
from tests.chaos.frozen_copies import copy_at_moments
from tests.chaos.killed_commands import Command, run_to_end
from tests.chaos.shared_session import SharedSession

Fault = Callable[[Path], None]
# Number of commits in the table `runs` after an ingest and the start of a replay.
RUNNING_VERSIONS = 2

# Files of an output: pattern by description; the last file that matches is damaged.
_PARTITIONS = "_replay/checkpoints/partitions"
KINDS = {
    "checkpoint metadata": f"{_PARTITIONS}/metadata",
    "offsets of a batch": f"{_PARTITIONS}/offsets/[0-9]*",
    "commit of a batch": f"{_PARTITIONS}/commits/[0-9]*",
    "state changelog": f"{_PARTITIONS}/state/0/*/*.changelog",
    "state schema": f"{_PARTITIONS}/state/0/*/_metadata/schema",
    "log of a table": "completions/_delta_log/*.json",
    "first log entry of a table": "watches/_delta_log/00000000000000000000.json",
    "log of the events": "events/_delta_log/*.json",
    "rows of the events": "events/*.parquet",
    "log of the runs": "runs/_delta_log/*.json",
    "rows of the runs": "runs/*.parquet",
}
# Files of an output without Spark, which has tables only.
LOCAL_KINDS = {
    "log of a table": "completions/_delta_log/*.json",
    "first log entry of a table": "watches/_delta_log/00000000000000000000.json",
    "rows of a table": "completions/*.parquet",
    "log of the events": "events/_delta_log/*.json",
    "rows of the events": "events/*.parquet",
    "log of the runs": "runs/_delta_log/*.json",
    "rows of the runs": "runs/*.parquet",
}


def missing(file: Path) -> None:
    """Delete the file."""
    file.unlink()


def truncated(file: Path) -> None:
    """Keep the first half of the file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    """Empty the file."""
    file.write_bytes(b"")


FAULTS: dict[str, Fault] = {"missing": missing, "truncated": truncated, "empty": empty}


@dataclass(frozen=True)
class Interrupted:
    """A command with its undisturbed output `whole`, and its output in the `middle` of a run."""

    command: Command
    whole: Path
    middle: Path
    kinds: dict[str, str]


def damage_trials(
    session: SharedSession, folder: Path, rng: random.Random, after: int, most: int, without_spark: bool
) -> Iterator[tuple[str, list[str]]]:
    """Try damaged files, at most `most` after the first `after`, and yield (description, problems) of each."""
    outputs = _interrupted_local(folder, rng) if without_spark else [_interrupted(folder, rng)]
    trials = [(interrupted, kind, fault) for interrupted in outputs for fault in FAULTS for kind in interrupted.kinds]
    for number, (interrupted, kind, fault) in enumerate(trials[after : after + most]):
        out = folder / "damage" / f"out-{number}"
        shutil.copytree(interrupted.middle, out)
        description = f"{interrupted.command.name}: {kind}, {fault}" if without_spark else f"{kind}, {fault}"
        files = sorted(
            file for file in out.glob(interrupted.kinds[kind]) if file.is_file() and not file.name.startswith(".")
        )
        if not files:
            yield description, ["no file matches"]
            continue
        file = files[-1]
        FAULTS[fault](file)
        # A disk fault leaves the checksum file, but a copy of the folder may lack it.
        if rng.random() < 0.5:
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        yield description, _problems(session, interrupted.command, interrupted.whole, out, file, without_spark)
        shutil.rmtree(out)


def _interrupted(folder: Path, rng: random.Random) -> Interrupted:
    command = commands(folder / "input")["replay by partition"]
    whole = folder / "damage" / "whole"
    made = copy_at_moments(command, whole, folder / "damage" / "copies", rng)
    middle = next(copy for copy in made if list(copy.glob(f"{_PARTITIONS}/commits/1")))
    return Interrupted(command, whole, middle, KINDS)


def _interrupted_local(folder: Path, rng: random.Random) -> Iterator[Interrupted]:
    known = local_commands(folder / "input")
    replay, metrics = known["replay at once with groups"], known["metrics"]
    whole, metrics_whole, metrics_input = (folder / "damage" / name for name in ("whole", "metrics", "input"))
    made = copy_at_moments(replay, whole, folder / "damage" / "copies", rng)
    # Take the last copy before the end of the run is recorded.
    middle = [copy for copy in made if len(list(copy.glob("runs/_delta_log/*.json"))) == RUNNING_VERSIONS][-1]
    yield Interrupted(replay, whole, middle, LOCAL_KINDS)
    run_to_end(metrics, metrics_whole)
    metrics.prepare_output(metrics_input)
    yield Interrupted(metrics, metrics_whole, metrics_input, LOCAL_KINDS)


def _problems(
    session: SharedSession, command: Command, whole: Path, out: Path, file: Path, without_spark: bool
) -> list[str]:
    error = session.finish(command, out, without_spark)
    if not error:
        print(f"    resumes without {file.relative_to(out)}")
        return session.compare(command, whole, out)
    status, _, sentence = error.removeprefix("exit status ").partition(": ")
    sentence = sentence.strip().splitlines()[-1]
    print(f"    {status}: {sentence}")
    problems = []
    if "Traceback" in error or "\tat " in error:
        problems.append("it printed a stack trace")
    if status not in ("1", "2", "3"):
        problems.append(f"exit status {status}")
    if "--overwrite" not in sentence and "choose another --out" not in sentence:
        problems.append(f"the message has no remedy: {sentence}")
    return problems
