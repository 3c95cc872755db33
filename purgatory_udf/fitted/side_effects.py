"""What a setting does to others than whom it is set for: brokers' load, records' way to consumers, purgatories."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from purgatory_udf.fitted.diary import Diary

SHARES = (50, 95, 99)
# By name; a name says whose and in which unit.
Effects = dict[str, float]


def effects(diary: Diary, seconds: float) -> Effects:
    figures: Effects = {}
    requests: dict[int, int] = defaultdict(int)
    expired = 0
    for answer in diary.answered:
        requests[answer.broker] += 1
        expired += answer.expired
    figures["expirations_per_s"] = expired / seconds
    for broker, count in sorted(requests.items()):
        figures[f"broker {broker}: requests_per_s"] = count / seconds
    figures |= _times("append_to_answer", diary.reached_ms) | _times("produce_latency", diary.acknowledged_ms)
    gauges: dict[tuple[str, str], list[int]] = defaultdict(list)
    for broker, purgatory, watched, delayed in diary.gauges:
        gauges[f"broker {broker}: {purgatory}", "PurgatorySize"].append(watched)
        gauges[f"broker {broker}: {purgatory}", "NumDelayedOperations"].append(delayed)
    for (whose, gauge), values in sorted(gauges.items()):
        figures[f"{whose} {gauge}, mean"] = float(np.mean(values))
        figures[f"{whose} {gauge}, most"] = float(max(values))
    return {name: round(value, 4) for name, value in figures.items()}


def _times(what: str, times: list[tuple[str, float]]) -> Effects:
    """Quantiles of everybody's, and of each client's."""
    by_client: dict[str, list[float]] = defaultdict(list)
    for client, ms in times:
        by_client[client].append(ms)
    everybody = [ms for _, ms in times]
    return {
        f"{whose}{what}_p{share}_ms": float(value)
        for whose, mine in [("", everybody), *((f"{client}: ", by_client[client]) for client in sorted(by_client))]
        if mine
        for share, value in zip(SHARES, np.percentile(mine, SHARES), strict=True)
    }
