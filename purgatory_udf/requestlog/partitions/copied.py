"""A replica that follows, and is read from: when its copies were there, what they appended, when it served readers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence

from purgatory_udf.requestlog.cluster.batches import BatchIndex, StoredBatch
from purgatory_udf.requestlog.cluster.transactions import TransactionFacts
from purgatory_udf.requestlog.partitions.returning import LeadershipState
from purgatory_udf.requestlog.requests.facts import Append, Copied, PartitionFacts, Sight

NEVER = 2**62


def served_as_follower(facts: PartitionFacts, states: Iterable[LeadershipState]) -> list[LeadershipState]:
    """The same leadership, but that a broker serves consumers while it follows, where answers show that it did."""
    leadership = list(states)
    for place, state in enumerate(leadership):
        until = leadership[place + 1].at_us if place + 1 < len(leadership) else NEVER
        served = any(state.at_us <= sight.until_us < until for sight in facts.sights)
        if state.fields["change"] == "not_leader" and facts.copies and served:
            leadership[place] = LeadershipState(state.at_us, {"change": "online"})
    return leadership


def place_copies(copies: Sequence[Copied], sights: Sequence[Sight]) -> None:
    """Sets `at_us` of copies that are in time order: no later than the first answer here that shows what was learnt."""
    shown: list[tuple[int, int]] = []  # (offset, the first moment at which it or more was shown), offsets rising
    for sight in sorted(sights, key=lambda sight: (sight.since_us, sight.offset)):
        if not shown or sight.offset > shown[-1][0]:
            shown.append((sight.offset, sight.since_us))
    offsets = [offset for offset, _ in shown]
    latest = NEVER
    for copied in reversed(copies):
        place = bisect_left(offsets, copied.high_watermark)
        bound = shown[place][1] if place < len(shown) else NEVER
        copied.at_us = latest = min(copied.at_us, bound, latest)


def copied_appends(
    facts: PartitionFacts, batches: Collection[StoredBatch], transactions: TransactionFacts
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
