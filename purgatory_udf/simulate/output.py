"""A simulation's tables: the events, and the truth about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.errors import UserError
from purgatory_udf.simulate.closed_loop import Simulated
from purgatory_udf.simulate.truth import cancellation_rows, completion_rows, event_rows, expiration_rows, request_rows
from purgatory_udf.storage import runs
from purgatory_udf.storage.files import files_of, require_no_file
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.storage.staging import write_in_time_order
from purgatory_udf.tables import TRUTH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_FILE = 50_000


@dataclass(frozen=True)
class Output:
    """Where a simulation goes, and under what name."""

    out: str
    run_id: str
    overwrite: bool = False

    @property
    def events(self) -> str:
        return Layout(self.out).table("events")


def make_room(spark: SparkSession, output: Output) -> None:
    """Refuse to mix two traces; with `overwrite`, take away what is there."""
    layout = Layout(output.out)
    require_no_file(files_of(spark), output.out)
    for name in ("events", *TRUTH):
        path = layout.table(name)
        if files_of(spark).exists(path):
            if not output.overwrite:
                raise UserError(f"{path}: exists; choose another --out, or --overwrite to replace it")
            files_of(spark).remove(path)


def write(spark: SparkSession, output: Output, simulated: Simulated, settings: dict[str, Any]) -> None:
    """`events` last: where there is one, the rest is there too."""
    layout, run_id = Layout(output.out), output.run_id
    run = Run(run_id, "simulate", {"shows": simulated.scenario.shows}, settings)
    last_us = simulated.events[-1]["time_us"]
    tables = {
        "truth_completions": completion_rows(simulated.truth, run_id),
        "truth_expirations": expiration_rows(simulated.truth, last_us, run_id),
        "truth_cancellations": cancellation_rows(simulated.truth, run_id),
        "truth_requests": request_rows(simulated.exchanges, run_id),
    }
    for name, rows in tables.items():
        _frame(spark, rows).coalesce(1).write.format("delta").save(layout.table(name))
    events = _frame(spark, event_rows(simulated.events, run_id))
    write_in_time_order(events, output.events, len(simulated.events), EVENTS_PER_FILE)
    counts = {"events": len(simulated.events), **{name: rows.num_rows for name, rows in tables.items()}}
    runs.save(spark, layout.table("runs"), run.finished(counts))


def _frame(spark: SparkSession, rows: pa.Table) -> Any:
    return spark.createDataFrame(rows)
