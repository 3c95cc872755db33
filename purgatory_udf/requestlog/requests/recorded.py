"""What the broker recorded of each request, in the words of the replay's outcomes."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.lines.bodies import FetchAnswer, FetchBody, ProduceBody
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.requests.operation import AT_ONCE, COMPLETED, EXPIRED, Recorded
from purgatory_udf.requestlog.supposed import TIMER_EARLY_US


def recorded_fetch(request: Request, asked: FetchBody, answered: FetchAnswer) -> Recorded:
    """A fetch that waited has expired if it got less than it asked for and no error ended it early: on every
    recording that is the broker's own count of expirations, within one or two."""
    kind = "follower fetch" if asked.replica_id >= 0 else "consumer fetch"
    recorded = _recorded(request, kind, [answered.error, *[partition.error for partition in answered.partitions]])
    recorded.bytes = size = answered.bytes
    in_time = request.remote_us < asked.max_wait_ms * 1000 - TIMER_EARLY_US
    if request.remote_us and size < asked.min_bytes and (recorded.error == "NONE" or not in_time):
        recorded.outcome = EXPIRED
    return recorded


def recorded_produce(request: Request, produced: ProduceBody) -> Recorded:
    recorded = _recorded(
        request, f"produce acks={produced.acks}", [partition.error for partition in produced.partitions]
    )
    return _timing_out(recorded)


def recorded_markers(request: Request, codes: Iterable[int], *, alone: bool) -> Recorded:
    """Of one of a request's markers; only where it is `alone` does the request's wait say how long it took."""
    recorded = _recorded(request, "transaction markers", codes)
    recorded.complete = alone
    return _timing_out(recorded)


def recorded_delete_records(request: Request) -> Recorded:
    topics = (request.answer or {}).get("topics") or []
    codes = [int(partition.get("errorCode", 0)) for topic in topics for partition in topic["partitions"]]
    return _timing_out(_recorded(request, "delete_records", codes))


def recorded_creation(request: Request, codes: Iterable[int]) -> Recorded:
    """Topics created, or grown: each is answered for itself."""
    return _timing_out(_recorded(request, "create_topics", codes))


def recorded_group(request: Request, code: int) -> Recorded:
    recorded = _recorded(request, request.api.lower(), [code])
    generation = (request.answer or {}).get("generationId", -1)
    recorded.generation = int(generation) if request.api == "JOIN_GROUP" and generation >= 0 else None
    return recorded


def _recorded(request: Request, kind: str, codes: Iterable[int]) -> Recorded:
    """Of a request that completed, if it waited at all."""
    # Most have none.
    codes = [code for code in codes if code]
    return Recorded(
        api=request.api,
        kind=kind,
        outcome=COMPLETED if request.remote_us else AT_ONCE,
        remote_ms=request.remote_us / 1000,
        local_ms=request.handling_us / 1000,
        written_us=request.written_us,
        error=errors.name_of(codes[0] if codes else errors.NONE),
        timed_out=codes.count(errors.REQUEST_TIMED_OUT),
    )


def _timing_out(recorded: Recorded) -> Recorded:
    """Whose answer says by itself that it timed out."""
    if recorded.outcome == COMPLETED and recorded.timed_out:
        recorded.outcome = EXPIRED
    return recorded
