"""Files of an interrupted replay that are missing, cut short or empty; and what the same command makes of that.

It either goes on, to the tables of an undisturbed run, or ends in one sentence that names the file and says what to do.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.crash_commands import commands, commands_here
from tests.chaos.frozen_copies import freeze
from tests.chaos.killing import Command, run_to_end
from tests.chaos.one_session import OneSession

Fault = Callable[[Path], None]
# What the run's record has of an ingest and of a replay that has begun.
BEGUN = 2

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
# The same where nothing but tables is kept: of a replay without Spark, and of what answers questions about it.
KINDS_HERE = {
    "a table's log": "completions/_delta_log/*.json",
    "a table's first log": "watches/_delta_log/00000000000000000000.json",
    "a table's rows": "completions/*.parquet",
    "the log of what is replayed": "events/_delta_log/*.json",
    "what is replayed": "events/*.parquet",
    "the run's record": "runs/_delta_log/*.json",
    "the run's row": "runs/*.parquet",
}


def missing(file: Path) -> None:
    file.unlink()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


FAULTS: dict[str, Fault] = {"missing": missing, "cut short": cut_short, "empty": empty}


@dataclass(frozen=True)
class Interrupted:
    """A command, what it leaves undisturbed, and what lies there in its middle: something is written, something is left
    to do."""

    command: Command
    whole: Path
    middle: Path
    kinds: dict[str, str]


def damages(
    session: OneSession, folder: Path, chance: random.Random, after: int, most: int, here: bool
) -> Iterator[tuple[str, list[str]]]:
    """Each fault, what came of it, and what is wrong with that; of all in their order those `after` so many."""
    interrupted = _interrupted_here(folder, chance) if here else [_interrupted(folder, chance)]
    tries = [(stopped, kind, how) for stopped in interrupted for how in FAULTS for kind in stopped.kinds]
    for number, (stopped, kind, how) in enumerate(tries[after : after + most]):
        out = folder / "damage" / f"out-{number}"
        shutil.copytree(stopped.middle, out)
        what = f"{stopped.command.name}: {kind}, {how}" if here else f"{kind}, {how}"
        files = sorted(
            file for file in out.glob(stopped.kinds[kind]) if file.is_file() and not file.name.startswith(".")
        )
        if not files:
            yield what, ["there is no such file"]
            continue
        file = files[-1]
        FAULTS[how](file)
        # The checksum beside it knows what a disk did; whoever copies files may leave it behind.
        if chance.random() < 0.5:
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        yield what, _came_of_it(session, stopped.command, stopped.whole, out, file, here)
        shutil.rmtree(out)


def _interrupted(folder: Path, chance: random.Random) -> Interrupted:
    command = commands(folder / "input")["replay by partition"]
    whole = folder / "damage" / "whole"
    made = freeze(command, whole, folder / "damage" / "copies", chance)
    middle = next(copy for copy in made if list(copy.glob(f"{_PARTITIONS}/commits/1")))
    return Interrupted(command, whole, middle, KINDS)


def _interrupted_here(folder: Path, chance: random.Random) -> Iterator[Interrupted]:
    known = commands_here(folder / "input")
    replay, answer = known["replay at once with groups"], known["metrics"]
    whole, answered, asked = (folder / "damage" / name for name in ("whole", "answered", "asked"))
    made = freeze(replay, whole, folder / "damage" / "copies", chance)
    # All that comes after is the run's end.
    middle = [copy for copy in made if len(list(copy.glob("runs/_delta_log/*.json"))) == BEGUN][-1]
    yield Interrupted(replay, whole, middle, KINDS_HERE)
    run_to_end(answer, answered)
    answer.furnish(asked)
    yield Interrupted(answer, answered, asked, KINDS_HERE)


def _came_of_it(session: OneSession, command: Command, whole: Path, out: Path, file: Path, here: bool) -> list[str]:
    said = session.end(command, out, here)
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
