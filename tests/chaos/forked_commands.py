"""Commands that are done without Spark, killed at any instant: forked from a process that has loaded all they need,
each is over so soon that hundreds can be had."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.killing import Command, differences
from tests.chaos.one_session import given_here_alone
from tests.chaos.trial import Trial

# What the first of them would load, which takes longer than what they do.
_LOADED = ("stream.replay", "summary", "ingest.run", "ingest.trace", "requestlog.importing.spark_import", "audit")
_ALSO = ("report.run", "metrics.run", "metrics.summary", "fidelity.run", "loop.engine", "local.session", "local.files")


class Forked:
    """Kills of the whole process, once or twice before the same command is let be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lasts_s: dict[str, float] = {}
        for name in (*_LOADED, *_ALSO):
            importlib.import_module(f"purgatory_udf.{name}")

    def trial(self, command: Command, chance: random.Random) -> Trial:
        place = self._folder / "forked" / command.name.replace(" ", "-")
        whole, out = place / "whole", place / f"out-{chance.randrange(10**9)}"
        if command.name not in self._lasts_s:
            self._run_whole(command, whole)
        command.furnish(out)
        kills = sum(self._killed(command, out, chance) for _ in range(chance.choice((1, 1, 2))))
        said = _asked(lambda: _ended(command, out))
        wrong = [said] if said else _asked(lambda: differences(command, whole, out))
        if not wrong and command.audited:
            said = _asked(lambda: _refused(("audit",), out))
            wrong = [said] if said else []
        if not wrong:
            shutil.rmtree(out)
        return Trial(("not killed in time", "killed", "killed twice")[kills], wrong, kills)

    def _run_whole(self, command: Command, whole: Path) -> None:
        shutil.rmtree(whole, ignore_errors=True)
        command.furnish(whole)
        began = time.monotonic()
        if said := _asked(lambda: _ended(command, whole)):
            raise SystemExit(f"{command.name}: {said}")
        self._lasts_s[command.name] = time.monotonic() - began

    def _killed(self, command: Command, out: Path, chance: random.Random) -> bool:
        """Whether it lived to that."""
        process, _ = forked = _forked(lambda: _ended(command, out))
        time.sleep(self._lasts_s[command.name] * chance.random())
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return not _said(*forked)


def _ended(command: Command, out: Path) -> str:
    """What it said if it failed; killed when all was done, an import is not made twice."""
    said = _refused(command.words, out)
    return "" if "exists; choose another --out" in said else said


def _refused(words: tuple[str, ...], out: Path) -> str:
    status, said = given_here_alone([*words, "--out", str(out)])
    return "" if status == 0 else f"it ended with {status}: {said[-500:]}"


def _asked(question: Callable[[], Any]) -> Any:
    """Answered in a process of its own, as this one must have no threads that a fork would leave behind."""
    said = _said(*_forked(question))
    if not said:
        raise SystemExit("a process of these trials was killed")
    return json.loads(said)


def _forked(question: Callable[[], Any]) -> tuple[int, int]:
    """The process, and what it answers through."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        answer = question()
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    with suppress(OSError):
        os.write(writing, json.dumps(answer).encode())
    os._exit(0)


def _said(process: int, reading: int) -> bytes:
    with os.fdopen(reading, "rb") as answer:
        said = answer.read()
    os.waitpid(process, 0)
    return said
