"""When brokers stopped and started, as their controller came to know it.

BROKER_REGISTRATION, REGISTER_BROKER_RECORD    a process has started; if it is not the first, the one before has ended
BROKER_HEARTBEAT answered `shouldShutDown`     a process that was told to stop may do so now
BROKER_REGISTRATION_CHANGE_RECORD              the controller has given a broker up (`fenced`), or counts on it again

A broker that only stood still is given up, and counted on again, without registering anew: it has not stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from purgatory_udf.requestlog.lines.request import Request

REGISTERED, REGISTERED_AGAIN, MAY_STOP, STOPPING, FENCED, UNFENCED = (
    "registered", "registered again", "may stop", "stopping", "fenced", "unfenced",
)  # fmt: skip
# The requests that tell of it; of heartbeats only those are kept that let a broker stop.
REGISTRATION, HEARTBEAT = "BROKER_REGISTRATION", "BROKER_HEARTBEAT"
NEVER = 2**62


class Sign(NamedTuple):
    at_us: int
    broker: int
    what: str


class Stop(NamedTuple):
    """The broker was not there from `at_us` to `started_us`. Where nobody saw it stop, that is when it was back."""

    broker: int
    at_us: int
    started_us: int


def lets_stop(request: Request) -> bool:
    return request.api == HEARTBEAT and bool((request.answer or {}).get("shouldShutDown"))


def signs_in(request: Request) -> Iterator[Sign]:
    """What one line of a controller's log says."""
    if not request.answer or request.answer.get("errorCode"):
        return
    if request.api == REGISTRATION:
        again = int(request.body.get("previousBrokerEpoch", -1)) >= 0
        yield Sign(request.arrival_us, int(request.body["brokerId"]), REGISTERED_AGAIN if again else REGISTERED)
    elif lets_stop(request):
        yield Sign(request.answered_us, int(request.body["brokerId"]), MAY_STOP)


def stops(signs: Iterable[Sign]) -> list[Stop]:
    """In the order of time."""
    of: dict[int, list[Sign]] = {}
    for sign in sorted(signs):
        of.setdefault(sign.broker, []).append(sign)
    return sorted((stop for its_signs in of.values() for stop in _stops_of(its_signs)), key=lambda stop: stop.at_us)


def _stops_of(signs: Iterable[Sign]) -> Iterator[Stop]:
    known = ordered = False
    gone_us: int | None = None
    broker = -1
    for at_us, broker, what in signs:
        if what in (REGISTERED, REGISTERED_AGAIN):
            if known or what == REGISTERED_AGAIN:
                yield Stop(broker, at_us if gone_us is None else gone_us, at_us)
            known, ordered, gone_us = True, False, None
        elif what == STOPPING:
            ordered = True
        elif what == UNFENCED:
            gone_us = None
        else:
            ordered |= what == MAY_STOP
            gone_us = at_us if gone_us is None else gone_us
    if ordered and gone_us is not None:
        yield Stop(broker, gone_us, NEVER)
