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

from purgatory_udf.sources.request_log.lines.log_files import stamp_us
from purgatory_udf.sources.request_log.lines.log_line import (
    API_NAMES,
    DEEPEST,
    MARK,
    MOST_MS,
    NO_BROKER,
    RENAMED,
    THREAD,
)
from purgatory_udf.sources.request_log.lines.logged_request import Place, Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    MOST,
    NO_TOPIC_ID,
    AskedPartition,
    FetchAnswer,
    FetchBody,
    ReadPartition,
)

_MARK = MARK.encode()
_STAMP = re.compile(r"\[?(\d{4}-\d{2}-\d{2}[T ]\d{2}:[0-5]\d:[0-5]\d)[.,](\d{3,6})(?!\d)(\s?Z)?(?!\s?[+-]\d)")

# Python reads no longer numbers.
_HUGE = re.compile(rb"\d{4000}")
# Too short for what nests deeper: each level begins and ends.
_SHALLOW = 2 * DEEPEST

_EMPTY: dict[str, Any] = {}


_Version = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Whole = Annotated[int, msgspec.Meta(gt=-MOST, lt=MOST)]


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


class Texts(NamedTuple):
    """A request whose body and answer are text still (`body` and `answer` of the request are not filled in)."""

    request: Request
    body: str
    answer: str | None


_decode = msgspec.json.Decoder(_Line).decode


def quick(line: bytes, place: Place, zone: tzinfo) -> Texts | None:
    mark = line.find(_MARK)
    if mark < 0:
        return None
    start = mark + len(_MARK)
    end = line.rfind(b"}") + 1
    message = line[start:end]
    if len(message) > _SHALLOW and _may_be_refused(message):
        return None
    try:
        # Text that is not UTF-8 has its broken bytes replaced: not here.
        around = line[:mark].decode()
        body = _decode(message)
        request, answer = str(body.request, "utf-8"), str(body.response, "utf-8")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    written = _stamp(around, zone)
    header = body.requestHeader
    api = header.requestApiKeyName or API_NAMES.get(-1 if header.requestApiKey is None else header.requestApiKey)
    if written is None or not request.startswith("{") or not api:
        return None
    micros = [body.totalTimeMs, body.requestQueueTimeMs, body.localTimeMs, body.remoteTimeMs]
    micros += [body.responseQueueTimeMs, body.sendTimeMs]
    if not (min(micros) > -MOST_MS and max(micros) < MOST_MS):
        return None
    total, queue, local, remote, queued, sent = [round(ms * 1000) for ms in micros]
    thread = THREAD.search(around) or THREAD.search(line[end:].decode(errors="replace"))
    broker = int(thread[1]) if thread else NO_BROKER
    if broker >= 2**31:
        return None
    arrival = written - total
    done = arrival + queue + local
    return Texts(
        Request(
            broker,
            place,
            RENAMED.get(api, api),
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


def _may_be_refused(message: bytes) -> bool:
    """For its depth, or a number in it."""
    deep = message.count(b"{") + message.count(b"[") > DEEPEST
    return deep or (len(message) > 4000 and _HUGE.search(message) is not None)


def _stamp(around: str, zone: tzinfo) -> int | None:
    """As `stamp.stamp_us`, which it asks but for the layouts that most logs have."""
    match = _STAMP.match(around)
    if match is None:
        return stamp_us(around, zone)
    second, part, utc = match.groups()
    whole = _second(second, UTC if utc else zone)
    return stamp_us(around, zone) if whole is None else whole + int(part) * 10 ** (6 - len(part))


@lru_cache(maxsize=64)
def _second(text: str, zone: tzinfo) -> int | None:
    """Many lines are of one second."""
    midnight, hour = _midnight(text[:10], zone), text[11:13]
    if midnight is None or hour > "23":
        return None
    return midnight + (int(hour) * 3600 + int(text[14:16]) * 60 + int(text[17:19])) * 1_000_000


@lru_cache(maxsize=64)
def _midnight(day: str, zone: tzinfo) -> int | None:
    return stamp_us(f"{day} 00:00:00.000", zone)


# A fetch and its answer, in the shape of the versions that are in use.


class _Asked(msgspec.Struct, gc=False):
    fetchOffset: _Whole  # noqa: N815
    partitionMaxBytes: _Whole  # noqa: N815
    partition: _Whole
    currentLeaderEpoch: _Whole = -1  # noqa: N815
    logStartOffset: _Whole = -1  # noqa: N815


class _AskedTopic(msgspec.Struct, gc=False):
    partitions: list[_Asked]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _Forgotten(msgspec.Struct, gc=False):
    partitions: list[_Whole]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _Replica(msgspec.Struct, gc=False):
    replicaId: _Whole = -1  # noqa: N815


class _Fetch(msgspec.Struct, gc=False):
    maxWaitMs: _Whole  # noqa: N815
    minBytes: _Whole  # noqa: N815
    replicaId: _Whole = -1  # noqa: N815
    replicaState: _Replica | None = None  # noqa: N815
    maxBytes: _Whole = 2**31 - 1  # noqa: N815
    isolationLevel: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    sessionEpoch: _Whole = -1  # noqa: N815
    topics: list[_AskedTopic] | None = None
    forgottenTopicsData: list[_Forgotten] | None = None  # noqa: N815
    rackId: str | None = None  # noqa: N815


class _Parting(msgspec.Struct, gc=False):
    endOffset: _Whole = -1  # noqa: N815


class _Read(msgspec.Struct, gc=False):
    partitionIndex: _Whole  # noqa: N815
    errorCode: _Whole = 0  # noqa: N815
    highWatermark: _Whole = -1  # noqa: N815
    recordsSizeInBytes: _Whole | None = None  # noqa: N815
    preferredReadReplica: _Whole = -1  # noqa: N815
    divergingEpoch: _Parting | None = None  # noqa: N815


class _ReadTopic(msgspec.Struct, gc=False):
    partitions: list[_Read]
    topicId: str | None = None  # noqa: N815
    topic: str | None = None


class _Answer(msgspec.Struct, gc=False):
    errorCode: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    responses: list[_ReadTopic] | None = None


_decode_fetch = msgspec.json.Decoder(_Fetch).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


def quick_fetch(body: str, answer: str | None) -> tuple[FetchBody, FetchAnswer] | None:
    """Each as `bodies.fetch_of` and `bodies.fetch_answer_of` read it."""
    if answer is not None and ("recordSet" in answer or "partitionHeader" in answer):
        return None
    try:
        asked = _decode_fetch(body)
        answered = _decode_answer(answer) if answer is not None else _Answer()
    except (msgspec.MsgspecError, RecursionError):
        return None
    partitions, forgotten, read = [], [], []
    for topic in asked.topics or ():
        name = _name(topic)
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
            partitions.append(AskedPartition(name, place, offset, most, epoch, partition.logStartOffset))
    for left in asked.forgottenTopicsData or ():
        name = _name(left)
        if name is None:
            return None
        forgotten += [(name, place) for place in left.partitions]
    for answered_topic in answered.responses or ():
        name = _name(answered_topic)
        if name is None:
            return None
        for fetched in answered_topic.partitions:
            parts_at = fetched.divergingEpoch.endOffset if fetched.divergingEpoch else -1
            size = max(0, fetched.recordsSizeInBytes or 0)
            read.append(
                ReadPartition(
                    name,
                    fetched.partitionIndex,
                    fetched.errorCode,
                    fetched.highWatermark,
                    size,
                    parts_at,
                    fetched.preferredReadReplica,
                )
            )
    fetch = FetchBody(
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
    return fetch, FetchAnswer(answered.errorCode, answered.sessionId, read)


def _name(topic: _AskedTopic | _Forgotten | _ReadTopic) -> str | None:
    if topic.topicId and topic.topicId != NO_TOPIC_ID:
        return topic.topicId
    return topic.topic
