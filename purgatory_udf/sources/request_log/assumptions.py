"""Timing assumptions of the import: values that no request log contains, and what each is based on.

An assumption yields to evidence in the log: a reader's offset, an answer's high watermark, a refused request
(`partitions.time_correction`, `partitions.leadership_changes`). The `fidelity` job measures the result on any log;
`tests/answers/fidelity`, and `test_follower_reads.py` and `test_group_moves.py` in `tests/sources/request_log`, on the
bundled recordings.

*Fitted* values come from recordings of brokers that also logged their purgatories and high watermarks. A *bound* only
has to be large enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# Within a request's handling, which lasts from S to L (see `requests.handling`). Fitted.
APPEND_FRACTION, MAX_APPEND_US = 0.4, 600
APPEND_FRACTION_NO_WAIT, RESPONSE_TO_CHECK_US = 0.8, 200
FIRST_READ_FRACTION, READS_FRACTION = 0.05, 0.75
# Of a partition's part of a follower's fetch: recorded produces were answered late in it. Fitted.
WAKE_FRACTION = 0.8

# From the answer that gave a follower records until its next request is here, at the very least. Fitted.
MIN_TURNAROUND_US = 450
# From the reading of what a fetch is answered with until its answer is stamped: seen where answers show the
# high watermark that they were read at.
READ_TO_RESPONSE_US = 100
# A risen high watermark lets go of the fetches that waited for it one by one, then of the produces: the replay knows
# one moment for all. Seen as the one above.
COMPLETION_SPREAD_US = 270
# How far between its leader's answer and its own next fetch a follower has appended that answer, and tries the fetches
# that wait for it. Fitted; of a recording with racks 99.9 % of the consumers' fetches then end as recorded.
FOLLOWER_APPEND_FRACTION = 0.75

# From the coordinator's answer that a partition has joined a transaction until the produce that waited for it is
# appended. Fitted.
TXN_JOIN_TO_APPEND_US = 300
# From 4.0 on a coordinator appends in threads of its own: from the beginning of its batch until that is in the log, and
# until the fetches that wait for it are looked at. Fitted.
COORDINATOR_APPEND_US, COORDINATOR_CHECK_US = 600, 1_100
# How far a batch's stamp (whole milliseconds) may lie outside the handling of the request that made it, and how long
# that handling may take: the stamp's unit, and a bound.
BATCH_TIME_TOLERANCE_US, MAX_HANDLING_US = 1_000, 100_000
# How long before a follower's offset shows it an append may have been made: a bound.
MAX_APPEND_TO_FETCH_US = 50_000

# From a metadata record's time until a broker acts on it: written, replicated, committed, applied. An estimate;
# refusals and answers date it better, where there are any (`partitions.felt`).
METADATA_PROPAGATION_US = 60_000
# A broker that may stop, or has been given up in its order to stop, still answers for that long. Seen (90 ms), a bound:
# of five that were let in the tree's recording of a rolling restart none answered a client or a follower any more.
SHUTDOWN_GRACE_US = 150_000
# Within this time after it was made a shrunken in-sync set has released the produces that waited for it, each answered
# this long after. A bound, and an estimate.
ISR_SHRINK_WINDOW_US, COMPLETION_TO_RESPONSE_US = 3_000_000, 200
# A leader learns of its new in-sync set by the answer to ALTER_PARTITION, before the metadata log brings it: so near
# the two are taken for one. A bound.
ALTER_PARTITION_WINDOW_US = 5_000_000

# Kafka's clock counts whole milliseconds: a wait may end that much before its time.
TIMER_EARLY_US = 1_000
# Kafka's default of `replica.lag.time.max.ms`.
REPLICA_LAG_TIME_MAX_US = 30_000_000
# How long a session is remembered without a fetch. Brokers forget idle ones after two minutes, if they need the room.
SESSION_IDLE_US = 600_000_000


# What an import could not derive, or had to suppose: counted by cause, never guessed silently.


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
