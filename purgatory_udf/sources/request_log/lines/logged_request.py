"""One answered request, as its log line tells it: when it came, when it was handled, what it asked, what it got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from purgatory_udf.sources.request_log.lines.request_bodies import FetchRequestBody, FetchResponseBody


class Place(NamedTuple):
    """Which file of the input, which line of it: this orders simultaneous events of a broker."""

    file: int
    line: int


class Request(msgspec.Struct, gc=False):
    """Times are microseconds since the epoch, on the clock that wrote the line.

        arrival ── queue ── start ──── handling ──── local ── purgatory ── answered ── sent (the line is written)
                            S                        L                     R

    `written_us` is the line's own stamp, of whole milliseconds in many logs. `broker` is -1 while the line itself
    does not say whose it is.
    """

    broker: int
    place: Place
    api: str
    version: int
    client_id: str | None
    connection: str
    listener: str
    forwarded: bool
    arrival_us: int
    start_us: int
    local_us: int
    remote_us: int
    answered_us: int
    written_us: int
    body: dict[str, Any]
    answer: dict[str, Any] | None
    # Of a fetch, where they are known already: what it asked, what it was answered.
    fetch: tuple[FetchRequestBody, FetchResponseBody] | None = None

    @property
    def handling_us(self) -> int:
        return self.local_us - self.start_us
