"""Keeps an output folder small: compacts small files, and deletes old versions of tables and unneeded working files.

Every step is safe during a replay or an import in the folder. Small files are compacted in a separate commit without
conflicts with appends. Files are deleted only when they are older than any active reader or writer. Working files of
a finished run are deleted; of a running one, only files that its next batches do not need.

The growing `events` of a followed import are compacted as well: readers follow them by commits, and find the files of
each commit until these are deleted. Events of a finished import keep their files, one batch per file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.backend.backend import Backend, backend_of
from purgatory_udf.backend.delta_store import RETENTION_HOURS, DeltaStore, Size
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import UserError
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout, is_locked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACTED = (
    "completions", "expirations", "cancellations", "watches", "purgatory_gauges", "share_deliveries",
    "group_transitions", "member_transitions", "group_disagreements", "rejected_events", "recorded", "runs",
)  # fmt: skip
EVENTS = "events"
KEEP_HOURS = RETENTION_HOURS

# Checkpoints of a replay stay, for `inspect`.
_CHECKPOINTS = "checkpoints"
# Working files of an import that was stopped, which no other import resumes.
_IMPORT_FOLDERS = ("_ingest", "_messages")
# Files smaller than the first size are merged into files of at most the second size; larger files are not rewritten.
_LARGE_ENOUGH, _LARGEST = 32 << 20, 128 << 20


@dataclass(frozen=True)
class TableMaintenance:
    """The number of files and bytes of a table before and after its maintenance."""

    name: str
    before: Size
    after: Size


def maintain(
    session: SparkSession | Backend, out: str, keep_hours: int = KEEP_HOURS
) -> tuple[list[TableMaintenance], list[str]]:
    """Compact and vacuum the tables below `out`; return their sizes, and the deleted working files.

    Files that only versions older than `keep_hours` need are deleted.

    Raises:
        UserError: There is no table of a replay or an import.
    """
    backend, layout = backend_of(session), Layout(out)
    store = backend.delta(out)
    tables = [name for name in COMPACTED if store.is_table(layout.table(name))]
    if _grows(backend, layout):
        tables.append(EVENTS)
    if not tables:
        raise UserError(f"{out}: has no table of a replay or an import; give the folder of one with --out")
    maintained = [_maintain_table(store, layout.table(name), name, keep_hours) for name in tables]
    return maintained, list(_delete_working_files(backend, layout))


def report(maintained: list[TableMaintenance], deleted: list[str]) -> list[str]:
    """Return the sizes of the tables and the deleted files as lines of text."""
    rows = [(each.name, each.before.files, each.after.files, round(each.after.bytes / 1e6, 1)) for each in maintained]
    lines = Table("Tables", ("table", "files before", "files now", "MB now"), rows).lines()
    return [*lines, *(f"deleted: {path}" for path in deleted)]


def _grows(backend: Backend, layout: Layout) -> bool:
    """Return whether the folder's events come from a followed import, so that the table grows."""
    events = layout.table(EVENTS)
    if not backend.delta(events).is_table(events):
        return False
    ingest = run_records.load(backend, layout.table("runs"), "ingest")
    return ingest is not None and ingest.status == run_records.RUNNING and "kafka" in ingest.trace


def _maintain_table(store: DeltaStore, path: str, name: str, keep_hours: int) -> TableMaintenance:
    before = store.size(path)
    if before.files > 1:
        store.compact(path, _LARGE_ENOUGH, _LARGEST)
    store.vacuum(path, keep_hours)
    return TableMaintenance(name, before, store.size(path))


def _delete_working_files(backend: Backend, layout: Layout) -> Iterator[str]:
    run = run_records.load(backend, layout.table("runs"), "replay")
    if run is not None and run.status == run_records.FINISHED and not is_locked(layout.out, "replay"):
        for name in sorted(backend.files.names(layout.internal)):
            if name != _CHECKPOINTS:
                backend.files.remove(f"{layout.internal}/{name}")
                yield f"{layout.internal}/{name}"
    if not is_locked(layout.out, "ingest") and not is_locked(layout.out, "replay"):
        for name in _IMPORT_FOLDERS:
            path = layout.table(name)
            # Staged rows without a complete table of events mean that an import must be repeated.
            if backend.files.exists(path) and _is_imported(backend, layout):
                backend.files.remove(path)
                yield path


def _is_imported(backend: Backend, layout: Layout) -> bool:
    """Return whether the import that wrote the events has finished."""
    events = layout.table(EVENTS)
    if not backend.delta(events).is_table(events):
        return False
    ingest = run_records.load(backend, layout.table("runs"), "ingest")
    runs = backend.query("SELECT run_id FROM events LIMIT 1", {"events": events}).column("run_id").to_pylist()
    return ingest is not None and bool(runs) and ingest.run_id == runs[0]
