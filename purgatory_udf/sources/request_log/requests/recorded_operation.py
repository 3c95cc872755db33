"""A request on its way to becoming an event: the event itself, and beside it what the broker recorded of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from purgatory_udf.sources.request_log.assumptions import (
    APPEND_FRACTION,
    APPEND_FRACTION_NO_WAIT,
    FIRST_READ_FRACTION,
    MAX_APPEND_US,
    READS_FRACTION,
    RESPONSE_TO_CHECK_US,
    TIMER_EARLY_US,
    WAKE_FRACTION,
)
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.lines.logged_request import Place, Request
from purgatory_udf.sources.request_log.lines.request_bodies import DecodedProduce, FetchRequestBody, FetchResponseBody

Event = dict[str, Any]

# A line's produces have so many numbers each for their partitions.
_SLOTS_PER_EVENT = 1 << 16
AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"


class RecordedOutcome(msgspec.Struct, gc=False):
    """What the broker did: how the request ended, how long it waited in the purgatory, what it answered.

    `kind` tells apart what one api serves: consumers' and followers' fetches, produces by acks. `timed_out` counts
    the partitions answered REQUEST_TIMED_OUT, `generation` is what a join was given. `complete` is false where the log
    does not hold all that the request was about.
    """

    api: str
    kind: str
    outcome: str
    remote_ms: float
    local_ms: float
    written_us: int
    error: str
    bytes: int | None = None
    timed_out: int = 0
    generation: int | None = None
    complete: bool = True


class LoggedOperation(msgspec.Struct, gc=False):
    """`sub` tells apart the events of one line. A produce's partitions get their offsets when all appends are known."""

    broker: int
    place: Place
    event: Event
    recorded: RecordedOutcome
    sub: int = 0


def first_slot(sub: int) -> int:
    """The number of the first partition of a line's produce: its other partitions have the following."""
    return sub * _SLOTS_PER_EVENT


def logged_operation(request: Request, event: Event, recorded: RecordedOutcome, sub: int = 0) -> LoggedOperation:
    event["broker"] = request.broker
    if request.client_id is not None:
        event["client_id"] = request.client_id
    return LoggedOperation(request.broker, request.place, event, recorded, sub)


# What the broker recorded of each request, in the words of the replay's outcomes.


def recorded_fetch(request: Request, asked: FetchRequestBody, answered: FetchResponseBody) -> RecordedOutcome:
    """A fetch that waited has expired if it got less than it asked for and no error ended it early: on every
    recording that is the broker's own count of expirations, within one or two."""
    kind = "follower fetch" if asked.replica_id >= 0 else "consumer fetch"
    recorded = _recorded(request, kind, [answered.error, *[partition.error for partition in answered.partitions]])
    recorded.bytes = size = answered.bytes
    in_time = request.remote_us < asked.max_wait_ms * 1000 - TIMER_EARLY_US
    if request.remote_us and size < asked.min_bytes and (recorded.error == "NONE" or not in_time):
        recorded.outcome = EXPIRED
    return recorded


def recorded_produce(request: Request, produced: DecodedProduce) -> RecordedOutcome:
    recorded = _recorded(
        request, f"produce acks={produced.acks}", [partition.error for partition in produced.partitions]
    )
    return _expired_if_timed_out(recorded)


def recorded_markers(request: Request, codes: Iterable[int], *, alone: bool) -> RecordedOutcome:
    """Of one of a request's markers; only where it is `alone` does the request's wait say how long it took."""
    recorded = _recorded(request, "transaction markers", codes)
    recorded.complete = alone
    return _expired_if_timed_out(recorded)


def recorded_delete_records(request: Request) -> RecordedOutcome:
    topics = (request.answer or {}).get("topics") or []
    codes = [int(partition.get("errorCode", 0)) for topic in topics for partition in topic["partitions"]]
    return _expired_if_timed_out(_recorded(request, "delete_records", codes))


def recorded_creation(request: Request, codes: Iterable[int]) -> RecordedOutcome:
    """Topics created, or grown: each is answered for itself."""
    return _expired_if_timed_out(_recorded(request, "create_topics", codes))


def recorded_group(request: Request, code: int) -> RecordedOutcome:
    recorded = _recorded(request, request.api.lower(), [code])
    generation = (request.answer or {}).get("generationId", -1)
    recorded.generation = int(generation) if request.api == "JOIN_GROUP" and generation >= 0 else None
    return recorded


def _recorded(request: Request, kind: str, codes: Iterable[int]) -> RecordedOutcome:
    """Of a request that completed, if it waited at all."""
    # Most have none.
    codes = [code for code in codes if code]
    return RecordedOutcome(
        api=request.api,
        kind=kind,
        outcome=COMPLETED if request.remote_us else AT_ONCE,
        remote_ms=request.remote_us / 1000,
        local_ms=request.handling_us / 1000,
        written_us=request.written_us,
        error=errors.name_of(codes[0] if codes else errors.NONE),
        timed_out=codes.count(errors.REQUEST_TIMED_OUT),
    )


def _expired_if_timed_out(recorded: RecordedOutcome) -> RecordedOutcome:
    """Whose answer says by itself that it timed out."""
    if recorded.outcome == COMPLETED and recorded.timed_out:
        recorded.outcome = EXPIRED
    return recorded


# What happens when between S and L, the beginning and the end of a request's handling.
#
# A log of whole requests cannot tell; these rules were fitted (`supposed`), and every one of them gives way to what
# readers' offsets prove (`placing`).
#
#     produce, acks -1   S ──── 0.4, at most 0.6 ms ──── L               the records are in the log
#                                                         check           the fetches that wait for them are looked at
#
#     produce, acks 0, 1 S ─────────── 0.8 ───────────── L ── 0.2 ms     the answer goes out at L, before that check
#
#     follower's fetch   S ─ 0.05 ─┬──────┬──────┬─ 0.8 ─ L              its moved partitions, one after the other
#                                  └ in each the offset is known at the beginning, who waited for it is answered later


def append_times(start_us: int, local_us: int, acks: int) -> tuple[int, int]:
    """When a produce's records are in the log, and when the fetches that wait for them are looked at."""
    handling = local_us - start_us
    if acks == -1:
        return start_us + min(round(handling * APPEND_FRACTION), MAX_APPEND_US), local_us
    return start_us + round(handling * APPEND_FRACTION_NO_WAIT), local_us + RESPONSE_TO_CHECK_US


def follower_read_times(start_us: int, local_us: int, number: int, moved: int) -> tuple[int, int]:
    """When the `number`th of a follower's `moved` offsets is known, and when it has woken who waited for it."""
    handling = local_us - start_us
    slot = handling * READS_FRACTION / moved
    at = start_us + round(handling * FIRST_READ_FRACTION + slot * number)
    return at, at + round(slot * WAKE_FRACTION)
