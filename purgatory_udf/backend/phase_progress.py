"""Progress of an ingest: one animated line on a terminal, log lines otherwise."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.status import Status

from purgatory_udf.backend.backend import Backend, SparkBackend

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

Tasks = Callable[[], tuple[int, int]]

LOOK_EVERY = 0.5


class Phases:
    """Context manager and callback for the text of each phase, as `reading 3 files`.

    On a terminal, a thread adds the number of finished tasks of Spark at intervals.
    """

    def __init__(self, tasks: Tasks, stream: TextIO | None = None, every: float = LOOK_EVERY) -> None:
        self._tasks = tasks
        self._every = every
        self._phase = ""
        self._stop = threading.Event()
        console = Console(file=stream or sys.stderr)
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._thread = threading.Thread(target=self._watch, daemon=True) if self._status else None

    def __enter__(self) -> Phases:
        if self._status and self._thread:
            self._status.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._status and self._thread:
            self._thread.join()
            self._status.stop()

    def __call__(self, phase: str) -> None:
        self._phase = phase
        if self._status:
            self._status.update(phase)
        else:
            log.info(phase)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            done, all_tasks = self._tasks()
            if self._status and all_tasks:
                self._status.update(f"{self._phase} · {done:,} of {all_tasks:,} tasks")


def running_tasks(backend: Backend) -> Tasks:
    """Return a function that counts the tasks of Spark's running stages: how many are done, and how many there are."""
    if not isinstance(backend, SparkBackend):
        return lambda: (0, 0)
    tracker = backend.spark.sparkContext.statusTracker()

    def count() -> tuple[int, int]:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage]
        return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)

    return count
