"""Create-topics: an operation over topics, each waiting until all its partitions have a leader.

Topics are created by hand, not by the million, so this part walks: event by event, key by key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from purgatory_udf.columnar.frame import Frame, Layout
from purgatory_udf.columnar.watches import ARRIVAL, CHECKED, DEADLINE, DONE, OPEN
from purgatory_udf.loop.words import FOREVER, UNKNOWN, Code, Error, Rule

if TYPE_CHECKING:
    from purgatory_udf.columnar.partition import State

# Which partitions of each topic have a leader.
LED = Layout(("key", "partition"))

# A new leader checks its topic at every broker; beside the checks of a partition's purgatories.
TOPIC_CHECK = 8


def step(state: State, rows: Frame, horizon_ms: int) -> Frame:
    """Ended watches of create-topics; the state keeps the open ones and who leads."""
    mine = rows.take((rows.code == Code.CREATE_TOPICS) | (rows.code >= Code.LED))
    waiting = state.open.take(state.open.code == Code.CREATE_TOPICS)
    if not len(mine) and not (len(waiting) and waiting.deadline.min() <= horizon_ms):
        return DONE.empty()
    walk = _Walk(state.topics, waiting)
    for row in range(len(mine)):
        walk.event(mine.take(slice(row, row + 1)))
    walk.expire(int(horizon_ms), None)
    state.topics = walk.led_frame()
    others = state.open.take(state.open.code != Code.CREATE_TOPICS)
    state.open = Frame.concat([others, Frame.concat([OPEN.empty(), *walk.open])])
    return Frame.concat([DONE.empty(), *walk.done])


def walks(rows: Frame) -> Frame:
    """Every check of a topic."""
    led = rows.take(rows.code == Code.LED)
    return led.only(("key", "t", "seq", "sub")).with_columns(checks=np.full(len(led), TOPIC_CHECK, dtype=np.int64))


class _Walk:
    def __init__(self, led: Frame, waiting: Frame) -> None:
        self.led: dict[int, set[int]] = {}
        for key, partition in zip(led.key, led.partition, strict=True):
            self.led.setdefault(int(key), set()).add(int(partition))
        self.open = [waiting.take(slice(row, row + 1)) for row in range(len(waiting))]
        self.done: list[Frame] = []

    def led_frame(self) -> Frame:
        pairs = [(key, partition) for key, led in self.led.items() for partition in sorted(led)]
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return Frame({"key": columns[0], "partition": columns[1]})

    def event(self, row: Frame) -> None:
        key, code = int(row.key[0]), int(row.code[0])
        self.expire(int(row.t[0]) // 1000, key)
        led = self.led.setdefault(key, set())
        if code == Code.LED:
            led.add(int(row.offset[0]))
            self._check(row)
        elif code == Code.UNLED:
            led.discard(int(row.offset[0]))
        elif code == Code.CREATE_TOPICS:
            self._arrive(row)

    def _all_led(self, watch: Frame) -> bool:
        led = self.led.get(int(watch.key[0]), set())
        return all(partition in led for partition in range(int(watch.offset[0])))

    def _arrive(self, row: Frame) -> None:
        taken = {name: row.columns[name] for name in OPEN.names if name in row}
        delay = max(0, int(row.delay[0]))
        zeros = {name: np.zeros(1, dtype=np.int64) for name in ("seg", "pos", "start", "had", "got", "moved")}
        watch = Frame({**zeros, **taken, "op": row.seq, "deadline": row.t // 1000 + delay}).only(OPEN.names)
        order = (int(row.t[0]), int(row.seq[0]), FOREVER, int(row.idx[0]))
        if row.n[0] == 0:
            self._end(watch, ARRIVAL, Rule.EMPTY, Error.NONE, order)
        elif delay == 0:
            led = self._all_led(watch)
            self._end(watch, ARRIVAL, Rule.NO_WAIT, Error.NONE if led else Error.REQUEST_TIMED_OUT, order)
        elif self._all_led(watch):
            self._end(watch, ARRIVAL, Rule.LEADERS, Error.NONE, order)
        else:
            self.open.append(watch)

    def _check(self, row: Frame) -> None:
        still = []
        for watch in self.open:
            if watch.key[0] == row.key[0] and self._all_led(watch):
                order = (int(row.t[0]), int(row.seq[0]), 0, 0)
                self._end(watch, CHECKED, Rule.LEADERS, Error.NONE, order)
            else:
                still.append(watch)
        self.open = still

    def expire(self, now_ms: int, key: int | None) -> None:
        """End what is due; with a key, only that key's, because other keys' events have yet to be walked."""
        still = []
        for watch in self.open:
            if watch.deadline[0] <= now_ms and key in (None, int(watch.key[0])):
                order = (int(watch.deadline[0]) * 1000, UNKNOWN, 0, 0)
                self._end(watch, DEADLINE, Rule.TIMEOUT, Error.REQUEST_TIMED_OUT, order)
            else:
                still.append(watch)
        self.open = still

    def _end(self, watch: Frame, how: int, rule: int, error: int, order: tuple[int, int, int, int]) -> None:
        values = dict(zip(("end_t", "end_seq", "end_sub", "end_idx"), order, strict=True))
        values |= {"how": how, "rule": rule, "error": error, "answer": 0}
        self.done.append(watch.with_columns(**{name: np.array([value]) for name, value in values.items()}))
