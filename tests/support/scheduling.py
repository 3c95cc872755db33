"""The distribution of tests over pytest-xdist's processes.

The tests of a file run in one process, and so do files that share an expensive fixture. Two processes take the files in
order, files that start a JVM first. While Spark waits for I/O, a third process of low priority uses the remaining CPU
time. It takes only files that start no JVM, and exits after the last of them.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from xdist.scheduler import LoadFileScheduling

# The first folder without a JVM, in the order in which tests run.
WITHOUT_JVM = "reference"
_WITH_JVM = 2

SHARED_FIXTURES = {
    f"tests/{folder}/test_{name}.py": fixture
    for fixture, folder, names in (
        ("metrics", "answers", ("metrics", "report", "notebooks", "prometheus")),
        ("the beginning of a recording", "sources/request_log", ("import", "without_spark")),
        ("a simulated cluster", "prediction", ("tables", "simulated")),
        ("a rolling restart", "sources/request_log", ("inferred_leadership", "group_moves", "broker_stops")),
    )
    for name in names
}


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Schedules whole files, and files without a JVM to the process of low priority."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED_FIXTURES.get(file, file)

    @cached_property
    def _without_jvm(self) -> frozenset[str]:
        scopes = list(dict.fromkeys(map(self._split_scope, self.collection)))
        first = (at for at, scope in enumerate(scopes) if scope.startswith(f"tests/rules/{WITHOUT_JVM}/"))
        return frozenset(scopes[next(first, len(scopes)) :])

    def _assign_work_unit(self, node: Any) -> None:
        if _is_low_priority(node.gateway.id):
            fit = next((scope for scope in self.workqueue if scope in self._without_jvm), None)
            if fit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(fit, last=False)
        super()._assign_work_unit(node)


def process_count(expression: str) -> int:
    """Return the number of processes for an expression of `-m`. Without a JVM a third one is not worth its start."""
    return _WITH_JVM if expression.startswith("not spark") else _WITH_JVM + 1


def lower_priority() -> None:
    """Lower the priority of the third process. Called after collection, for which all processes wait."""
    if _is_low_priority(os.environ.get("PYTEST_XDIST_WORKER", "gw0")):
        os.nice(10)


def _is_low_priority(process: str) -> bool:
    """Return whether this is the third process, by its name in pytest-xdist (`gw2`)."""
    return int(process.removeprefix("gw")) >= _WITH_JVM
