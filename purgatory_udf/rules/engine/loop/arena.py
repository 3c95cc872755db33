"""The arena: all tables that one call of the engine reads and writes, as arrays of fixed-size records.

| table | rows |
|---|---|
| `events`, `request_parts` | the call's input: events in time order, and one row for each key that a request names |
| `leader_and_isr` | leader epoch and in-sync set of the events that carry them |
| `key_numbers` | maps the call's key numbers to those of the state |
| `keys` | replicas of partitions, and topics: watermarks, availability, heads of their queues |
| `batches`, `rolls` | the keys' logs: record batches by end offset and position, and base offsets of segments |
| `nodes` | linked lists of a key: log end offsets of followers, partitions of a topic that have a leader, … |
| `in_sync` | members of in-sync sets |
| `operations`, `parts` | requests, each with one part per key; an operation's parts are adjacent |
| `heap_roots`, `queue_links` | the queues of waiting parts (`waiter_queues`) |
| `purgatories`, `bucket_bits`, `timer_links` | one purgatory per broker and kind of request, with its timer |
| `outcomes`, `readings` | the call's output: how each operation ended, and the gauges where they changed |

`engine_state` allocates an arena for each call, with capacity for everything that the call's events can add, so no
table grows while the loop runs. Afterwards everything open is copied back to the state.

Times named `t` are microseconds, those named `..._ms` and `deadline` milliseconds, of the trace's clock. Row numbers
are called `e` (event), `k` (key), `o` (operation), `at` (part) and `p` (purgatory) in the functions of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from purgatory_udf.rules.engine.jit import Int64Enum, records
from purgatory_udf.rules.engine.jit.compiled_functions import int64
from purgatory_udf.rules.engine.jit.records import (
    Arena,
    Records,
    arena_dtype,
    nested_accessor,
    prefetcher,
    record,
    record_copier,
)

__all__ = ["Arena"]

# Size matters: with 16 bytes more per part, fetches of 100 partitions take 5 % longer.

# A request, or a change of one key.
#
# Requests:
#   mode         how a produce is answered (`Acks`), or who fetches (`Reader`)
#   replica_id   of a follower's fetch
#   delay        timeout or max wait in ms
#   total        number of partitions that the request names; `count` of them, from `first` on, are in this call
#   min_bytes, max_bytes   of a fetch; `hard_max`: the limit also cuts a first batch (fetch version 2 and earlier)
#   redirected   a consumer is sent to a preferred replica for at least one partition
#   irregular    at least one part repeats a key of the request or is throttled
#   split        the request's keys are in several groups of keys (`key_shards`); `PARTIAL`: and this call has only
#                some of them; `BROKER_DECIDES`: of an operation whose outcome depends on its broker
#   text         row of the request's and client's ids in the call's string columns
#
# The end of a read or lookup in remote storage has one part, and the request's id as its text.
#
# Changes (`count` is 0):
#   key          number of the key
#   mode         `SILENT`: Kafka does not check its purgatories after this change
#   offset, size     log end offset and appended bytes, or the offset of the change
#   single_batch     the log end moves by exactly one record batch
#   replica_id   the follower; for a new leader, min.insync.replicas
#   leader_and_isr   row of the table of that name, or -1
EVENT = record(
    i8="t seq delay",
    i4="min_bytes max_bytes replica_id first count total broker text",
    i1="code mode split hard_max single_batch redirected",
    aliases={
        "offset": ("delay", "i8"), "size": ("min_bytes", "i8"),
        "key": ("first", "i4"), "leader_and_isr": ("text", "i4"), "irregular": ("single_batch", "i1"),
    },
)  # fmt: skip
# The part of a request that concerns one key.
#   offset       log end offset after a produce's append; fetch offset; offset or number of partitions to wait for
#   size         bytes appended; maximum bytes of a fetch's partition
#   ordinal      index of the part within the request
#   duplicate    the request has named the key before; the key's watcher list holds the request once
#   throttled    nothing is read from the partition: a follower's quota, a preferred replica, or remote storage
#                (`UNREAD`, `UNPLACED`); of a remote fetch or list-offsets, where its answer is from (`AnswerSource`)
#   queue        `NONE`: a part starts as a copy of this record
#   text         row of the error's name, where a produce recorded an error without a code (`Error.RECORDED`)
REQUEST_PART = record(
    i8="offset size",
    i4="key ordinal epoch",
    i1="error throttled queue duplicate",
    aliases={"text": ("epoch", "i4"), "read_state": ("throttled", "i1")},
)
# `members`: size of the in-sync set, -1 if the event has none; `first`: its first row in the call's `in_sync`.
LEADER_AND_ISR = record(i4="epoch first members")

# Up to where a reader may read: offset, base offset of the segment, position in the log in bytes. `batch`: number of
# the log's batches that end at or before the offset, where this call has looked it up.
END = record(i8="offset seg pos", i4="batch")
# The first fields of a key: three records of `END`, in the order of `Reader`: log end, high watermark, last stable
# offset.
_LOG_END = record(i8="end end_seg end_pos", i4="end_batch", i1="partition_error lso_known")
_HIGH_WATERMARK = record(base=_LOG_END, i8="hw hw_seg hw_pos", i4="hw_batch epoch")
_LAST_STABLE = record(base=_HIGH_WATERMARK, i8="lso lso_seg lso_pos", i4="lso_batch fetch_purgatory")
# A replica of a partition at a broker, or a topic, with the number of its first partition without a leader
# as `log_start`.
#   partition_error   the error with which the broker answers for the partition; `Error.NONE` if it is leader and online
#   lso_known         the trace has reported a last stable offset; until then it is the high watermark
#   epoch             leader epoch
#   fetch_purgatory, produce_purgatory   rows of its broker's purgatories, set for each call
#   waiter_mask       one bit for each of its queues that is not empty, and the bits below (`DEAD_PRODUCES`, …)
#   updates           number of changes that a fetch waiting on the key has been notified of
#   dead_fetch, stamp_fetch, …   ended operations still on its watcher list, and the purgatory's `stamp` when counted
#   throttle_nodes, nodes, dead_nodes   heads of lists in `nodes`: throttle flags of followers; log end offsets of
#                     followers (of a topic: partitions with a leader); dead entries of a topic's watcher lists by
#                     purgatory
#   last_append, last_append_order, last_append_raised_hw   the last produce of this call that appended here: its
#                     `produce_count`, the order among its appends, and whether it raised the high watermark
#   local_start       local log start offset of a tiered partition, otherwise `UNKNOWN`
#   is_follower       the broker has a replica, although it does not lead the partition
# Appends, watermark changes, and arriving and ending fetches touch only the first two cache lines of a key.
_FREQUENT = record(
    base=_LAST_STABLE,
    i8="log_start",
    i4="waiter_mask updates batch_begin roll_count dead_fetch stamp_fetch "
    "isr_count dead_produce stamp_produce dead_delete stamp_delete "
    "produce_purgatory broker throttle_nodes min_isr isr_begin roll_begin nodes dead_nodes "
    "last_append last_append_order",
    i1="last_append_raised_hw",
    align=8,
)
KEY = record(base=_FREQUENT, i8="local_start", i1="is_follower", align=64)
# `encoded_start`: position of its first byte, with all bits inverted if the record may stand for several batches (see
# `replica_state`). It extends to the start of the next batch.
BATCH = record(i8="end encoded_start")
NODE = record(i8="value", i4="id next")

# An operation starts as a copy of its event.
#   answered_bytes    bytes that a fetch's response carries
#   bucket            bucket of the purgatory's timer, or `NONE`
#   pending           parts of a produce, delete-records or create-topics that are not settled
#   trigger           index of the part on the key of the event that ended the operation, or `NONE`
#   settling_produce, last_settled_part   the produce event that last settled a part of this operation, and that part
#   missing_bytes     bytes that a counted fetch still waits for (`fetch_index`)
#   disruptions       the arena's `disruptions` when the fetch found no error in any of its partitions, or `NONE`
#   needs_full_check  every check of any of its keys evaluates the whole fetch, as Kafka does
OPERATION = record(
    base=EVENT,
    i8="end_t answered_bytes",
    i4="purgatory bucket pending trigger settling_produce last_settled_part missing_bytes disruptions",
    i1="state rule watched needs_full_check",
    aliases={"deadline": ("delay", "i8"), "irregular": ("single_batch", "i1")},
)
# A part starts as a copy of its request part.
#   size              from a fetch's end on, the bytes available to it
#   threshold         offset or position at which its heap releases the part
#   counted_bytes     for a counted fetch instead: bytes of this partition that `missing_bytes` already accounts for
#   start_seg, start_pos   segment and position of a fetch offset
#   end_t             when the part was settled; a fetch's parts all end with it
#   queue             the heap or list that holds the part, or `NONE`, `SETTLED`, `FORCING`
#   child             first child in a heap
#   updates           the key's `updates` on arrival; from the end on, the number of updates in between
#   append_effect     while a produce is being handled: what its append did
PART = record(
    base=REQUEST_PART,
    i8="threshold start_seg start_pos",
    i4="operation child",
    aliases={
        "end_t": ("start_pos", "i8"), "counted_bytes": ("threshold", "i8"), "text": ("epoch", "i4"),
        "updates": ("ordinal", "i4"), "append_effect": ("ordinal", "i4"), "read_state": ("throttled", "i1"),
    },
)  # fmt: skip
LINK = record(i4="prev next")

# A label has the number of the request id in a row of the call's string column. The table is empty unless the call has
# results of reads, which name their request by its id.
LABEL = record("", "number")
# `estimated`: Kafka's estimatedTotalOperations. `stamp`: number of purges; `dead`: entries of ended operations on all
# watcher lists, `purged`: those removed since the last reading. `read_...`: the gauges at the last reading. Of
# RemoteFetch: whether its broker has had a tiered partition, and what holds back reads of remote storage.
PURGATORY = record(
    i8="wheel_ms next_bucket_ms last_wake_ms next_step_ms",
    i4="broker code interval watched delayed estimated dead stamp purged read_watched read_delayed next_bucket",
    i1="is_tiered quota_exhausted queue_full",
)
# A time at which a broker stood still (`rules.purgatory.clock.Pause`).
PAUSE = record(i8="paused_ms resumed_ms", i4="broker")
READING = record(i8="at_ms", i4="purgatory watched delayed purged")
ROLL, MEMBER, ROOT = record("base"), record("", "replica"), record("", "part")
BUCKET_BITS, TIMER_LINK, KEY_NUMBER = record("", "bits"), record("", "prev next"), record("", "key")
OUTCOME = record(i1="outcome")
# The batches and rolls that a call can add to a key; a purgatory that a call's requests may wait in.
GROWTH, PURGATORY_KEY = record("", "batches rolls"), record("", "broker code")

TABLES = {
    "events": EVENT,
    "request_parts": REQUEST_PART,
    "leader_and_isr": LEADER_AND_ISR,
    "key_numbers": KEY_NUMBER,
    "labels": LABEL,
    "keys": KEY,
    "batches": BATCH,
    "rolls": ROLL,
    "nodes": NODE,
    "in_sync": MEMBER,
    "operations": OPERATION,
    "parts": PART,
    "heap_roots": ROOT,
    "queue_links": LINK,
    "purgatories": PURGATORY,
    "bucket_bits": BUCKET_BITS,
    "timer_links": TIMER_LINK,
    "outcomes": OUTCOME,
    "readings": READING,
    "pauses": PAUSE,
}

# Scalars of the arena:
#   now, next_due     the clock, and the time of the next timer or gauge step, in µs
#   retain_bytes, smallest_limit   see `EngineSettings`
#   operations … purgatories   rows of these tables in use
#   completed, expired, cancelled, ended_parts   operations that ended in this call, and all their parts
#   overdue           first of the operations that were due on arrival, linked by `timer_links`
#   produce_count     produces handled so far
#   check_order       while a produce checks several keys: number of keys checked before the present one, else `NONE`
#   disruptions       changes so far that can make a waiting fetch's read fail
#   text_base, error_base, member_base   rows of string columns and in-sync sets that the state had before the call's
#   append_count, append_bytes   batches appended in this call, and their bytes
#   remote_wait_ms, reads_all    see `EngineSettings`
#   charged          bytes of the present response's limit that remote partitions use
#   lingering        number of operations that have ended in this call, but are kept for their reads, less those of
#                    earlier calls that are not any more; `lingering_parts`: the same number of parts
ARENA = arena_dtype(
    TABLES,
    *("now", "next_due", "retain_bytes", "smallest_limit"),
    *("operations", "parts", "nodes", "readings", "purgatories"),
    *("completed", "expired", "cancelled", "ended_parts"),
    *("overdue", "produce_count", "check_order", "disruptions"),
    *("text_base", "error_base", "member_base"),
    *("append_count", "append_bytes"),
    *("remote_wait_ms", "reads_all", "charged", "lingering", "lingering_parts"),
)


def empty_table(table: str) -> Callable[[], Records]:
    """Return a factory of tables without rows."""
    return partial(records.empty_records, 0, TABLES[table])


NONE = int64(-1)  # no row
# A part's `queue` if it is in none: its condition has been met or failed for good; it forced its fetch to complete.
SETTLED, FORCING = int64(-2), int64(-3)
# Start value of sums over small fields: without compilation, numpy scalars would overflow at the field's size.
ZERO = int64(0)

# An event's `split`: this call has only some of the request's keys. An operation's: it depends on its broker as well as
# on its keys, so the group of its broker decides it.
PARTIAL, BROKER_DECIDES = int64(2), int64(3)
# A change's `mode`.
SILENT = int64(1)

# An operation's `state`. `LINGERING`: it has ended and been reported, but some of its reads are still running.
OPEN, ENDED, LINGERING = int64(0), int64(1), int64(2)
# How long an operation lingers at most, in µs: recordings do not have the end of every read.
FORGET_READ_US = int64(60_000_000)
# An `outcome`; `OPEN` until the operation has ended.
COMPLETED, EXPIRED, CANCELLED = map(int64, (1, 2, 3))

# `throttled` of a fetch's part in remote storage: no read started, because of the quota, so checks ignore the part; or
# because other parts use up the request's limit, so the part adds no bytes.
UNPLACED, UNREAD = int64(1), int64(2)


class AnswerSource(Int64Enum):
    """How a part of a remote fetch or list-offsets gets its answer."""

    LOCAL = 0  # on arrival
    REDIRECTED = 1  # on arrival: nothing is read here
    FAILED = 3  # on arrival, with an error
    PENDING = 4  # from a running read or lookup in remote storage
    RETURNED = 5  # from a finished one, but not in the answer yet
    ENDED = 6  # from a finished one
    ABANDONED = 7  # from the partition's state, before its lookup has finished


# A key's queues: a heap of produces, one of delete-records or create-topics, one of fetches for each `Reader`; for each
# `Reader` a list of counted fetches; and the lists of fetches that need full checks, of remote fetches, and of
# list-offsets. A key has `HEAP_STRIDE` rows in `heap_roots` (padded to a power of two), and `LIST_COUNT` rows in
# `queue_links` for the roots of its lists.
PRODUCE_HEAP, OTHER_HEAP, FETCH_HEAPS, COUNTED_LISTS, FULL_CHECK_LIST = map(int64, (0, 1, 2, 5, 8))
READ_LIST, LOOKUP_LIST, QUEUE_COUNT = map(int64, (9, 10, 11))
HEAP_STRIDE, LIST_COUNT = int64(8), QUEUE_COUNT - COUNTED_LISTS
BIT = int64(1)  # shifted left by the number of the queue: its bit in `waiter_mask`
# Further bits of a key's `waiter_mask`: it has dead watchers, throttled followers, a known in-sync set; it is tiered.
DEAD_PRODUCES, DEAD_FETCHES, DEAD_DELETIONS, HAS_THROTTLES, ISR_KNOWN, TIERED = (
    int64(1 << int(QUEUE_COUNT + nth)) for nth in range(6)
)

# A timer's wheels, enough for any two times that a trace can have, and the buckets of each (Kafka's `wheelSize`).
WHEELS = 12
WHEEL_SIZE = int64(20)
BUCKETS_PER_TIMER = WHEELS * WHEEL_SIZE


# Accessors: `part_at(arena, 7)` is the part in row 7, by reference.

_at = partial(records.accessor, dtypes=TABLES, arena=ARENA)
make_arena = partial(records.make_arena, dtypes=TABLES, arena=ARENA)

event_at = _at("events")
request_part_at = _at("request_parts")
leader_and_isr_at = _at("leader_and_isr")
key_number_at = _at("key_numbers")
label_at = _at("labels")
key_at = _at("keys")
batch_at = _at("batches")
roll_at = _at("rolls")
node_at = _at("nodes")
member_at = _at("in_sync")
operation_at = _at("operations")
part_at = _at("parts")
root_at = _at("heap_roots")
link_at = _at("queue_links")
purgatory_at = _at("purgatories")
bucket_bits_at = _at("bucket_bits")
timer_link_at = _at("timer_links")
outcome_at = _at("outcomes")
reading_at = _at("readings")
pause_at = _at("pauses")

# Rows written for the first time, and keys without recent events, are not in the processor's cache yet.
prefetch_event, prefetch_batch, prefetch_operation, prefetch_part, prefetch_key, prefetch_request_part = (
    prefetcher(name, TABLES, ARENA) for name in ("events", "batches", "operations", "parts", "keys", "request_parts")
)

# `end_at(key, reader)`: the `END` up to which this kind of `Reader` may read.
end_at = nested_accessor(KEY, END, begin="end")

copy_event = record_copier(EVENT, OPERATION)
copy_request_part = record_copier(REQUEST_PART, PART)
