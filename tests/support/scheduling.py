"""The distribution of tests over pytest-xdist's processes.

The tests of a file run in one process, and so do files that share an expensive fixture. Three processes take the files
in order. The first one takes those that need the Spark session, which takes long to start and becomes faster with use.
The others start with `SECOND`; they never start a session. There is one process more than the two cores that the tests
are meant for, because commands and Spark leave a core idle while they start.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from xdist.scheduler import LoadFileScheduling

PROCESSES = 3
# The first folder without the Spark session, in the order in which tests run. Its tests start JVMs of their own.
SECOND = "launch"

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
    """Schedules whole files, and those with the Spark session to the first process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED_FIXTURES.get(file, file)

    @cached_property
    def _without_session(self) -> frozenset[str]:
        scopes = list(dict.fromkeys(map(self._split_scope, self.collection)))
        first = (at for at, scope in enumerate(scopes) if scope.startswith(f"tests/{SECOND}/"))
        return frozenset(scopes[next(first, 0) :])

    def _assign_work_unit(self, node: Any) -> None:
        if node.gateway.id != "gw0":
            fit = next((scope for scope in self.workqueue if scope in self._without_session), None)
            if fit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(fit, last=False)
        super()._assign_work_unit(node)
