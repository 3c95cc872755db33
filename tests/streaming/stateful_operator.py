"""Spark's stateful operator without Spark: which groups are called, and in which order.

It uses pyspark's own `GroupState`, which raises on wrong use. Rows at or before the watermark are dropped. A timeout
fires if it is before the watermark, unless the group has new rows. The watermark moves only between batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

Function = Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]


@dataclass
class StatefulOperator:
    """The operator of one query.

    Attributes:
        function: The function for `applyInPandasWithState`.
        delay_ms: The delay of the watermark; None for a query without one.
        chunk: Rows per DataFrame of a group.
        watermark_ms: The current watermark.
        latest_us: The latest event time so far.
        dropped: Number of rows dropped as late.
        calls: Number of calls of the function.
        values: The state of each group.
        timers: The timeout of each group, in milliseconds.
    """

    function: Function
    delay_ms: int | None
    chunk: int = 10_000
    watermark_ms: int = 0
    latest_us: int = 0
    dropped: int = 0
    calls: int = 0
    values: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    timers: dict[Any, int] = field(default_factory=dict)

    def batch(self, rows: list[tuple[Any, int, bytes]]) -> list[tuple[Any, ...]]:
        """Run a micro-batch of tuples of group, time in microseconds, and payload. Return the output rows."""
        output: list[tuple[Any, ...]] = []
        arrived: dict[Any, list[bytes]] = {}
        for key, us, payload in rows:
            if self.delay_ms is not None and us <= self.watermark_ms * 1000:
                self.dropped += 1
                continue
            arrived.setdefault(key, []).append(payload)
            self.latest_us = max(self.latest_us, us)
        due = [key for key, timer in self.timers.items() if timer < self.watermark_ms and key not in arrived]
        for key, payloads in arrived.items():
            chunks = [payloads[at : at + self.chunk] for at in range(0, len(payloads), self.chunk)]
            output += self._call(key, [pd.DataFrame({"payload": chunk}) for chunk in chunks], timed_out=False)
        for key in due:
            output += self._call(key, [], timed_out=True)
        return output

    def advance(self) -> None:
        """End a batch: the watermark follows the latest event time."""
        if self.delay_ms is not None:
            self.watermark_ms = max(self.watermark_ms, self.latest_us // 1000 - self.delay_ms)

    def _call(self, key: Any, frames: list[pd.DataFrame], timed_out: bool) -> list[tuple[Any, ...]]:
        self.calls += 1
        known = key in self.values
        state = GroupState(
            optionalValue=cast("Row", self.values.get(key)),
            batchProcessingTimeMs=0,
            eventTimeWatermarkMs=self.watermark_ms,
            timeoutConf=GroupStateTimeout.NoTimeout if self.delay_ms is None else GroupStateTimeout.EventTimeTimeout,
            hasTimedOut=timed_out,
            watermarkPresent=True,
            defined=known,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=StructType(),
        )
        output = [tuple(row) for frame in self.function((key,), iter(frames), state) for row in frame.to_numpy()]
        if state._removed:
            self.values.pop(key, None)
            self.timers.pop(key, None)
        elif state._updated:
            self.values[key] = tuple(state.get)
        if not state._removed:
            self._rearm(key, state, timed_out)
        return output

    def _rearm(self, key: Any, state: GroupState, timed_out: bool) -> None:
        if state._timeout_timestamp != -1:
            self.timers[key] = state._timeout_timestamp
        elif state._updated:
            self.timers.pop(key, None)
        elif timed_out:
            raise AssertionError(f"the timeout of {key} was neither moved nor removed: it would repeat")
