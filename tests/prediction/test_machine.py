"""The machine: what is to happen happens in its order, and busy ones share its cores."""

from __future__ import annotations

import pytest

from purgatory_udf.prediction.model_host import ModelHost


class _Log(list[tuple[str, float]]):
    """What happened, and when."""

    def __init__(self, machine: ModelHost) -> None:
        self._machine = machine

    def note(self, name: str) -> None:
        self.append((name, round(self._machine.now, 3)))


def test_work_on_a_core_of_ones_own_takes_just_as_long_as_it_is() -> None:
    machine = ModelHost(0, 2)
    log = _Log(machine)
    machine.work(3, log.note, "a")
    machine.work(5, log.note, "b")
    machine.run(100)
    assert log == [("a", 3), ("b", 5)]


def test_three_on_two_cores_take_half_as_long_again_until_one_is_done() -> None:
    machine = ModelHost(0, 2)
    log = _Log(machine)
    for name, amount in (("a", 2), ("b", 4), ("c", 6)):
        machine.work(amount, log.note, name)
    machine.run(100)
    # Until a is done each gets 2/3 of a core, then all it wants.
    assert log == [("a", 3), ("b", 5), ("c", 7)]


def test_who_comes_later_slows_those_who_are_there() -> None:
    machine = ModelHost(0, 1)
    log = _Log(machine)
    machine.work(4, log.note, "a")
    machine.at(2, lambda _: machine.work(1, log.note, "b"), None)
    machine.run(100)
    assert log == [("b", 4), ("a", 5)]


def test_without_shared_cores_a_crowd_disturbs_nobody() -> None:
    machine = ModelHost(0, None)
    log = _Log(machine)
    for name in "abcdef":
        machine.work(2, log.note, name)
    machine.run(100)
    assert log == [(name, 2) for name in "abcdef"]


@pytest.mark.parametrize("cores", [None, 2])
def test_nothing_happens_after_the_end(cores: float | None) -> None:
    machine = ModelHost(0, cores)
    log = _Log(machine)
    machine.work(10, log.note, "late")
    machine.at(5, log.note, "in time")
    machine.run(9)
    assert log == [("in time", 5)]
    assert machine.now == 9


def test_what_exceeds_a_stall_is_time_that_passes_and_does_not_stretch() -> None:
    """Three on one core: each works 1 ms of it, which takes 3; the rest of the long one is 4 ms, half as long again."""
    machine = ModelHost(0, 1, stall_ms=1, stretch=1.5)
    log = _Log(machine)
    for name, amount in (("a", 1), ("long", 5), ("b", 1)):
        machine.work(amount, log.note, name)
    machine.run(100)
    assert log == [("a", 3), ("b", 3), ("long", 9)]


def test_who_stalls_slows_the_others_as_it_did_where_it_was_measured() -> None:
    """On one core, alone for its 1 ms of work; half of the core is its until its 4 ms have passed."""
    machine = ModelHost(0, 1, stall_ms=1)
    log = _Log(machine)
    machine.work(5, log.note, "long")
    machine.at(1, lambda _: machine.work(1, log.note, "a"), None)
    machine.at(4, lambda _: machine.work(1, log.note, "b"), None)
    machine.run(100)
    # b shares with the long one until 5, when half of it is done, and has the core for itself then.
    assert log == [("a", 3), ("long", 5), ("b", 5.5)]
