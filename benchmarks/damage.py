"""Files of an interrupted replay that are missing, cut short or empty; and what the same command makes of that.

It either goes on, to the tables of an undisturbed run, or ends in one sentence that names the file and says what to do.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.crash_commands import commands
from benchmarks.frozen import freeze
from benchmarks.killing import Command
from benchmarks.one_session import OneSession

Fault = Callable[[Path], None]

# What lies in an output: a pattern each, of which the last file is damaged.
_PARTITIONS = "_replay/checkpoints/partitions"
KINDS = {
    "a checkpoint's identity": f"{_PARTITIONS}/metadata",
    "what a batch is to do": f"{_PARTITIONS}/offsets/[0-9]*",
    "that a batch is done": f"{_PARTITIONS}/commits/[0-9]*",
    "a state's changes": f"{_PARTITIONS}/state/0/*/*.changelog",
    "a state's schema": f"{_PARTITIONS}/state/0/*/_metadata/schema",
    "a table's log": "completions/_delta_log/*.json",
    "a table's first log": "watches/_delta_log/00000000000000000000.json",
    "the log of what is replayed": "events/_delta_log/*.json",
    "what is replayed": "events/*.parquet",
    "the run's record": "runs/_delta_log/*.json",
    "the run's row": "runs/*.parquet",
    "what goes on to brokers": "_replay/relay/_delta_log/*.json",
}


def missing(file: Path) -> None:
    file.unlink()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


FAULTS: dict[str, Fault] = {"missing": missing, "cut short": cut_short, "empty": empty}


def damages(
    session: OneSession, folder: Path, chance: random.Random, after: int, most: int
) -> Iterator[tuple[str, list[str]]]:
    """Each fault, what came of it, and what is wrong with that; of all in their order those `after` so many."""
    command = commands(folder / "input")["replay by partition"]
    whole, copies = folder / "damage" / "whole", folder / "damage" / "copies"
    made = freeze(command, whole, copies, chance)
    # In the middle: something is written, something is left to do.
    interrupted = next(copy for copy in made if list(copy.glob(f"{_PARTITIONS}/commits/1")))
    tries = [(kind, how) for how in FAULTS for kind in KINDS]
    for number, (kind, how) in enumerate(tries[after : after + most]):
        out = folder / "damage" / f"out-{number}"
        shutil.copytree(interrupted, out)
        found = sorted(file for file in out.glob(KINDS[kind]) if file.is_file() and not file.name.startswith("."))
        if not found:
            yield f"{kind}, {how}", ["there is no such file"]
            continue
        file = found[-1]
        FAULTS[how](file)
        # The checksum beside it knows what a disk did; whoever copies files may leave it behind.
        if chance.random() < 0.5:
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        yield f"{kind}, {how}", _came_of_it(session, command, whole, out, file)
        shutil.rmtree(out)


def _came_of_it(session: OneSession, command: Command, whole: Path, out: Path, file: Path) -> list[str]:
    said = session.end(command, out)
    if not said:
        print(f"    goes on without {file.relative_to(out)}")
        return session.checked(command, whole, out)
    status, _, sentence = said.removeprefix("it ended with ").partition(": ")
    sentence = sentence.strip().splitlines()[-1]
    print(f"    {status}: {sentence}")
    wrong = []
    if "Traceback" in said or "\tat " in said:
        wrong.append("it told of a stack")
    if status not in ("1", "2", "3"):
        wrong.append(f"it ended with {status}")
    if "--overwrite" not in sentence and "choose another --out" not in sentence:
        wrong.append(f"it does not say what to do: {sentence}")
    return wrong
