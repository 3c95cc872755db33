"""The engine's gauge readings of a trace, in the reference's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.engine.key_shards import Grouping, by_broker
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.purgatory.clock import Pauses

Event = Mapping[str, Any]


def loop_gauges(
    events: Iterable[Event], config: Config, last_ms: int, cuts: Iterable[int] = (), grouping: Grouping = by_broker
) -> list[Gauge]:
    """Return the changed readings up to `last_ms`, by time, broker and purgatory.

    Batches are divided after each number of events in `cuts` that is between two milliseconds.
    """
    ordered = sorted(events, key=lambda event: (event["time_us"], event["seq"]))
    times = [event["time_us"] // 1000 for event in ordered]
    borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(times) and times[cut - 1] < times[cut]}), len(times)]
    engine = Engine(config, times[0], grouping, serialize=True, pauses=Pauses.from_events(ordered))
    table = event_table([dict(event) for event in ordered])
    results = []
    for begin, end in pairwise(borders):
        results += engine.feed(table.slice(begin, end - begin))
    results += engine.drain()
    return gauges_of(results, last_ms)


def gauges_of(results: Iterable[Any], last_ms: int) -> list[Gauge]:
    return gauges_in(Tables.of(results).gauges, last_ms)


def gauges_in(table: pa.Table, last_ms: int) -> list[Gauge]:
    """Return the readings of a table up to `last_ms`, by time, broker and purgatory."""
    readings = [
        Gauge(
            row["broker"],
            row["purgatory"],
            round(row["at"].timestamp() * 1000),
            row["watched"],
            row["delayed"],
            row["purged"],
        )
        for row in table.to_pylist()
    ]
    until = [gauge for gauge in readings if gauge.at_ms <= last_ms]
    return sorted(until, key=lambda gauge: (gauge.at_ms, gauge.broker, gauge.purgatory))
