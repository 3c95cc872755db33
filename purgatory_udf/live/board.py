"""What a query of a followed replay has said so far, in one small file that is replaced after each batch.

Exactly once, as the tables: a batch that is repeated after a crash finds its own number there, and adds nothing; and
the file is written before Spark takes the batch for done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# The tables of ended operations.
ENDED = ("completions", "expirations", "cancellations")
COUNTED = ("events", *ENDED, "transitions")
# Expirations are counted by the second, and forgotten after so many.
SECONDS = 60


@dataclass
class Board:
    """`counts` and the time (milliseconds of the trace) that the query has come to; by group of keys what it said last
    of its purgatories; expirations by second; consumer groups in rebalance."""

    run_id: str
    batch: int = -1
    at_ms: int = 0
    written_ms: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    expired: list[list[Any]] = field(default_factory=list)
    rebalances: dict[str, dict[str, Any]] = field(default_factory=dict)

    def note(self, batch: int, at_ms: int, sayings: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
        """Take in what the groups of a batch said; False if that has been done."""
        if batch <= self.batch:
            return False
        self.batch, self.at_ms = batch, max(self.at_ms, at_ms)
        marks = {(at, broker, purgatory): count for at, broker, purgatory, count in self.expired}
        for group, said in sayings:
            for name in COUNTED:
                # What an earlier version has written does not count all of these.
                self.counts[name] = self.counts.get(name, 0) + said.get(name, 0)
            for at, broker, purgatory, count in said.get("expired", ()):
                marks[at, broker, purgatory] = marks.get((at, broker, purgatory), 0) + count
            if "purgatories" in said:
                self.groups[group] = {name: said[name] for name in ("open", "purgatories", "oldest") if name in said}
            for name, rebalance in said.get("rebalances", {}).items():
                self.rebalances.pop(name, None)
                if rebalance is not None:
                    self.rebalances[name] = rebalance
        recent = max((at for at, _, _ in marks), default=0) - SECONDS
        self.expired = [[*mark, count] for mark, count in sorted(marks.items()) if mark[0] > recent]
        return True

    @property
    def open(self) -> int:
        return sum(group.get("open", 0) for group in self.groups.values())

    def to_json(self) -> str:
        return json.dumps(self.__dict__, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Board:
        return cls(**json.loads(text))


def oldest(boards: Iterable[Board]) -> list[dict[str, Any]]:
    """Those that have waited longest, over all purgatories: a few of each."""
    groups = (group for board in boards for group in board.groups.values())
    waiting = [operation for group in groups for operation in group.get("oldest", ())]
    return sorted(waiting, key=lambda operation: (operation["since_us"], operation["operation_id"]))
