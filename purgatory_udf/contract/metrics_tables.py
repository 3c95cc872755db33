"""The columns of what `metrics` writes."""

from __future__ import annotations

import pyarrow as pa

from purgatory_udf.contract.tables import TIMESTAMP

# What `metrics` writes, under one folder beside the tables that it is made from. Rows of windows are of those in which
# something happened.
METRICS_EXPIRES = pa.schema(
    [
        ("run_id", pa.string()),
        ("mbean", pa.string()),
        ("broker", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("fetcher", pa.string()),
        ("window_start", TIMESTAMP),
        ("window_ms", pa.int64()),
        ("expired", pa.int64()),
        ("per_second", pa.float64()),
        ("after_end", pa.int64()),
    ]
)

METRICS_OPERATIONS = pa.schema(
    [
        ("run_id", pa.string()),
        ("kind", pa.string()),
        ("broker", pa.int32()),
        ("window_start", TIMESTAMP),
        ("window_ms", pa.int64()),
        ("operations", pa.int64()),
        ("on_arrival", pa.int64()),
        ("after_a_wait", pa.int64()),
        ("expired", pa.int64()),
        ("after_end", pa.int64()),
        ("waited_ms", pa.int64()),
    ]
)

_QUANTILES = [(name, pa.float64()) for name in ("p50_ms", "p95_ms", "p99_ms")]

METRICS_CAUSES = pa.schema(
    [
        ("run_id", pa.string()),
        ("kind", pa.string()),
        ("expired", pa.bool_()),
        ("watched", pa.bool_()),
        ("completed_by", pa.string()),
        ("operations", pa.int64()),
        *_QUANTILES,
        ("max_ms", pa.int64()),
    ]
)

# `by` and `value`: what the operations have in common beside their kind (`all`: nothing).
METRICS_WAITS = pa.schema(
    [
        ("run_id", pa.string()),
        ("kind", pa.string()),
        ("by", pa.string()),
        ("value", pa.string()),
        ("operations", pa.int64()),
        ("waited", pa.int64()),
        ("waited_share", pa.float64()),
        ("expired", pa.int64()),
        ("waited_ms", pa.int64()),
        *_QUANTILES,
        ("max_ms", pa.int64()),
    ]
)

METRICS_PURGATORIES = pa.schema(
    [
        ("run_id", pa.string()),
        ("broker", pa.int32()),
        ("purgatory", pa.string()),
        ("window_start", TIMESTAMP),
        ("window_ms", pa.int64()),
        *(
            (f"{gauge}_{reading}", pa.float64() if reading == "mean" else pa.int64())
            for gauge in ("purgatory_size", "num_delayed", "dead_watches")
            for reading in ("last", "max", "mean")
        ),
        ("dead_bytes_max", pa.int64()),
        ("purged", pa.int64()),
    ]
)

METRICS_REBALANCES = pa.schema(
    [
        ("run_id", pa.string()),
        ("broker", pa.int32()),
        ("group", pa.string()),
        ("generation", pa.int32()),
        ("started_at", TIMESTAMP),
        ("joined_at", TIMESTAMP),
        ("ended_at", TIMESTAMP),
        ("length_ms", pa.int64()),
        ("joining_ms", pa.int64()),
        ("reason", pa.string()),
        ("joined_because", pa.string()),
        ("ended_as", pa.string()),
        ("members", pa.list_(pa.string())),
        ("missing", pa.list_(pa.string())),
        ("joined", pa.list_(pa.string())),
        ("last_to_join", pa.string()),
        ("after_end", pa.bool_()),
    ]
)

METRICS = {
    "metrics/expires": METRICS_EXPIRES,
    "metrics/operations": METRICS_OPERATIONS,
    "metrics/causes": METRICS_CAUSES,
    "metrics/waits": METRICS_WAITS,
    "metrics/purgatories": METRICS_PURGATORIES,
    "metrics/rebalances": METRICS_REBALANCES,
}
