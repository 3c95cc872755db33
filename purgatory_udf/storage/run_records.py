"""The `runs` table: what was replayed, with which settings, how far it came, and what it counted."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf import __version__
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import local
from purgatory_udf.contract.tables import COMMENTED_TABLES, RUNS
from purgatory_udf.storage.delta_tables import asked, commented_writer, is_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RUNNING, FINISHED = "running", "finished"
# What reads, works out and writes where Spark does not.
_HERE = ("duckdb", "deltalake")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Run:
    """One run's record; the JSON columns are kept as dictionaries."""

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
        now = datetime.now(UTC)
        wall = (now - self.started_at).total_seconds()
        return replace(self, status=FINISHED, counts=counts, finished_at=now, wall_seconds=wall)


def _versions(spark: SparkSession) -> dict[str, str]:
    """Of what ran."""
    if local(spark):
        engine = {name: version(name) for name in _HERE}
    else:
        engine = {"spark": spark.version, "delta": version("delta-spark")}
    return {"purgatory_replay": __version__, **engine, "python": platform.python_version()}


def ran_here(spark: SparkSession, path: str, job: str) -> bool | None:
    """Whether the latest run of the job did without Spark; None if there was none."""
    if not is_table(spark, path):
        return None
    rows = spark.read.format("delta").load(path).where(f"job = '{job}'").orderBy("started_at").collect()
    return all(name in json.loads(rows[-1].versions) for name in _HERE) if rows else None


def load(spark: SparkSession, path: str, job: str) -> Run | None:
    """The latest run of the job recorded under this path."""
    return asked(spark, path, lambda session: _load(session, path, job))


def _load(spark: SparkSession, path: str, job: str) -> Run | None:
    if not is_table(spark, path):
        return None
    of_job = spark.read.format("delta").load(path).where(f"job = '{job}'").orderBy("started_at")
    # As moments, pyspark would give them in the machine's own zone, and without its name.
    whole_us = {name: sf.unix_micros(name) for name in ("started_at", "finished_at")}
    rows = of_job.withColumns(whole_us).collect()
    if not rows:
        return None
    row = rows[-1]
    return Run(
        row.run_id,
        row.job,
        json.loads(row.trace),
        json.loads(row.configuration),
        row.status,
        json.loads(row.counts or "{}"),
        _moment(row.started_at),
        _moment(row.finished_at) if row.finished_at is not None else None,
        row.wall_seconds,
    )


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def save(spark: SparkSession, path: str, run: Run) -> None:
    """Write the run's row, in place of its earlier one."""
    row = (
        run.run_id,
        run.job,
        run.status,
        json.dumps(run.trace, sort_keys=True),
        json.dumps(run.configuration, sort_keys=True),
        json.dumps(_versions(spark), sort_keys=True),
        json.dumps(run.counts, sort_keys=True),
        run.started_at,
        run.finished_at,
        run.wall_seconds,
    )

    def write(session: SparkSession) -> None:
        rows = session.createDataFrame([row], from_arrow_schema(RUNS)).coalesce(1)
        exists = is_table(session, path)
        plain = rows.write if exists else commented_writer(rows, COMMENTED_TABLES["runs"])
        writer = plain.format("delta").mode("overwrite")
        if exists:
            writer = writer.option("replaceWhere", _row_here(run) if local(session) else _row_of(run))
        writer.save(path)

    asked(spark, path, write)


def forget(spark: SparkSession, path: str, run: Run) -> None:
    """Take the run's row away: what it recorded is about to be replaced."""
    asked(spark, path, lambda session: _forget(session, path, run))


def _forget(spark: SparkSession, path: str, run: Run) -> None:
    here = local(spark)
    if here:
        table = here.table_at(path)
        assert table is not None
        table.delete(_row_here(run))
        return
    DeltaTable.forPath(spark, path).delete(_row_of(run))


def _row_of(run: Run) -> str:
    """Whatever the run is called, SQL sees its letters only."""
    return f"run_id = decode(X'{run.run_id.encode().hex()}', 'UTF-8') AND job = '{run.job}'"


def _row_here(run: Run) -> str:
    """In the SQL of who writes without Spark, where only a quote ends what stands in quotes."""
    named = run.run_id.replace("'", "''")
    return f"run_id = '{named}' AND job = '{run.job}'"


def events_of(spark: SparkSession, out: str, run: Run) -> str:
    """The table that the run replayed: where it was, or in the folder itself if that was moved."""
    named = str(run.trace.get("events") or "")
    in_folder = f"{out.rstrip('/')}/events"
    return in_folder if not named or (not is_table(spark, named) and is_table(spark, in_folder)) else named


# A step that is written once, however often it is taken.


def once(run: Run, table: str, step: int) -> dict[str, str | int]:
    """Options of a write, by which Delta knows a step that the table has already."""
    return {"txnAppId": f"{run.run_id}/{run.started_at.isoformat()}/{table}", "txnVersion": step}
