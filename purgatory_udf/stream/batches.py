"""What a query's batches have said of themselves: each once, though Spark shows the last hundred of them at every look.

A query may go on for months: nothing is kept of a batch that Spark does not show any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class Batches:
    """`events`: how many rows of its first source the query has taken."""

    def __init__(self) -> None:
        self.events = 0
        self._rows: dict[int, int] = {}

    def new(self, recent: Sequence[StreamingQueryProgress]) -> list[StreamingQueryProgress]:
        """Those that were not told of before."""
        fresh = []
        for progress in recent:
            known = self._rows.get(progress.batchId)
            # A query without input says so under the number that its next batch will have.
            if known is None or known < progress.numInputRows:
                self._rows[progress.batchId] = progress.numInputRows
                self.events += progress.sources[0].numInputRows if progress.sources else 0
                fresh.append(progress)
        self._rows = {progress.batchId: self._rows[progress.batchId] for progress in recent}
        return fresh

    def __len__(self) -> int:
        """How many are kept in mind."""
        return len(self._rows)
