"""The truth as tables: what the simulated brokers did, in the columns of a replay's own tables.

`truth_requests` is the clients' side: a request was sent, arrived, was answered (the purgatory's share lies between
these two), was held back by a quota for `throttle_ms`, and was received.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from purgatory_udf.outcomes import Outcome
from purgatory_udf.reference.replay import Replay
from purgatory_udf.simulate.network import Exchange
from purgatory_udf.tables import CANCELLATIONS, COMPLETIONS, EVENTS, EXPIRATIONS, TRUTH_REQUESTS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def event_rows(events: Iterable[dict[str, Any]], run_id: str) -> pa.Table:
    """The trace as the `events` table holds it."""
    rows = [
        {**event, "run_id": run_id, "event_time": _at(event["time_us"]), "source": "simulate", "line": event["seq"]}
        for event in events
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def completion_rows(truth: Replay, run_id: str) -> pa.Table:
    rows = [
        {**_row(outcome, run_id), "completed_at": _at(outcome.ended_us)}
        for outcome in truth.outcomes
        if not outcome.expired and not outcome.cancelled
    ]
    return pa.Table.from_pylist(rows, schema=COMPLETIONS)


def expiration_rows(truth: Replay, last_event_us: int, run_id: str) -> pa.Table:
    """What expired later than the last event did so while the trace was drained."""
    rows = [
        {
            **_row(outcome, run_id),
            "expired_at": _at(outcome.ended_us),
            "fetcher": outcome.fetcher,
            "after_end": outcome.deadline_us // 1000 > last_event_us // 1000,
        }
        for outcome in truth.outcomes
        if outcome.expired
    ]
    return pa.Table.from_pylist(rows, schema=EXPIRATIONS)


def cancellation_rows(truth: Replay, run_id: str) -> pa.Table:
    rows = [
        {
            **_row(outcome, run_id),
            "cancelled_at": _at(outcome.ended_us),
            "reason": outcome.completed_by,
            "fetcher": outcome.fetcher,
        }
        for outcome in truth.outcomes
        if outcome.cancelled
    ]
    return pa.Table.from_pylist(rows, schema=CANCELLATIONS)


def request_rows(exchanges: Iterable[Exchange], run_id: str) -> pa.Table:
    """Those that the trace knows."""
    rows = [
        {
            "run_id": run_id,
            "operation_id": exchange.operation_id,
            "client_id": exchange.message.client_id,
            "request_id": exchange.message.request_id,
            "sent_at": _at(exchange.sent_us),
            "arrived_at": _maybe_at(exchange.arrived_us),
            "answered_at": _maybe_at(exchange.answered_us),
            "throttle_ms": exchange.throttle_ms,
            "received_at": _maybe_at(exchange.received_us),
        }
        for exchange in exchanges
        if exchange.operation_id is not None
    ]
    return pa.Table.from_pylist(rows, schema=TRUTH_REQUESTS)


def _row(outcome: Outcome, run_id: str) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "operation_id": outcome.operation_id,
        "kind": outcome.kind,
        "broker": outcome.broker,
        "request_id": outcome.request_id,
        "client_id": outcome.client_id,
        "key": outcome.key,
        "started_at": _at(outcome.started_us),
        "deadline": _at(outcome.deadline_us),
        "wait_ms": outcome.wait_ms,
        "watched": outcome.watched,
        "completed_by": outcome.completed_by,
        "trigger": outcome.trigger,
        "bytes": outcome.bytes,
        "partitions": [
            {"topic": part.topic, "partition": part.partition, "error": part.error, "bytes": part.bytes}
            for part in outcome.partitions
        ],
        "answered_bytes": outcome.answered_bytes,
    }


def _at(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _maybe_at(us: int | None) -> datetime | None:
    return None if us is None else _at(us)
