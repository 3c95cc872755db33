"""The world: one clock in microseconds, one trace, and the engine that decides what becomes of each request.

SimPy's clock jumps from happening to happening. The purgatories' timers have a clock of their own, in milliseconds,
and are looked at whenever SimPy's passes the next of their deadlines: so an expiration's answer leaves at the deadline,
and what a client does then comes after it in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import simpy

from purgatory_udf.config import Config
from purgatory_udf.simulate.chance import Chance
from purgatory_udf.simulate.engine import LiveReference, Respond

T = TypeVar("T")
# A part of a SimPy process: `yield from` it; it returns a T.
Steps = Generator[simpy.Event, Any, T]

# Every simulation begins at this instant: 2026-01-01T00:00:00Z.
BEGIN_US = 1_767_225_600_000_000


class World:
    def __init__(self, seed: int, config: Config) -> None:
        self.env = simpy.Environment(initial_time=BEGIN_US)
        self.engine = LiveReference(config, BEGIN_US // 1000)
        self.events: list[dict[str, Any]] = []
        self._seed = seed
        self._wakes_us: int | None = None

    @property
    def now_us(self) -> int:
        # All delays are whole microseconds, so the clock is one too.
        return int(self.env.now)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def chance(self, *entity: str) -> Chance:
        return Chance(self._seed, *entity)

    def record(self, type: str, broker: int, respond: Respond | None = None, **fields: Any) -> int:
        """An event happens at a broker, now: it enters the trace, and the engine. Its `seq` is returned."""
        seq = len(self.events) + 1
        event = {"time_us": self.now_us, "seq": seq, "type": type, "broker": broker, **fields}
        self.events.append(event)
        self.engine.submit(event, respond)
        self._wake_when_due()
        return seq

    # Time.

    def later(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        self.sleep_us(delay_us).callbacks.append(lambda _: action(*arguments))

    def sleep_us(self, delay_us: int) -> simpy.Event:
        return self.env.timeout(max(0, int(delay_us)))

    def sleep_ms(self, delay_ms: float) -> simpy.Event:
        return self.sleep_us(round(delay_ms * 1000))

    def run(self, until_us: int) -> None:
        self.env.run(until=until_us)

    def _wake_when_due(self) -> None:
        due_ms = self.engine.next_due_ms()
        if due_ms is None:
            return
        # What was due in this millisecond has ended: a bucket that has begun holds something for later.
        due_us = max(due_ms, self.now_ms + 1) * 1000
        if self._wakes_us is None or due_us < self._wakes_us:
            self._wakes_us = due_us
            self.later(due_us - self.now_us, self._wake)

    def _wake(self) -> None:
        # A wake-up that an earlier one has overtaken is nobody's any more.
        if self.now_us == self._wakes_us:
            self._wakes_us = None
            self.engine.pass_time(self.now_ms)
            self._wake_when_due()
