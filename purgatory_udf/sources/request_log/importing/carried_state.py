"""State that a step of a followed log leaves for the next: the time up to which events are written, and rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import (
    NO_REMOTE_WAITS,
    Context,
    GivenMetadata,
    RemoteWaits,
    context_from_facts,
    unnamed_topics,
)
from purgatory_udf.sources.request_log.cluster_facts import ClusterFacts
from purgatory_udf.sources.request_log.cluster_metadata import NEVER, TopicSize
from purgatory_udf.sources.request_log.fact_columns import attempt_rows_of_each, order_by
from purgatory_udf.sources.request_log.fact_kinds import (
    BLOCK_KINDS,
    Append,
    AttemptRun,
    Booleans,
    ConsumerRead,
    CoordinatorAnswer,
    Fact,
    FactBlock,
    FetchAttempt,
    HighWatermarkReading,
    Integers,
    PartitionError,
    ReaderPosition,
    SingleFact,
    fields_of,
)
from purgatory_udf.sources.request_log.importing.broker_pauses import FollowedPauses
from purgatory_udf.sources.request_log.importing.import_rows import CHANGES, PARTS, REQUESTS
from purgatory_udf.sources.request_log.importing.settings_evidence import FollowedSettings
from purgatory_udf.sources.request_log.logged_request import Request
from purgatory_udf.sources.request_log.partition_status import TimeRange

# Format of the state between steps. Increase it with every change of `CarriedState` or of the rows.
FORMAT = 10

# Longest time from an event back to a fact that the conversion rules use for it.
LOOK_BACK_US = 15_000_000


_TIMES = {Append: "start_us", HighWatermarkReading: "until_us", ConsumerRead: "until_us"}
_MOMENTS: dict[type[Fact], Callable[[Any], int]] = {
    kind: attrgetter(_TIMES.get(kind, "at_us")) for kind in get_args(SingleFact) if kind is not AttemptRun
}
# Kinds of old facts of which the latest is carried over, and those of which the latest of each reader is.
_RETAINED = (Append, PartitionError, CoordinatorAnswer)
_RETAINED_BY_READER = (ReaderPosition, FetchAttempt)


def facts_to_carry(partitions: Iterable[Iterable[Fact]], until_us: int) -> list[list[Fact]]:
    """Return the facts of each partition that the next step needs, those of frequent kinds in one block of each kind.

    These are the facts of the last `LOOK_BACK_US` before `until_us`, and of the older ones the latest position of each
    reader, the latest append, the latest error and the latest answer of the coordinator.
    """
    before_us = until_us - LOOK_BACK_US
    carried: list[list[Fact]] = []
    attempts: list[list[FetchAttempt | AttemptRun | FactBlock]] = []
    blocks: dict[type[SingleFact], list[tuple[int, Integers]]] = {}
    appends: _LatestAppends = {}
    for number, facts in enumerate(partitions):
        kept: list[Fact] = []
        attempts_of_partition: list[FetchAttempt | AttemptRun | FactBlock] = []
        last: dict[type[Fact], tuple[tuple[int, int], Fact]] = {}
        for fact in facts:
            kind = type(fact)
            if isinstance(fact, (FetchAttempt, AttemptRun)):
                attempts_of_partition.append(fact)
            elif isinstance(fact, FactBlock):
                if fact.has_attempts:
                    attempts_of_partition.append(fact)
                else:
                    kind_of_block, rows = fact.rows()
                    blocks.setdefault(kind_of_block, []).append((number, rows))
            elif kind in BLOCK_KINDS:
                rows = np.array([msgspec.structs.astuple(fact)], np.int64).T
                blocks.setdefault(kind, []).append((number, rows))
            elif (at_us := _MOMENTS[kind](fact)) >= before_us:
                kept.append(fact)
            elif kind in _RETAINED:
                base = getattr(fact, "base", 0)
                # Without a base, the append's offsets are unknown.
                if base >= 0 and (kind not in last or (at_us, base) >= last[kind][0]):
                    last[kind] = (at_us, base), fact
        if Append in last:
            appends[number] = last.pop(Append)
        carried.append([*kept, *(fact for _, fact in last.values())])
        attempts.append(attempts_of_partition)
    if any(attempts):
        rows, bounds = attempt_rows_of_each(attempts)
        numbers = np.repeat(np.arange(len(attempts)), np.diff(bounds))
        _carry_blocks(FetchAttempt, rows, numbers, before_us, carried, appends)
    for kind_of_blocks, parts in blocks.items():
        rows = np.concatenate([each for _, each in parts], axis=1)
        numbers = np.repeat([number for number, _ in parts], [each.shape[1] for _, each in parts])
        _carry_blocks(kind_of_blocks, rows, numbers, before_us, carried, appends)
    for number, (_, append) in appends.items():
        carried[number].append(append)
    return carried


# The latest old append of each partition, by number, with its time and base.
_LatestAppends = dict[int, tuple[tuple[int, int], Fact]]


def _carry_blocks(
    kind: type[SingleFact],
    rows: Integers,
    numbers: Integers,
    before_us: int,
    carried: Sequence[list[Fact]],
    appends: _LatestAppends,
) -> None:
    """Add a block of the facts that the next step needs to the facts of each partition.

    Args:
        kind: Their kind.
        rows: A row for each field, as in a `FactBlock`.
        numbers: The numbers of their partitions, in order.
        before_us: The end of the old facts.
        carried: The facts of each partition.
        appends: Appends that are not in blocks; removes those that are older than one in a block.
    """
    times = rows[_place_of(kind, _TIMES.get(kind, "at_us"))]
    is_kept = times >= before_us
    if kind in _RETAINED_BY_READER:
        old = np.flatnonzero(~is_kept)
        readers = rows[_place_of(kind, "replica")][old]
        is_kept[old[_latest((numbers[old], readers), (times[old],))]] = True
    elif kind is Append:
        bases = rows[_place_of(kind, "base")]
        old = np.flatnonzero(~is_kept & (bases >= 0))
        for row in old[_latest((numbers[old],), (times[old], bases[old]))].tolist():
            number, moment = int(numbers[row]), (int(times[row]), int(bases[row]))
            if number not in appends or appends[number][0] <= moment:
                appends.pop(number, None)
                is_kept[row] = True
    kept = np.flatnonzero(is_kept)
    rows = rows[:, kept]
    bounds = np.searchsorted(numbers[kept], np.arange(len(carried) + 1)).tolist()
    for of_partition, (begin, end) in zip(carried, pairwise(bounds), strict=True):
        if begin < end:
            of_partition.append(FactBlock.of(kind, rows[:, begin:end]))


def _latest(groups: Sequence[Integers], times: Sequence[Integers]) -> Integers:
    """Return the place of the latest fact of each group; groups and times are given by several numbers."""
    order = order_by(*groups, *times)
    is_last = np.ones(len(order), bool)
    is_last[:-1] = np.any([each[order[1:]] != each[order[:-1]] for each in groups], axis=0)
    return order[is_last]


@cache
def _place_of(kind: type[SingleFact], name: str) -> int:
    return list(fields_of(kind)).index(name)


def are_settled(base: Integers, end: Integers, check_us: Integers, time_range: TimeRange) -> Booleans:
    """Return whether the offsets of each append are known, and its event is before the end of the time range."""
    return (base >= 0) & (end >= 0) & (np.maximum(check_us, time_range.from_us) < time_range.until_us)


# By broker: the heartbeats answered by the thread that handled them, and the number of heartbeats.
HeartbeatCounts = Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class CarriedState:
    """State after a step of a followed log.

    Attributes:
        until_us: All events before this time are written.
        seq: Number of the last event written.
        first_us: Earliest arrival of a request.
        last_us: Latest response.
        cluster_facts: Snapshot of the cluster's metadata.
        heartbeats: Counts of heartbeats by broker.
        unnamed: Ids of topics that were written without a name; they keep the id even if a name is found later.
        fetched_counts: By topic, the number of partitions that followers have fetched.
        modern_groups: Streams and share groups.
        new_brokers: Brokers with the group coordinator of Kafka 4.0.
        has_consumer_groups: Whether a heartbeat of a consumer group was found.
        topic_sizes: Partition counts in the `topic` events that are written.
        remote_waits: Topics of requests that waited for remote storage.
        pauses: Evidence of pauses of brokers.
        settings: Evidence of settings of brokers.
        counts: Counts by cause.
    """

    until_us: int = -NEVER
    seq: int = 0
    first_us: int = NEVER
    last_us: int = -NEVER
    cluster_facts: dict[str, Any] = field(default_factory=lambda: ClusterFacts().snapshot())
    heartbeats: dict[int, tuple[int, int]] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    fetched_counts: dict[str, int] = field(default_factory=dict)
    modern_groups: list[str] = field(default_factory=list)
    remote_waits: RemoteWaits = NO_REMOTE_WAITS
    new_brokers: list[int] = field(default_factory=list)
    has_consumer_groups: bool = False
    topic_sizes: dict[str, int] = field(default_factory=dict)
    pauses: FollowedPauses = field(default_factory=FollowedPauses)
    settings: FollowedSettings = field(default_factory=FollowedSettings)
    counts: dict[str, int] = field(default_factory=dict)

    def time_range(self, newest_us: int, hold_us: int) -> TimeRange:
        """Return the time range that a step settles: up to `hold_us` before its latest response, at `newest_us`."""
        return TimeRange(self.until_us, max(self.until_us, newest_us - hold_us))

    def context(
        self,
        metadata_requests: Iterable[Request],
        given: GivenMetadata,
        heartbeats: HeartbeatCounts,
        follower_reads: bool,
    ) -> Context:
        """Return the context of a step, from the carried state and all requests that are not settled yet.

        Args:
            metadata_requests: Requests with metadata of the cluster, in time order.
            given: Metadata given along with the log.
            heartbeats: Counts of the heartbeats among all requests that are not settled yet.
            follower_reads: Whether consumers with `client.rack` were found.
        """
        facts = ClusterFacts.resumed(self.cluster_facts)
        for request in metadata_requests:
            facts.read(request)
        own_thread = [
            broker
            for broker, (own_thread, total) in self._with_earlier_heartbeats(heartbeats).items()
            if own_thread * 2 > total
        ]
        return context_from_facts(
            facts,
            given,
            (self.first_us, self.last_us),
            own_thread,
            self.fetched_counts,
            follower_reads,
            self.modern_groups,
            self.new_brokers,
            self.unnamed,
            self.remote_waits,
        )

    def new_sizes(self, context: Context, span: TimeRange) -> list[TopicSize]:
        """Return the sizes of topics that are to be written in `span`, and record them as written.

        A size that was found too late gets the start of the span.
        """
        sizes = []
        for at_us, topic, partitions in context.topic_sizes if self.has_consumer_groups else ():
            if at_us < span.until_us and (span.clamp(at_us) == at_us or self.topic_sizes.get(topic, 0) < partitions):
                sizes.append(TopicSize(span.clamp(at_us), topic, partitions))
                self.topic_sizes[topic] = partitions
        return sizes

    def settle(
        self,
        until_us: int,
        metadata_requests: Iterable[Request],
        heartbeats: HeartbeatCounts,
        topics: Iterable[str],
        context: Context,
    ) -> None:
        """Record that all events before `until_us` are written, and take over the cluster facts of the step.

        `metadata_requests` and `heartbeats` come from the requests before `until_us`, `topics` from the partitions with
        events. Topics without a known name keep their id as name in all later steps.
        """
        facts = ClusterFacts.resumed(self.cluster_facts)
        for request in metadata_requests:
            facts.read(request)
        facts.forget(until_us - LOOK_BACK_US, context.name)
        self.cluster_facts = facts.snapshot()
        self.heartbeats = self._with_earlier_heartbeats(heartbeats)
        self.unnamed = sorted({*self.unnamed, *unnamed_topics(topics, context)})
        self.until_us = until_us

    def count(self, report: Report) -> None:
        total = Report(self.counts)
        total.add(report)
        self.counts = dict(total.counts)

    def _with_earlier_heartbeats(self, heartbeats: HeartbeatCounts) -> dict[int, tuple[int, int]]:
        summed = dict(self.heartbeats)
        for broker, (own_thread, total) in heartbeats.items():
            before = summed.get(broker, (0, 0))
            summed[broker] = (before[0] + own_thread, before[1] + total)
        return summed

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a JSON object, from which `resumed` restores it."""
        return {
            "format": FORMAT,
            "until_us": self.until_us,
            "seq": self.seq,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "cluster_facts": self.cluster_facts,
            "heartbeats": [[broker, *heartbeats] for broker, heartbeats in self.heartbeats.items()],
            "unnamed": self.unnamed,
            "fetched_counts": self.fetched_counts,
            "modern_groups": self.modern_groups,
            "remote_waits": self.remote_waits.snapshot(),
            "new_brokers": self.new_brokers,
            "has_consumer_groups": self.has_consumer_groups,
            "topic_sizes": self.topic_sizes,
            "pauses": self.pauses.snapshot(),
            "settings": self.settings.snapshot(),
            "counts": self.counts,
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> CarriedState:
        """Return the state of a `snapshot`."""
        fields = {name: value for name, value in state.items() if name != "format"}
        heartbeats = {broker: (own_thread, total) for broker, own_thread, total in state["heartbeats"]}
        parts = {
            "remote_waits": RemoteWaits.resumed(state["remote_waits"]),
            "pauses": FollowedPauses.resumed(state["pauses"]),
            "settings": FollowedSettings.resumed(state["settings"]),
        }
        return cls(**{**fields, "heartbeats": heartbeats, **parts})


# Kinds of rows (`part`) with the state of a session or of a partition, as JSON in `event`; `kind` names the session.
SESSION, SHARE_GROUP, SWEEP = "session", "share group", "sweep"

# `settled`: the row comes from a request that starts before the end of the step, and is not converted again.
CONVERTED = PARTS.append(pa.field("settled", pa.bool_()))

# Rows of timelines, and in `packed` the facts that the next step needs.
TIMELINES = CHANGES.append(pa.field("packed", pa.binary()))

# Rows that a step keeps for the next, other than requests.
CARRIED_ROWS = PARTS


# Each step has a folder; the last two are kept. Spark repeats the last micro-batch if its commit is missing from the
# checkpoint, and then needs the step before it. Spark and this process may write alternate steps.


_STATE = pa.schema([("json", pa.string())])
_CARRIED, _REQUESTS, _ROWS, _STAGES = "carried", "requests", "rows", "stages"


def step_folder(folder: str, step: int) -> str:
    """Return the path of a step's folder below `folder`."""
    return f"{folder}/step-{step}"


@dataclass(frozen=True)
class StepState:
    """The input of a step: the carried state, requests that are not settled yet, and other rows (CARRIED_ROWS)."""

    carried: CarriedState
    requests: Dataset
    rows: Dataset


class StepFiles:
    """Stores what each step hands to the next: the carried state, unsettled requests and other rows.

    A step calls `start`, `stage`, `hold` and `end`. A step that a crash has interrupted is repeated from `start`.
    """

    def __init__(self, backend: Backend, folder: str) -> None:
        self._backend, self._files = backend, backend.files
        self._folder = folder

    def start(self, step: int, known: StepState | None = None) -> StepState:
        """Prepare step number `step`, and return its input: the result of the previous step, empty for step 0.

        Deletes all files that an interrupted attempt at this step has left.

        Args:
            step: Number of the step.
            known: What `end` has returned for the previous step; None to read it from its files.

        Raises:
            UserError: The files of the previous step are missing, or in a format of another version.
        """
        self._files.remove(self._of(step))
        if not step:
            empty = self._backend.dataset_of
            return StepState(CarriedState(), empty(REQUESTS.empty_table()), empty(CARRIED_ROWS.empty_table()))
        if known is not None:
            return known
        before = self._of(step - 1)
        if not self._files.exists(f"{before}/{_CARRIED}"):
            raise UserError(f"{before}: the rows that the last step held back are missing; restart with --overwrite")
        requests = self._backend.read_rows(f"{before}/{_REQUESTS}", REQUESTS)
        return StepState(self.carried(step - 1), requests, self._backend.read_rows(f"{before}/{_ROWS}", CARRIED_ROWS))

    def carried(self, step: int) -> CarriedState:
        """Return the state after a step. Raises `UserError` if it has another format."""
        text = self._backend.read_rows(f"{self._of(step)}/{_CARRIED}", _STATE).collect().column("json")[0].as_py()
        state = json.loads(text)
        if state.get("format") != FORMAT:
            raise UserError(
                f"{self._of(step)}: the state is in another format than this version's ({FORMAT}): continue with the "
                "version that started the import, or restart it with --overwrite"
            )
        return CarriedState.resumed(state)

    def stage(self, step: int, name: str, rows: Dataset) -> Dataset:
        """Store rows, so that several uses within a step compute them once."""
        return rows.keep(f"{self._of(step)}/{_STAGES}/{name}")

    def hold(self, step: int, state: StepState) -> StepState:
        """Write the rows of a step's result, and return it with the rows as the next step would read them.

        Until `end` writes the carried state, they do not count.
        """
        write = self._backend.write_rows
        requests = write(state.requests, f"{self._of(step)}/{_REQUESTS}")
        return replace(state, requests=requests, rows=write(state.rows, f"{self._of(step)}/{_ROWS}"))

    def end(self, step: int, state: StepState) -> StepState:
        """Write the carried state of what `hold` has returned; return it as the next step would read it.

        Also deletes the staged rows of this step and the files of the step before the previous one.
        """
        text = json.dumps(state.carried.snapshot())
        self._backend.write_rows(
            self._backend.dataset_of(pa.table({"json": [text]}, _STATE)), f"{self._of(step)}/{_CARRIED}"
        )
        self._files.remove(f"{self._of(step)}/{_STAGES}")
        self._files.remove(self._of(step - 2))
        return replace(state, carried=CarriedState.resumed(json.loads(text)))

    def _of(self, step: int) -> str:
        return step_folder(self._folder, step)
