"""The status of a followed replay: one small file per query, which `top` reads.

A file is replaced after each batch, before Spark commits the batch to its checkpoint. It contains the number of the
batch, so a batch that is repeated after a crash is not counted twice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from purgatory_udf.backend.file_system import LocalFiles
from purgatory_udf.storage.output_folder import Layout, local_folder

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend


OUTCOME_TABLES = ("completions", "expirations", "cancellations")
COUNTERS = ("events", *OUTCOME_TABLES, "transitions")
# Expirations are counted per second of the trace, for this number of seconds.
EXPIRATION_SECONDS = 60
# Attributes of a status with such counts.
_BY_SECOND = ("expired", "moved", "rebalanced")


@dataclass
class QueryStatus:
    """The status of one query. The attributes are the keys of the file's JSON object.

    Attributes:
        run_id: Id of the run.
        batch: Number of the last batch, -1 before the first.
        at_ms: Time of the trace up to which the query has decided.
        written_ms: Wall-clock time of the last write.
        counts: Values of `COUNTERS` since the start of the run.
        groups: By group of keys, the last update that had gauges: `open`, `purgatories`, `oldest`.
        expired: Lists of second, broker, purgatory and number of expirations, for the last `EXPIRATION_SECONDS`.
        moved: Lists of second, broker and number of operations that ended there because their leader moved, as above.
        rebalanced: Lists of second, broker, group and number of rebalances that started, as above.
        rebalances: Consumer groups in rebalance, by their key.
    """

    run_id: str
    batch: int = -1
    at_ms: int = 0
    written_ms: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    expired: list[list[Any]] = field(default_factory=list)
    moved: list[list[Any]] = field(default_factory=list)
    rebalanced: list[list[Any]] = field(default_factory=list)
    rebalances: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_batch(self, batch: int, at_ms: int, updates: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
        """Apply the updates of a batch, as pairs of group and update. Return False if it has been applied already."""
        if batch <= self.batch:
            return False
        self.batch, self.at_ms = batch, max(self.at_ms, at_ms)
        counted = {name: Counter({tuple(key): count for *key, count in getattr(self, name)}) for name in _BY_SECOND}
        for group, update in updates:
            for name in COUNTERS:
                # A file of an older version may lack a counter.
                self.counts[name] = self.counts.get(name, 0) + update.get(name, 0)
            for name, counts in counted.items():
                for *key, count in update.get(name, ()):
                    counts[tuple(key)] += count
            if "purgatories" in update:
                names = ("open", "purgatories", "oldest")
                self.groups[group] = {name: update[name] for name in names if name in update}
            for name, rebalance in update.get("rebalances", {}).items():
                self.rebalances.pop(name, None)
                if rebalance is not None:
                    self.rebalances[name] = rebalance
        for name, counts in counted.items():
            first = max((second for second, *_ in counts), default=0) - EXPIRATION_SECONDS
            setattr(self, name, [[*key, count] for key, count in sorted(counts.items()) if key[0] > first])
        return True

    @property
    def open(self) -> int:
        """The number of open operations."""
        return sum(group.get("open", 0) for group in self.groups.values())

    def to_json(self) -> str:
        return json.dumps(self.__dict__, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> QueryStatus:
        return cls(**json.loads(text))


def longest_waits(statuses: Iterable[QueryStatus]) -> list[dict[str, Any]]:
    """Return the listed operations of every purgatory, in the order in which they started."""
    groups = (group for status in statuses for group in status.groups.values())
    waiting = [operation for group in groups for operation in group.get("oldest", ())]
    return sorted(waiting, key=lambda operation: (operation["since_us"], operation["operation_id"]))


def status_folder(layout: Layout) -> str:
    """Return the folder of the status files."""
    return f"{layout.internal}/live"


class StatusFiles:
    """The status files of a run's queries, as the replay writes them.

    Batches of different queries may be added concurrently, those of one query one by one.
    """

    def __init__(self, backend: Backend, layout: Layout, run_id: str, names: Iterable[str]) -> None:
        self._folder = status_folder(layout)
        # `LocalFiles` replaces a file atomically, so `top` never reads half of one.
        self._files = LocalFiles() if local_folder(self._folder) is not None else backend.files
        self._statuses = {name: self._load(name) or QueryStatus(run_id) for name in names}

    def add_batch(self, name: str, batch: int, at_ms: int, updates: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Apply the updates of a query's batch and write its file, unless that was done before."""
        status = self._statuses[name]
        if status.add_batch(batch, at_ms, updates):
            status.written_ms = int(time.time() * 1000)
            self._save(name, status)

    @property
    def open(self) -> int:
        """The number of open operations."""
        return sum(status.open for status in self._statuses.values())

    def counts(self) -> dict[str, Any]:
        """Return the sums of the counts over all queries, in the form of `counts` in the table `runs`.

        `groups` is absent as long as no group has changed its state.
        """
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
    """Return the current status of each query, empty if no followed replay has written to `out`."""
    folder = local_folder(status_folder(Layout(out)))
    files = sorted(folder.glob("[!.]*.json")) if folder is not None and folder.is_dir() else []
    return {file.stem: QueryStatus.from_json(file.read_text(encoding="utf-8")) for file in files}
