"""The columnar core's gauges of a trace, as the reference writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from purgatory_udf.columnar.engine import Engine, event_table
from purgatory_udf.columnar.gauge_table import gauge_rows
from purgatory_udf.config import Config
from purgatory_udf.outcomes import Gauge

Event = Mapping[str, Any]


def core_gauges(
    events: Iterable[Event], config: Config, last_ms: int, cuts: Iterable[int] = (), groups: int = 1
) -> list[Gauge]:
    """Changed steps in order of time, broker, purgatory. `cuts`: after how many events a batch ends, if that is between
    two milliseconds."""
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    times = [event["time_us"] // 1000 for event in ordered]
    borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(times) and times[cut - 1] < times[cut]}), len(times)]
    engine = Engine(config, groups=groups, keep_walks=True)
    table = event_table([dict(event) for event in ordered])
    results = []
    for begin, end in pairwise(borders):
        results += engine.feed(table.slice(begin, end - begin))
    results += engine.drain()
    rows = gauge_rows(results, engine.walks, config, times[0], last_ms, "run").to_pylist()
    found = [
        Gauge(
            row["broker"],
            row["purgatory"],
            round(row["at"].timestamp() * 1000),
            row["watched"],
            row["delayed"],
            row["purged"],
        )
        for row in rows
    ]
    return sorted(found, key=lambda gauge: (gauge.at_ms, gauge.broker, gauge.purgatory))
