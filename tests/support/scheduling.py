"""How the tests' processes share the tests.

A file's go to one of them, and so do those of files that share what takes long to make. Two take the files in their
order, which is first what starts a JVM. Spark often waits, for a disk or for itself: what is left of the cores
meanwhile is for a third process, which gives way to the others, takes only files that start none, and ends when there
are no more of those.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from xdist.scheduler import LoadFileScheduling

# The first folder of those without a JVM, in the order in which tests are run.
WITHOUT_JVM = "reference"
_WITH_JVM = 2

SHARED_FIXTURES = {
    f"tests/{folder}/test_{name}.py": what
    for what, folder, names in (
        ("metrics", "answers", ("metrics", "report", "notebooks", "prometheus")),
        ("the beginning of a recording", "sources/request_log", ("import", "without_spark")),
        ("a simulated cluster", "prediction", ("tables", "simulated")),
        ("a rolling restart", "sources/request_log", ("inferred_leadership", "group_moves", "broker_stops")),
    )
    for name in names
}


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
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


def process_count(of: str) -> int:
    """For the tests that these words of pytest's `-m` choose: a third one would only begin once more where no JVM is
    started."""
    return _WITH_JVM if of.startswith("not spark") else _WITH_JVM + 1


def lower_priority() -> None:
    """The third process does, from when it has found the tests: all wait for each other until then."""
    if _is_low_priority(os.environ.get("PYTEST_XDIST_WORKER", "gw0")):
        os.nice(10)


def _is_low_priority(process: str) -> bool:
    """By the name that it has here."""
    return int(process.removeprefix("gw")) >= _WITH_JVM
