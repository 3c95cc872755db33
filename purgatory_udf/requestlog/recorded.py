"""What the broker recorded of each request, in the words of the replay's outcomes."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory_udf.requestlog import error_codes as errors
from purgatory_udf.requestlog.bodies import Fetch, FetchAnswer, Produce
from purgatory_udf.requestlog.operation import AT_ONCE, COMPLETED, EXPIRED, Recorded
from purgatory_udf.requestlog.request import Request

# Kafka's clock counts whole milliseconds: a wait may end that much before its time.
TIMER_EARLY_US = 1_000


def recorded_fetch(request: Request, asked: Fetch, answered: FetchAnswer) -> Recorded:
    """A fetch that waited has expired if it got less than it asked for and no error ended it early: on every
    recording that is the broker's own count of expirations, within one or two."""
    error = _first_error([answered.error, *(one.error for one in answered.partitions)])
    in_time = request.remote_us < asked.max_wait_ms * 1000 - TIMER_EARLY_US
    if not request.remote_us:
        outcome = AT_ONCE
    elif answered.bytes < asked.min_bytes and (error == "NONE" or not in_time):
        outcome = EXPIRED
    else:
        outcome = COMPLETED
    return Recorded(request.api, outcome, request.remote_us / 1000, error, answered.bytes)


def recorded_produce(request: Request, produced: Produce) -> Recorded:
    return recorded_plain(request, [one.error for one in produced.partitions])


def recorded_delete_records(request: Request) -> Recorded:
    topics = (request.answer or {}).get("topics") or []
    return recorded_plain(request, [int(one.get("errorCode", 0)) for topic in topics for one in topic["partitions"]])


def recorded_plain(request: Request, codes: list[int]) -> Recorded:
    """Of requests whose answer says by itself whether it timed out."""
    timed_out = codes.count(errors.REQUEST_TIMED_OUT)
    outcome = AT_ONCE if not request.remote_us else EXPIRED if timed_out else COMPLETED
    return Recorded(request.api, outcome, request.remote_us / 1000, _first_error(codes), timed_out=timed_out)


def _first_error(codes: Iterable[int]) -> str:
    return errors.name_of(next((code for code in codes if code), errors.NONE))
