"""What followers copy, as their leader's log shows it: how far each replica's own log and high watermark are, and when.

A consumer that reads from a follower (KIP-392) may read up to that follower's own high watermark, which it learns from
its leader's answers (Kafka: `ReplicaFetcherThread.processPartitionData`), at most to the end of its own log. So it is
the leader's line, not the follower's, that tells what the follower's readers wait for.

    leader    ── answer: records, high watermark ──────────── next fetch: the end of what was copied
    follower                  └ appended, high watermark set, waiting fetches tried (`completeDelayedFetchRequests`)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from purgatory_udf.requestlog.batches import Batch, BatchIndex
from purgatory_udf.requestlog.bodies import FetchAnswer, FetchedPartition
from purgatory_udf.requestlog.facts import Append, Copied, PartitionFacts, Sight
from purgatory_udf.requestlog.request import Request
from purgatory_udf.requestlog.returning import State
from purgatory_udf.requestlog.transactions import TransactionFacts

# How far between its leader's answer and its own next fetch a follower has appended that answer, and tries the fetches
# that wait for it: fitted on a recording of brokers that logged their high watermarks.
COPIED_AT = 0.75


NEVER = 2**62


class Learnt(NamedTuple):
    """Of one partition, by one answer."""

    topic: str
    partition: int
    base: int
    bytes: int
    high_watermark: int


class Copies:
    """Feed it one follower's fetches, in their order: each tells what the answer before it has come to."""

    def __init__(self, at_us: int = 0, learnt: Iterable[Learnt] = ()) -> None:
        self._at_us = at_us
        self._learnt = list(learnt)

    def fetch(
        self, request: Request, partitions: Iterable[FetchedPartition], answered: FetchAnswer
    ) -> Iterator[tuple[tuple[str, int], Copied]]:
        ends = {(one.topic, one.partition): one.offset for one in partitions}
        at = self._at_us + round((request.arrival_us - self._at_us) * COPIED_AT)
        for one in self._learnt:
            end = ends.get((one.topic, one.partition))
            if end is not None:
                yield (one.topic, one.partition), Copied(at, one.base, end, one.bytes, min(end, one.high_watermark))
        self._at_us = request.answered_us
        self._learnt = [
            Learnt(one.topic, one.partition, ends[one.topic, one.partition], one.bytes, one.high_watermark)
            for one in answered.partitions
            if not one.error and one.high_watermark >= 0 and one.parts_at < 0 and (one.topic, one.partition) in ends
        ]

    def snapshot(self) -> list[Any]:
        """What JSON can keep."""
        return [self._at_us, list(map(list, self._learnt))]

    @classmethod
    def resumed(cls, state: list[Any]) -> Copies:
        """From a `snapshot`."""
        at_us, learnt = state
        return cls(at_us, (Learnt(*one) for one in learnt))


def served_as_follower(facts: PartitionFacts, states: Iterable[State]) -> list[State]:
    """The same leadership, but that a broker serves consumers while it follows, where answers show that it did."""
    found = list(states)
    for place, state in enumerate(found):
        until = found[place + 1].at_us if place + 1 < len(found) else NEVER
        served = any(state.at_us <= one.until_us < until for one in facts.sights)
        if state.fields["change"] == "not_leader" and facts.copies and served:
            found[place] = State(state.at_us, {"change": "online"})
    return found


def place_copies(copies: Sequence[Copied], sights: Sequence[Sight]) -> None:
    """Sets `at_us` of copies that are in time order: no later than the first answer here that shows what was learnt."""
    shown: list[tuple[int, int]] = []  # (offset, the first moment at which it or more was shown), offsets rising
    for sight in sorted(sights, key=lambda one: (one.since_us, one.offset)):
        if not shown or sight.offset > shown[-1][0]:
            shown.append((sight.offset, sight.since_us))
    offsets = [offset for offset, _ in shown]
    latest = NEVER
    for copied in reversed(copies):
        place = bisect_left(offsets, copied.high_watermark)
        bound = shown[place][1] if place < len(shown) else NEVER
        copied.at_us = latest = min(copied.at_us, bound, latest)


def copied_appends(
    facts: PartitionFacts, batches: Collection[Batch], transactions: TransactionFacts
) -> Iterator[Append]:
    """The appends of a replica that never leads, batch by batch where the batches are known."""
    index = BatchIndex(batches)
    for copied in facts.copies:
        at = copied.at_us
        run = index.between(copied.base, copied.end)
        for batch in run:
            append = Append(at, at, at, at, base=batch.base, end=batch.last + 1, bytes=batch.bytes)
            if batch.control:
                append.ends_transaction = transactions.name(batch.producer_id)
            elif batch.transactional:
                append.transaction = transactions.name(batch.producer_id)
            yield append
        if not run and copied.end > copied.base:
            yield Append(at, at, at, at, base=copied.base, end=copied.end, bytes=copied.bytes)
