"""What no request log says, and is supposed: every number that the import was fitted with, and what it rests on.

Each gives way to what the log proves: a reader's offset, an answer's high watermark, a refusal (`partitions.placing`,
`partitions.felt`). How near the import comes with them is told by `fidelity`, on any log; of the recordings in the tree
by `tests/fidelity`, `tests/requestlog/test_follower_reads.py` and `tests/requestlog/test_group_moves.py`.

*Fitted* is said of what was fitted on recordings of brokers whose purgatories and high watermarks wrote logs of their
own, so that the moment of a thing stood beside its request's line; *a bound*, of what only has to be large enough.
"""

from __future__ import annotations

# Within a request's handling, which lasts from S to L (see `requests.handling`). Fitted.
APPENDED_AT, APPENDED_WITHIN_US = 0.4, 600
APPENDED_BEFORE_ANSWER_AT, ANSWER_TO_CHECK_US = 0.8, 200
FIRST_READ_AT, READS_TAKE = 0.05, 0.75
# Of a partition's part of a follower's fetch: recorded produces were answered late in it. Fitted.
WAKES_AT = 0.8

# From the answer that gave a follower records until its next request is here, at the very least. Fitted.
TURNAROUND_US = 450
# From the reading of what a fetch is answered with until its answer is stamped: seen where answers show the
# high watermark that they were read at.
READ_BEFORE_US = 100
# A risen high watermark lets go of the fetches that waited for it one by one, then of the produces: the replay knows
# one moment for all. Seen as the one above.
RELEASES_TAKE_US = 270
# How far between its leader's answer and its own next fetch a follower has appended that answer, and tries the fetches
# that wait for it. Fitted; of a recording with racks 99.9 % of the consumers' fetches then end as recorded.
COPIED_AT = 0.75

# From the coordinator's answer that a partition has joined a transaction until the produce that waited for it is
# appended. Fitted.
JOINED_TO_APPENDED_US = 300
# From 4.0 on a coordinator appends in threads of its own: from the beginning of its batch until that is in the log, and
# until the fetches that wait for it are looked at. Fitted.
BEGAN_TO_APPENDED_US, BEGAN_TO_CHECKED_US = 600, 1_100
# How far a batch's stamp (whole milliseconds) may lie outside the handling of the request that made it, and how long
# that handling may take: the stamp's unit, and a bound.
STAMP_OFF_US, WRITTEN_WITHIN_US = 1_000, 100_000
# How long before a follower's offset shows it an append may have been made: a bound.
SHOWN_WITHIN_US = 50_000

# From a metadata record's time until a broker acts on it: written, replicated, committed, applied. An estimate;
# refusals and answers date it better, where there are any (`partitions.felt`).
METADATA_LAG_US = 60_000
# A broker that may stop, or has been given up in its order to stop, still answers for that long. Seen (90 ms), a bound:
# of five that were let in the tree's recording of a rolling restart none answered a client or a follower any more.
STOPS_WITHIN_US = 150_000
# Within this time after it was made a shrunken in-sync set has released the produces that waited for it, each answered
# this long after. A bound, and an estimate.
RELEASES_WITHIN_US, ANSWER_US = 3_000_000, 200
# A leader learns of its new in-sync set by the answer to ALTER_PARTITION, before the metadata log brings it: so near
# the two are taken for one. A bound.
GRANTED_WITHIN_US = 5_000_000

# Kafka's clock counts whole milliseconds: a wait may end that much before its time.
TIMER_EARLY_US = 1_000
# Kafka's default of `replica.lag.time.max.ms`.
LAG_TIME_US = 30_000_000
# How long a session is remembered without a fetch. Brokers forget idle ones after two minutes, if they need the room.
SESSION_IDLE_US = 600_000_000
