"""What an import could not derive, or had to suppose: counted by cause, never guessed silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# Every cause that the import can name, with the sentence the summary prints for it.
CAUSES = {
    "lines": "lines read",
    "requests": "requests of the request log",
    "other_lines": "lines that are not the request log's",
    "bad_lines": "lines rejected",
    "late_lines": "lines that came when their time was written already: rejected",
    "operations": "requests that became events",
    "controller": "requests of the controller's listener or forwarded to it: they wait in no purgatory of a broker",
    "no_purgatory": "requests of other kinds, which never wait in a purgatory",
    "topic_admin": "requests that create, grow or delete topics or elect leaders, and are no operations: a ZooKeeper "
    "controller parks deletions and elections until its own metadata say so; a KRaft broker passes all of them on",
    "no_broker": "lines that do not say which broker wrote them: taken from the file's name",
    "unnamed_topic": "topics without a name: their id stands for it",
    "session_unknown": "fetches of a session that began before the log: left out, their partitions are unknown",
    "session_partial": "fetches of a session that began before the log: only partitions listed since are known",
    "session_error": "fetches answered with a session error: no partition was read",
    "left_out_partition": "partitions of a fetch that the broker left out (unknown topic id, no right to read)",
    "racked": "fetches of consumers that name their rack, and so may read from followers",
    "end_from_batches": "appends whose last offset is in --batches",
    "end_from_offsets": "appends whose last offset follows from the next base offset or a follower's offset",
    "end_supposed": "appends after which nothing was seen any more: taken as one record",
    "retried_batch": "produces that repeat the base offset of an earlier one: not appended again",
    "unanswered_offsets": "appends without an offset in the log (acks 0), placed by --batches or by others' offsets",
    "unanswered_lost": "appends without an offset in the log (acks 0) for which no offsets are left: no append",
    "hidden_from_batches": "appends without a produce line (commits, joins, markers), from --batches",
    "hidden_confirmed": "appends without a produce line, at the request that caused them, confirmed by a follower",
    "hidden_inferred": "appends that only a reader's offset shows: placed just before it",
    "coordinator_writes": "appends of coordinators that waited for replicas as produces do: operations of their own",
    "transaction_markers": "ends of transactions that waited for replicas as produces do: operations of their own",
    "isr_given": "partitions whose in-sync set comes from --isr",
    "isr_reported": "partitions whose in-sync set comes from METADATA answers or ALTER_PARTITION lines",
    "isr_supposed": "partitions whose in-sync set is supposed to be every replica that fetched",
    "high_watermark_reported": "high watermarks taken from answers, where no in-sync set explains them",
    "high_watermark_proven": "high watermarks that a consumer's offset proves before the followers' offsets do",
    "status_reported": "changes of leadership or deletions known only from the errors in answers",
    "recreated": "topics deleted and made again under the same name",
    "transactional": "appends of transactions",
    "transaction_unknown": "transaction markers of producers whose transaction is unknown",
    "not_coordinator": "group requests that a broker turned away, because it did not coordinate the group",
    "leader_sync_at_answer": "leader's SYNC_GROUP, placed where its assignment was stored",
    "modern_group": "requests of groups of newer protocols (KIP-848, Streams, share), which no classic coordinator has",
    "acks_zero_errors": "produces without an answer: whether they failed is not in the log",
}


class Report:
    """Counts by cause; reports of parts of a log add up to the report of the whole."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts or {})

    def count(self, cause: str, number: int = 1) -> None:
        if cause not in CAUSES:
            raise KeyError(f"{cause} is not a cause the summary can name")
        if number:
            self.counts[cause] += number

    def add(self, other: Report) -> None:
        self.counts.update(other.counts)

    @classmethod
    def total(cls, parts: Iterable[dict[str, int]]) -> Report:
        report = cls()
        for part in parts:
            report.counts.update(part)
        return report

    def sentences(self) -> list[str]:
        """One sentence a cause that occurred, in the order of `CAUSES`."""
        return [f"{self.counts[cause]:>9}  {text}" for cause, text in CAUSES.items() if self.counts[cause]]
