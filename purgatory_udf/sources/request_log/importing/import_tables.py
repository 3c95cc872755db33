"""Output tables of an import, written from the finished events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset, Step
from purgatory_udf.common.local_files import require_local_path
from purgatory_udf.contract.tables import COMMENTED_TABLES, EVENTS, RECORDED, TIMESTAMP
from purgatory_udf.sources.request_log.importing.import_passes import EVENT_ORDER, SourceName, sources_of
from purgatory_udf.storage.event_staging import (
    INDEXED,
    TIME_ORDER_METADATA,
    parts_in_time_order,
    sort_by_time,
    write_dataset,
)
from purgatory_udf.storage.output_folder import Layout

EVENTS_TABLE, REJECTED_TABLE, RECORDED_TABLE = "events", "rejected_events", "recorded"
NAMES = (EVENTS_TABLE, REJECTED_TABLE, RECORDED_TABLE)

# Columns of a finished event that `recorded` takes over; nested ones are costly to filter.
_RECORDED_COLUMNS = ["broker", "request_id", "time_us", "file", "at_line", "recorded"]
_REFUSED_COLUMNS = ["file", "at_line", "rule", "reason", "raw"]
# Columns by which readers skip files.
_INDEXED = {EVENTS_TABLE: INDEXED, RECORDED_TABLE: ("operation_id", "started_at")}
_TASKS = pa.schema([("task", pa.int32()), ("size", pa.int64()), ("refused", pa.int64())])

# A file of a table that has no log yet, or an event that the contract rejects.
WRITTEN = pa.schema(
    [
        ("table", pa.string()),
        ("folder", pa.string()),
        ("name", pa.string()),
        ("size", pa.int64()),
        ("stats", pa.string()),
        ("rows", pa.int64()),
        ("first", pa.int64()),
        ("file", pa.int32()),
        ("at_line", pa.int64()),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)


@dataclass(frozen=True)
class FinishedEvents:
    """Events in their total order (FINISHED, with their `task`) or in files (WRITTEN), and rejected events."""

    events: Dataset
    rejected: Dataset


class EventFiles(NamedTuple):
    """Folder of files of events, and approximate number of events in a file."""

    folder: str
    per_file: int


class TaskSize(NamedTuple):
    """Number of events that a task finished, and number of events that the contract rejects."""

    task: int
    size: int
    refused: int


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
    path = layout.table(REJECTED_TABLE)
    if finished.events.schema.equals(WRITTEN):
        written = finished.events.collect()
        refused = written.num_rows - written.column("rule").null_count
    else:
        tasks = task_sizes(finished.events)
        refused = sum(task.refused for task in tasks)
    if bad_lines + refused:
        finished.rejected.save(path, COMMENTED_TABLES[REJECTED_TABLE])
        create = None
    else:
        create = partial(backend.delta(path).create, path, COMMENTED_TABLES[REJECTED_TABLE])
    if finished.events.schema.equals(WRITTEN):
        accepted = _create_of_files(layout, written, create)
    else:
        if create is not None:
            create()
        accepted = sum(task.size for task in tasks) - refused
        recorded = finished.events.map_columns(recorded_rows(tasks, run_id, source), RECORDED)
        recorded.save(layout.table(RECORDED_TABLE), COMMENTED_TABLES[RECORDED_TABLE])
        events = finished.events.map_columns(event_rows(tasks, run_id, source), EVENTS)
        write_dataset(events, layout.table(EVENTS_TABLE), accepted, per_file)
    return accepted, bad_lines + refused


def write_events(unordered: Dataset, finish: Step, files: EventFiles, run_id: str, source: SourceName) -> Dataset:
    """Finish events and write them to files, in parallel; return the files and the rejected events (WRITTEN).

    Each event is made and written by the same process, because reading it in another one would take as long. Spark's
    workers are processes of this machine.

    Args:
        unordered: Rows of `import_passes.unordered_events`.
        finish: The step that makes events of ordered rows (`import_tasks.finish_events`).
        files: Where the files are written.
        run_id: Name of the import.
        source: Returns the name of a file by its number.
    """
    tables = (EVENTS_TABLE, RECORDED_TABLE)
    places = {name: require_local_path(f"{files.folder}/{name}-files") for name in tables}
    for place in places.values():
        place.mkdir(parents=True)

    def step(first: int) -> Step:
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            events, recorded = [], []
            for batch in finish(batches):
                accepted = _accepted(batch)
                if accepted.num_rows < batch.num_rows:
                    yield _refused(batch)
                if accepted.num_rows:
                    seq = pc.add(accepted.column("number"), first)
                    events.append(_event_rows(accepted, seq, run_id, source))
                    recorded.append(_recorded_rows(accepted, seq, run_id, source))
            in_files = {
                EVENTS_TABLE: parts_in_time_order(sort_by_time(pa.Table.from_batches(events, EVENTS)), files.per_file),
                RECORDED_TABLE: [pa.Table.from_batches(recorded, RECORDED)],
            }
            for name, parts in in_files.items():
                yield _written(name, [part for part in parts if part.num_rows], first, str(places[name]))

        return work

    return unordered.map_numbered(EVENT_ORDER, step, WRITTEN, 1000, f"{files.folder}/ordered")


def _refused(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the events that the contract rejects, as rows of WRITTEN."""
    refused = batch.select(_REFUSED_COLUMNS).filter(batch.column("rule").is_valid())
    columns = {name: refused.column(name) for name in _REFUSED_COLUMNS}
    arrays = [columns.get(field.name, pa.nulls(refused.num_rows, field.type)) for field in WRITTEN]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN)


def _written(table: str, parts: Sequence[pa.Table], number: int, folder: str) -> pa.RecordBatch:
    """Write files of a table to a folder, and return them as rows of WRITTEN; `number` events precede them."""
    from purgatory_udf.backend.local_delta import needing_spark, write_file

    with needing_spark():
        files = [
            {
                "table": table,
                "folder": folder,
                "rows": part.num_rows,
                "first": number,
                **write_file(part, number, folder, _INDEXED[table]),
            }
            for part in parts
        ]
    return pa.RecordBatch.from_pylist(files, schema=WRITTEN)


def _create_of_files(layout: Layout, written: pa.Table, before: Callable[[], None] | None) -> int:
    """Move written files to new tables, `events` last; return the number of events.

    `before`, if given, creates a further table before `events`, at the same time as `recorded`.
    """
    from purgatory_udf.backend.local_delta import create_of_files, create_with_files

    files = written.filter(written.column("name").is_valid()).to_pylist()
    files.sort(key=lambda file: int(file["first"]))

    def create(table: str, metadata: Mapping[str, str]) -> None:
        of_table, schema = [file for file in files if file["table"] == table], COMMENTED_TABLES[table]
        if of_table:
            create_of_files(of_table, layout.table(table), _INDEXED[table], metadata, schema)
        else:
            create_with_files([schema.empty_table()], layout.table(table), _INDEXED[table], metadata, schema)

    with ThreadPoolExecutor(1) as thread:
        created = [thread.submit(before)] if before is not None else []
        create(RECORDED_TABLE, {})
    for each in created:
        each.result()
    create(EVENTS_TABLE, TIME_ORDER_METADATA)
    return sum(file["rows"] for file in files if file["table"] == EVENTS_TABLE)


def task_sizes(events: Dataset) -> list[TaskSize]:
    """Count the events of each task, in the order of the tasks."""
    sizes = events.select("task", "number", "rule").map_columns(_sizes_of_batches, _TASKS).collect()
    found: dict[int, TaskSize] = {}
    for task, size, refused in zip(*(column.to_pylist() for column in sizes.columns), strict=True):
        before = found.get(task, TaskSize(task, 0, 0))
        found[task] = TaskSize(task, max(before.size, size), before.refused + refused)
    return [found[task] for task in sorted(found)]


def _sizes_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        tasks, numbers = (batch.column(name).to_numpy() for name in ("task", "number"))
        refused = batch.column("rule").is_valid().to_numpy(zero_copy_only=False)
        of_tasks = [(task, tasks == task) for task in np.unique(tasks).tolist()]
        rows = [
            {"task": task, "size": int(numbers[its].max()) + 1, "refused": int(refused[its].sum())}
            for task, its in of_tasks
        ]
        yield pa.RecordBatch.from_pylist(rows, _TASKS)


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
    return _numbered(tasks, first, lambda batch, seq: _recorded_rows(batch, seq, run_id, source))


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
            accepted = _accepted(batch)
            if accepted.num_rows:
                numbers = accepted.column("task").dictionary_encode()
                starts = pa.array([before[task] for task in numbers.dictionary.to_pylist()], pa.int64())
                yield rows(accepted, pc.add(starts.take(numbers.indices), accepted.column("number")))

    return step


def _accepted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the events that the contract does not reject."""
    rules = batch.column("rule")
    return batch if rules.null_count == len(rules) else batch.filter(rules.is_null())


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
    is_recorded = batch.column("recorded").is_valid()
    batch, seq = batch.select(_RECORDED_COLUMNS).filter(is_recorded), seq.filter(is_recorded)
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
