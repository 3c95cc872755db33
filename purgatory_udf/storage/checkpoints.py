"""A query's checkpoint, before Spark sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from purgatory_udf.backend.file_system import files_of
from purgatory_udf.storage.delta_tables import is_near

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What a batch is about to do, and that it has been done: one entry a batch.
_OFFSETS, _COMMITS = "offsets", "commits"


# How Spark puts a checkpoint's files in their place. Its usual way asks whether each is a link, for which Hadoop starts
# a process on a local disk. The other way puts one file in the place of another only where that is a disk's own way.
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_OF_DISKS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def prepared(spark: SparkSession, path: str) -> str:
    """The same path, for a query that is about to be started. Who has named a way of his own has it."""
    if not spark.sparkContext.getConf().contains(_MANAGER):
        if is_near(spark, path):
            spark.conf.set(_MANAGER, _OF_DISKS)
        else:
            spark.conf.unset(_MANAGER)
    return _swept(spark, path)


def rests_at_ms(spark: SparkSession, path: str) -> int | None:
    """The watermark that the next batch will have, if the last one is done; None while one is on record that is to be
    done again, or before there is any."""
    begun, done = (_entries(spark, f"{path}/{name}") for name in (_OFFSETS, _COMMITS))
    if not done or max(begun) > max(done):
        return None
    said = files_of(spark).read(f"{path}/{_COMMITS}/{max(done)}") or b""
    try:
        # A version, then what holds for the batch.
        return int(json.loads(said.splitlines()[1])["nextBatchWatermarkMs"])
    except (IndexError, KeyError, ValueError):
        # A damaged one: what is wrong with it, Spark says when it reads it.
        return None


def _swept(spark: SparkSession, path: str) -> str:
    """The same path, without the unfinished first entry of a log; raises if an entry is missing that was there.

    An entry is written beside its place and then moved there. A process that is killed between the two leaves a file
    that is no entry, and Spark refuses to begin where it finds any file. A batch that is done was on record before: if
    it is not, Spark would take other rows for those of this batch, which the tables then have already.
    """
    begun, done = (_entries(spark, f"{path}/{name}") for name in (_OFFSETS, _COMMITS))
    if done and max(done) not in begun:
        raise FileNotFoundError(f"{path}/{_OFFSETS}/{max(done)} does not exist, and the batch is done")
    return path


def _entries(spark: SparkSession, folder: str) -> set[int]:
    names = files_of(spark).names(folder)
    if names and all(name.startswith(".") for name in names):
        files_of(spark).remove(folder)
    return {int(name) for name in names if name.isdigit()}


# What a query's sink remembers between batches, as one file a batch.
#
# A batch begins with what the batch before it has left. It writes its own before Spark takes it for done, so a batch
# that is repeated after a crash finds the same past, and replaces what it had written. Two files are kept.


_KEPT = 2


class Snapshots:
    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._files, self._folder = files_of(spark), folder.rstrip("/")
        self._last: tuple[int, bytes] | None = None

    def before(self, batch: int) -> bytes | None:
        """What the batch before this one has left; None at the beginning."""
        if self._last is not None and self._last[0] == batch - 1:
            return self._last[1]
        return self._read(batch - 1) if batch > 0 else None

    def latest(self) -> bytes | None:
        numbers = self._numbers()
        return self._read(max(numbers)) if numbers else None

    def keep(self, batch: int, value: bytes) -> None:
        self._files.write(self._path(batch), value)
        self._last = batch, value
        old = batch - _KEPT
        if old >= 0:
            self._files.remove(self._path(old))

    def _path(self, batch: int) -> str:
        return f"{self._folder}/{batch}"

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._files.names(self._folder) if name.isdigit()]

    def _read(self, batch: int) -> bytes | None:
        return self._files.read(self._path(batch))
