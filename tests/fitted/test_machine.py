"""The machine: what is to happen happens in its order, and busy ones share its cores."""

from __future__ import annotations

import pytest

from purgatory_udf.fitted.machine import Machine


def _log(machine: Machine) -> list[tuple[str, float]]:
    log: list[tuple[str, float]] = []
    machine.log = lambda name: log.append((name, round(machine.now, 3)))  # type: ignore[attr-defined]
    return log


def test_work_on_a_core_of_ones_own_takes_just_as_long_as_it_is() -> None:
    machine = Machine(0, 2)
    log = _log(machine)
    machine.work(3, machine.log, "a")  # type: ignore[attr-defined]
    machine.work(5, machine.log, "b")  # type: ignore[attr-defined]
    machine.run(100)
    assert log == [("a", 3), ("b", 5)]


def test_three_on_two_cores_take_half_as_long_again_until_one_is_done() -> None:
    machine = Machine(0, 2)
    log = _log(machine)
    for name, amount in (("a", 2), ("b", 4), ("c", 6)):
        machine.work(amount, machine.log, name)  # type: ignore[attr-defined]
    machine.run(100)
    # Until a is done each gets 2/3 of a core, then all it wants.
    assert log == [("a", 3), ("b", 5), ("c", 7)]


def test_who_comes_later_slows_those_who_are_there() -> None:
    machine = Machine(0, 1)
    log = _log(machine)
    machine.work(4, machine.log, "a")  # type: ignore[attr-defined]
    machine.at(2, lambda _: machine.work(1, machine.log, "b"), None)  # type: ignore[attr-defined]
    machine.run(100)
    assert log == [("b", 4), ("a", 5)]


def test_without_shared_cores_a_crowd_disturbs_nobody() -> None:
    machine = Machine(0, None)
    log = _log(machine)
    for name in "abcdef":
        machine.work(2, machine.log, name)  # type: ignore[attr-defined]
    machine.run(100)
    assert log == [(name, 2) for name in "abcdef"]


@pytest.mark.parametrize("cores", [None, 2])
def test_nothing_happens_after_the_end(cores: float | None) -> None:
    machine = Machine(0, cores)
    log = _log(machine)
    machine.work(10, machine.log, "late")  # type: ignore[attr-defined]
    machine.at(5, machine.log, "in time")  # type: ignore[attr-defined]
    machine.run(9)
    assert log == [("in time", 5)]
    assert machine.now == 9
