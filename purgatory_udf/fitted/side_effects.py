"""What a setting does to others than whom it is set for: brokers' load, records' way to consumers, purgatories."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from purgatory_udf.fitted.diary import Diary

# By name; a name says whose and in which unit.
Effects = dict[str, float]


def effects(diary: Diary, seconds: float) -> Effects:
    found: Effects = {}
    requests: dict[int, int] = defaultdict(int)
    expired = 0
    for one in diary.answered:
        requests[one.broker] += 1
        expired += one.expired
    found["expirations_per_s"] = expired / seconds
    for broker, count in sorted(requests.items()):
        found[f"broker {broker}: requests_per_s"] = count / seconds
    reached: dict[str, list[float]] = defaultdict(list)
    for client, late_ms in diary.reached_ms:
        reached[client].append(late_ms)
    everybody = [late_ms for mine in reached.values() for late_ms in mine]
    for name, mine in [("", everybody), *((f"{client}: ", reached[client]) for client in sorted(reached))]:
        if mine:
            for share, value in zip((50, 95, 99), np.percentile(mine, [50, 95, 99]), strict=True):
                found[f"{name}append_to_answer_p{share}_ms"] = float(value)
    gauges: dict[tuple[str, str], list[int]] = defaultdict(list)
    for broker, purgatory, watched, delayed in diary.gauges:
        gauges[f"broker {broker}: {purgatory}", "PurgatorySize"].append(watched)
        gauges[f"broker {broker}: {purgatory}", "NumDelayedOperations"].append(delayed)
    for (whose, gauge), values in sorted(gauges.items()):
        found[f"{whose} {gauge}, mean"] = float(np.mean(values))
        found[f"{whose} {gauge}, most"] = float(max(values))
    return {name: round(value, 4) for name, value in found.items()}
