"""`python -m benchmarks.crashes --kills 60`: the product's own commands, killed at random moments, and run again.

A command is run undisturbed once. Then it is killed, again and again, each time when one more of the files has
appeared by which tables and checkpoints grow (a moment, chosen at random among all that the undisturbed run had, or
one of the first), and given once more, until it ends. What it leaves must be what the undisturbed run left, row for
row, and keep the laws that `audit` checks. The seed is printed: the same one kills at the same moments.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.killing import Command, Victim, commands, differences, killed, prepare, run_to_end, start

# A command is let alone after so many kills in a row: each start costs more than what it gets done.
MOST_IN_A_ROW = 4


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.crashes", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--kills", type=int, default=60)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument(
        "--command", action="append", help="only these (repeatable)  [default: all, as they are named]"
    )
    options.add_argument("--cluster", action="store_true", help="replay on a cluster of two workers, kill executors")
    options.add_argument("--keep", type=Path, help="folder for the outputs  [default: a temporary one]")
    asked = options.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="crashes-"))
    folder.mkdir(parents=True, exist_ok=True)
    known = commands(folder)
    unknown = set(asked.command or ()) - known.keys()
    if unknown:
        options.error(f"--command {unknown.pop()}: there are {', '.join(known)}")
    chosen = [known[name] for name in asked.command or known]
    try:
        if asked.cluster:
            with on_a_cluster(known["replay"], folder) as replay:
                return crash([replay], asked.kills, asked.seed, folder)
        if any(command.follows for command in chosen):
            prepare(folder)
        return crash(chosen, asked.kills, asked.seed, folder)
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def on_a_cluster(command: Command, folder: Path) -> Iterator[Command]:
    """The same command on workers that have nothing of ours; what is killed are executors, and the driver."""
    from tests.cluster.standalone import FEW_TASKS, standalone

    archive = folder / "purgatory-env.tar.gz"
    packed = start(("package", "--out", str(archive)))
    packed.communicate()
    with standalone(folder) as cluster:
        yield replace(
            command,
            words=("--master", cluster.master, "--archives", str(archive), *FEW_TASKS, *command.words),
            victims=(Victim.EXECUTOR, Victim.EXECUTOR, Victim.DRIVER),
            sessions=tuple(worker.pid for worker in cluster.workers),
        )


def crash(commands: list[Command], kills: int, seed: int, folder: Path) -> int:
    """Until so many kills have been survived; 1 as soon as one has not."""
    print(f"seed {seed}", flush=True)
    chance, survived = random.Random(seed), Counter[str]()
    whole = {command.name: run_to_end(command, folder / f"{command.name}-whole") for command in commands}
    for command in commands:
        print(f"{command.name}: {whole[command.name].moments} moments to be killed at", flush=True)
    while survived.total() < kills:
        command = commands[chance.randrange(len(commands))]
        out = folder / f"{command.name}-killed"
        shutil.rmtree(out, ignore_errors=True)
        moments: list[tuple[int, Victim]] = [
            (chance.randint(1, whole[command.name].moments), chance.choice(command.victims))
            for _ in range(chance.randint(1, min(MOST_IN_A_ROW, kills - survived.total())))
        ]
        # A start goes over what is there already: later kills count from what was there when it began.
        done = [victim for moment, victim in moments if killed(command, out, moment, victim)]
        run_to_end(command, out)
        for victim in done:
            survived[f"{command.name}: {victim}"] += 1
        wrong = differences(command, whole[command.name].out, out)
        said = ", ".join(f"{victim} at {moment}" for moment, victim in moments)
        print(f"{survived.total():4} kills  {command.name}  ({said}): {'; '.join(wrong) or 'the same'}", flush=True)
        if wrong:
            print(f"the outputs are in {folder}; --seed {seed} does it again")
            return 1
    for what, count in sorted(survived.items()):
        print(f"{count:4}  {what}")
    print(f"{survived.total()} kills survived: 0 rows lost, 0 doubled, 0 laws broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
