"""What a query's sink remembers between batches, as one file a batch.

A batch begins with what the batch before it has left. It writes its own before Spark takes it for done, so a batch that
is repeated after a crash finds the same past, and replaces what it had written. Two files are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.storage.files import files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
