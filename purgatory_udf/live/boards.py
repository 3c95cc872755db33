"""The boards of a run's queries, beside its checkpoints: written by the replay, read by `top`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from purgatory_udf.live.board import COUNTED, ENDED, Board
from purgatory_udf.storage.files import LocalFiles, files_of
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.outputs import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
