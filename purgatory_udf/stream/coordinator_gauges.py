"""Gauges that no call sees whole: those of the purgatories that all consumer groups of a broker share.

Who waits there, and when purgatories read what, follows from all of a broker's groups together. It is little, whatever
the batch: so it is worked out where batches are written, and kept for the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from purgatory_udf.groups.ledger import Ledger
from purgatory_udf.storage.snapshots import Snapshots


@dataclass
class CoordinatorGauges:
    ledger: Ledger
    snapshots: Snapshots
    run_id: str

    def readings(self, number: int, waits: Iterable[bytes], horizon_ms: int) -> pa.Table:
        """What is known for good once the calls of this batch have said who waits, and how far all have come."""
        before = self.snapshots.before(number)
        if before is not None:
            self.ledger.take_up(before)
        return self.ledger.tell(waits, horizon_ms, self.run_id)

    def keep(self, number: int) -> None:
        self.snapshots.keep(number, self.ledger.to_bytes())

    def said(self) -> dict[str, Any]:
        """For `top`."""
        return {"open": self.ledger.open, "purgatories": self.ledger.standing()}

    def left_open(self) -> int:
        """Of a trace that has ended: how many operations end only after it."""
        latest = self.snapshots.latest()
        if latest is not None:
            self.ledger.take_up(latest)
        return self.ledger.left_open
