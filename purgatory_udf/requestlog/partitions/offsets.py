"""Which offsets each append holds: the log names the first offset of an answered produce, and nothing else.

The last offset comes from `--batches`, else from what follows: the next first offset, or a follower's offset (a
follower has whole batches only, so its offset is always the end of one). What no produce line explains is a hidden
append (`hidden`): coordinators write to topics of their own, and a produce with acks 0 has no answer to carry an
offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from purgatory_udf.requestlog.cluster.batches import BatchIndex, StoredBatch
from purgatory_udf.requestlog.cluster.transactions import TransactionFacts
from purgatory_udf.requestlog.partitions.hidden import hidden_appends, hidden_from_batches
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import Append, PartitionFacts


def appends_from_batches(
    facts: PartitionFacts,
    batches: Iterable[StoredBatch],
    span_us: tuple[int, int],
    classic: bool,
    transactions: TransactionFacts,
    report: Report,
) -> list[Append]:
    """Every append with its offsets, in offset order. Batches made before or after the log are no appends of it."""
    index = BatchIndex(batches)
    appends = _named(facts, report)
    taken: set[int] = set()
    for append in appends:
        run = index.run(append.base, append.bytes)
        if run:
            append.end = run[-1].last + 1
            taken.update(batch.base for batch in run)
    report.count("end_from_batches", sum(append.end >= 0 for append in appends))
    free = [batch for batch in index.batches if batch.base not in taken]
    for append in _unanswered(facts):
        # The clients' records are not in the log, but their sizes are: the same size, in the order of arrival.
        match = next((batch for batch in free if batch.bytes == append.bytes and not batch.control), None)
        if match is None:
            report.count("unanswered_lost")
            continue
        free.remove(match)
        append.base, append.end = match.base, match.last + 1
        report.count("unanswered_offsets")
        appends.append(append)
    within = [batch for batch in free if span_us[0] <= batch.created_us <= span_us[1]]
    report.count("hidden_from_batches", len(within))
    appends.extend(hidden_from_batches(within, facts, classic, transactions))
    appends.sort(key=lambda append: append.base)
    _close(appends, facts, report)
    return appends


def appends_from_offsets(facts: PartitionFacts, classic: bool, report: Report) -> list[Append]:
    """Every append with its offsets, in offset order, from first offsets and followers' offsets alone."""
    appends = _named(facts, report)
    appends.extend(_shared_with_unanswered(appends, facts, report))
    appends.sort(key=lambda append: append.base)
    _close(appends, facts, report)
    appends.extend(hidden_appends(appends, facts, classic, report))
    return sorted(appends, key=lambda append: append.base)


def _named(facts: PartitionFacts, report: Report) -> list[Append]:
    """Appends whose first offset is known. A repeated one is a retry of the same batch: appended once."""
    named: dict[int, Append] = {}
    for append in facts.appends:
        if append.base >= 0 and named.setdefault(append.base, append) is not append:
            append.end = append.base
            report.count("retried_batch")
    return [named[base] for base in sorted(named)]


def _unanswered(facts: PartitionFacts) -> list[Append]:
    return [append for append in facts.appends if append.base < 0 and append.is_operation]


def _close(appends: Sequence[Append], facts: PartitionFacts, report: Report) -> None:
    """Ends that nothing has told yet: the least boundary beyond the first offset, else one record."""
    followed = {position.offset for position in facts.positions if position.replica >= 0}
    # A high watermark moves from end to end of batches, as followers do.
    followed |= {sight.offset for sight in facts.sights}
    boundaries = sorted(followed | {append.base for append in appends})
    for append in appends:
        if append.end >= 0:
            continue
        following = bisect_right(boundaries, append.base)
        if following < len(boundaries):
            append.end = boundaries[following]
            report.count("end_from_offsets")
        else:
            append.end = append.base + 1
            report.count("end_supposed")


def _shared_with_unanswered(named: Sequence[Append], facts: PartitionFacts, report: Report) -> list[Append]:
    """Appends without an answer get their part of the offsets between the first offsets around them, by their sizes."""
    starts = [append.start_us for append in named]
    groups: dict[int, list[Append]] = {}
    for append in _unanswered(facts):
        groups.setdefault(bisect_right(starts, append.start_us), []).append(append)
    sights = [sight.offset for sight in facts.sights]
    highest = max([*sights, *(position.offset for position in facts.positions)], default=0)
    # Followers were at an end of the log from the first; a consumer may read what is old.
    lowest = min([*sights, *(position.offset for position in facts.positions if position.replica >= 0)], default=0)
    placed: list[Append] = []
    for following, group in groups.items():
        before = [named[following - 1]] if following else []
        first = before[0].base if before else lowest
        last = named[following].base if following < len(named) else max(highest, first)
        sharers = [*before, *group]
        if last - first < len(sharers):
            report.count("unanswered_lost", len(group))
            continue
        _share(sharers, first, last)
        report.count("unanswered_offsets", len(group))
        placed.extend(group)
    return placed


def _share(sharers: Sequence[Append], first: int, last: int) -> None:
    """[first, last) among the appends, at least one offset each, else by their bytes."""
    weights = [max(1, append.bytes) for append in sharers]
    for number, append in enumerate(sharers):
        after = len(sharers) - number - 1
        part = round((last - first) * weights[number] / sum(weights[number:]))
        append.base = first
        append.end = first = last if not after else first + max(1, min(last - first - after, part))
