"""Rows of the outcome tables as `Outcome` values, to compare engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from purgatory_udf.contract.outcome import Outcome, PartitionOutcome
from purgatory_udf.contract.tables import CANCELLATIONS

_NONE = CANCELLATIONS.empty_table()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def outcomes_of(completions: pa.Table, expirations: pa.Table, cancellations: pa.Table = _NONE) -> list[Outcome]:
    """Return the rows of the three tables, ordered by operation id."""
    rows = [_outcome(row, row["completed_at"], False) for row in completions.to_pylist()]
    rows += [_outcome(row, row["expired_at"], True) for row in expirations.to_pylist()]
    nothing = {"bytes": None, "answered_bytes": None}
    rows += [
        _outcome(row | nothing | {"completed_by": row["reason"]}, row["cancelled_at"], False, cancelled=True)
        for row in cancellations.to_pylist()
    ]
    return sorted(rows, key=lambda outcome: outcome.operation_id)


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _outcome(row: dict[str, Any], ended: datetime, expired: bool, cancelled: bool = False) -> Outcome:
    return Outcome(
        operation_id=row["operation_id"],
        kind=row["kind"],
        broker=row["broker"],
        request_id=row["request_id"],
        client_id=row["client_id"],
        key=row["key"],
        started_us=_us(row["started_at"]),
        ended_us=_us(ended),
        deadline_us=_us(row["deadline"]),
        expired=expired,
        watched=row["watched"],
        completed_by=row["completed_by"],
        trigger=row["trigger"],
        bytes=row["bytes"],
        partitions=tuple(PartitionOutcome(**part) for part in row["partitions"]),
        fetcher=row.get("fetcher"),
        answered_bytes=row["answered_bytes"],
        cancelled=cancelled,
    )
