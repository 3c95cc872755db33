"""The brokers' own counts of expirations, from readings of their MBeans.

A reading is a JSON object by broker id: `{"1": {"mbeans": {NAME: {"Count": 12, "readAtMs": 1795229776260}}}}`, plain or
packed. The names are those of JMX; attributes other than `Count` and `readAtMs` are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purgatory_udf.errors import UserError
from purgatory_udf.requestlog.lines.files import read_text

CONSUMERS = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"
FOLLOWERS = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=follower"
PRODUCES = "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec"

# What each of them counts: requests, but for produces, where it is partitions.
COUNTERS = {
    "consumer fetch": CONSUMERS,
    "follower fetch": FOLLOWERS,
    "produce acks=-1": PRODUCES,
}


@dataclass(frozen=True, slots=True)
class Counted:
    """How often `kind` expired at a broker after `since_us` up to `until_us`."""

    broker: int
    kind: str
    count: int
    since_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class _Reading:
    count: int
    at_us: int


def counted(before: str | Path | None, after: str | Path) -> list[Counted]:
    """The increase of each counter between two readings, or since the broker started.

    A broker has no counter of what has not happened yet: one that is only in the later reading began at 0.
    """
    last = _readings(after)
    if not last:
        raise UserError(f"{after}: no ExpiresPerSec of DelayedFetchMetrics or DelayedProduceMetrics in it")
    first = _readings(before) if before else {}
    began = _moments(before) if before else {}
    increases = []
    for (broker, kind), reading in sorted(last.items()):
        start = first.get((broker, kind)) or _Reading(0, began.get(broker, 0))
        if reading.count < start.count:
            raise UserError(f"{after}: {kind} of broker {broker}: {reading.count} is less than {start.count} before")
        increases.append(Counted(broker, kind, reading.count - start.count, start.at_us, reading.at_us))
    return increases


def _readings(path: str | Path) -> dict[tuple[int, str], _Reading]:
    beans = _beans(path)
    try:
        return {
            (broker, kind): _Reading(int(named[name]["Count"]), int(named[name]["readAtMs"]) * 1000)
            for broker, named in beans.items()
            for kind, name in COUNTERS.items()
            if name in named
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: a counter without Count and readAtMs: {error!r}") from None


def _moments(path: str | Path) -> dict[int, int]:
    """When each broker was first read."""
    return {
        broker: min((int(bean.get("readAtMs", 0)) for bean in named.values()), default=0) * 1000
        for broker, named in _beans(path).items()
    }


def _beans(path: str | Path) -> dict[int, dict[str, dict[str, Any]]]:
    try:
        return {int(broker): dict(values["mbeans"]) for broker, values in json.loads(read_text(path)).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a reading of MBeans by broker: {error!r}") from None
