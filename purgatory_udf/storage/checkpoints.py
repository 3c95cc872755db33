"""Checkpoints of streaming queries, prepared for Spark, and snapshots that a sink keeps between batches."""

from __future__ import annotations

import json

from purgatory_udf.backend.backend import Session, SparkBackend, backend_of
from purgatory_udf.backend.file_system import Files

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
        if backend.is_local(path):
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
