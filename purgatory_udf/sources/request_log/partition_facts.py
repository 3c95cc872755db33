"""All facts about one partition at one broker, by kind and in time order. Its timeline is built from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from purgatory_udf.sources.request_log.fact_columns import (
    NO_ATTEMPTS,
    AttemptColumns,
    FactCollector,
    FactColumns,
    attempt_rows_of_each,
    sorted_attempts,
)
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    AttemptRun,
    ConsumerRead,
    CoordinatorAnswer,
    Fact,
    FactBlock,
    FetchAttempt,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    Key,
    LocalStart,
    PartitionError,
    ReaderPosition,
    RecordDeletion,
    RemoteLookup,
    SingleFact,
)


@dataclass(slots=True)
class PartitionFacts:
    """All facts of one partition at one broker, those of each kind in time order.

    `given` has the number of each append in the given order; it is None if that is the order of time.
    """

    broker: int
    topic: str
    partition: int
    appends: FactColumns[Append] = field(default_factory=lambda: FactColumns.none(Append))
    positions: FactColumns[ReaderPosition] = field(default_factory=lambda: FactColumns.none(ReaderPosition))
    follower_attempts: AttemptColumns = NO_ATTEMPTS
    consumer_attempts: AttemptColumns = NO_ATTEMPTS
    high_watermarks: FactColumns[HighWatermarkReading] = field(
        default_factory=lambda: FactColumns.none(HighWatermarkReading)
    )
    deliveries: FactColumns[FollowerDelivery] = field(default_factory=lambda: FactColumns.none(FollowerDelivery))
    errors: list[PartitionError] = field(default_factory=list)
    deletions: list[RecordDeletion] = field(default_factory=list)
    copies: FactColumns[FollowerCopy] = field(default_factory=lambda: FactColumns.none(FollowerCopy))
    coordinator_answers: list[CoordinatorAnswer] = field(default_factory=list)
    reads: list[ConsumerRead] = field(default_factory=list)
    lookups: list[RemoteLookup] = field(default_factory=list)
    local_starts: list[LocalStart] = field(default_factory=list)
    given: npt.NDArray[np.intp] | None = None

    @classmethod
    def of(cls, broker: int, key: Key, facts: Iterable[Fact]) -> PartitionFacts:
        """Collect facts about one partition at one broker, given in any order, by kind and in time order."""
        return cls.of_each([(broker, key, facts)])[0]

    @classmethod
    def of_each(cls, partitions: Iterable[tuple[int, Key, Iterable[Fact]]]) -> list[PartitionFacts]:
        """Collect the facts of several partitions, as `of` does."""
        results: list[PartitionFacts] = []
        columns = [FactCollector(kind) for kind in _SORTED_BY]
        bounds: list[list[int]] = [[0] for _ in columns]
        attempts: list[list[FetchAttempt | AttemptRun | FactBlock]] = []
        for broker, key, facts in partitions:
            result = cls(broker, *key)
            results.append(result)
            attempts.append([])
            by_kind: dict[type[Fact], Any] = {
                **dict(zip(_SORTED_BY, columns, strict=True)),
                PartitionError: result.errors,
                RecordDeletion: result.deletions,
                CoordinatorAnswer: result.coordinator_answers,
                ConsumerRead: result.reads,
                RemoteLookup: result.lookups,
                LocalStart: result.local_starts,
                FetchAttempt: attempts[-1],
                AttemptRun: attempts[-1],
            }
            for fact in facts:
                if isinstance(fact, FactBlock):
                    if fact.has_attempts:
                        attempts[-1].append(fact)
                    else:
                        kind, rows = fact.rows()
                        by_kind[kind].append_block(rows)
                else:
                    by_kind[type(fact)].append(fact)
            for of_kind, collector in zip(bounds, columns, strict=True):
                of_kind.append(len(collector))
            result._sort_lists()
        for (name, fields), collector, of_kind in zip(_SORTED_BY.values(), columns, bounds, strict=True):
            facts_of_kind: FactColumns[Any] = collector.columns()
            order = facts_of_kind.sort(*fields, bounds=of_kind)
            for result, part in zip(results, facts_of_kind.split(of_kind), strict=True):
                setattr(result, name, part)
            if name == "appends" and order is not None:
                for result, (begin, end) in zip(results, pairwise(of_kind), strict=True):
                    result.given = order[begin:end] - begin
        _set_attempts(results, attempts)
        return results

    def _sort_lists(self) -> None:
        for of_kind in (self.errors, self.deletions, self.coordinator_answers, self.lookups, self.local_starts):
            of_kind.sort(key=lambda fact: fact.at_us)
        self.reads.sort(key=lambda read: (read.at_us, read.file, read.line))

    @property
    def has_only_copies(self) -> bool:
        """Whether the broker only copied the partition and served no request, so that it has no events there."""
        served = (
            self.appends,
            self.positions,
            self.follower_attempts,
            self.consumer_attempts,
            self.errors,
            self.deletions,
            self.coordinator_answers,
            self.lookups,
        )
        return bool(self.copies) and not any(served)

    @property
    def first_us(self) -> int:
        """Time of the earliest fact, in microseconds since the epoch."""
        times = [kind[0].at_us for kind in (self.errors, self.deletions, self.lookups) if kind]
        times += [int(self.positions.integers("at_us")[0])] if self.positions else []
        times += [int(attempts.at_us[0]) for attempts in (self.follower_attempts, self.consumer_attempts) if attempts]
        times += [int(self.appends.integers("start_us")[0])] if self.appends else []
        times = times or [answer.at_us for answer in self.coordinator_answers[:1]]
        if not times:
            # Of a session from before the log, a response may name partitions that no request does.
            times = [kind[0].at_us for kind in (self.deliveries, self.local_starts) if kind]
            times += [self.high_watermarks[0].since_us] if self.high_watermarks else []
        return min(times, default=1)


# Kinds of facts that are held as columns: the attribute of `PartitionFacts`, and the fields by which they are sorted.
_SORTED_BY: dict[type[SingleFact], tuple[str, tuple[str, ...]]] = {
    Append: ("appends", ("start_us", "file", "line")),
    ReaderPosition: ("positions", ("at_us", "replica", "offset")),
    HighWatermarkReading: ("high_watermarks", ("until_us", "offset")),
    FollowerDelivery: ("deliveries", ("at_us",)),
    FollowerCopy: ("copies", ("at_us",)),
}


def _set_attempts(
    partitions: Sequence[PartitionFacts], attempts: Sequence[list[FetchAttempt | AttemptRun | FactBlock]]
) -> None:
    """Set the attempts of partitions, in time order. Empties the lists of attempts."""
    rows, bounds = attempt_rows_of_each(attempts)
    for each in attempts:
        each.clear()
    all_attempts = sorted_attempts(rows, bounds)
    is_follower = all_attempts.replica >= 0
    for name, wanted in (("follower_attempts", is_follower), ("consumer_attempts", ~is_follower)):
        numbers = np.flatnonzero(wanted)
        found, ends = all_attempts.where(numbers), np.searchsorted(numbers, bounds).tolist()
        for facts, (begin, end) in zip(partitions, pairwise(ends), strict=True):
            setattr(facts, name, found.where(slice(begin, end)))
