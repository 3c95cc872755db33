"""Kills of commands without Spark at any time.

Commands are forked from a process that has loaded their modules, so that one takes seconds at most.
"""

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

from tests.chaos.killed_commands import Command, differences
from tests.chaos.shared_session import run_without_spark
from tests.chaos.trial import Trial

# Modules to load before the first fork; loading them takes longer than a command.
_MODULES = (
    *("answers.audit", "answers.fidelity_run", "answers.metrics", "answers.report"),
    *("answers.replay_summary", "backend.sql_database", "rules.engine.partition_engine", "streaming.replay_run"),
    *("sources.request_log.importing.log_import", "sources.trace_files.trace_import"),
)


class ForkTrials:
    """Trials in which the whole process is killed once or twice before the command may finish."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._duration_s: dict[str, float] = {}
        for name in _MODULES:
            importlib.import_module(f"purgatory_udf.{name}")

    def trial(self, command: Command, rng: random.Random) -> Trial:
        place = self._folder / "forked" / command.name.replace(" ", "-")
        whole, out = place / "whole", place / f"out-{rng.randrange(10**9)}"
        if command.name not in self._duration_s:
            self._run_whole(command, whole)
        command.prepare_output(out)
        kills = sum(self._kill(command, out, rng) for _ in range(rng.choice((1, 1, 2))))
        error = _in_fork(lambda: _run(command, out))
        problems = [error] if error else _in_fork(lambda: differences(command, whole, out))
        if not problems and command.audited:
            error = _in_fork(lambda: _run_words(("audit",), out))
            problems = [error] if error else []
        if not problems:
            shutil.rmtree(out)
        return Trial(("not killed in time", "killed", "killed twice")[kills], problems, kills)

    def _run_whole(self, command: Command, whole: Path) -> None:
        shutil.rmtree(whole, ignore_errors=True)
        command.prepare_output(whole)
        start = time.monotonic()
        if error := _in_fork(lambda: _run(command, whole)):
            raise SystemExit(f"{command.name}: {error}")
        self._duration_s[command.name] = time.monotonic() - start

    def _kill(self, command: Command, out: Path, rng: random.Random) -> bool:
        """Kill the command after a random time; return whether it was still running."""
        process, _ = fork = _fork(lambda: _run(command, out))
        time.sleep(self._duration_s[command.name] * rng.random())
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return not _read_answer(*fork)


def _run(command: Command, out: Path) -> str:
    """Run the command; return its error, or an empty text. A finished import that refuses to run again is no error."""
    error = _run_words(command.words, out)
    return "" if "exists; choose another --out" in error else error


def _run_words(words: tuple[str, ...], out: Path) -> str:
    status, output = run_without_spark([*words, "--out", str(out)])
    return "" if status == 0 else f"exit status {status}: {output[-500:]}"


def _in_fork(function: Callable[[], Any]) -> Any:
    """Return the result of a function called in a fork, as this process must not have threads at later forks."""
    answer = _read_answer(*_fork(function))
    if not answer:
        raise SystemExit("a process was killed from outside the trials")
    return json.loads(answer)


def _fork(function: Callable[[], Any]) -> tuple[int, int]:
    """Fork a process that calls a function; return its id and the pipe with the result."""
    read_end, write_end = os.pipe()
    process = os.fork()
    if process:
        os.close(write_end)
        return process, read_end
    try:
        answer = function()
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    with suppress(OSError):
        os.write(write_end, json.dumps(answer).encode())
    os._exit(0)


def _read_answer(process: int, read_end: int) -> bytes:
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(process, 0)
    return answer
