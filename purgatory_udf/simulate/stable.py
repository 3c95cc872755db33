"""What transactions hold back of a partition: its last stable offset, up to which readers of committed records read.

    log        │ a a │ b │ a │ b │ A │ c │ B │        a, b: records of two transactions; A, B: the markers that end them
    unstable    from the first a ……………┤             until A is replicated, then from the first b, until B is
    last stable: the high watermark, or the first offset of whatever is unstable, if that is less

Kafka: `ProducerStateManager.firstUnstableOffset` (the first of undecided transactions, and of those whose markers the
high watermark has not passed), `UnifiedLog.fetchLastStableOffsetMetadata`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from purgatory_udf.reference.partition import Partition


@dataclass(slots=True)
class EndedTransaction:
    """A transaction whose marker ends at `marker_end`."""

    name: str
    first: int
    marker_end: int


@dataclass(slots=True)
class Transactions:
    """Of one partition's log, whoever leads it. `announced`: the last stable offset as its leader was told it last;
    `used`: whether there has been any."""

    used: bool = False
    announced: int | None = None
    _open: dict[str, int] = field(default_factory=dict)
    _ended: list[EndedTransaction] = field(default_factory=list)

    def begin(self, name: str, offset: int) -> None:
        """Records of it lie from this offset on, unless others of it do before."""
        self.used = True
        self._open.setdefault(name, offset)

    def end(self, name: str, marker_end: int) -> None:
        """Its marker has been appended. A second one, for want of an answer, ends nothing."""
        first = self._open.pop(name, None)
        if first is not None:
            self._ended.append(EndedTransaction(name, first, marker_end))

    def last_stable(self, high_watermark: int) -> int:
        self._ended = [transaction for transaction in self._ended if transaction.marker_end > high_watermark]
        return min([high_watermark, *self._open.values(), *(transaction.first for transaction in self._ended)])

    def truncate(self, end: int) -> None:
        """The log ends there now: a transaction whose marker is gone is open again."""
        lost = [transaction for transaction in self._ended if transaction.marker_end > end]
        self._ended = [transaction for transaction in self._ended if transaction.marker_end <= end]
        self._open |= {transaction.name: transaction.first for transaction in lost}
        self._open = {name: first for name, first in self._open.items() if first < end}


def high_watermark_after(
    replica: Partition,
    leader: int,
    *,
    end: int | None = None,
    isr: tuple[int, ...] | None = None,
    follower: tuple[int, int] | None = None,
) -> int | None:
    """Where the high watermark will be when the log ends at `end`, `isr` is in sync, or that follower has reached that
    offset: what `Partition` does by itself as soon as it is told."""
    now = None if replica.high_watermark is None else replica.high_watermark.offset
    log_end = end if end is not None or replica.log.end is None else replica.log.end.offset
    isr = replica.isr if isr is None else isr
    if isr is None or log_end is None or (replica.min_isr is not None and len(isr) < replica.min_isr):
        return now
    ends = dict(replica.follower_ends)
    if follower is not None:
        ends[follower[0]] = max(follower[1], ends.get(follower[0], 0))
    others = [broker for broker in isr if broker != leader]
    if any(broker not in ends for broker in others):
        return now
    return max([min([log_end, *(ends[broker] for broker in others)]), *([now] if now is not None else [])])
