"""A request as its log line records it, after the broker has sent the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from purgatory_udf.sources.request_log.lines.request_bodies import FetchRequestBody, FetchResponseBody


class Place(NamedTuple):
    """File number and line number of a request; this orders simultaneous events of a broker."""

    file: int
    line: int


class Request(msgspec.Struct, gc=False):
    """A request with its times, body and response.

    Times are microseconds since the epoch, on the broker's clock. Comments elsewhere call three of them S, L and R:

        arrival ── queue ── start ──── handling ──── local ── purgatory ── answered ── sent (the line is written)
                            S                        L                     R

    `written_us` is the timestamp of the line, in whole milliseconds in many logs. `broker` is -1 if the line does not
    have the broker's id. Without a response, `answer` is None. `fetch` is the decoded body and response of a
    fetch, if it was decoded already; then `body` and `answer` may be empty.
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
    fetch: tuple[FetchRequestBody, FetchResponseBody] | None = None

    @property
    def handling_us(self) -> int:
        """Time from S to L."""
        return self.local_us - self.start_us
