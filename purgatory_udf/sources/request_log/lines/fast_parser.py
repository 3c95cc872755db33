"""Lines of a request log as Kafka writes them, decoded in compiled code; what is written otherwise is left to `line`.

Of a line only what every request has is taken apart here: its body and its answer stay text. Each function says None
where it cannot tell, and never takes what the plain way (`line.read_line`, `bodies.fetch_of`) would refuse.
"""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from purgatory_udf.sources.request_log.lines.log_files import timestamp_us
from purgatory_udf.sources.request_log.lines.log_line import (
    API_NAMES,
    MARKER,
    MAX_DEPTH,
    MAX_MS,
    NETWORK_THREAD,
    NO_BROKER,
    RENAMED_APIS,
)
from purgatory_udf.sources.request_log.lines.logged_request import Place, Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    MAX_NUMBER,
    NO_TOPIC_ID,
    FetchPartitionData,
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
)

_MARK = MARKER.encode()
_ISO_TIMESTAMP = re.compile(r"\[?(\d{4}-\d{2}-\d{2}[T ]\d{2}:[0-5]\d:[0-5]\d)[.,](\d{3,6})(?!\d)(\s?Z)?(?!\s?[+-]\d)")

# Python reads no longer numbers.
_HUGE_NUMBER = re.compile(rb"\d{4000}")
# Too short for what nests deeper: each level begins and ends.
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


class _Line(msgspec.Struct, gc=False):
    requestHeader: _Header  # noqa: N815
    request: msgspec.Raw
    totalTimeMs: _Ms  # noqa: N815
    requestQueueTimeMs: _Ms  # noqa: N815
    localTimeMs: _Ms  # noqa: N815
    remoteTimeMs: _Ms  # noqa: N815
    responseQueueTimeMs: _Ms  # noqa: N815
    sendTimeMs: _Ms  # noqa: N815
    response: msgspec.Raw = msgspec.Raw(b"null")
    connection: str = ""
    listener: str = ""
    isForwarded: bool = False  # noqa: N815


class UnparsedRequest(NamedTuple):
    """A request whose body and answer are text still (`body` and `answer` of the request are not filled in)."""

    request: Request
    body: str
    answer: str | None


_decode_line = msgspec.json.Decoder(_Line).decode


def parse_line(line: bytes, place: Place, zone: tzinfo) -> UnparsedRequest | None:
    mark = line.find(_MARK)
    if mark < 0:
        return None
    start = mark + len(_MARK)
    end = line.rfind(b"}") + 1
    message = line[start:end]
    if len(message) > _MAX_SHALLOW_BYTES and _needs_full_check(message):
        return None
    try:
        # Text that is not UTF-8 has its broken bytes replaced: not here.
        around = line[:mark].decode()
        body = _decode_line(message)
        request, answer = str(body.request, "utf-8"), str(body.response, "utf-8")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    written = _timestamp_us(around, zone)
    header = body.requestHeader
    api = header.requestApiKeyName or API_NAMES.get(-1 if header.requestApiKey is None else header.requestApiKey)
    if written is None or not request.startswith("{") or not api:
        return None
    micros = [body.totalTimeMs, body.requestQueueTimeMs, body.localTimeMs, body.remoteTimeMs]
    micros += [body.responseQueueTimeMs, body.sendTimeMs]
    if not (min(micros) > -MAX_MS and max(micros) < MAX_MS):
        return None
    total, queue, local, remote, queued, sent = [round(ms * 1000) for ms in micros]
    thread = NETWORK_THREAD.search(around) or NETWORK_THREAD.search(line[end:].decode(errors="replace"))
    broker = int(thread[1]) if thread else NO_BROKER
    if broker >= 2**31:
        return None
    arrival = written - total
    done = arrival + queue + local
    return UnparsedRequest(
        Request(
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
        ),
        request,
        answer if answer.startswith("{") else None,
    )


def _needs_full_check(message: bytes) -> bool:
    """For its depth, or a number in it."""
    deep = message.count(b"{") + message.count(b"[") > MAX_DEPTH
    return deep or (len(message) > 4000 and _HUGE_NUMBER.search(message) is not None)


def _timestamp_us(around: str, zone: tzinfo) -> int | None:
    """As `stamp.stamp_us`, which it asks but for the layouts that most logs have."""
    match = _ISO_TIMESTAMP.match(around)
    if match is None:
        return timestamp_us(around, zone)
    second, part, utc = match.groups()
    whole = _second_us(second, UTC if utc else zone)
    return timestamp_us(around, zone) if whole is None else whole + int(part) * 10 ** (6 - len(part))


@lru_cache(maxsize=64)
def _second_us(text: str, zone: tzinfo) -> int | None:
    """Many lines are of one second."""
    midnight, hour = _midnight_us(text[:10], zone), text[11:13]
    if midnight is None or hour > "23":
        return None
    return midnight + (int(hour) * 3600 + int(text[14:16]) * 60 + int(text[17:19])) * 1_000_000


@lru_cache(maxsize=64)
def _midnight_us(day: str, zone: tzinfo) -> int | None:
    return timestamp_us(f"{day} 00:00:00.000", zone)


# A fetch and its answer, in the shape of the versions that are in use.


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


class _PartitionData(msgspec.Struct, gc=False):
    partitionIndex: _Whole  # noqa: N815
    errorCode: _Whole = 0  # noqa: N815
    highWatermark: _Whole = -1  # noqa: N815
    recordsSizeInBytes: _Whole | None = None  # noqa: N815
    preferredReadReplica: _Whole = -1  # noqa: N815
    divergingEpoch: _EpochEndOffset | None = None  # noqa: N815


class _FetchableTopicResponse(msgspec.Struct, gc=False):
    partitions: list[_PartitionData]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _FetchResponse(msgspec.Struct, gc=False):
    errorCode: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    responses: list[_FetchableTopicResponse] | None = None


_decode_request = msgspec.json.Decoder(_FetchRequest).decode
_decode_response = msgspec.json.Decoder(_FetchResponse).decode


def parse_fetch(body: str, answer: str | None) -> tuple[FetchRequestBody, FetchResponseBody] | None:
    """Each as `bodies.fetch_of` and `bodies.fetch_answer_of` read it."""
    if answer is not None and ("recordSet" in answer or "partitionHeader" in answer):
        return None
    try:
        asked = _decode_request(body)
        answered = _decode_response(answer) if answer is not None else _FetchResponse()
    except (msgspec.MsgspecError, RecursionError):
        return None
    partitions, forgotten, read = [], [], []
    for topic in asked.topics or ():
        name = _topic_name(topic)
        # Whether it is the controllers' own is told by either, and by a topic without partitions, too.
        if name is None or not topic.partitions or (topic.topicId and topic.topic):
            return None
        for partition in topic.partitions:
            offset, most, place, epoch = (
                partition.fetchOffset,
                partition.partitionMaxBytes,
                partition.partition,
                partition.currentLeaderEpoch,
            )
            partitions.append(FetchRequestPartition(name, place, offset, most, epoch, partition.logStartOffset))
    for left in asked.forgottenTopicsData or ():
        name = _topic_name(left)
        if name is None:
            return None
        forgotten += [(name, place) for place in left.partitions]
    for answered_topic in answered.responses or ():
        name = _topic_name(answered_topic)
        if name is None:
            return None
        for fetched in answered_topic.partitions:
            parts_at = fetched.divergingEpoch.endOffset if fetched.divergingEpoch else -1
            size = max(0, fetched.recordsSizeInBytes or 0)
            read.append(
                FetchPartitionData(
                    name,
                    fetched.partitionIndex,
                    fetched.errorCode,
                    fetched.highWatermark,
                    size,
                    parts_at,
                    fetched.preferredReadReplica,
                )
            )
    fetch = FetchRequestBody(
        asked.replicaState.replicaId if asked.replicaState is not None else asked.replicaId,
        asked.maxWaitMs,
        asked.minBytes,
        asked.maxBytes,
        asked.isolationLevel,
        asked.sessionId,
        asked.sessionEpoch,
        partitions,
        forgotten,
        bool(asked.rackId),
    )
    return fetch, FetchResponseBody(answered.errorCode, answered.sessionId, read)


def _topic_name(topic: _FetchTopic | _ForgottenTopic | _FetchableTopicResponse) -> str | None:
    if topic.topicId and topic.topicId != NO_TOPIC_ID:
        return topic.topicId
    return topic.topic
