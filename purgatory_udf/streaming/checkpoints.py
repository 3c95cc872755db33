"""Checkpoints of streaming queries: their preparation, a sink's snapshots between batches, and their inspection."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from purgatory_udf.backend.backend import Backend, Session, SparkBackend, backend_of
from purgatory_udf.backend.file_system import Files
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import COMMAND
from purgatory_udf.rules.engine.loop.arena import LINGERING, SETTLED
from purgatory_udf.rules.engine.loop.codes import key_parts
from purgatory_udf.rules.engine.loop.engine_state import State
from purgatory_udf.rules.engine.loop.state_codec import decode_state
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout, local_folder

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

# Folders with one entry per micro-batch: its offsets before it starts, and its commit after it has finished.
_OFFSETS, _COMMITS = "offsets", "commits"

# Spark's setting for the class that moves a checkpoint's files into place. The default class checks whether each file
# is a link, for which Hadoop starts a process per file on a local disk. The other class relies on atomic renames.
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_DISK_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# A crash repeats at most the last batch, which needs the snapshot before it.
_SNAPSHOTS_KEPT = 2


def prepare_checkpoint(session: Session, path: str) -> str:
    """Prepare a checkpoint for a query that is about to start, and return its path.

    Selects the fast file manager for local disks, unless the user has configured another. Removes an unfinished first
    entry: Spark writes an entry to a temporary file and then renames it, and refuses to start if a crash left the
    temporary file.

    Raises:
        FileNotFoundError: The last finished batch has no offsets. Spark would process other rows under its number, and
            the tables already have that batch.
    """
    backend = backend_of(session)
    assert isinstance(backend, SparkBackend)
    spark = backend.spark
    if not spark.sparkContext.getConf().contains(_MANAGER):
        if backend.is_on_this_machine(path):
            spark.conf.set(_MANAGER, _DISK_MANAGER)
        else:
            spark.conf.unset(_MANAGER)
    started, done = (_entries(backend.files, f"{path}/{name}") for name in (_OFFSETS, _COMMITS))
    if done and max(done) not in started:
        raise FileNotFoundError(
            f"{path}/{_OFFSETS}/{max(done)} does not exist, although its batch has finished; restart the run with "
            "--overwrite"
        )
    return path


def next_watermark_ms(session: Session, path: str) -> int | None:
    """Return the watermark of the next batch in epoch milliseconds.

    None before the first batch, and if the last batch must be repeated.
    """
    files = backend_of(session).files
    started, done = (_entries(files, f"{path}/{name}") for name in (_OFFSETS, _COMMITS))
    if not done or max(started) > max(done):
        return None
    entry = files.read(f"{path}/{_COMMITS}/{max(done)}") or b""
    try:
        # The first line is a version, the second the metadata of the batch.
        return int(json.loads(entry.splitlines()[1])["nextBatchWatermarkMs"])
    except (IndexError, KeyError, ValueError):
        # A damaged entry: Spark's error message describes it.
        return None


def _entries(files: Files, folder: str) -> set[int]:
    names = files.names(folder)
    if names and all(name.startswith(".") for name in names):
        files.remove(folder)
    return {int(name) for name in names if name.isdigit()}


class Snapshots:
    """State that a query's sink keeps between batches, one file per batch.

    A batch reads the file of the previous batch, and writes its own before Spark commits the batch. A batch that is
    repeated after a crash therefore starts from the same state, and replaces its file.
    """

    def __init__(self, session: Session, folder: str) -> None:
        self._files, self._folder = backend_of(session).files, folder.rstrip("/")
        self._last: tuple[int, bytes] | None = None

    def before(self, batch: int) -> bytes | None:
        """Return the snapshot of the previous batch; None for the first batch."""
        if self._last is not None and self._last[0] == batch - 1:
            return self._last[1]
        return self._read(batch - 1) if batch > 0 else None

    def latest(self) -> bytes | None:
        """Return the newest snapshot; None before the first batch."""
        numbers = [int(name) for name in self._files.names(self._folder) if name.isdigit()]
        return self._read(max(numbers)) if numbers else None

    def keep(self, batch: int, value: bytes) -> None:
        """Write the snapshot of a batch, and delete snapshots that no repeated batch can need."""
        self._files.write(self._path(batch), value)
        self._last = batch, value
        old = batch - _SNAPSHOTS_KEPT
        if old >= 0:
            self._files.remove(self._path(old))

    def _path(self, batch: int) -> str:
        return f"{self._folder}/{batch}"

    def _read(self, batch: int) -> bytes | None:
        return self._files.read(self._path(batch))


_INSPECTED = "key STRING, open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, bytes BIGINT"


@dataclass(frozen=True)
class Inspection:
    """Watcher lists by key, in descending order of open watches, and their totals."""

    rows: list[tuple[str, int, int | None, int | None, int]]
    keys: int
    open: int
    bytes: int

    def lines(self) -> list[str]:
        head = ("key", "open", "oldest", "next deadline", "bytes")
        body = [(key, f"{n:,}", _moment(oldest), _moment(due), f"{size:,}") for key, n, oldest, due, size in self.rows]
        widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
        left = {0, 2, 3}
        lines = [
            "  ".join(
                cell.ljust(width) if column in left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [head, *body]
        ]
        each = f", {self.bytes / self.open:,.0f} bytes per open watch" if self.open else ""
        more = f" ({self.keys - len(self.rows):,} more keys)" if self.keys > len(self.rows) else ""
        return [*lines, f"{self.open:,} open watches on {self.keys:,} keys, {self.bytes:,} bytes{each}{more}"]


def inspect(session: SparkSession | Backend, checkpoint: str, limit: int) -> Inspection:
    """Return the watcher lists of a checkpoint.

    Args:
        session: The Spark session that reads the state store.
        checkpoint: The checkpoint of the partition query, or its output folder.
        limit: Number of keys to list.

    Raises:
        UserError: The checkpoint has no state.
    """
    backend = backend_of(session)
    path = checkpoint
    inner = Layout(checkpoint).checkpoint("partitions")
    if backend.files.exists(inner):
        path = inner
    if not backend.files.exists(f"{path.rstrip('/')}/state"):
        raise UserError(f"{checkpoint}: {_missing_state_reason(backend, checkpoint)}")
    assert isinstance(backend, SparkBackend)
    spark = backend.spark
    # The state store reader needs a coordinator, which a session creates when its streams are listed.
    assert spark.streams.active is not None
    with _encoded_as_itself(path) as plain:
        states = spark.read.format("statestore").load(plain)
        value = "value.groupState" if "groupState" in states.select("value.*").columns else "value"
        rows = states.select(f"{value}.state", f"{value}.waiting").mapInPandas(_inspected, _INSPECTED).cache()
        totals = rows.selectExpr("count(*) AS keys", "sum(open) AS open", "sum(bytes) AS bytes").first()
        assert totals is not None
        listed = rows.orderBy(rows.open.desc(), rows.next_deadline_ms, rows.key).limit(limit).collect()
    return Inspection([tuple(row) for row in listed], totals.keys, totals.open or 0, totals.bytes or 0)


@contextmanager
def _encoded_as_itself(path: str) -> Iterator[str]:
    """Provide a path to a folder that is the same in a URI: of a local folder with a blank, for example, a link.

    The reader of state stores takes the encoded form of a path for its name.
    """
    folder = local_folder(path)
    if folder is None or quote(str(folder.absolute())) == str(folder.absolute()):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="purgatory-") as links:
        link = Path(links, "checkpoint")
        link.symlink_to(folder.absolute())
        yield str(link)


def _missing_state_reason(backend: Backend, out: str) -> str:
    without_spark = run_records.ran_without_spark(backend, Layout(out).table("runs"), "replay")
    if without_spark is None:
        return "no checkpoint of a replay there (the folder state is missing)"
    if without_spark:
        return (
            "the trace was replayed in one process, which leaves no state; a stream leaves one: "
            f"{COMMAND} --master 'local[*]' replay … --overwrite"
        )
    return "its replay has no state: its stream has not started yet, or the trace has no operations"


def _inspected(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for value, waiting in zip(frame["state"], frame["waiting"], strict=True):
            size = len(value) + (len(waiting) if waiting is not None else 0)
            yield _watcher_lists(decode_state(bytes(value)), size)


def _watcher_lists(state: State, size: int) -> pd.DataFrame:
    """Return the watcher lists of a group. Its `size` in bytes is divided among the keys in proportion to watches."""
    import pandas as pd

    waiting = state.parts[(state.parts["queue"] != SETTLED) & (state.parts["duplicate"] == 0)]
    waiting = waiting[state.operations["state"][waiting["operation"]] != LINGERING]
    operations = state.operations[waiting["operation"]]
    count = np.bincount(waiting["key"], minlength=len(state.names))
    weight = (count + 1) / (count + 1).sum()
    rows = []
    for number, name in enumerate(state.names):
        of_partition = operations[waiting["key"] == number]
        broker, partition, topic = key_parts(name)
        oldest = int(of_partition["t"].min()) // 1000 if len(of_partition) else None
        due = int(of_partition["deadline"].min()) if len(of_partition) else None
        rows.append(
            (f"broker {broker}: {topic}-{partition}", len(of_partition), oldest, due, round(size * weight[number]))
        )
    table = pd.DataFrame(rows, columns=["key", "open", "oldest_ms", "next_deadline_ms", "bytes"])
    return table.astype({"oldest_ms": "Int64", "next_deadline_ms": "Int64"})


def _moment(ms: int | None) -> str:
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
