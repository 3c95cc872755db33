"""Timing assumptions of the import, and counts of everything that it could not derive from the log.

A request log line has the times of its request, but not the moments in between: when records were appended, when
waiting operations were checked, when a broker applied new metadata. The constants of this module fill these gaps.
Evidence in the log takes precedence over them: a reader's offset, the high watermark in a response, a refused request
(`partitions.time_correction`, `partitions.leadership_changes`).

Values marked *fitted* or *observed* come from recordings of brokers that also logged their purgatories and high
watermarks. A *bound* only has to be large enough. The `fidelity` job measures the effect on any recording;
`tests/answers/fidelity` and `tests/sources/request_log` check it on the bundled recordings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# Fractions of a request's handling, which lasts from S to L (see `logged_request`). Fitted.
# Produce with acks -1: when the records are appended; never later than MAX_APPEND_US after S.
APPEND_FRACTION, MAX_APPEND_US = 0.4, 600
# Produce with acks 0 or 1: when the records are appended, and how long after L the waiting fetches are checked.
APPEND_FRACTION_NO_WAIT, RESPONSE_TO_CHECK_US = 0.8, 200
# Fetch of a follower: when the broker reads the first partition, and how long it takes to read all partitions.
FIRST_READ_FRACTION, READS_FRACTION = 0.05, 0.75
# Position within the time spent on one partition at which the produces that waited for it are completed.
WAKE_FRACTION = 0.8

# Shortest time from a response that gave a follower records to the arrival of its next fetch. Fitted.
MIN_TURNAROUND_US = 450
# Time from reading the log for a response to the response's timestamp. Observed where responses show the high
# watermark at which the log was read.
READ_TO_RESPONSE_US = 100
# When the high watermark rises, the broker completes the waiting fetches one by one, then the produces. The replay
# completes them at the same time; this is how long the broker needs. Observed in the same way.
COMPLETION_SPREAD_US = 270
# Position between a leader's response and the follower's next fetch at which the follower has appended the records and
# checks the fetches that wait for them. Fitted: with it, 99.9 % of the consumer fetches of a recording with
# `client.rack` end as recorded.
FOLLOWER_APPEND_FRACTION = 0.75

# Time from the coordinator's response that a partition has joined a transaction to the append of the produce that
# waited for it. Fitted.
TXN_JOIN_TO_APPEND_US = 300
# From Kafka 4.0 on, coordinators append in threads of their own: time from the start of a batch to its append, and to
# the check of the fetches that wait for it. Fitted.
COORDINATOR_APPEND_US, COORDINATOR_CHECK_US = 600, 1_100
# A batch belongs to a request if its timestamp is at most this far outside the request's handling (timestamps are
# whole milliseconds); and the longest handling that is considered (a bound).
BATCH_TIME_TOLERANCE_US, MAX_HANDLING_US = 1_000, 100_000
# Longest time that a request waits in the queue of a coordinator from 4.0 on. A bound; 25 ms were observed.
MAX_COORDINATOR_QUEUE_US = 200_000
# Longest time from a change of leadership until the coordinator has loaded or unloaded the groups. A bound.
MAX_LATE_MOVE_US = 5_000_000
# Longest time from an append to the follower's fetch that proves it. A bound.
MAX_APPEND_TO_FETCH_US = 50_000

# Time from a metadata record's timestamp until a broker applies it: written, replicated, committed, applied. An
# estimate, used where no response shows the change (`partitions.leadership_changes`).
METADATA_PROPAGATION_US = 60_000
# How long a broker still responds after it was allowed to shut down, or was fenced during a controlled shutdown.
# A bound; 90 ms were observed. In the bundled recording of a rolling restart, none of the five brokers that were
# allowed to shut down responded to a client or a follower afterwards.
SHUTDOWN_GRACE_US = 150_000
# When the controller shrinks an in-sync set, the produces that waited for the removed replica complete within the first
# time (a bound), and each response follows after the second (an estimate).
ISR_SHRINK_WINDOW_US, COMPLETION_TO_RESPONSE_US = 3_000_000, 200
# A leader learns its new in-sync set from the response to ALTER_PARTITION, before the metadata log delivers the same
# change. An ALTER_PARTITION and a record within this time are the same change. A bound.
ALTER_PARTITION_WINDOW_US = 5_000_000

# Kafka's timer counts whole milliseconds, so a wait may end this much before its timeout.
TIMER_EARLY_US = 1_000
# Default of `replica.lag.time.max.ms`.
REPLICA_LAG_TIME_MAX_US = 30_000_000
# How long the state of a fetch session is kept without a fetch. A broker may evict an idle session after two minutes.
SESSION_IDLE_US = 600_000_000

# How much earlier than a lock's end a state without an acknowledgement shows that the member's session has ended. A
# bound: acquisitions are dated by responses.
SHARE_RELEASE_BEFORE_LOCK_US = 200_000
# How far the clocks of the broker that reads a share group's state and of its coordinator may differ. A bound.
SHARE_READ_EARLY_US = 5_000
# How long after the first fetch of a partition its state may be read. A bound; reads are repeated after errors.
SHARE_READ_LATE_US = 30_000_000


# Causes that an import counts: key (stored in the table `runs`) and text in the summary.
CAUSES = {
    "lines": "lines read",
    "requests": "requests of the request log",
    "other_lines": "lines of other loggers",
    "bad_lines": "lines rejected",
    "text_lines": "lines rejected because Kafka before 2.8 wrote them, as text instead of JSON",
    "late_lines": "lines rejected because events of their time were already written",
    "rejected_events": "events of a followed log that the contract rejects",
    "operations": "requests that became events",
    "controller": "requests to the controller or forwarded to it: they wait in no purgatory of a broker",
    "no_purgatory": "requests of other kinds, which never wait in a purgatory",
    "topic_admin": "requests that create, grow or delete topics or elect leaders, left out: a ZooKeeper controller "
    "parks deletions and elections until its own metadata change; a KRaft broker forwards these requests",
    "no_broker": "lines without the id of their broker: taken from the file's name",
    "unnamed_topic": "topics without a name: their id is used instead",
    "session_unknown": "fetches of a session from before the log: left out, their partitions are unknown",
    "session_partial": "fetches of a session from before the log: only partitions listed since are known",
    "session_error": "fetches answered with a session error: no partition was read",
    "left_out_partition": "partitions of a fetch that the broker left out (unknown topic id, not authorized)",
    "diverging": "fetches answered at once because the reader's log had diverged: imported with min_bytes 0",
    "racked": "fetches of consumers with client.rack, which may read from followers",
    "end_from_batches": "appends with the last offset from --batches",
    "end_from_offsets": "appends with the last offset from the next base offset or a follower's offset",
    "end_supposed": "appends without any later offset: assumed to be one record",
    "retried_batch": "produces that repeat the base offset of an earlier one: not appended again",
    "unanswered_offsets": "appends without an offset in the log (acks 0), placed by --batches or by other offsets",
    "unanswered_lost": "appends without an offset in the log (acks 0) for which no offsets are left: left out",
    "hidden_from_batches": "appends without a produce line (commits, joins, markers), from --batches",
    "hidden_confirmed": "appends without a produce line, at the request that caused them, confirmed by a follower",
    "hidden_inferred": "appends that only a reader's offset shows: placed just before it",
    "coordinator_writes": "appends of coordinators that waited for replicas as produces do: separate operations",
    "transaction_markers": "transaction markers that waited for replicas as produces do: separate operations",
    "broker_pauses": "times at which a broker stood still: it answered nothing, and operations became overdue",
    "isr_given": "partitions with an in-sync set from --isr",
    "isr_reported": "partitions with an in-sync set from METADATA responses or ALTER_PARTITION lines",
    "isr_supposed": "partitions without a known in-sync set: assumed to be every replica that fetched",
    "high_watermark_reported": "high watermarks taken from responses, where no in-sync set explains them",
    "high_watermark_proven": "high watermarks that a consumer's offset proves before the followers' offsets do",
    "status_reported": "changes of leadership or deletions known only from errors in responses",
    "tiered_configured": "tiered topics, by their configuration",
    "tiered_shown": "tiered topics without a known configuration: their requests waited for remote storage",
    "local_start_reported": "local log start offsets from LIST_OFFSETS responses and errors of followers",
    "local_start_supposed": "local log start offsets that fetches from remote storage require: assumed as high as the "
    "other fetches allow",
    "remote_reads": "reads of remote storage, of fetches that waited although there were records: assumed to end with "
    "the response",
    "remote_reads_together": "reads of remote storage that shared a fetch with others: only the last read of the "
    "fetch ended with the response",
    "remote_reads_halfway": "reads of remote storage that ended before their fetch expired: assumed "
    "halfway through the wait",
    "remote_reads_unended": "reads of remote storage that had not ended when their fetch expired: "
    "their end is not in the log",
    "recreated": "topics deleted and created again under the same name",
    "transactional": "appends of transactions",
    "transaction_unknown": "transaction markers of producers without a known transaction",
    "not_coordinator": "group requests that a broker refused because it does not coordinate the group",
    "leader_sync_at_answer": "SYNC_GROUP requests of leaders, dated by when their assignment was stored",
    "modern_group": "requests of groups of newer protocols (KIP-848, Streams, share), which no classic coordinator has",
    "share_error": "requests of share groups answered with an error of the whole request: left out",
    "share_session_error": "share fetches without a share session, or with a wrong session epoch",
    "share_session_ended": "share sessions without a last request: they ended when records became available early",
    "share_start_supposed": "partitions of share groups whose first offset is taken from the first acquired records",
    "acks_zero_errors": "produces without a response: whether they failed is not in the log",
}


class Report:
    """Counts of lines, requests and omissions of an import, by their cause, a key of `CAUSES`.

    The counts of the parts of a log add up to the counts of the whole log.
    """

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts or {})

    def count(self, cause: str, number: int = 1) -> None:
        """Add to the count of a cause. Raises KeyError if the cause is not in `CAUSES`."""
        if cause not in CAUSES:
            raise KeyError(f"{cause} is not in CAUSES")
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
        """Return a line of text with count and explanation for each cause that occurred, in the order of `CAUSES`."""
        return [f"{self.counts[cause]:>9}  {text}" for cause, text in CAUSES.items() if self.counts[cause]]
