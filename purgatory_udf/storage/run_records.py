"""The `runs` table: the input, settings, status and counts of every import, replay and simulation."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from purgatory_udf import __version__
from purgatory_udf.backend.backend import Session, backend_of
from purgatory_udf.backend.delta_store import Condition, Transaction
from purgatory_udf.contract.tables import COMMENTED_TABLES

RUNNING, FINISHED = "running", "finished"


@dataclass(frozen=True)
class Run:
    """One run's record; the JSON columns are dictionaries."""

    run_id: str
    job: str
    trace: dict[str, Any]
    configuration: dict[str, Any]
    status: str = RUNNING
    counts: dict[str, Any] = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    finished_at: datetime | None = None
    wall_seconds: float | None = None

    def finished(self, counts: dict[str, Any]) -> Run:
        """Return the record of the run, finished now with these counts."""
        now = datetime.now(UTC)
        wall = (now - self.started_at).total_seconds()
        return replace(self, status=FINISHED, counts=counts, finished_at=now, wall_seconds=wall)

    def step(self, table: str, number: int) -> Transaction:
        """Return the transaction id of a step of this run, so that a repeated step is written once.

        Steps of a table have rising numbers: one at or below the last written number is skipped.
        """
        return Transaction(f"{self.run_id}/{self.started_at.isoformat()}/{table}", number)


def load(session: Session, path: str, job: str) -> Run | None:
    """Return the job's latest run recorded in the table at `path`, or None."""
    row = _latest(session, path, job)
    if row is None:
        return None
    return Run(
        row["run_id"],
        row["job"],
        json.loads(row["trace"]),
        json.loads(row["configuration"]),
        row["status"],
        json.loads(row["counts"] or "{}"),
        row["started_at"],
        row["finished_at"],
        row["wall_seconds"],
    )


def ran_without_spark(session: Session, path: str, job: str) -> bool | None:
    """Whether the job's latest run used no Spark; None if there was none."""
    row = _latest(session, path, job)
    return None if row is None else "spark" not in json.loads(row["versions"])


def save(session: Session, path: str, run: Run) -> None:
    """Write the run's row, replacing its earlier one."""
    backend = backend_of(session)
    versions = {"purgatory_replay": __version__, **backend.versions(), "python": platform.python_version()}
    row = {
        "run_id": run.run_id,
        "job": run.job,
        "status": run.status,
        "trace": json.dumps(run.trace, sort_keys=True),
        "configuration": json.dumps(run.configuration, sort_keys=True),
        "versions": json.dumps(versions, sort_keys=True),
        "counts": json.dumps(run.counts, sort_keys=True),
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "wall_seconds": run.wall_seconds,
    }
    backend.delta(path).overwrite(path, pa.Table.from_pylist([row], COMMENTED_TABLES["runs"]), where=_row_of(run))


def forget(session: Session, path: str, run: Run) -> None:
    """Delete the run's row, because the run's output is about to be replaced."""
    backend_of(session).delta(path).delete(path, _row_of(run))


def events_of(session: Session, out: str, run: Run) -> str:
    """Return the path of the events that the run replayed: the recorded one, or `out/events` if that was moved."""
    backend = backend_of(session)
    named = str(run.trace.get("events") or "")
    in_folder = f"{out.rstrip('/')}/events"
    if not named:
        return in_folder
    moved = not backend.delta(named).is_table(named) and backend.delta(in_folder).is_table(in_folder)
    return in_folder if moved else named


def _latest(session: Session, path: str, job: str) -> dict[str, Any] | None:
    store = backend_of(session).delta(path)
    if not store.is_table(path):
        return None
    rows = store.read(path, where=[Condition("job", "=", job)]).sort_by("started_at").to_pylist()
    return rows[-1] if rows else None


def _row_of(run: Run) -> list[Condition]:
    return [Condition("run_id", "=", run.run_id), Condition("job", "=", run.job)]
