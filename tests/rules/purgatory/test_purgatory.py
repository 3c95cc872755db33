"""Operations, watcher lists and the purge, with mock operations."""

from __future__ import annotations

import pytest

from tests.rules.purgatory.mock_operation import Operation, purgatory


def test_check_completes_operations_of_its_key() -> None:
    waiting = purgatory()
    first, second = Operation("first", 100_000), Operation("second", 100_000)
    assert waiting.check_and_complete("test1", 0) == 0, "with no waiting requests, nothing should be satisfied"
    assert not waiting.try_complete_else_watch(first, ["test1"], 0)
    assert waiting.check_and_complete("test1", 1) == 0, "still nothing satisfied"
    assert not waiting.try_complete_else_watch(second, ["test2"], 0)
    first.completable = True
    assert waiting.check_and_complete("test1", 2000) == 1
    assert waiting.check_and_complete("test1", 2001) == 0
    second.completable = True
    assert waiting.check_and_complete("test2", 3000) == 1
    assert (first.ended_us, first.trigger, second.ended_us, second.trigger) == (2000, "test1", 3000, "test2")


def test_one_operation_expires_other_completes() -> None:
    waiting = purgatory()
    first, second = Operation("first", 20), Operation("second", 200_000)
    waiting.try_complete_else_watch(first, ["test1"], 0)
    waiting.try_complete_else_watch(second, ["test2"], 0)
    waiting.advance_clock(19)
    assert not first.completed
    waiting.advance_clock(20)
    assert (first.expired, first.ended_us, first.trigger) == (True, 20_000, None)
    assert first.log == ["try", "try", "answered at 20000", "expired at 20000"], "the answer precedes the expiration"
    second.completable = True
    assert waiting.check_and_complete("test2", 21_500) == 1
    assert (second.expired, second.ended_us) == (False, 21_500)
    assert second.log == ["try", "try", "try", "answered at 21500"]


def test_purge_vector_of_kafka() -> None:
    """Kafka's own test: delayed 3, 2, 1 and watched 6, 4, 2, 1.

    Operations completed elsewhere stay on a list until the next check.
    """
    waiting = purgatory()
    first, second, third = (Operation(name, 100_000) for name in ("first", "second", "third"))
    waiting.try_complete_else_watch(first, ["test1"], 0)
    waiting.try_complete_else_watch(second, ["test1", "test2"], 0)
    waiting.try_complete_else_watch(third, ["test1", "test2", "test3"], 0)
    delayed, watched = [waiting.num_delayed()], [waiting.watched()]
    for done in (second, third):
        done.completable = True
        done.try_complete(1)
        delayed.append(waiting.num_delayed())
    for key in ("test1", "test2", "test3"):
        waiting.check_and_complete(key, 2)
        watched.append(waiting.watched())
    assert (delayed, watched) == ([3, 2, 1], [6, 4, 2, 1])
    assert not first.completed


def test_purge_vector_of_two_keys_each() -> None:
    """The same vector, for three operations on two keys each."""
    waiting = purgatory()
    operations = [Operation(name, 100_000) for name in ("first", "second", "third")]
    for operation in operations:
        waiting.try_complete_else_watch(operation, ["test1", "test2"], 0)
    delayed, watched = [waiting.num_delayed()], [waiting.watched()]
    for done in operations[:2]:
        done.force_complete(1)
        delayed.append(waiting.num_delayed())
    for key in ("test1", "test2"):
        waiting.check_and_complete(key, 2)
        watched.append(waiting.watched())
    operations[2].completable = True
    waiting.check_and_complete("test1", 3)
    watched.append(waiting.watched())
    assert (delayed, watched) == ([3, 2, 1], [6, 4, 2, 1])


def test_purge_removes_only_completed_entries() -> None:
    waiting = purgatory()
    operations = [Operation(name, 100_000) for name in ("first", "second", "third")]
    for operation in operations:
        waiting.try_complete_else_watch(operation, ["test1", "test2"], 0)
    operations[0].force_complete(1)
    operations[2].force_complete(1)
    assert (waiting.purge_completed(), waiting.watched(), waiting.num_delayed()) == (4, 2, 1)


def test_operation_completed_on_arrival_is_not_watched() -> None:
    waiting = purgatory(purge_interval=0)
    operation = Operation("ready", 100)
    operation.completable = True
    assert waiting.try_complete_else_watch(operation, ["test1"], 5)
    assert (operation.watched, operation.log) == (False, ["try", "answered at 5"])
    assert (waiting.watched(), waiting.num_delayed()) == (0, 0)


def test_empty_watch_keys_are_rejected() -> None:
    with pytest.raises(ValueError, match="The watch key list can't be empty"):
        purgatory().try_complete_else_watch(Operation("keyless", 1), [], 0)


def test_only_first_force_complete_succeeds() -> None:
    operation = Operation("once", 10)
    assert [operation.force_complete(7), operation.force_complete(8)] == [True, False]
    operation.run(10)
    assert (operation.log, operation.expired) == (["answered at 7"], False)


def test_check_tries_in_insertion_order() -> None:
    """A check counts only the operations that it completed itself."""
    waiting = purgatory()
    order: list[str] = []

    class Logged(Operation):
        def try_complete(self, now_us: int) -> bool:
            order.append(self.name)
            return super().try_complete(now_us)

    operations = [Logged(name, 1000) for name in "abcd"]
    for operation in operations:
        waiting.try_complete_else_watch(operation, ["key"], 0)
    order.clear()
    operations[0].force_complete(1)
    operations[2].completable = True
    assert waiting.check_and_complete("key", 2) == 1
    assert order == ["b", "c", "d"]
    assert waiting.watched() == 2


def test_emptied_list_removes_its_key() -> None:
    waiting = purgatory()
    operation = Operation("only", 1000)
    waiting.try_complete_else_watch(operation, ["a", "b"], 0)
    operation.completable = True
    waiting.check_and_complete("a", 1)
    assert waiting.watched() == 1, "the entry under b stays"
    assert waiting.check_and_complete("b", 2) == 0
    assert waiting.watched() == 0


def test_cancel_for_key_cancels_timers_only() -> None:
    waiting = purgatory()
    only_a, both = Operation("one", 50), Operation("both", 50)
    waiting.try_complete_else_watch(only_a, ["a"], 0)
    waiting.try_complete_else_watch(both, ["a", "b"], 0)
    assert waiting.cancel_for_key("a") == [only_a, both]
    assert (waiting.num_delayed(), waiting.watched()) == (0, 1)
    waiting.advance_clock(100)
    assert not only_a.completed and not both.completed
    both.completable = True
    assert waiting.check_and_complete("b", 101_000) == 1, "another key still completes it"
    assert waiting.cancel_for_key("a") == []


def test_shutdown_leaves_operations_unanswered() -> None:
    waiting = purgatory()
    operation = Operation("open", 50)
    waiting.try_complete_else_watch(operation, ["a"], 0)
    waiting.shutdown()
    waiting.advance_clock(1000)
    assert (operation.completed, operation.log) == (False, ["try", "try"])


def test_zero_delay_expires_in_arrival_millisecond() -> None:
    waiting = purgatory()
    zero, negative = Operation("zero", 0, 10_700), Operation("negative", -5, 10_700)
    for operation in (zero, negative):
        waiting.try_complete_else_watch(operation, ["a"], 10_700)
    waiting.advance_clock(10)
    assert [(o.expired, o.watched, o.ended_us) for o in (zero, negative)] == [(True, True, 10_000)] * 2


def test_purge_needs_more_completed_than_interval() -> None:
    """
    interval 2; `estimated total - delayed` after each completion: 1, 2, 3 > 2 -> purge, the estimate becomes `delayed`
    """
    waiting = purgatory(purge_interval=2)
    operations = [Operation(str(number), 100_000) for number in range(4)]
    for operation in operations:
        waiting.try_complete_else_watch(operation, ["a", "b"], 0)
    watched = []
    for step, operation in enumerate(operations):
        operation.force_complete(step)
        waiting.advance_clock(step)
        watched.append((waiting.watched(), waiting.purged))
    assert watched == [(8, 0), (8, 0), (2, 6), (2, 6)]


def test_purge_resets_estimate_to_open_operations() -> None:
    """
    interval 1: first and second end -> 3 - 1 > 1, purged, the estimate is 1: third, which is open
    third ends, fourth comes and ends -> 2 - 0 > 1, purged again
    """
    waiting = purgatory(purge_interval=1)
    first, second, third, fourth = (Operation(name, 100_000) for name in ("first", "second", "third", "fourth"))
    for operation in (first, second, third):
        waiting.try_complete_else_watch(operation, ["a"], 0)
    first.force_complete(1)
    second.force_complete(1)
    waiting.advance_clock(1)
    assert (waiting.purged, waiting.watched()) == (2, 1)
    third.force_complete(2)
    waiting.advance_clock(2)
    waiting.try_complete_else_watch(fourth, ["a"], 3)
    fourth.force_complete(3)
    waiting.advance_clock(3)
    assert (waiting.purged, waiting.watched()) == (4, 0)


def test_checks_do_not_lower_purge_estimate() -> None:
    """A purge may therefore find nothing."""
    waiting = purgatory(purge_interval=0)
    operation = Operation("walked", 100_000)
    waiting.try_complete_else_watch(operation, ["a"], 0)
    operation.completable = True
    waiting.check_and_complete("a", 1)
    purges: list[int] = []
    waiting.purge_completed = lambda: purges.append(1) or 0  # type: ignore[method-assign, func-returns-value]
    waiting.advance_clock(1)
    waiting.advance_clock(2)
    assert purges == [1], "one purge, which finds nothing, and none after it"
