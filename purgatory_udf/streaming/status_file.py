"""What a query of a followed replay has said so far, in one small file that is replaced after each batch.

Exactly once, as the tables: a batch that is repeated after a crash finds its own number there, and adds nothing; and
the file is written before Spark takes the batch for done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.file_system import LocalFiles, files_of
from purgatory_udf.storage.output_folder import Layout, local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


# The boards of a run's queries, beside its checkpoints: written by the replay, read by `top`.


def folder_of(layout: Layout) -> str:
    return f"{layout.machinery}/live"


class Boards:
    """All boards of a run that this process writes. Their queries' batches run side by side, one query's one by one."""

    def __init__(self, spark: SparkSession, layout: Layout, run_id: str, names: Iterable[str]) -> None:
        self._folder = folder_of(layout)
        # On this machine a board is replaced in one step: `top` reads beside us.
        self._files = LocalFiles() if local_folder(self._folder) is not None else files_of(spark)
        self._boards = {name: self._load(name) or Board(run_id) for name in names}

    def note(self, name: str, batch: int, at_ms: int, sayings: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        board = self._boards[name]
        if board.note(batch, at_ms, sayings):
            board.written_ms = int(time.time() * 1000)
            self._save(name, board)

    @property
    def open(self) -> int:
        return sum(board.open for board in self._boards.values())

    def counts(self) -> dict[str, Any]:
        """As `runs` has them; transitions only where there are groups."""
        total = {name: sum(board.counts.get(name, 0) for board in self._boards.values()) for name in COUNTED}
        transitions = total.pop("transitions")
        operations = sum(total[name] for name in ENDED) + self.open
        groups = {"groups": {"transitions": transitions}} if transitions else {}
        return {**total, "operations": operations, "open": self.open, **groups}

    def _load(self, name: str) -> Board | None:
        text = self._read(name)
        return Board.from_json(text) if text else None

    def _read(self, name: str) -> str | None:
        value = self._files.read(f"{self._folder}/{name}.json")
        return value.decode() if value is not None else None

    def _save(self, name: str, board: Board) -> None:
        self._files.write(f"{self._folder}/{name}.json", board.to_json().encode())


def read(out: str) -> dict[str, Board]:
    """The boards that lie there now, by query; none if no followed replay has written there."""
    folder = local_folder(folder_of(Layout(out)))
    files = sorted(folder.glob("[!.]*.json")) if folder is not None and folder.is_dir() else []
    return {file.stem: Board.from_json(file.read_text(encoding="utf-8")) for file in files}
