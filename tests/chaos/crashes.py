"""`python -m tests.chaos.crashes --kills 60`: the product's own commands, killed at random moments, and given again.

A command is run undisturbed once, and at every moment at which a table or a checkpoint grows (and at some others) its
folder is copied while all of its processes stand still: that is what a kill at this moment would have left. The command
is given again on copies chosen at random; where it is small it goes on by chance with Spark or without. With `--really`
processes are killed instead: the whole command, Spark's JVM, or a Python worker in mid-batch (with `--cluster` also an
executor); with `--here --really` what is small and done without Spark, at any instant. What is left in the end must be
what the undisturbed run left, row for row, and keep the laws that `audit` checks.

With `--keep FOLDER` all runs lie there: what failed can be looked at, and the next call goes on with what this one has
left (`--minutes` ends it). The seed is printed; among the same copies the same one chooses the same.
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

from tests.chaos.crash_commands import commands, commands_here, topic_commands
from tests.chaos.forked_commands import Forked
from tests.chaos.frozen_copies import freeze
from tests.chaos.killing import Command, Victim, killed, moments, run_to_end, start
from tests.chaos.one_session import OneSession
from tests.chaos.trial import Trial


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.chaos.crashes", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--kills", type=int, default=60)
    options.add_argument("--minutes", type=float, default=float("inf"), help="begin no further kill after so many")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--command", action="append", help="only these (repeatable)  [default: all, in turn]")
    options.add_argument("--really", action="store_true", help="kill processes, rather than copy what a kill leaves")
    options.add_argument("--topic", action="store_true", help="imports that follow a topic of a broker, instead")
    options.add_argument("--here", action="store_true", help="what is small, begun without Spark, instead")
    options.add_argument("--cluster", action="store_true", help="a replay on a cluster of two workers; kill executors")
    options.add_argument("--keep", type=Path, help="folder for the outputs  [default: a temporary one]")
    asked = options.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="crashes-"))
    try:
        with ExitStack() as open_for_it:
            known = _known(asked, folder, open_for_it)
            unknown = set(asked.command or ()) - known.keys()
            if unknown:
                options.error(f"--command {unknown.pop()!r}: there are {', '.join(map(repr, known))}")
            limits = Limits(asked.kills, time.monotonic() + asked.minutes * 60)
            print(f"seed {asked.seed}", flush=True)
            trials = _kind_of(asked, folder)
            return survived_by(
                trials, [known[name] for name in asked.command or known], limits, random.Random(asked.seed)
            )
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _kind_of(asked: argparse.Namespace, folder: Path) -> Frozen | Killed | Forked:
    if asked.here and asked.really:
        return Forked(folder)
    kind = Killed if asked.really or asked.cluster else Frozen
    return kind(folder, OneSession(folder / "session", kafka=asked.topic))


def _known(asked: argparse.Namespace, folder: Path, open_for_it: ExitStack) -> dict[str, Command]:
    """The commands that can be chosen, and what they need beside them."""
    if asked.topic:
        return open_for_it.enter_context(topic_commands(folder / "input"))
    known = (commands_here if asked.here else commands)(folder / "input")
    if asked.cluster:
        replay = open_for_it.enter_context(on_a_cluster(known["replay"], folder))
        return {replay.name: replay}
    return known


@dataclass(frozen=True)
class Limits:
    kills: int
    until: float


class Frozen:
    """Kills that are copies of a folder."""

    def __init__(self, folder: Path, session: OneSession) -> None:
        self._folder, self._session = folder, session

    def trial(self, command: Command, chance: random.Random) -> Trial | None:
        """None where no copy is left."""
        place = self._folder / "frozen" / command.name.replace(" ", "-")
        whole, copies = place / "whole", place / "copies"
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            command.prepare()
            made = freeze(command, whole, copies, chance)
            (place / "complete").touch()
            print(f"{command.name}: {len(made)} moments", flush=True)
        left = sorted(copies.iterdir())
        if not left:
            return None
        copy = chance.choice(left)
        here = command.small and chance.random() < 0.5
        said = self._session.end(command, copy, here)
        wrong = [said] if said else self._session.checked(command, whole, copy)
        if not wrong:
            shutil.rmtree(copy)
        by = f", gone on with {'without' if here else 'by'} Spark" * command.small
        return Trial(f"killed at moment {copy.name}{by}", wrong)


class Killed:
    """Processes that are killed."""

    # After so many kills in a row a command is let alone: each start costs more than what it gets done.
    MOST_IN_A_ROW = 2

    def __init__(self, folder: Path, session: OneSession) -> None:
        self._folder, self._session = folder, session

    def trial(self, command: Command, chance: random.Random) -> Trial | None:
        place = self._folder / "killed" / command.name.replace(" ", "-")
        whole, out = place / "whole", place / f"out-{chance.randrange(10**9)}"
        if not (place / "complete").exists():
            shutil.rmtree(whole, ignore_errors=True)
            command.prepare()
            run_to_end(command, whole)
            (place / "complete").touch()
        most = len(moments(whole))
        done: Counter[str] = Counter()
        for _ in range(chance.randint(1, self.MOST_IN_A_ROW)):
            # A start goes over what is there already: later kills count from what was there when it began.
            victim = chance.choice(command.victims)
            if killed(command, out, chance.randint(1, most), victim):
                done[str(victim)] += 1
            if victim is Victim.EXECUTOR:
                break  # Its work is done again by others, and the command has come to its end.
        said = ""
        if command.words[0].startswith("-"):
            run_to_end(command, out)  # It is given words for Spark, which the session has its own of.
        else:
            said = self._session.end(command, out)
        wrong = [said] if said else self._session.checked(command, whole, out)
        if not wrong:
            shutil.rmtree(out)
        how = " and ".join(f"{victim} killed{f' {times} times' * (times > 1)}" for victim, times in done.items())
        return Trial(how or "not killed in time", wrong, done.total())


def survived_by(
    trials: Frozen | Killed | Forked, commands: Sequence[Command], limits: Limits, chance: random.Random
) -> int:
    """Until so many kills have been survived, turn about; 1 as soon as one has not."""
    survived: Counter[str] = Counter()
    left = list(commands)
    while left and survived.total() < limits.kills and time.monotonic() < limits.until:
        command = left.pop(0)
        trial = trials.trial(command, chance)
        if trial is None:
            continue
        left.append(command)
        became = "; ".join(trial.wrong) or "the same"
        print(f"{survived.total() + trial.kills:4}  {command.name}, {trial.how}: {became}", flush=True)
        if trial.wrong:
            return 1
        survived[command.name] += trial.kills
    for what, count in sorted(survived.items()):
        print(f"{count:4}  {what}")
    print(f"{survived.total()} kills survived: 0 rows lost, 0 doubled, 0 laws broken")
    return 0


@contextmanager
def on_a_cluster(command: Command, folder: Path) -> Iterator[Command]:
    """The same command on workers that have nothing of ours; what is killed are executors, and the driver."""
    from tests.cluster.standalone import SOON_OVER, standalone

    archive = folder / "purgatory-env.tar.gz"
    packed = start(("package", "--out", str(archive)))
    packed.communicate()
    with standalone(folder) as cluster:
        yield replace(
            command,
            name=f"{command.name} on a cluster",
            words=("--master", cluster.master, "--archives", str(archive), *SOON_OVER, *command.words),
            victims=(Victim.EXECUTOR, Victim.EXECUTOR, Victim.DRIVER),
            sessions=tuple(worker.pid for worker in cluster.workers),
        )


if __name__ == "__main__":
    sys.exit(main())
