"""`python -m tests.chaos.crashes --kills 60`: kills the product's own commands at random moments and repeats them.

By default, a command runs once without disturbance. Whenever a table or a checkpoint grows, and at some other moments,
all its processes are suspended and its output folder is copied: this is what a kill at that moment would leave. The
command is then repeated on randomly chosen copies; a small command resumes with or without Spark, at random.

With `--kill`, processes are killed instead: the whole command, Spark's JVM, or a Python worker during a batch; with
`--cluster`, also an executor. `--without-spark --kill` kills small commands without Spark at any time.

The final result must equal that of the undisturbed run, row for row, and satisfy the invariants that `audit` checks.

`--keep FOLDER` keeps all runs for inspection, and the next call continues with the copies that are left (`--minutes`
limits a call). The seed is printed; with the same copies, the same seed makes the same choices.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.crash_commands import commands, local_commands, topic_commands
from tests.chaos.forked_commands import ForkTrials
from tests.chaos.frozen_copies import copy_at_moments
from tests.chaos.killed_commands import Command, Victim, kill_at_moment, moments, run_to_end, start
from tests.chaos.shared_session import SharedSession
from tests.chaos.trial import Trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.crashes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="start no further kill after this time  [default: no limit]"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--command", action="append", help="command to kill, repeatable  [default: all in turn]")
    parser.add_argument("--kill", action="store_true", help="kill processes instead of copying output folders")
    parser.add_argument("--topic", action="store_true", help="use imports that follow a topic of a real broker")
    parser.add_argument("--without-spark", action="store_true", help="use small commands without Spark")
    parser.add_argument(
        "--cluster", action="store_true", help="use a replay on a cluster of two workers; kill executors"
    )
    parser.add_argument("--keep", type=Path, help="folder for the outputs  [default: a temporary one]")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="crashes-"))
    try:
        with ExitStack() as cleanup:
            known = _commands(options, folder, cleanup)
            unknown = set(options.command or ()) - known.keys()
            if unknown:
                parser.error(f"--command {unknown.pop()!r}: expected one of {', '.join(map(repr, known))}")
            limits = Limits(options.kills, time.monotonic() + options.minutes * 60)
            print(f"seed {options.seed}", flush=True)
            trials = _trial_kind(options, folder)
            return run_trials(
                trials, [known[name] for name in options.command or known], limits, random.Random(options.seed)
            )
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _trial_kind(options: argparse.Namespace, folder: Path) -> CopyTrials | KillTrials | ForkTrials:
    if options.without_spark and options.kill:
        return ForkTrials(folder)
    kind = KillTrials if options.kill or options.cluster else CopyTrials
    return kind(folder, SharedSession(folder / "session", kafka=options.topic))


def _commands(options: argparse.Namespace, folder: Path, cleanup: ExitStack) -> dict[str, Command]:
    """Return the commands to choose from, after starting the broker or cluster that they need."""
    if options.topic:
        return cleanup.enter_context(topic_commands(folder / "input"))
    known = (local_commands if options.without_spark else commands)(folder / "input")
    if options.cluster:
        replay = cleanup.enter_context(cluster_command(known["replay"], folder))
        return {replay.name: replay}
    return known


@dataclass(frozen=True)
class Limits:
    """Number of kills, and the monotonic time in seconds at which to stop."""

    kills: int
    until: float


class CopyTrials:
    """Trials on copies of the output folder of one run."""

    def __init__(self, folder: Path, session: SharedSession) -> None:
        self._folder, self._session = folder, session

    def trial(self, command: Command, rng: random.Random) -> Trial | None:
        """Repeat the command on a random copy; None if no copy is left."""
        place = self._folder / "frozen" / command.name.replace(" ", "-")
        whole, copies = place / "whole", place / "copies"
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            command.prepare_input()
            made = copy_at_moments(command, whole, copies, rng)
            (place / "complete").touch()
            print(f"{command.name}: {len(made)} moments", flush=True)
        left = sorted(copies.iterdir())
        if not left:
            return None
        copy = rng.choice(left)
        without_spark = command.spark_optional and rng.random() < 0.5
        error = self._session.finish(command, copy, without_spark)
        problems = [error] if error else self._session.compare(command, whole, copy)
        if not problems:
            shutil.rmtree(copy)
        resumed = f", resumed {'without' if without_spark else 'with'} Spark" * command.spark_optional
        return Trial(f"killed at moment {copy.name}{resumed}", problems)


class KillTrials:
    """Trials in which processes are killed."""

    # Largest number of kills in one trial; a start takes longer than the work that it gets done.
    MOST_IN_A_ROW = 2

    def __init__(self, folder: Path, session: SharedSession) -> None:
        self._folder, self._session = folder, session

    def trial(self, command: Command, rng: random.Random) -> Trial | None:
        place = self._folder / "killed" / command.name.replace(" ", "-")
        whole, out = place / "whole", place / f"out-{rng.randrange(10**9)}"
        if not (place / "complete").exists():
            shutil.rmtree(whole, ignore_errors=True)
            command.prepare_input()
            run_to_end(command, whole)
            (place / "complete").touch()
        most = len(moments(whole))
        done: Counter[str] = Counter()
        for _ in range(rng.randint(1, self.MOST_IN_A_ROW)):
            # A repeated command skips finished work, so moments are counted from its start.
            victim = rng.choice(command.victims)
            if kill_at_moment(command, out, rng.randint(1, most), victim):
                done[str(victim)] += 1
            if victim is Victim.EXECUTOR:
                break  # Another executor repeats the work, so the command finishes.
        error = ""
        if command.words[0].startswith("-"):
            run_to_end(command, out)  # The command has options of Spark, which the shared session would ignore.
        else:
            error = self._session.finish(command, out)
        problems = [error] if error else self._session.compare(command, whole, out)
        if not problems:
            shutil.rmtree(out)
        action = " and ".join(f"{victim} killed{f' {times} times' * (times > 1)}" for victim, times in done.items())
        return Trial(action or "not killed in time", problems, done.total())


def run_trials(
    trials: CopyTrials | KillTrials | ForkTrials, commands: Sequence[Command], limits: Limits, rng: random.Random
) -> int:
    """Run trials of the commands in turn until the limits are reached; return 1 at the first problem, else 0."""
    survived: Counter[str] = Counter()
    left = list(commands)
    while left and survived.total() < limits.kills and time.monotonic() < limits.until:
        command = left.pop(0)
        trial = trials.trial(command, rng)
        if trial is None:
            continue
        left.append(command)
        result = "; ".join(trial.problems) or "same result"
        print(f"{survived.total() + trial.kills:4}  {command.name}, {trial.action}: {result}", flush=True)
        if trial.problems:
            return 1
        survived[command.name] += trial.kills
    for name, count in sorted(survived.items()):
        print(f"{count:4}  {name}")
    print(f"{survived.total()} kills survived: 0 rows lost, 0 duplicated, 0 invariants violated")
    return 0


@contextmanager
def cluster_command(command: Command, folder: Path) -> Iterator[Command]:
    """Yield the command for a cluster with workers outside this environment; executors and the driver are killed."""
    from tests.cluster.standalone import SMALL_JOB, standalone

    archive = folder / "purgatory-env.tar.gz"
    packed = start(("package", "--out", str(archive)))
    packed.communicate()
    with standalone(folder) as cluster:
        yield replace(
            command,
            name=f"{command.name} on a cluster",
            words=("--master", cluster.master, "--archives", str(archive), *SMALL_JOB, *command.words),
            victims=(Victim.EXECUTOR, Victim.EXECUTOR, Victim.DRIVER),
            sessions=tuple(worker.pid for worker in cluster.workers),
        )


if __name__ == "__main__":
    sys.exit(main())
