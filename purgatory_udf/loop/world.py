"""Everything that the loop knows, as a few tables of records.

    events, asked        what comes in: events in order, and the keys that each touches
    places               which of the keys each of the call's is
    keys                 replicas of partitions, and topics: ends, watermarks, standing, and the lists that hang on them
    batches, rolls       their logs: where each batch ends and starts in bytes; the segments' bases
    nodes                short lists that hang on a key: how far its followers are; which partitions of a topic are led
    in_sync              in-sync sets
    operations, parts    requests, and what each asks of each of its keys; an operation's parts lie side by side
    roots                by key: the waiting parts by what they wait for (see `heap`)
    purgatories, wheels  one per broker and kind: gauges, reaper, and the heads of its timer's buckets
    completed, expired, cancelled, readings
                         what comes out: operations that ended, in that order, and gauges where they changed

A world is made for one call with room for all that the call can bring about, so nothing in the loop ever grows.
Between calls a state keeps of it what is open (`state`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from purgatory_udf.loop.compiled import number

Records = npt.NDArray[Any]
Kind = np.dtype[Any]


def record(i8: str, i4: str = "") -> Kind:
    """Long fields first, so that each lies at a multiple of its size; the whole is one as well."""
    short = i4.split()
    padding = ["padding"] if i8 and len(short) % 2 else []
    return np.dtype([(name, "i8") for name in i8.split()] + [(name, "i4") for name in short + padding])


# What comes in. `mode`: how a produce is answered (`Acks`), or who reads (`Reader`). `who`: a follower's id; of a
# leader its min.insync.replicas. `total`: how many partitions the request names, `count` of which are this call's.
# `least`, `most`: bytes that a fetch wants and may carry; `hard`: not one batch more. `whole`: a log end moves by one
# batch. `sent`: a consumer is told to read elsewhere.
EVENT = record(i8="t seq delay least most", i4="code mode who first count total broker text apart hard whole sent")
# `offset`: the log's end after a produce; where a fetch begins; else the event's. `size`: bytes; a fetch's maximum.
# `who`: where an in-sync set begins in the call's list of them, and `more` how many it has (-1: none is told).
ASKED = record(i8="offset size", i4="key place epoch error who more throttled text")

# Up to where each kind of reader may read, one after the other as `Reader` numbers them: a key begins with its log end,
# its high watermark, and its last stable offset, which is the high watermark until it has been told. `batch`: how many
# batches end at or before it, where that has been looked up in this call.
END = record("offset seg pos batch")
KEY = record(
    i8="end end_seg end_pos end_batch hw hw_seg hw_pos hw_batch lso lso_seg lso_pos lso_batch log_start",
    i4="broker standing epoch min_isr isr_begin isr_count lso_own nodes lists throttles "
    "batch_begin roll_begin roll_count news hung "
    "dead_produce dead_fetch dead_delete stamp_produce stamp_fetch stamp_delete stamped stamp_order stamp_all asked",
)
# `news`: how often a waiting fetch would have been told of a change. `hung`: a bit for each of its heaps and lists in
# which anything is.
# `size`: 0 if it is not known to be one batch.
BATCH = record(i8="end pos size")
NODE = record(i8="value", i4="who next")

# An operation begins as a copy of its event, and a part as one of what was asked: their fields lie in the same order.
OPERATION = record(
    i8="end_t answered t seq deadline least most",
    i4="code mode who first count total broker text apart hard pending state "
    "purgatory rule watched trigger bucket next prev odd settled_by last_place lacking upheavals",
)
# `lacking`: bytes that a fetch waits for, where they are counted as they come. `upheavals`: how many of them there had
# been in this call when it found no error in any of its partitions.
# `wants`: the offset or position at which the heap gives the part up; where bytes are counted, how many of its own have
# been. `start_seg`, `start_pos`: where a fetch begins, and `batch`: how many of its key's batches end there or before.
# `heap`: which of its key's heaps or lists it is in.
PART = record(
    i8="wants start_seg start_pos bytes end_t offset size",
    i4="key place epoch error settled again throttled text operation heap child next prev news batch",
)

PURGATORY = record(
    i8="wheel_ms next_bucket_ms last_wake_ms next_step_ms",
    i4="broker code interval watched delayed estimated dead stamp purged read_watched read_delayed next_bucket",
)
READING = record(i8="at_ms", i4="purgatory watched delayed purged")
ROLL, MEMBER, ROOT, LINK = record("base"), record("", "replica"), record("", "part"), record("", "prev next")
QUEUED, WHEEL, PLACE = record("", "bits"), record("", "first"), record("", "key")
WHICH = record("", "operation")
# What a call brings a key at most; and where operations are: of which kind there are any, at which broker.
MORE, HOME = record("", "batches rolls"), record("", "broker code")

TABLES = {
    "events": EVENT,
    "asked": ASKED,
    "places": PLACE,
    "keys": KEY,
    "batches": BATCH,
    "rolls": ROLL,
    "nodes": NODE,
    "in_sync": MEMBER,
    "operations": OPERATION,
    "parts": PART,
    "roots": ROOT,
    "links": LINK,
    "purgatories": PURGATORY,
    "queued": QUEUED,
    "wheels": WHEEL,
    "completed": WHICH,
    "expired": WHICH,
    "cancelled": WHICH,
    "readings": READING,
}


def world(tables: Iterable[str], *scalars: str) -> Kind:
    """A world: where each of its tables lies and how much room that has; and its own numbers."""
    places = [f"{name}_{what}" for name in tables for what in ("address", "room")]
    return np.dtype([(name, "i8") for name in (*places, *scalars)])


# The loop's: the time; how much of each table is in use. `due`: the first of the operations that were due when they
# came; `event`: how many events there have been; `checking`: of an event that checks several keys, how many of them
# have been checked. `upheavals`: changes so far that may have made an error of what a waiting fetch asks.
# `ended_parts`: of all operations that ended. `texts`, `errors`, `members` (of in-sync sets): how
# many the state had before the call's own. `appends`, `appended`: batches that came in this call, and their bytes.
WORLD = world(
    TABLES,
    *("now", "next_due", "retain_bytes"),
    *("operations", "parts", "nodes", "readings", "purgatories"),
    *("completed", "expired", "cancelled", "ended_parts"),
    *("due", "event", "checking", "upheavals"),
    *("texts", "errors", "members"),
    *("appends", "appended"),
)


NONE = number(-1)  # no index

# An operation's state.
OPEN, ENDED = number(0), number(1)

# Of a key (`roots`): heaps, three of them for fetches, one for each kind of reader; for each kind of reader a list of
# the fetches whose bytes are counted as they come; and the list of those that are tried in full. Places for `HEAPS` of
# them make a line of the processor's cache.
SETTLING_PRODUCES, SETTLING_OTHERS, FETCHES, COUNTED, ODD, KINDS = map(number, (0, 1, 2, 5, 8, 9))
HEAPS, LISTS = number(8), KINDS - COUNTED
# What else a key's `hung` tells: that it has dead entries.
DEAD_PRODUCES, DEAD_FETCHES, DEAD_DELETIONS = (number(1 << int(KINDS + nth)) for nth in range(3))

# A timer's wheels (see `timer`), enough for any two moments that a trace can have, and how many buckets it has in all.
WHEELS = 12
BUCKETS = number(20)
TIMER = WHEELS * BUCKETS
