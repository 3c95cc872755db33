"""Output tables of an import, written from the finished events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset, Step
from purgatory_udf.backend.file_system import require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES, EVENTS, RECORDED, TIMESTAMP
from purgatory_udf.sources.request_log.importing.import_passes import SourceName, sources_of
from purgatory_udf.storage.event_staging import write_dataset
from purgatory_udf.storage.output_folder import Layout

EVENTS_TABLE, REJECTED_TABLE, RECORDED_TABLE = "events", "rejected_events", "recorded"
NAMES = (EVENTS_TABLE, REJECTED_TABLE, RECORDED_TABLE)

# Columns of a finished event that `recorded` takes over; nested ones are costly to filter.
_RECORDED_COLUMNS = ["broker", "request_id", "time_us", "file", "at_line", "recorded"]
_TASKS = pa.schema([("task", pa.int32()), ("last", pa.int64()), ("refused", pa.int64())])


@dataclass(frozen=True)
class FinishedEvents:
    """Events in their total order (FINISHED, with their `task`), and the rows of `rejected_events`."""

    events: Dataset
    rejected: Dataset


class TaskSize(NamedTuple):
    """Number of events that a task finished, and number of events that the contract rejects."""

    task: int
    size: int
    refused: int


def require_room(backend: Backend, layout: Layout, overwrite: bool, staging: str) -> None:
    """Raise `UserError` if the tables exist or cannot be written. Tables of an interrupted import may be replaced.

    Args:
        backend: Backend of the tables.
        layout: The output folder.
        overwrite: Whether existing tables are replaced.
        staging: Name of the folder of staged rows, which shows that an import was interrupted.
    """
    files = backend.files
    require_no_file(files, layout.out)
    # Staged rows show that an import was interrupted: the tables are its own.
    if files.exists(layout.table(staging)):
        return
    for path in map(layout.table, NAMES):
        if files.exists(path) and not backend.delta(path).is_table(path):
            raise UserError(f"{path}: exists, but is not a Delta table; choose another --out or move it away")
    events = layout.table(EVENTS_TABLE)
    if not overwrite and backend.delta(events).is_table(events):
        raise UserError(f"{events}: exists; choose another --out, or replace it with --overwrite")


def write_tables(
    backend: Backend,
    layout: Layout,
    run_id: str,
    finished: FinishedEvents,
    source: SourceName,
    bad_lines: int,
    per_file: int,
) -> tuple[int, int]:
    """Write the tables, `events` last.

    Args:
        backend: Backend that writes the tables.
        layout: The output folder.
        run_id: Name of the import.
        finished: The events, and the rows of `rejected_events`.
        source: Returns the name of a file by its number.
        bad_lines: Number of lines that are no requests of the log.
        per_file: Approximate number of events in a file of `events`.

    Returns:
        The number of events, and of rejected lines: `bad_lines` and events that the contract rejects.
    """
    for name in NAMES:
        backend.files.remove(layout.table(name))
    tasks = task_sizes(finished.events)
    refused = sum(task.refused for task in tasks)
    accepted = sum(task.size for task in tasks) - refused
    events = finished.events.map_columns(event_rows(tasks, run_id, source), EVENTS)

    def write_others() -> None:
        path = layout.table(REJECTED_TABLE)
        if bad_lines + refused:
            finished.rejected.save(path, COMMENTED_TABLES[REJECTED_TABLE])
        else:
            backend.delta(path).create(path, COMMENTED_TABLES[REJECTED_TABLE])
        recorded = finished.events.map_columns(recorded_rows(tasks, run_id, source), RECORDED)
        recorded.save(layout.table(RECORDED_TABLE), COMMENTED_TABLES[RECORDED_TABLE])

    write_dataset(events, layout.table(EVENTS_TABLE), accepted, per_file, write_others)
    return accepted, bad_lines + refused


def task_sizes(events: Dataset) -> list[TaskSize]:
    """Count the events of each task, in the order of the tasks."""
    sizes = events.select("task", "number", "rule").sql(
        "SELECT task, max(number) AS last, count(rule) AS refused FROM {rows} GROUP BY task ORDER BY task", _TASKS
    )
    rows = sizes.collect().sort_by("task").to_pylist()
    return [TaskSize(row["task"], row["last"] + 1, row["refused"]) for row in rows]


def event_rows(tasks: Sequence[TaskSize], run_id: str, source: SourceName, first: int = 0) -> Step:
    """Return the step that makes rows of `events`, numbered from `first`.

    An event that the contract rejects keeps its number, so that no other number depends on it.

    Args:
        tasks: Number of events of each task, in order.
        run_id: Name of the import.
        source: Returns the name of a file by its number.
        first: `seq` of the first event.
    """
    return _numbered(tasks, first, lambda batch, seq: _event_rows(batch, seq, run_id, source))


def recorded_rows(tasks: Sequence[TaskSize], run_id: str, source: SourceName, first: int = 0) -> Step:
    """Return the step that makes rows of `recorded`: the outcomes of the numbered events in the log.

    Args:
        tasks: Number of events of each task, in order.
        run_id: Name of the import.
        source: Returns the name of a file by its number.
        first: `seq` of the first event.
    """

    def rows(batch: pa.RecordBatch, seq: pa.Array) -> pa.RecordBatch:
        is_recorded = batch.column("recorded").is_valid()
        few = batch.select(_RECORDED_COLUMNS).filter(is_recorded)
        return _recorded_rows(few, seq.filter(is_recorded), run_id, source)

    return _numbered(tasks, first, rows)


def _numbered(
    tasks: Sequence[TaskSize], first: int, rows: Callable[[pa.RecordBatch, pa.Array], pa.RecordBatch]
) -> Step:
    before: dict[int, int] = {}
    total = first
    for task in tasks:
        before[task.task] = total
        total += task.size

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rules = batch.column("rule")
            accepted = batch if rules.null_count == len(rules) else batch.filter(rules.is_null())
            if accepted.num_rows:
                numbers = accepted.column("task").dictionary_encode()
                starts = pa.array([before[task] for task in numbers.dictionary.to_pylist()], pa.int64())
                yield rows(accepted, pc.add(starts.take(numbers.indices), accepted.column("number")))

    return step


def _event_rows(batch: pa.RecordBatch, seq: pa.Array, run_id: str, source: SourceName) -> pa.RecordBatch:
    given = {"seq": seq, "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows), **_placed(batch, source)}
    given["event_time"] = _time(batch.column("time_us"))
    columns = [given[name] if name in given else batch.column(name) for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def _placed(batch: pa.RecordBatch, source: SourceName) -> dict[str, pa.Array]:
    """Return the columns `source` and `line`, null for a change without a line."""
    has_line = pc.greater_equal(batch.column("at_line"), 0)
    return {
        "source": pc.if_else(has_line, sources_of(batch.column("file"), source), None),
        "line": pc.if_else(has_line, batch.column("at_line"), None),
    }


def _recorded_rows(batch: pa.RecordBatch, seq: pa.Array, run_id: str, source: SourceName) -> pa.RecordBatch:
    records = pa.RecordBatch.from_struct_array(batch.column("recorded"))
    given = {
        "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows),
        "operation_id": seq,
        "started_at": _time(batch.column("time_us")),
        "written_at": _time(records.column("written_us")),
        **_placed(batch, source),
    }
    columns = []
    for field in RECORDED:
        name = field.name.removeprefix("recorded_")
        if field.name in given:
            columns.append(given[field.name])
        elif field.name.startswith("recorded_") or field.name in ("api", "kind"):
            columns.append(records.column(name))
        else:
            columns.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(columns, schema=RECORDED)


def _time(us: pa.Array) -> pa.Array:
    return us.cast(pa.timestamp("us")).cast(TIMESTAMP)
