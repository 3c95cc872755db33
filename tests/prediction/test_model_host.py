"""The host of a model: the order of callbacks, and the sharing of cores."""

from __future__ import annotations

import pytest

from purgatory_udf.prediction.model_broker import ModelHost


class _Log(list[tuple[str, float]]):
    """The callbacks with their times."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host

    def note(self, name: str) -> None:
        self.append((name, round(self._host.now, 3)))


def test_work_on_free_core_takes_its_time() -> None:
    host = ModelHost(0, 2)
    log = _Log(host)
    host.work(3, log.note, "a")
    host.work(5, log.note, "b")
    host.run(100)
    assert log == [("a", 3), ("b", 5)]


def test_three_steps_share_two_cores() -> None:
    host = ModelHost(0, 2)
    log = _Log(host)
    for name, amount in (("a", 2), ("b", 4), ("c", 6)):
        host.work(amount, log.note, name)
    host.run(100)
    # Until a is done each step gets 2/3 of a core, then a whole one.
    assert log == [("a", 3), ("b", 5), ("c", 7)]


def test_later_step_slows_active_step() -> None:
    host = ModelHost(0, 1)
    log = _Log(host)
    host.work(4, log.note, "a")
    host.schedule(2, lambda _: host.work(1, log.note, "b"), None)
    host.run(100)
    assert log == [("b", 4), ("a", 5)]


def test_steps_are_independent_without_shared_cores() -> None:
    host = ModelHost(0, None)
    log = _Log(host)
    for name in "abcdef":
        host.work(2, log.note, name)
    host.run(100)
    assert log == [(name, 2) for name in "abcdef"]


@pytest.mark.parametrize("cores", [None, 2])
def test_run_stops_at_end(cores: float | None) -> None:
    host = ModelHost(0, cores)
    log = _Log(host)
    host.work(10, log.note, "late")
    host.schedule(5, log.note, "in time")
    host.run(9)
    assert log == [("in time", 5)]
    assert host.now == 9


def test_stall_is_elapsed_time() -> None:
    """Three steps share a core for 1 ms of work each, which takes 3 ms; the stall of the long one is 4 ms times 1.5."""
    host = ModelHost(0, 1, stall_ms=1, stretch=1.5)
    log = _Log(host)
    for name, amount in (("a", 1), ("long", 5), ("b", 1)):
        host.work(amount, log.note, name)
    host.run(100)
    assert log == [("a", 3), ("b", 3), ("long", 9)]


def test_stalled_step_counts_as_active() -> None:
    """The long step has the core alone for 1 ms of work, and occupies half of it during its 4 ms of stall."""
    host = ModelHost(0, 1, stall_ms=1)
    log = _Log(host)
    host.work(5, log.note, "long")
    host.schedule(1, lambda _: host.work(1, log.note, "a"), None)
    host.schedule(4, lambda _: host.work(1, log.note, "b"), None)
    host.run(100)
    # b shares the core with the long step until 5, when half of b is done, and then uses it alone.
    assert log == [("a", 3), ("long", 5), ("b", 5.5)]
