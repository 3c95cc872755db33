"""What a simulation says of itself: while it runs, and when it is over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from purgatory_udf.printing import Table
from purgatory_udf.simulate.closed_loop import Simulated

SAY_EVERY_S = 2.0


class Teller:
    """Tells how far the simulation has come, at most every two seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._began = self._said = clock()

    def __call__(self, events: int, now_us: int, share: float) -> None:
        now = self._clock()
        if now - self._said >= SAY_EVERY_S or share == 1:
            self._said = now
            rate = events / max(now - self._began, 1e-9)
            moment = datetime.fromtimestamp(now_us // 1_000_000, UTC)
            self._say(f"simulate: {share:.0%} · {events:,} events · {rate:,.0f} events/s · {moment:%H:%M:%S}")


def summary(simulated: Simulated, out: str) -> list[str]:
    """What was played, what became of the operations, and what the clients say."""
    rate = len(simulated.events) / max(simulated.seconds, 1e-9)
    scenario = simulated.scenario
    lines = [
        f"shows     {scenario.shows}",
        f"events    {len(simulated.events):,}  {out.removeprefix('file://')}/events",
        f"time      {scenario.duration_s:g} s simulated in {simulated.seconds:.1f} s ({rate:,.0f} events/s)",
    ]
    lines += _clients(simulated)
    return [*lines, "", *_operations(simulated).lines()]


def _clients(simulated: Simulated) -> list[str]:
    deliveries = [producer.delivery for producer in simulated.producers]
    lines = []
    if deliveries:
        delivered, lost = (
            sum(delivery.delivered for delivery in deliveries),
            sum(delivery.lost for delivery in deliveries),
        )
        retried = sum(delivery.retried for delivery in deliveries)
        lines.append(f"produced  {delivered:,} records, {retried:,} sent again, {lost:,} lost")
    if simulated.instances:
        consumed = sum(instance.records for instance in simulated.instances)
        lines.append(f"consumed  {consumed:,} records by {len(simulated.instances):,} consumers")
    throttled = [exchange.throttle_ms for exchange in simulated.exchanges if exchange.throttle_ms]
    if throttled:
        lines.append(f"throttled {len(throttled):,} answers by quotas, {sum(throttled):,} ms in all")
    failures = Counter(life.failed for instance in simulated.instances for life in instance.lives if life.failed)
    lines += [f"consumers {count:,} {why}" for why, count in failures.items()]
    return lines


def _operations(simulated: Simulated) -> Table:
    kinds: Counter[tuple[str, str, str]] = Counter()
    for outcome in simulated.truth.outcomes:
        end = "expired" if outcome.expired else "completed" if outcome.watched else "completed on arrival"
        kinds[outcome.kind, end, outcome.completed_by] += 1
    rows = [(*key, count) for key, count in sorted(kinds.items())]
    return Table("What ended the operations", ("kind", "end", "by", "operations"), rows)
