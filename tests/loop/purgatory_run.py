"""One purgatory at random, event by event in the reference, told as the columns that `gauges` takes.

Nothing here is Kafka's but the purgatory: an operation is ready when the random numbers say so, and the next check of
any of its keys completes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from purgatory_udf.frames.frame import Frame
from purgatory_udf.purgatory.delayed_operation import DelayedOperation
from purgatory_udf.purgatory.purgatory import DelayedOperationPurgatory
from purgatory_udf.purgatory.reaper import Reaper
from purgatory_udf.purgatory.timer import SystemTimer

STEP_MS = 200

Reading = tuple[int, int, int, int]

# Around the borders of the wheels, where the lag of their clock decides; and any.
_DELAYS_MS = ((0, 1), (1, 30), (15, 25), (0, 500), (380, 420), (0, 9_000), (7_900, 8_100), (0, 100_000))
_GAPS_US = (1, 300, 1_000, 30_000, 300_000, 3_000_000)


class Ready(DelayedOperation):
    def __init__(self, operation_id: int, keys: list[int], started_us: int, delay_ms: int) -> None:
        super().__init__(started_us, delay_ms)
        self.operation_id = operation_id
        self.keys = keys
        self.ready = False
        self.ended_by = (0, 0)

    def try_complete(self, now_us: int) -> bool:
        return self.ready and self.force_complete(now_us)

    def on_complete(self, now_us: int) -> None:
        pass

    def on_expiration(self, now_us: int) -> None:
        pass


@dataclass
class PurgatoryRun:
    random: Random
    purge_interval: int
    operations: list[Ready] = field(default_factory=list)
    walks: list[tuple[int, int, int, int]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    first_ms: int = 0

    @property
    def last_ms(self) -> int:
        return self.readings[-1][0]

    def live(self, events: int) -> PurgatoryRun:
        random = self.random
        now_us, gap_us = random.choice((1, 199_999, 1_700_000_000_123_456)), random.choice(_GAPS_US)
        self._keys, self._delays_ms = random.choice((1, 2, 5)), random.choice(_DELAYS_MS)
        self._restlessness = random.choice((0, 0.1, 0.5))
        self.first_ms = now_us // 1000
        self._start(self.first_ms // STEP_MS * STEP_MS)
        for seq in range(1, events + 1):
            now_us += random.choice((0, random.randrange(gap_us + 1), random.randrange(gap_us + 1)))
            self._advance_to(now_us // 1000)
            random.choice((self._change, self._request, self._request, self._follower_request))(now_us, seq)
        while self._purgatory.num_delayed():
            self._advance_to(self._read_ms)
        self._advance_to(self._read_ms)
        return self

    def columns(self) -> tuple[Frame, Frame, Frame]:
        """Operations, watches and walks, each in an order that means nothing."""
        operations = [
            (
                operation.operation_id,
                operation.started_us,
                operation.deadline_ms,
                operation.expired,
                operation.watched,
                operation.ended_us,
                *operation.ended_by,
            )
            for operation in self.operations
        ]
        watches = [(operation.operation_id, key) for operation in self.operations for key in operation.keys]
        return (
            self._frame("op t deadline expired watched end_t end_seq end_sub", operations),
            self._frame("op key", watches),
            self._frame("key t seq sub", self.walks),
        )

    def _frame(self, names: str, rows: Sequence[tuple[int | None, ...]]) -> Frame:
        columns = np.array(self.random.sample(rows, len(rows)), dtype=np.int64).reshape(-1, len(names.split())).T
        return Frame(dict(zip(names.split(), columns, strict=True)))

    # The clock.

    def _start(self, start_ms: int) -> None:
        timer = SystemTimer(start_ms)
        self._purgatory: DelayedOperationPurgatory[Ready] = DelayedOperationPurgatory("Any", timer, self.purge_interval)
        self._reaper = Reaper(self._purgatory, start_ms)
        self._now_ms, self._read_ms, self._purged = start_ms, start_ms + STEP_MS, 0

    def _advance_to(self, now_ms: int) -> None:
        while self._read_ms <= now_ms:
            self._wake_until(self._read_ms)
            purgatory = self._purgatory
            purged, self._purged = purgatory.purged - self._purged, purgatory.purged
            self.readings.append((self._read_ms, purgatory.watched(), purgatory.num_delayed(), purged))
            self._read_ms += STEP_MS
        self._wake_until(now_ms)

    def _wake_until(self, now_ms: int) -> None:
        self._purgatory.timer.run_due()
        while (at_ms := self._reaper.next_wake_ms(self._now_ms)) <= now_ms:
            self._now_ms = at_ms
            self._reaper.wake(at_ms)
        self._now_ms = now_ms

    # Events.

    def _change(self, now_us: int, seq: int) -> None:
        """Partitions change, then the lists of one or two of them are walked, as after a produce."""
        self._become_ready()
        for _ in range(self.random.choice((1, 1, 2))):
            self._check(now_us, seq, 0)

    def _request(self, now_us: int, seq: int) -> None:
        """What it did is checked after it was put on the lists, and tells itself nothing new."""
        self._become_ready()
        self._arrive(now_us, seq, ready=self.random.random() < 0.05)
        if self.random.random() < 0.5:
            self._check(now_us, seq, 0)

    def _follower_request(self, now_us: int, seq: int) -> None:
        """Partition by partition something changes and is checked, before the request itself is tried."""
        for sub in range(self.random.choice((1, 2, 3))):
            self._become_ready()
            self._check(now_us, seq, sub)
        self._arrive(now_us, seq, ready=False)

    def _arrive(self, now_us: int, seq: int, ready: bool) -> None:
        keys = self.random.sample(range(self._keys), self.random.randint(1, self._keys))
        operation = Ready(seq, keys, now_us, self.random.randint(*self._delays_ms))
        operation.ready = ready
        self.operations.append(operation)
        self._purgatory.try_complete_else_watch(operation, keys, now_us)

    def _become_ready(self) -> None:
        for operation in self.operations:
            operation.ready |= self.random.random() < self._restlessness

    def _check(self, now_us: int, seq: int, sub: int) -> None:
        key = self.random.randrange(self._keys)
        self.walks.append((key, now_us, seq, sub))
        waiting = [operation for operation in self.operations if not operation.completed]
        self._purgatory.check_and_complete(key, now_us)
        for operation in waiting:
            if operation.completed:
                operation.ended_by = (seq, sub)
