"""Fast parser for log lines in Kafka's own layout, with compiled decoders (msgspec).

Only the fields that all requests share are decoded; body and response stay text. Each function returns None for input
that it does not handle, which is then left to the complete parser (`complete_parser.read_line`,
`kafka_protocol.decode_fetch_request`). It never accepts input that the complete parser rejects, and otherwise returns
the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple

import msgspec

from purgatory_udf.sources.request_log.kafka_protocol import (
    MAX_NUMBER,
    NO_TOPIC_ID,
    FetchPartitionData,
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    Key,
)
from purgatory_udf.sources.request_log.log_files import timestamp_us
from purgatory_udf.sources.request_log.logged_request import (
    API_NAMES,
    MARKER,
    MAX_DEPTH,
    MAX_MS,
    NETWORK_THREAD,
    NO_BROKER,
    RENAMED_APIS,
    Place,
    Request,
)

_MARKER = MARKER.encode()
_ISO_TIMESTAMP = re.compile(r"\[?(\d{4}-\d{2}-\d{2}[T ]\d{2}:[0-5]\d:[0-5]\d)[.,](\d{3,6})(?!\d)(\s?Z)?(?!\s?[+-]\d)")

# Python refuses to parse integers of more than 4,300 digits.
_HUGE_NUMBER = re.compile(rb"\d{4000}")
# Shorter messages cannot nest too deeply, because each level has two brackets.
_MAX_SHALLOW_BYTES = 2 * MAX_DEPTH

_EMPTY: dict[str, Any] = {}


_Version = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Whole = Annotated[int, msgspec.Meta(gt=-MAX_NUMBER, lt=MAX_NUMBER)]


class _Header(msgspec.Struct, gc=False):
    requestApiVersion: _Version  # noqa: N815 (Kafka's name)
    requestApiKeyName: str | None = None  # noqa: N815
    requestApiKey: int | None = None  # noqa: N815
    clientId: str | None = None  # noqa: N815


_Ms = int | float


class _Envelope(msgspec.Struct, gc=False):
    """The fields that all requests share."""

    requestHeader: _Header  # noqa: N815
    totalTimeMs: _Ms  # noqa: N815
    requestQueueTimeMs: _Ms  # noqa: N815
    localTimeMs: _Ms  # noqa: N815
    remoteTimeMs: _Ms  # noqa: N815
    responseQueueTimeMs: _Ms  # noqa: N815
    sendTimeMs: _Ms  # noqa: N815
    connection: str = ""
    listener: str = ""
    isForwarded: bool = False  # noqa: N815


class _Line(_Envelope, gc=False, kw_only=True):
    request: msgspec.Raw
    response: msgspec.Raw = msgspec.Raw(b"null")


class UnparsedRequest(NamedTuple):
    """A request with body and response as JSON text; `request.body` and `request.answer` are not set."""

    request: Request
    body: str
    answer: str | None


_decode_line = msgspec.json.Decoder(_Line).decode


def parse_line(line: bytes, place: Place, zone: tzinfo) -> UnparsedRequest | None:
    """Parse a line of the request log, or return None if it needs the complete parser.

    `zone` is the time zone of timestamps without one.
    """
    mark = line.find(_MARKER)
    end = line.rfind(b"}") + 1
    message = line[mark + len(_MARKER) : end]
    if mark < 0 or _needs_full_check(message):
        return None
    try:
        # Text with invalid UTF-8 is left to the complete parser, which replaces the invalid bytes.
        around = line[:mark].decode()
        body = _decode_line(message)
        request, answer = str(body.request, "utf-8"), str(body.response, "utf-8")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    parsed = _request(body, place, around, line[end:], zone) if request.startswith("{") else None
    if parsed is None:
        return None
    return UnparsedRequest(parsed, request, answer if answer.startswith("{") else None)


def _request(body: _Envelope, place: Place, around: str, after: bytes, zone: tzinfo) -> Request | None:
    """Return the request of a message, or None if it needs the complete parser.

    Args:
        body: The message.
        place: File and line number.
        around: Text before the message.
        after: Text after it.
        zone: Time zone of timestamps without one.
    """
    written, layout = _written(around, zone)
    header = body.requestHeader
    api = header.requestApiKeyName or API_NAMES.get(-1 if header.requestApiKey is None else header.requestApiKey)
    if written is None or not api:
        return None
    times_ms = [body.totalTimeMs, body.requestQueueTimeMs, body.localTimeMs, body.remoteTimeMs]
    times_ms += [body.responseQueueTimeMs, body.sendTimeMs]
    if not (min(times_ms) > -MAX_MS and max(times_ms) < MAX_MS):
        return None
    total, queue, local, remote, queued, sent = [round(ms * 1000) for ms in times_ms]
    broker = _broker_in(layout)
    if broker == NO_BROKER and after:
        broker = _broker_in(after.decode(errors="replace"))
    if broker >= 2**31:
        return None
    arrival = written - total
    done = arrival + queue + local
    return Request(
        broker,
        place,
        RENAMED_APIS.get(api, api),
        header.requestApiVersion,
        header.clientId,
        body.connection,
        body.listener,
        body.isForwarded,
        arrival,
        arrival + queue,
        done,
        remote,
        done + remote if remote else min(done, written - queued - sent),
        written,
        _EMPTY,
        None,
    )


@lru_cache(maxsize=256)
def _broker_in(text: str) -> int:
    """Return the broker id in the name of a network thread; results are cached, because there are few threads."""
    thread = NETWORK_THREAD.search(text)
    return int(thread[1]) if thread else NO_BROKER


def _needs_full_check(message: bytes) -> bool:
    """Return whether the message may be rejected for its nesting depth or for a number with too many digits."""
    if len(message) <= _MAX_SHALLOW_BYTES:
        return False
    deep = message.count(b"{") + message.count(b"[") > MAX_DEPTH
    return deep or (len(message) > 4000 and _HUGE_NUMBER.search(message) is not None)


def _written(around: str, zone: tzinfo) -> tuple[int | None, str]:
    """Return the same time as `log_files.timestamp_us`, but faster for the most common layouts, and the text around it.

    For these layouts, the text is without the time.
    """
    match = _ISO_TIMESTAMP.match(around)
    if match is None:
        return timestamp_us(around, zone), around
    second, part, utc = match.groups()
    whole = _second_us(second, UTC if utc else zone)
    if whole is None:
        return timestamp_us(around, zone), around
    return whole + int(part) * 10 ** (6 - len(part)), around[match.end() :]


@lru_cache(maxsize=64)
def _second_us(text: str, zone: tzinfo) -> int | None:
    """Convert a date and time of whole seconds to microseconds since the epoch; None for an impossible time.

    Results are cached, because many lines share a second.
    """
    midnight, hour = _midnight_us(text[:10], zone), text[11:13]
    if midnight is None or hour > "23":
        return None
    return midnight + (int(hour) * 3600 + int(text[14:16]) * 60 + int(text[17:19])) * 1_000_000


@lru_cache(maxsize=64)
def _midnight_us(day: str, zone: tzinfo) -> int | None:
    """Return the start of a day in microseconds since the epoch, or None for an impossible date."""
    return timestamp_us(f"{day} 00:00:00.000", zone)


# Fetch requests and responses of the current protocol versions.


class _FetchPartition(msgspec.Struct, gc=False):
    fetchOffset: _Whole  # noqa: N815
    partitionMaxBytes: _Whole  # noqa: N815
    partition: _Whole
    currentLeaderEpoch: _Whole = -1  # noqa: N815
    logStartOffset: _Whole = -1  # noqa: N815


class _FetchTopic(msgspec.Struct, gc=False):
    partitions: list[_FetchPartition]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _ForgottenTopic(msgspec.Struct, gc=False):
    partitions: list[_Whole]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _ReplicaState(msgspec.Struct, gc=False):
    replicaId: _Whole = -1  # noqa: N815


class _FetchRequest(msgspec.Struct, gc=False):
    maxWaitMs: _Whole  # noqa: N815
    minBytes: _Whole  # noqa: N815
    replicaId: _Whole = -1  # noqa: N815
    replicaState: _ReplicaState | None = None  # noqa: N815
    maxBytes: _Whole = 2**31 - 1  # noqa: N815
    isolationLevel: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    sessionEpoch: _Whole = -1  # noqa: N815
    topics: list[_FetchTopic] | None = None
    forgottenTopicsData: list[_ForgottenTopic] | None = None  # noqa: N815
    rackId: str | None = None  # noqa: N815


class _EpochEndOffset(msgspec.Struct, gc=False):
    endOffset: _Whole = -1  # noqa: N815


# A field with any value of this type is refused.
_Absent = Annotated[int, msgspec.Meta(gt=0, lt=0)]


class _PartitionData(msgspec.Struct, gc=False):
    partitionIndex: _Whole  # noqa: N815
    # Fields of earlier versions.
    partitionHeader: _Absent = 0  # noqa: N815
    recordSetSizeInBytes: _Absent = 0  # noqa: N815
    errorCode: _Whole = 0  # noqa: N815
    highWatermark: _Whole = -1  # noqa: N815
    recordsSizeInBytes: _Whole | None = None  # noqa: N815
    preferredReadReplica: _Whole = -1  # noqa: N815
    lastStableOffset: _Whole = -1  # noqa: N815
    divergingEpoch: _EpochEndOffset | None = None  # noqa: N815


class _FetchableTopicResponse(msgspec.Struct, gc=False):
    partitions: list[_PartitionData]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _FetchResponse(msgspec.Struct, gc=False):
    errorCode: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    responses: list[_FetchableTopicResponse] | None = None


class _FetchLine(_Envelope, gc=False, kw_only=True):
    request: _FetchRequest
    response: _FetchResponse | None = None


_decode_fetch_line = msgspec.json.Decoder(_FetchLine).decode
_FETCH, _FETCH_NAME, _FETCH_KEY = "FETCH", b'"requestApiKeyName":"FETCH"', b'"requestApiKey":1,'
# Longest distance from the start of a message to the name of its API.
_HEADER_BYTES = 400

# Faster than the types' own constructors.
_requested: Callable[[Iterable[Any]], FetchRequestPartition] = partial(tuple.__new__, FetchRequestPartition)
_fetched: Callable[[Iterable[Any]], FetchPartitionData] = partial(tuple.__new__, FetchPartitionData)


def parse_fetch(line: bytes, place: Place, zone: tzinfo) -> Request | None:
    """Parse the line of a fetch with its body and response, or return None if it needs another parser.

    The bodies, in `fetch`, equal those of `kafka_protocol.decode_fetch_request` and `decode_fetch_response`.

    Args:
        line: A line of any request or of another logger.
        place: File and line number.
        zone: Time zone of timestamps without one.
    """
    mark = line.find(_MARKER)
    start = mark + len(_MARKER)
    name_end = start + _HEADER_BYTES
    if mark < 0 or (line.find(_FETCH_NAME, start, name_end) < 0 and line.find(_FETCH_KEY, start, name_end) < 0):
        return None
    end = line.rfind(b"}") + 1
    message = line[start:end]
    if _needs_full_check(message):
        return None
    try:
        if not line.isascii():
            line.decode()
        body = _decode_fetch_line(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    bodies = _fetch_bodies(body.request, body.response)
    request = _request(body, place, line[:mark].decode(), line[end:], zone) if bodies else None
    if request is None or request.api != _FETCH:
        return None
    request.fetch = bodies
    return request


def _fetch_bodies(
    request: _FetchRequest, response: _FetchResponse | None
) -> tuple[FetchRequestBody, FetchResponseBody] | None:
    partitions: list[FetchRequestPartition] = []
    forgotten: list[Key] = []
    fetched: list[FetchPartitionData] = []
    for topic in request.topics or ():
        name = _topic_name(topic)
        # Id and name, and topics without partitions, matter for recognising fetches of the metadata log.
        if name is None or not topic.partitions or (topic.topicId and topic.topic):
            return None
        partitions += [
            _requested(
                (
                    name,
                    each.partition,
                    each.fetchOffset,
                    each.partitionMaxBytes,
                    each.currentLeaderEpoch,
                    each.logStartOffset,
                )
            )
            for each in topic.partitions
        ]
    for dropped in request.forgottenTopicsData or ():
        name = _topic_name(dropped)
        if name is None:
            return None
        forgotten += [(name, index) for index in dropped.partitions]
    for topic_response in (response and response.responses) or ():
        name = _topic_name(topic_response)
        if name is None:
            return None
        fetched += [
            _fetched(
                (
                    name,
                    data.partitionIndex,
                    data.errorCode,
                    data.highWatermark,
                    max(0, data.recordsSizeInBytes or 0),
                    data.divergingEpoch.endOffset if data.divergingEpoch else -1,
                    data.preferredReadReplica,
                    data.lastStableOffset,
                )
            )
            for data in topic_response.partitions
        ]
    fetch = FetchRequestBody(
        request.replicaState.replicaId if request.replicaState is not None else request.replicaId,
        request.maxWaitMs,
        request.minBytes,
        request.maxBytes,
        request.isolationLevel,
        request.sessionId,
        request.sessionEpoch,
        partitions,
        forgotten,
        bool(request.rackId),
    )
    return fetch, FetchResponseBody(*((response.errorCode, response.sessionId) if response else (0, 0)), fetched)


def _topic_name(topic: _FetchTopic | _ForgottenTopic | _FetchableTopicResponse) -> str | None:
    if topic.topicId and topic.topicId != NO_TOPIC_ID:
        return topic.topicId
    return topic.topic
