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
OUTCOME_TABLES = ("completions", "expirations", "cancellations")
COUNTERS = ("events", *OUTCOME_TABLES, "transitions")
# Expirations are counted by the second, and forgotten after so many.
EXPIRATION_SECONDS = 60


@dataclass
class QueryStatus:
    """`counts` and the time (milliseconds of the trace) that the query has come to; by group of keys what it said last
    of its purgatories; expirations by second; consumer groups in rebalance."""

    run_id: str
    batch: int = -1
    at_ms: int = 0
    written_ms: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    expired: list[list[Any]] = field(default_factory=list)
    rebalances: dict[str, dict[str, Any]] = field(default_factory=dict)

    def note(self, batch: int, at_ms: int, updates: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
        """Take in what the groups of a batch said; False if that has been done."""
        if batch <= self.batch:
            return False
        self.batch, self.at_ms = batch, max(self.at_ms, at_ms)
        marks = {(at, broker, purgatory): count for at, broker, purgatory, count in self.expired}
        for group, said in updates:
            for name in COUNTERS:
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
        recent = max((at for at, _, _ in marks), default=0) - EXPIRATION_SECONDS
        self.expired = [[*mark, count] for mark, count in sorted(marks.items()) if mark[0] > recent]
        return True

    @property
    def open(self) -> int:
        return sum(group.get("open", 0) for group in self.groups.values())

    def to_json(self) -> str:
        return json.dumps(self.__dict__, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> QueryStatus:
        return cls(**json.loads(text))


def longest_waits(statuses: Iterable[QueryStatus]) -> list[dict[str, Any]]:
    """Those that have waited longest, over all purgatories: a few of each."""
    groups = (group for status in statuses for group in status.groups.values())
    waiting = [operation for group in groups for operation in group.get("oldest", ())]
    return sorted(waiting, key=lambda operation: (operation["since_us"], operation["operation_id"]))


# The statuses of a run's queries, beside its checkpoints: written by the replay, read by `top`.


def status_folder(layout: Layout) -> str:
    return f"{layout.machinery}/live"


class StatusFiles:
    """The status files of a run's queries."""

    def __init__(self, spark: SparkSession, layout: Layout, run_id: str, names: Iterable[str]) -> None:
        self._folder = status_folder(layout)
        # On this machine a status is replaced in one step: `top` reads beside us.
        self._files = LocalFiles() if local_folder(self._folder) is not None else files_of(spark)
        self._statuses = {name: self._load(name) or QueryStatus(run_id) for name in names}

    def note(self, name: str, batch: int, at_ms: int, updates: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        status = self._statuses[name]
        if status.note(batch, at_ms, updates):
            status.written_ms = int(time.time() * 1000)
            self._save(name, status)

    @property
    def open(self) -> int:
        return sum(status.open for status in self._statuses.values())

    def counts(self) -> dict[str, Any]:
        """As `runs` has them; transitions only where there are groups."""
        total = {name: sum(status.counts.get(name, 0) for status in self._statuses.values()) for name in COUNTERS}
        transitions = total.pop("transitions")
        operations = sum(total[name] for name in OUTCOME_TABLES) + self.open
        groups = {"groups": {"transitions": transitions}} if transitions else {}
        return {**total, "operations": operations, "open": self.open, **groups}

    def _load(self, name: str) -> QueryStatus | None:
        text = self._read(name)
        return QueryStatus.from_json(text) if text else None

    def _read(self, name: str) -> str | None:
        value = self._files.read(f"{self._folder}/{name}.json")
        return value.decode() if value is not None else None

    def _save(self, name: str, status: QueryStatus) -> None:
        self._files.write(f"{self._folder}/{name}.json", status.to_json().encode())


def read_status_files(out: str) -> dict[str, QueryStatus]:
    """The statuses that lie there now, by query; none if no followed replay has written there."""
    folder = local_folder(status_folder(Layout(out)))
    files = sorted(folder.glob("[!.]*.json")) if folder is not None and folder.is_dir() else []
    return {file.stem: QueryStatus.from_json(file.read_text(encoding="utf-8")) for file in files}
