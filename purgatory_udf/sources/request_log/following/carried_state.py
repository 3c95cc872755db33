"""What a step leaves to the next beside its rows: how far all is written, and what was told of the cluster."""

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

# Which facts of a partition the next step still needs, and what of them is fixed by now.


# How far back the rules look from what they date.
LOOK_BACK_US = 15_000_000


# A fact that tells of one moment.
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
    """Of what a fact tells."""
    # Of all that a step does it is done most often: no pattern is matched.
    if isinstance(fact, Append):
        return fact.start_us
    return fact.until_us if isinstance(fact, HighWatermarkReading) else fact.at_us


def kept(facts: Iterable[Fact], until_us: int) -> Iterator[Fact]:
    """Those of the last seconds before `until_us`; of older ones the last that say where a reader, the log and the
    leadership were."""
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
    """Tries do not lie before and after."""
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
    """Whether its place in the log has been told, and stays."""
    return append.end >= 0 and append.base >= 0 and stretch.clamp(append.check_us) < stretch.until_us


# Of each broker: how many heartbeats it answered in the thread that handled them, and how many in all.
Votes = Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class Carried:
    """All before `until_us` is written, up to the event numbered `seq`.

    `nameless` are topic ids that stand for their topics in what is written, whatever name is told of them later;
    `asked`: how many partitions of a topic followers have asked for. `modern`: groups of newer protocols.
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
        """What a step settles whose newest line was answered at `newest_us`."""
        return TimeRange(self.until_us, max(self.until_us, newest_us - hold_us))

    def context(self, telling: Iterable[Request], given: GivenMetadata, votes: Votes, racked: bool) -> Context:
        """As far as is known: `telling` and `votes` are of all requests that are not settled yet."""
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
        """Go on to `until_us`: `telling` and `votes` are of the requests that this settles, `topics` are those of which
        something is said by now."""
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
        """What JSON can keep."""
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
        """From a `snapshot`."""
        return cls(**{**state, "votes": {broker: (at_once, all_) for broker, at_once, all_ in state["votes"]}})


# Rows of one step on their way between its tasks, and of what it keeps for the next.


# What is kept besides facts and operations: a session's state and a partition's, as JSON in `event`; `kind` names the
# session.
SESSION, SWEEP = "session", "sweep"

# `settled`: it comes from a request that begins before the end of the step, and will not be read again.
TAKEN_APART = PARTS.append(pa.field("settled", pa.bool_()))

# Facts are among them: what is kept of a partition.
SAID = CHANGES.append(pa.field("packed", pa.binary()))

# All that is kept but requests.
KEPT = PARTS


# What steps leave to the next in files: one folder a step, of which the last two stay.
#
# The step before the last is needed when the last is taken again, because its end was not yet on record. Whether one
# was taken by Spark or in this process, either may take the next.


_STATE = pa.schema([("json", pa.string())])
_CARRIED, _REQUESTS, _ROWS, _STAGES = "carried", "requests", "rows", "stages"


def step_folder(folder: str, step: int) -> str:
    return f"{folder}/step-{step}"


@dataclass(frozen=True)
class Left:
    """What a step leaves: its state, `requests` that are not settled yet, and all other rows (KEPT)."""

    carried: Carried
    requests: Dataset
    rows: Dataset


class StepFiles:
    """The files of steps. A step starts, stages rows and ends, in this order; one that did not end can start again."""

    def __init__(self, backend: Backend, folder: str) -> None:
        self._backend, self._files = backend, backend.files
        self._folder = folder

    def start(self, step: int) -> Left:
        """Return what the step before left."""
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
        """Return the state that a step left."""
        text = self._backend.read_rows(f"{self._of(step)}/{_CARRIED}", _STATE).collect().column("json")[0].as_py()
        return Carried.resumed(json.loads(text))

    def stage(self, step: int, name: str, rows: Dataset) -> Dataset:
        """Compute rows once, for several uses within a step."""
        return rows.keep(f"{self._of(step)}/{_STAGES}/{name}")

    def end(self, step: int, left: Left) -> int:
        """Write what a step leaves; return the number of requests that are held back."""
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
