"""The two gauges of every purgatory, read each 200 ms as an operator's monitoring would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from purgatory_udf.outcomes import Gauge
from purgatory_udf.purgatory.purgatory import DelayedOperationPurgatory

STEP_MS = 200


@dataclass
class Series:
    """One purgatory's readings, kept where they changed."""

    broker: int
    purgatory: DelayedOperationPurgatory[Any]
    changes: list[Gauge]
    purged_before: int = 0

    def read(self, at_ms: int) -> None:
        purgatory = self.purgatory
        purged = purgatory.purged - self.purged_before
        self.purged_before = purgatory.purged
        reading = Gauge(self.broker, purgatory.name, at_ms, purgatory.watched(), purgatory.num_delayed(), purged)
        last = self.changes[-1] if self.changes else None
        if last is None or purged or last.purged or (last.watched, last.delayed) != (reading.watched, reading.delayed):
            self.changes.append(reading)

    def at_every_step(self, start_ms: int, end_ms: int) -> list[Gauge]:
        readings: list[Gauge] = []
        current = Gauge(self.broker, self.purgatory.name, start_ms, 0, 0, 0)
        changes = {reading.at_ms: reading for reading in self.changes}
        for at_ms in range(start_ms + STEP_MS, end_ms + 1, STEP_MS):
            current = changes.get(at_ms) or replace(current, at_ms=at_ms)
            readings.append(current)
        return readings


def changed(gauges: Iterable[Gauge]) -> list[Gauge]:
    """The steps at which a purgatory reads otherwise than at the step before (at first: than empty), or purged."""
    before: dict[tuple[int, str], tuple[int, int]] = {}
    kept = []
    for gauge in gauges:
        series, reading = (gauge.broker, gauge.purgatory), (gauge.watched, gauge.delayed)
        if gauge.purged or reading != before.get(series, (0, 0)):
            kept.append(gauge)
        before[series] = reading
    return kept
