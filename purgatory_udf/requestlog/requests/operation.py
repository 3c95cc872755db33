"""A request on its way to becoming an event: the event itself, and beside it what the broker recorded of it."""

from __future__ import annotations

from typing import Any

import msgspec

from purgatory_udf.requestlog.lines.request import Place, Request

Event = dict[str, Any]

# A line's produces have so many numbers each for their partitions.
_SLOTS = 1 << 16
AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"


class Recorded(msgspec.Struct, gc=False):
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
    recorded: Recorded
    sub: int = 0


def first_slot(sub: int) -> int:
    """The number of the first partition of a line's produce: its other partitions have the following."""
    return sub * _SLOTS


def operation(request: Request, event: Event, recorded: Recorded, sub: int = 0) -> LoggedOperation:
    event["broker"] = request.broker
    if request.client_id is not None:
        event["client_id"] = request.client_id
    return LoggedOperation(request.broker, request.place, event, recorded, sub)
