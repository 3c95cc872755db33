"""A small trace of one broker: fields that only newer events have, and an operation that may stay open at the end."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

TOPIC = "left-open"
# Request ids: a fetch that returns a whole batch beyond its maximum, one with a hard maximum, an open produce.
WHOLE, HARD, OPEN = "given one batch whole", "with a hard maximum", "left open"


def _change(ms: int, partition: int, change: str, offset: int, **more: Any) -> Event:
    where = {"type": "partition", "topic": TOPIC, "partition": partition, "change": change, "offset": offset}
    return {"time_us": ms * 1000} | where | more


def _fetch(ms: int, request: str, **more: Any) -> Event:
    part = {"topic": TOPIC, "partition": 0, "fetch_offset": 0, "max_bytes": 100}
    limits = {"type": "fetch", "replica_id": -1, "max_wait_ms": 500, "min_bytes": 500, "max_bytes": 1 << 20}
    fields = {"isolation": "read_uncommitted", "request_id": request, "partitions": [part]}
    return {"time_us": ms * 1000} | limits | fields | more


def _produce(ms: int, request: str, ends: dict[int, int], timeout_ms: int) -> Event:
    parts = [
        {"topic": TOPIC, "partition": partition, "base_offset": end - 1, "last_offset": end - 1, "bytes": 10}
        for partition, end in ends.items()
    ]
    fields = {"type": "produce", "acks": -1, "timeout_ms": timeout_ms, "request_id": request, "partitions": parts}
    return {"time_us": ms * 1000} | fields


EVENTS = [
    *(_change(1, partition, change, 0) for partition in (0, 1) for change in ("log_end", "high_watermark")),
    _change(10, 0, "log_end", 10, bytes=2_000, batches=1),
    _change(11, 0, "high_watermark", 10),
    _fetch(20, WHOLE),
    _fetch(30, HARD, hard_max_bytes=True),
    _change(600, 0, "high_watermark", 11),
]
# To be inserted before the last event.
LEFT_OPEN = _produce(40, OPEN, {0: 11, 1: 1}, timeout_ms=5_000)
