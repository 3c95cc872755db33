"""A simulation's tables: `events`, and the `truth_*` tables with the outcomes of the simulated brokers.

The truth tables have the columns of a replay's tables. `truth_requests` is the clients' view of each request: when it
was sent, arrived, was answered (the time since arrival is purgatory time), and was received, and for how long a quota
throttled it (`throttle_ms`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.contract.tables import (
    CANCELLATIONS,
    COMMENTED_TRUTH,
    COMPLETIONS,
    EVENTS,
    EXPIRATIONS,
    TRUTH,
    TRUTH_REQUESTS,
    with_comments,
)
from purgatory_udf.rules.reference.reference_replay import Replay
from purgatory_udf.simulation.client_network import Exchange
from purgatory_udf.simulation.closed_loop import SimulationResult
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import write_dataset
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def event_rows(events: Iterable[dict[str, Any]], run_id: str) -> pa.Table:
    """Return the trace as rows of `events`."""
    rows = [
        {**event, "run_id": run_id, "event_time": _at(event["time_us"]), "source": "simulate", "line": event["seq"]}
        for event in events
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def completion_rows(truth: Replay, run_id: str) -> pa.Table:
    """Return the completed operations as rows of `truth_completions`."""
    rows = [
        {**_row(outcome, run_id), "completed_at": _at(outcome.ended_us)}
        for outcome in truth.outcomes
        if not outcome.expired and not outcome.cancelled
    ]
    return pa.Table.from_pylist(rows, schema=COMPLETIONS)


def expiration_rows(truth: Replay, last_event_us: int, run_id: str) -> pa.Table:
    """Return the expired operations as rows of `truth_expirations`. `after_end` marks those after the last event.

    Args:
        truth: Outcomes of the simulated brokers.
        last_event_us: Time of the trace's last event, in epoch microseconds.
        run_id: Id of the run.
    """
    rows = [
        {
            **_row(outcome, run_id),
            "expired_at": _at(outcome.ended_us),
            "fetcher": outcome.fetcher,
            "after_end": outcome.ended_us // 1000 > last_event_us // 1000,
        }
        for outcome in truth.outcomes
        if outcome.expired
    ]
    return pa.Table.from_pylist(rows, schema=EXPIRATIONS)


def cancellation_rows(truth: Replay, run_id: str) -> pa.Table:
    """Return the operations that a broker stop cancelled."""
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
    """Return the clients' view of the requests that are events of the trace."""
    rows = [
        {
            "run_id": run_id,
            "operation_id": exchange.operation_id,
            "client_id": exchange.request.client_id,
            "request_id": exchange.request.request_id,
            "sent_at": _at(exchange.sent_us),
            "arrived_at": _optional_timestamp(exchange.arrived_us),
            "answered_at": _optional_timestamp(exchange.answered_us),
            "throttle_ms": exchange.throttle_ms,
            "received_at": _optional_timestamp(exchange.received_us),
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


def _optional_timestamp(us: int | None) -> datetime | None:
    return None if us is None else _at(us)


EVENTS_PER_FILE = 50_000


@dataclass(frozen=True)
class Output:
    """The folder of a simulation's tables, and its run id."""

    out: str
    run_id: str
    overwrite: bool = False

    @property
    def events(self) -> str:
        return Layout(self.out).table("events")


def has_finished(backend: Backend, output: Output) -> bool:
    """Return whether the folder has the whole trace and truth of the run, and no import has replaced the trace."""
    layout = Layout(output.out)
    runs = layout.table("runs")
    known = run_records.load(backend, runs, "simulate")
    if known is None or (known.run_id, known.status) != (output.run_id, run_records.FINISHED):
        return False
    has_tables = all(backend.files.exists(layout.table(name)) for name in ("events", *TRUTH))
    return has_tables and run_records.load(backend, runs, "ingest") is None


def prepare_output(backend: Backend, output: Output, run: Run) -> None:
    """Check that the folder has no other trace, record the run as running, and delete tables that it replaces.

    These are tables of an interrupted run with the same id or, with `overwrite`, of any run. The record comes first: it
    is newer than that of a finished simulation, so that incomplete tables are not taken for those of that simulation.

    Raises:
        UserError: The folder has another trace, or is a file.
        NeedsSparkError: This process cannot write tables to the folder.
    """
    layout = Layout(output.out)
    require_no_file(backend.files, output.out)
    runs = layout.table("runs")
    # Shows whether the tables need Spark: if the simulation did, it would be repeated and write its JSON Lines twice.
    known = run_records.load(backend, runs, run.job)
    is_interrupted = known is not None and known.run_id == run.run_id and known.status == run_records.RUNNING
    # An import may have written its events to the folder since then.
    is_repeated = is_interrupted and run_records.load(backend, runs, "ingest") is None
    found = [path for path in map(layout.table, ("events", *TRUTH)) if backend.files.exists(path)]
    if found and not is_repeated and not output.overwrite:
        raise UserError(f"{found[0]}: exists; choose another --out, or replace it with --overwrite")
    run_records.save(backend, runs, run)
    for path in found:
        backend.files.remove(path)


def write_tables(backend: Backend, output: Output, simulated: SimulationResult, run: Run) -> None:
    """Write all tables and the run record. `events` is last, so that it exists only if the others are complete.

    Args:
        backend: Backend of the tables.
        output: The folder, and the id of the run.
        simulated: The trace and its outcomes.
        run: The run's record.
    """
    layout, run_id = Layout(output.out), output.run_id
    last_us = simulated.events[-1]["time_us"]
    tables = {
        "truth_completions": completion_rows(simulated.truth, run_id),
        "truth_expirations": expiration_rows(simulated.truth, last_us, run_id),
        "truth_cancellations": cancellation_rows(simulated.truth, run_id),
        "truth_requests": request_rows(simulated.exchanges, run_id),
    }
    for name, rows in tables.items():
        path = layout.table(name)
        backend.delta(path).append(path, rows.cast(with_comments(rows.schema, COMMENTED_TRUTH[name])))
    events = backend.dataset_of(event_rows(simulated.events, run_id))
    write_dataset(events, output.events, len(simulated.events), EVENTS_PER_FILE)
    counts = {"events": len(simulated.events), **{name: rows.num_rows for name, rows in tables.items()}}
    run_records.save(backend, layout.table("runs"), run.finished(counts))


def write_jsonl(events: Iterable[dict[str, Any]], file: Path) -> None:
    """Write the trace to a file as JSON Lines, the form of the event contract. Fields without a value are omitted.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        with file.open("w", encoding="utf-8") as stream:
            for event in events:
                fields = {name: value for name, value in event.items() if value is not None}
                stream.write(json.dumps(fields, separators=(",", ":")) + "\n")
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
