"""Every table's columns, once, as neutral (Arrow) schemas: the rules run without Spark, which derives its own."""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

EVENT_PARTITION = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("bytes", pa.int64()),
        ("error", pa.string()),
        ("fetch_offset", pa.int64()),
        ("max_bytes", pa.int64()),
        ("current_leader_epoch", pa.int32()),
        ("throttled", pa.bool_()),
        ("offset", pa.int64()),
        ("preferred_replica", pa.int32()),
    ]
)

EVENT_TOPIC = pa.struct([("topic", pa.string()), ("partitions", pa.int32())])

# The event contract, typed: fields keep the contract's names; a field that its type does not have is null.
EVENTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("event_time", TIMESTAMP),
        ("time_us", pa.int64()),
        ("seq", pa.int64()),
        ("broker", pa.int32()),
        ("type", pa.string()),
        ("request_id", pa.string()),
        ("client_id", pa.string()),
        ("acks", pa.int32()),
        ("timeout_ms", pa.int64()),
        ("replica_id", pa.int32()),
        ("max_wait_ms", pa.int64()),
        ("min_bytes", pa.int64()),
        ("max_bytes", pa.int64()),
        ("isolation", pa.string()),
        ("partitions", pa.list_(EVENT_PARTITION)),
        ("topics", pa.list_(EVENT_TOPIC)),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("change", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("replicas", pa.list_(pa.int32())),
        ("isr", pa.list_(pa.int32())),
        ("min_isr", pa.int32()),
        ("group", pa.string()),
        ("member_id", pa.string()),
        ("assigned_member_id", pa.string()),
        ("leader_member_id", pa.string()),
        ("group_instance_id", pa.string()),
        ("api_version", pa.int32()),
        ("session_timeout_ms", pa.int64()),
        ("rebalance_timeout_ms", pa.int64()),
        ("protocols", pa.list_(pa.string())),
        ("generation", pa.int32()),
        ("leader", pa.bool_()),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("hard_max_bytes", pa.bool_()),
        ("batches", pa.int32()),
    ]
)

REJECTED_EVENTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("raw", pa.string()),
        ("reason", pa.string()),
        ("source", pa.string()),
        ("line", pa.int64()),
    ]
)

OUTCOME_PARTITION = pa.struct(
    [("topic", pa.string()), ("partition", pa.int32()), ("error", pa.string()), ("bytes", pa.int64())]
)

WATCHES = pa.schema(
    [
        ("run_id", pa.string()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("broker", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("keys", pa.int32()),
        ("started_at", TIMESTAMP),
        ("deadline", TIMESTAMP),
        ("ended_at", TIMESTAMP),
        ("status", pa.string()),
        ("increments", pa.int64()),
    ]
)

_OUTCOME_HEAD = [
    ("run_id", pa.string()),
    ("operation_id", pa.int64()),
    ("kind", pa.string()),
    ("broker", pa.int32()),
    ("request_id", pa.string()),
    ("client_id", pa.string()),
    ("key", pa.string()),
    ("started_at", TIMESTAMP),
]

_OUTCOME_TAIL = [
    ("deadline", TIMESTAMP),
    ("wait_ms", pa.int64()),
    ("watched", pa.bool_()),
    ("completed_by", pa.string()),
    ("trigger", pa.string()),
    ("bytes", pa.int64()),
    ("partitions", pa.list_(OUTCOME_PARTITION)),
]

# What came later stands at the end.
_OUTCOME_LATER = [("answered_bytes", pa.int64())]

COMPLETIONS = pa.schema([*_OUTCOME_HEAD, ("completed_at", TIMESTAMP), *_OUTCOME_TAIL, *_OUTCOME_LATER])

EXPIRATIONS = pa.schema(
    [
        *_OUTCOME_HEAD,
        ("expired_at", TIMESTAMP),
        *_OUTCOME_TAIL,
        ("fetcher", pa.string()),
        ("after_end", pa.bool_()),
        *_OUTCOME_LATER,
    ]
)

# Of an operation that nobody answered: its broker stopped. An error of its partitions that is null was still open.
CANCELLATIONS = pa.schema(
    [
        *_OUTCOME_HEAD,
        ("cancelled_at", TIMESTAMP),
        ("deadline", TIMESTAMP),
        ("wait_ms", pa.int64()),
        ("watched", pa.bool_()),
        ("reason", pa.string()),
        ("trigger", pa.string()),
        ("partitions", pa.list_(OUTCOME_PARTITION)),
        ("fetcher", pa.string()),
    ]
)

GROUP_TRANSITIONS = pa.schema(
    [
        ("run_id", pa.string()),
        ("broker", pa.int32()),
        ("group", pa.string()),
        ("at", TIMESTAMP),
        ("from_state", pa.string()),
        ("to_state", pa.string()),
        ("reason", pa.string()),
        ("generation", pa.int32()),
        ("members", pa.list_(pa.string())),
    ]
)

# Where a group's replay answers otherwise than the trace records, by request (`seq` is its event's).
GROUP_DISAGREEMENTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("broker", pa.int32()),
        ("group", pa.string()),
        ("seq", pa.int64()),
        ("asked_at", TIMESTAMP),
        ("answered_at", TIMESTAMP),
        ("api", pa.string()),
        ("request_id", pa.string()),
        ("member_id", pa.string()),
        ("disagreement", pa.string()),
        ("recorded", pa.string()),
        ("replayed", pa.string()),
    ]
)

PURGATORY_GAUGES = pa.schema(
    [
        ("run_id", pa.string()),
        ("broker", pa.int32()),
        ("purgatory", pa.string()),
        ("at", TIMESTAMP),
        ("watched", pa.int64()),
        ("delayed", pa.int64()),
        ("purged", pa.int64()),
    ]
)

RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("job", pa.string()),
        ("status", pa.string()),
        ("trace", pa.string()),
        ("configuration", pa.string()),
        ("versions", pa.string()),
        ("counts", pa.string()),
        ("started_at", TIMESTAMP),
        ("finished_at", TIMESTAMP),
        ("wall_seconds", pa.float64()),
    ]
)

# What a recorded broker did with each request, beside the event that the request became (`operation_id` is its `seq`).
RECORDED = pa.schema(
    [
        ("run_id", pa.string()),
        ("operation_id", pa.int64()),
        ("broker", pa.int32()),
        ("kind", pa.string()),
        ("api", pa.string()),
        ("request_id", pa.string()),
        ("started_at", TIMESTAMP),
        ("written_at", TIMESTAMP),
        ("recorded_outcome", pa.string()),
        ("recorded_remote_ms", pa.float64()),
        ("recorded_local_ms", pa.float64()),
        ("recorded_error", pa.string()),
        ("recorded_bytes", pa.int64()),
        ("recorded_timed_out", pa.int32()),
        ("recorded_generation", pa.int32()),
        ("recorded_complete", pa.bool_()),
        ("source", pa.string()),
        ("line", pa.int64()),
    ]
)

# A recorded request beside its replay: `agrees` says whether both ended alike, `cause` why they did not.
FIDELITY = pa.schema(
    [
        ("run_id", pa.string()),
        ("operation_id", pa.int64()),
        ("broker", pa.int32()),
        ("kind", pa.string()),
        ("request_id", pa.string()),
        ("started_at", TIMESTAMP),
        ("recorded_outcome", pa.string()),
        ("replayed_outcome", pa.string()),
        ("recorded_ms", pa.float64()),
        ("replayed_ms", pa.float64()),
        ("difference_ms", pa.float64()),
        ("agrees", pa.bool_()),
        ("cause", pa.string()),
    ]
)

# A simulated client's side of each request of a trace (`operation_id` is its event's `seq`).
TRUTH_REQUESTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("operation_id", pa.int64()),
        ("client_id", pa.string()),
        ("request_id", pa.string()),
        ("sent_at", TIMESTAMP),
        ("arrived_at", TIMESTAMP),
        ("answered_at", TIMESTAMP),
        ("throttle_ms", pa.int64()),
        ("received_at", TIMESTAMP),
    ]
)

TABLES = {
    "events": EVENTS,
    "rejected_events": REJECTED_EVENTS,
    "watches": WATCHES,
    "completions": COMPLETIONS,
    "expirations": EXPIRATIONS,
    "cancellations": CANCELLATIONS,
    "group_transitions": GROUP_TRANSITIONS,
    "group_disagreements": GROUP_DISAGREEMENTS,
    "purgatory_gauges": PURGATORY_GAUGES,
    "runs": RUNS,
    "recorded": RECORDED,
    "fidelity": FIDELITY,
}

# An operation that has ended is in one of these.
ENDS = ("completions", "expirations", "cancellations")

# What `simulate` writes beside `events`.
TRUTH = {
    "truth_completions": COMPLETIONS,
    "truth_expirations": EXPIRATIONS,
    "truth_cancellations": CANCELLATIONS,
    "truth_requests": TRUTH_REQUESTS,
}

# An operation that a variant of the settings changes anything of; null where one of both has no end for it.
WHAT_IF = pa.schema(
    [
        ("run_id", pa.string()),
        ("variant", pa.string()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("broker", pa.int32()),
        ("request_id", pa.string()),
        ("client_id", pa.string()),
        ("key", pa.string()),
        ("started_at", TIMESTAMP),
        ("change", pa.string()),
        ("baseline_expired", pa.bool_()),
        ("variant_expired", pa.bool_()),
        ("baseline_completed_by", pa.string()),
        ("variant_completed_by", pa.string()),
        ("baseline_wait_ms", pa.int64()),
        ("variant_wait_ms", pa.int64()),
        ("shift_ms", pa.int64()),
        ("baseline_bytes", pa.int64()),
        ("variant_bytes", pa.int64()),
    ]
)
