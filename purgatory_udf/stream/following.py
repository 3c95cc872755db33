"""What a followed replay says of itself: how much is open, at once; its counts in `runs`, now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from purgatory_udf.live.boards import Boards
from purgatory_udf.storage import runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Whose queries keep a board: of partitions, of the brokers behind them, of consumer groups.
QUERIES = ("partitions", "brokers", "groups")

# Each time is one more version of the table.
_EVERY_SECONDS = 60.0


class Following:
    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        run: Run,
        boards: Boards,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._table, self._run, self._boards = spark, layout.table("runs"), run, boards
        self._clock = clock
        self._saved: dict[str, Any] = run.counts
        self._saved_at: float | None = None

    @property
    def open(self) -> int:
        return self._boards.open

    def look(self) -> None:
        """The first counts are saved at once."""
        now = self._clock()
        if self._saved_at is None or now - self._saved_at >= _EVERY_SECONDS:
            self._save(now)

    def stop(self) -> None:
        self._save(self._clock())

    def _save(self, now: float) -> None:
        counts = self._boards.counts()
        if counts == self._saved or not counts["events"]:
            return
        self._saved_at = now
        try:
            runs.save(self._spark, self._table, replace(self._run, counts=counts))
            self._saved = counts
        except Exception as error:
            # Another job may have written its row at this moment; and the interrupt that stops us may have stopped the
            # JVM, too. It is no reason to stop, and there is a next time.
            log.debug("counts are not saved: %s", error)
