"""Everything that the loop knows, as a few tables of records.

    events, asked        what comes in: events in order, and what each request asks of which keys
    told                 what some changes tell besides: of a leader, of an in-sync set
    places               which of the keys each of the call's is
    keys                 replicas of partitions, and topics: ends, watermarks, standing, and the lists that hang on them
    batches, rolls       their logs: where each batch ends and starts in bytes; the segments' bases
    nodes                short lists that hang on a key: how far its followers are; which partitions of a topic are led
    in_sync              in-sync sets
    operations, parts    requests, and what each asks of each of its keys; an operation's parts lie side by side
    roots, links         by key: the waiting parts by what they wait for (see `heap`, `listed`); by part: its neighbours
    purgatories, turns   one per broker and kind: gauges, reaper; and the buckets of its timer: of each operation, its
                         neighbours, and each bucket's root
    ended, readings      what comes out: how each operation ended, if it has, and gauges where they changed

A world is made for one call with room for all that the call can bring about, so nothing in the loop ever grows.
Between calls a state keeps of it what is open (`state`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from purgatory_udf.rules.engine.jit import records
from purgatory_udf.rules.engine.jit.compiled_functions import number
from purgatory_udf.rules.engine.jit.records import Records, World, copies, inside, record, soon, world

# How large records are counts: with 16 bytes more a part, fetches of a hundred partitions take a twentieth longer.

# What comes in. `mode`: how a produce is answered (`Acks`), or who reads (`Reader`). `who`: a follower's id; of a
# leader its min.insync.replicas. `total`: how many partitions the request names, `count` of which are this call's.
# `least`, `most`: bytes that a fetch wants and may carry; `hard`: not one batch more. `sent`: a consumer is told to
# read elsewhere. `marked`: it asks something twice, or throttled. `apart`: not all of its keys are in one group
# (`SOME_HERE`: nor in the one whose call this is).
# A change is of one key, and asks nothing (`count` is 0); `offset`, `size`: the log's end and its bytes, or else what
# the event says; `whole`: the end moves by one batch; `told`: where it is told more.
EVENT = record(
    i8="t seq delay",
    i4="least most who first count total broker text",
    i1="code mode apart hard whole sent",
    also={
        "offset": ("delay", "i8"), "size": ("least", "i8"),
        "key": ("first", "i4"), "told": ("text", "i4"), "marked": ("whole", "i1"),
    },
)  # fmt: skip
# `offset`: the log's end after a produce; where a fetch begins; else what is asked for. `size`: bytes; a fetch's
# maximum. `again`: the request has named the key before, whose list has it once. A produce's recorded `error` has a
# `text`. `heap`: `NONE`, for a part begins as a copy of it.
ASKED = record(i8="offset size", i4="key place epoch", i1="error throttled heap again", also={"text": ("epoch", "i4")})
# `members`: how many the in-sync set has (-1: it is not told), `first`: where it begins in the call's list of them.
TOLD = record(i4="epoch first members")

# Up to where each kind of reader may read, one after the other as `Reader` numbers them: a key begins with its log end,
# its high watermark, and its last stable offset, which is the high watermark until it has been told. `batch`: how many
# batches end at or before it, where that has been looked up in this call.
END = record(i8="offset seg pos", i4="batch")
_END = record(i8="end end_seg end_pos", i4="end_batch", i1="standing lso_own")
_HIGH = record(begins=_END, i8="hw hw_seg hw_pos", i4="hw_batch epoch")
_STABLE = record(begins=_HIGH, i8="lso lso_seg lso_pos", i4="lso_batch fetches")
KEY = record(
    begins=_STABLE,
    i8="log_start",
    i4="hung news batch_begin roll_count dead_fetch stamp_fetch "
    "isr_count dead_produce stamp_produce dead_delete stamp_delete "
    "produces broker throttles min_isr isr_begin roll_begin nodes lists stamped stamp_order",
    i1="stamp_all",
    multiple=64,
)
# What an append, a watermark and a fetch that comes or ends look at lies in its first two lines of the processor's
# cache. `news`: how often a waiting fetch would have been told of a change. `hung`: a bit for each of its heaps and
# lists in which anything is, and for what else there is of it (see `DEAD_PRODUCES` and those behind).
# `produces`, `fetches`: its broker's purgatories for these, in this call.
# `turned`: where it begins; all bits turned, if it is not known to be one batch (see `logs`). It ends where the next
# begins.
BATCH = record(i8="end turned")
NODE = record(i8="value", i4="who next")

# An operation begins as a copy of its event.
OPERATION = record(
    begins=EVENT,
    i8="end_t answered",
    i4="purgatory bucket pending trigger settled_by settled_last lacking upheavals",
    i1="state rule watched odd",
    also={"deadline": ("delay", "i8"), "marked": ("whole", "i1")},
)
# `lacking`: bytes that a fetch waits for, where they are counted as they come. `upheavals`: how many of them there had
# been in this call when it found no error in any of its partitions.
# `size`: from a fetch's end on, the bytes that it found. `wants`: the offset or position at which the heap gives the
# part up; where bytes are counted, how many of its own have been. `start_seg`, `start_pos`: where a fetch begins. All
# parts of a fetch end with it; others each have their `end_t`. `heap`: which of its key's heaps or lists it is in, or
# why in none; `child`: its first, in a heap.
PART = record(
    begins=ASKED,
    i8="wants start_seg start_pos",
    i4="operation child",
    also={"end_t": ("start_pos", "i8"), "text": ("epoch", "i4"), "news": ("place", "i4")},
)
LINK = record(i4="prev next")

PURGATORY = record(
    i8="wheel_ms next_bucket_ms last_wake_ms next_step_ms",
    i4="broker code interval watched delayed estimated dead stamp purged read_watched read_delayed next_bucket",
)
READING = record(i8="at_ms", i4="purgatory watched delayed purged")
ROLL, MEMBER, ROOT = record("base"), record("", "replica"), record("", "part")
QUEUED, TURN, PLACE = record("", "bits"), record("", "prev next"), record("", "key")
ENDING = record(i1="how")
# What a call brings a key at most; and where operations are: of which kind there are any, at which broker.
MORE, HOME = record("", "batches rolls"), record("", "broker code")

TABLES = {
    "events": EVENT,
    "asked": ASKED,
    "told": TOLD,
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
    "turns": TURN,
    "ended": ENDING,
    "readings": READING,
}

# The loop's: the time; how much of each table is in use. `due`: the first of the operations that were due when they
# came; `produced`: how many produces have; `checking`: of an event that checks several keys, how many of them
# have been checked. `upheavals`: changes so far that may have made an error of what a waiting fetch asks.
# `ended_parts`: of all operations that ended. `texts`, `errors`, `members` (of in-sync sets): how
# many the state had before the call's own. `appends`, `appended`: batches that came in this call, and their bytes.
WORLD = world(
    TABLES,
    *("now", "next_due", "retain_bytes"),
    *("operations", "parts", "nodes", "readings", "purgatories"),
    *("completed", "expired", "cancelled", "ended_parts"),
    *("due", "produced", "checking", "upheavals"),
    *("texts", "errors", "members"),
    *("appends", "appended"),
)


def none_of(table: str) -> Callable[[], Records]:
    """A table without rows."""
    return lambda: np.zeros(0, TABLES[table])


NONE = number(-1)  # no index
# Of a part that is in no heap and no list: what it waited for is settled; it forced its fetch to end.
SETTLED, FORCING = number(-2), number(-3)
NOTHING_YET = number(0)  # where small numbers are summed up: uncompiled, a sum of theirs is no larger than they are

# Of an event that is `apart`: this call has some of its keys only.
SOME_HERE = number(2)

# An operation's state.
OPEN, ENDED = number(0), number(1)
# How it ended; `OPEN` if it has not.
COMPLETED, EXPIRED, CANCELLED = map(number, (1, 2, 3))

# Of a key (`roots`): heaps, three of them for fetches, one for each kind of reader; for each kind of reader a list of
# the fetches whose bytes are counted as they come; and the list of those that are tried in full. There are `HEAPS`
# places for roots of heaps, and `LISTS` links for those of lists.
SETTLING_PRODUCES, SETTLING_OTHERS, FETCHES, COUNTED, ODD, KINDS = map(number, (0, 1, 2, 5, 8, 9))
HEAPS, LISTS = number(8), KINDS - COUNTED
BIT = number(1)  # shifted by its kind, of a key's `hung`
# What else a key's `hung` tells: that it has dead entries; that it is known which followers are held back on it, and
# which replicas are in sync.
DEAD_PRODUCES, DEAD_FETCHES, DEAD_DELETIONS, THROTTLES, IN_SYNC = (number(1 << int(KINDS + nth)) for nth in range(5))

# A timer's wheels (see `timer`), enough for any two moments that a trace can have, and how many buckets it has in all.
WHEELS = 12
BUCKETS = number(20)
TIMER = WHEELS * BUCKETS


# How the loop finds its records: `part_at(w, 7)`.


__all__ = ["World"]

_at = partial(records.access, kinds=TABLES, world=WORLD)
world_of = partial(records.world_of, kinds=TABLES, world=WORLD)

event_at = _at("events")
asked_at = _at("asked")
told_at = _at("told")
place_at = _at("places")
key_at = _at("keys")
batch_at = _at("batches")
roll_at = _at("rolls")
node_at = _at("nodes")
member_at = _at("in_sync")
operation_at = _at("operations")
part_at = _at("parts")
root_at = _at("roots")
link_at = _at("links")
purgatory_at = _at("purgatories")
queued_at = _at("queued")
turn_at = _at("turns")
ended_at = _at("ended")
reading_at = _at("readings")

# Memory that is written for the first time is far away, and so are keys that nothing has happened to for a while.
event_soon, batch_soon, operation_soon, part_soon, key_soon = (
    soon(name, TABLES, WORLD) for name in ("events", "batches", "operations", "parts", "keys")
)

# Up to where a kind of reader may read.
end_of = inside(KEY, END, begin="end")

take_event = copies(EVENT, OPERATION)
take_asked = copies(ASKED, PART)
