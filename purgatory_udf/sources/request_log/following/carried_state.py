"""State that a step leaves to the next: the time up to which events are written, cluster metadata, rows in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster.cluster_context import (
    Context,
    GivenMetadata,
    context_from_facts,
    unnamed_topics,
)
from purgatory_udf.sources.request_log.cluster.cluster_facts import ClusterFacts
from purgatory_udf.sources.request_log.cluster.cluster_metadata import NEVER
from purgatory_udf.sources.request_log.importing.import_rows import CHANGES, PARTS, REQUESTS
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.partitions.partition_status import TimeRange
from purgatory_udf.sources.request_log.requests.fetch_sessions import AttemptRun, FetchAttempt
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Append,
    Fact,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    PartitionError,
    ReaderPosition,
    RecordDeletion,
)

# Longest time from an event back to a fact that the conversion rules use for it.
LOOK_BACK_US = 15_000_000


# A fact about one moment.
Single = (
    Append
    | ReaderPosition
    | HighWatermarkReading
    | FetchAttempt
    | FollowerDelivery
    | PartitionError
    | RecordDeletion
    | FollowerCopy
)


def moment_of(fact: Single) -> int:
    """Return the time that a fact is about."""
    # The most frequent call of a step: `isinstance` is faster than `match`.
    if isinstance(fact, Append):
        return fact.start_us
    return fact.until_us if isinstance(fact, HighWatermarkReading) else fact.at_us


def kept(facts: Iterable[Fact], until_us: int) -> Iterator[Fact]:
    """Yield the facts that the next step needs.

    These are the facts of the last `LOOK_BACK_US` before `until_us`, and of the older ones the latest position of each
    reader, the latest append and the latest error.
    """
    before_us = until_us - LOOK_BACK_US
    last: dict[tuple[object, ...], Single] = {}
    for fact in _parted(facts, before_us):
        if isinstance(fact, AttemptRun) or moment_of(fact) >= before_us:
            yield fact
        elif (what := _standing(fact)) is not None:
            known = last.get(what)
            if known is None or _later(fact, known):
                last[what] = fact
    yield from last.values()


def _parted(facts: Iterable[Fact], at_us: int) -> Iterator[Fact]:
    """Yield the facts, runs of fetch attempts cut off before `at_us`."""
    for fact in facts:
        if isinstance(fact, AttemptRun):
            yield from fact.since(at_us)
        else:
            yield fact


def _standing(fact: Single) -> tuple[object, ...] | None:
    match fact:
        case ReaderPosition() | FetchAttempt():
            return type(fact), fact.replica
        case Append() if fact.base >= 0:
            return (Append,)
        case PartitionError():
            return (PartitionError,)
        case _:
            return None


def _later(fact: Single, than: Single) -> bool:
    return (moment_of(fact), getattr(fact, "base", 0)) >= (moment_of(than), getattr(than, "base", 0))


def is_said(append: Append, stretch: TimeRange) -> bool:
    """Whether the offsets of an append are known and its event is settled."""
    return append.end >= 0 and append.base >= 0 and stretch.clamp(append.check_us) < stretch.until_us


# By broker: the heartbeats answered by the thread that handled them, and the number of heartbeats.
Votes = Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class Carried:
    """State after a step; JSON can store its `snapshot`.

    Attributes:
        until_us: All events before this time are written.
        seq: Number of the last event written.
        first_us: Earliest arrival of a request.
        last_us: Latest response.
        told: Snapshot of the cluster's metadata.
        votes: Heartbeats by broker.
        nameless: Ids of topics that were written without a name; they keep the id even if a name is found later.
        asked: By topic, the number of partitions that followers have fetched.
        modern: Groups of newer protocols.
        counts: Counts by cause.
    """

    until_us: int = -NEVER
    seq: int = 0
    first_us: int = NEVER
    last_us: int = -NEVER
    told: dict[str, Any] = field(default_factory=lambda: ClusterFacts().snapshot())
    votes: dict[int, tuple[int, int]] = field(default_factory=dict)
    nameless: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    modern: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def stretch(self, newest_us: int, hold_us: int) -> TimeRange:
        """Return the time range that a step settles if its latest response was sent at `newest_us`."""
        return TimeRange(self.until_us, max(self.until_us, newest_us - hold_us))

    def context(self, telling: Iterable[Request], given: GivenMetadata, votes: Votes, racked: bool) -> Context:
        """Return the context of a step, from the carried state and all requests that are not settled yet.

        Args:
            telling: Requests with metadata of the cluster, in time order.
            given: Metadata given along with the log.
            votes: Heartbeats of these requests.
            racked: Whether consumers with `client.rack` were found.
        """
        telling_so_far = ClusterFacts.resumed(self.told)
        for request in telling:
            telling_so_far.read(request)
        own_thread = [broker for broker, (at_once, all_) in self._summed(votes).items() if at_once * 2 > all_]
        return context_from_facts(
            telling_so_far,
            given,
            (self.first_us, self.last_us),
            own_thread,
            self.asked,
            racked,
            self.modern,
            self.nameless,
        )

    def settle(
        self, until_us: int, telling: Iterable[Request], votes: Votes, topics: Iterable[str], context: Context
    ) -> None:
        """Advance to `until_us`.

        `telling` and `votes` come from the requests that this step settles; `topics` are the topics with timelines.
        """
        telling_so_far = ClusterFacts.resumed(self.told)
        for request in telling:
            telling_so_far.read(request)
        telling_so_far.forget(until_us - LOOK_BACK_US, context.name)
        self.told = telling_so_far.snapshot()
        self.votes = self._summed(votes)
        self.nameless = sorted({*self.nameless, *unnamed_topics(topics, context)})
        self.until_us = until_us

    def count(self, report: Report) -> None:
        total = Report(self.counts)
        total.add(report)
        self.counts = dict(total.counts)

    def _summed(self, votes: Votes) -> dict[int, tuple[int, int]]:
        summed = dict(self.votes)
        for broker, (at_once, all_) in votes.items():
            before = summed.get(broker, (0, 0))
            summed[broker] = (before[0] + at_once, before[1] + all_)
        return summed

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        return {
            "until_us": self.until_us,
            "seq": self.seq,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "told": self.told,
            "votes": [[broker, *votes] for broker, votes in self.votes.items()],
            "nameless": self.nameless,
            "asked": self.asked,
            "modern": self.modern,
            "counts": self.counts,
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> Carried:
        """Return the state of a `snapshot`."""
        return cls(**{**state, "votes": {broker: (at_once, all_) for broker, at_once, all_ in state["votes"]}})


# Kinds of rows (`part`) with the state of a session or of a partition, as JSON in `event`; `kind` names the session.
SESSION, SWEEP = "session", "sweep"

# `settled`: the row comes from a request that starts before the end of the step, and is not converted again.
TAKEN_APART = PARTS.append(pa.field("settled", pa.bool_()))

# Rows of timelines, and in `packed` the facts that the next step needs.
SAID = CHANGES.append(pa.field("packed", pa.binary()))

# Rows that a step keeps for the next, other than requests.
KEPT = PARTS


# Each step has a folder; the last two are kept. Spark repeats the last micro-batch if its commit is missing from the
# checkpoint, and then needs the step before it. Spark and this process may take turns.


_STATE = pa.schema([("json", pa.string())])
_CARRIED, _REQUESTS, _ROWS, _STAGES = "carried", "requests", "rows", "stages"


def step_folder(folder: str, step: int) -> str:
    return f"{folder}/step-{step}"


@dataclass(frozen=True)
class Left:
    """Result of a step for the next: its state, `requests` that are not settled yet, and all other rows (KEPT)."""

    carried: Carried
    requests: Dataset
    rows: Dataset


class StepFiles:
    """Files of the steps. A step calls `start`, `stage` and `end`; after a crash, it is repeated."""

    def __init__(self, backend: Backend, folder: str) -> None:
        self._backend, self._files = backend, backend.files
        self._folder = folder

    def start(self, step: int) -> Left:
        """Return the result of the step before."""
        self._files.remove(self._of(step))
        if not step:
            empty = self._backend.dataset_of
            return Left(Carried(), empty(REQUESTS.empty_table()), empty(KEPT.empty_table()))
        before = self._of(step - 1)
        if not self._files.exists(f"{before}/{_CARRIED}"):
            raise UserError(f"{before}: the rows held back by the last step are gone; restart with --overwrite")
        requests = self._backend.read_rows(f"{before}/{_REQUESTS}", REQUESTS)
        return Left(self.carried(step - 1), requests, self._backend.read_rows(f"{before}/{_ROWS}", KEPT))

    def carried(self, step: int) -> Carried:
        """Return the state after a step."""
        text = self._backend.read_rows(f"{self._of(step)}/{_CARRIED}", _STATE).collect().column("json")[0].as_py()
        return Carried.resumed(json.loads(text))

    def stage(self, step: int, name: str, rows: Dataset) -> Dataset:
        """Compute rows once, for several uses within a step."""
        return rows.keep(f"{self._of(step)}/{_STAGES}/{name}")

    def end(self, step: int, left: Left) -> int:
        """Write the result of a step; return the number of requests held back."""
        write = self._backend.write_rows
        held = write(left.requests, f"{self._of(step)}/{_REQUESTS}")
        write(left.rows, f"{self._of(step)}/{_ROWS}")
        state = pa.table({"json": [json.dumps(left.carried.snapshot())]}, _STATE)
        write(self._backend.dataset_of(state), f"{self._of(step)}/{_CARRIED}")
        self._files.remove(f"{self._of(step)}/{_STAGES}")
        self._files.remove(self._of(step - 2))
        return held.count()

    def _of(self, step: int) -> str:
        return step_folder(self._folder, step)
