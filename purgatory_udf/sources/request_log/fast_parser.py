"""Fast parser for log lines in Kafka's own layout, with compiled decoders (msgspec).

Fetches and produces, which are most lines, are decoded many at once, as columns (`parse_fetches`, `parse_produces`).
Of other requests, only the fields that all requests share are decoded, and body and response stay text (`parse_line`).
Input that is not handled here is left to the complete parser (`complete_parser.read_line`, `kafka_protocol`). No
function accepts input that the complete parser rejects, and otherwise they return the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from itertools import chain, compress
from operator import attrgetter
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from purgatory_udf.sources.request_log.kafka_protocol import (
    MAX_NUMBER,
    METADATA_TOPICS,
    NO_TOPIC_ID,
    FetchColumns,
    Numbers,
    ProduceColumns,
    bounds_of,
)
from purgatory_udf.sources.request_log.log_files import timestamp_us
from purgatory_udf.sources.request_log.logged_request import (
    API_NAMES,
    MARKER,
    MAX_BROKER,
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
_has_huge_number = re.compile(rb"\d{4000}").search
# Shorter messages cannot nest too deeply, because each level has two brackets.
_MAX_SHALLOW_BYTES = 2 * MAX_DEPTH

_EMPTY: dict[str, Any] = {}


_Version = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Whole = Annotated[int, msgspec.Meta(gt=-MAX_NUMBER, lt=MAX_NUMBER)]


class _Header(msgspec.Struct, gc=False, kw_only=True):
    requestApiKey: int | None = None  # noqa: N815 (Kafka's name)
    requestApiVersion: _Version  # noqa: N815
    clientId: str | None = None  # noqa: N815
    requestApiKeyName: str | None = None  # noqa: N815


_WholeMs = Annotated[int, msgspec.Meta(gt=-int(MAX_MS), lt=int(MAX_MS))]
_Ms = _WholeMs | Annotated[float, msgspec.Meta(gt=-MAX_MS, lt=MAX_MS)]


Body = TypeVar("Body")
Answer = TypeVar("Answer")
_NO_ANSWER: Any = None


# The decoder looks for the next field of a message first, so fields are in Kafka's order.
class _Line(msgspec.Struct, Generic[Body, Answer], gc=False, kw_only=True):
    """The fields that all requests share, with body and response."""

    isForwarded: bool = False  # noqa: N815
    requestHeader: _Header  # noqa: N815
    request: Body
    response: Answer = _NO_ANSWER
    connection: str = ""
    totalTimeMs: _Ms  # noqa: N815
    requestQueueTimeMs: _Ms  # noqa: N815
    localTimeMs: _Ms  # noqa: N815
    remoteTimeMs: _Ms  # noqa: N815
    responseQueueTimeMs: _Ms  # noqa: N815
    sendTimeMs: _Ms  # noqa: N815
    listener: str = ""


class UnparsedRequest(NamedTuple):
    """A request with body and response as JSON text; `request.body` and `request.answer` are not set."""

    request: Request
    body: str
    answer: str | None


_decode_line = msgspec.json.Decoder(_Line[msgspec.Raw, msgspec.Raw]).decode
_times_ms: Callable[[_Line[Any, Any]], tuple[float, ...]] = attrgetter(
    "totalTimeMs", "requestQueueTimeMs", "localTimeMs", "remoteTimeMs", "responseQueueTimeMs", "sendTimeMs"
)
_api: Callable[[Any], tuple[str | None, int | None]] = attrgetter(
    "requestHeader.requestApiKeyName", "requestHeader.requestApiKey"
)


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
        request, answer = str(body.request, "utf-8"), str(body.response or b"null", "utf-8")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    parsed = _request(body, place, around, line[end:], zone) if request.startswith("{") else None
    if parsed is None:
        return None
    return UnparsedRequest(parsed, request, answer if answer.startswith("{") else None)


def _request(body: _Line[Any, Any], place: Place, around: str, after: bytes, zone: tzinfo) -> Request | None:
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
    api = _api_of(*_api(body))
    if written is None or not api:
        return None
    total, queue, local, remote, queued, sent = [round(ms * 1000) for ms in _times_ms(body)]
    broker = _broker_around(layout, after)
    if broker > MAX_BROKER:
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


def _api_of(name: str | None, key: int | None) -> str | None:
    return name or API_NAMES.get(-1 if key is None else key)


def _broker_around(layout: str, after: bytes) -> int:
    """Return the broker id in the text before a message, or else in the text after it."""
    broker = _broker_in(layout)
    return _broker_in(after.decode(errors="replace")) if broker == NO_BROKER and after else broker


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
    return deep or (len(message) > 4000 and _has_huge_number(message) is not None)


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


# A field with any value of this type is refused.
_Absent = Annotated[int, msgspec.Meta(gt=0, lt=0)]


# Produce requests and responses of the current protocol versions.


class _WrittenPartition(msgspec.Struct, gc=False):
    index: _Whole
    recordsSizeInBytes: _Whole  # noqa: N815


class _WrittenTopic(msgspec.Struct, gc=False, kw_only=True):
    topicId: str | None = None  # noqa: N815
    topic: str | None = msgspec.field(default=None, name="name")
    other_name: _Absent = msgspec.field(default=0, name="topic")
    partitions: list[_WrittenPartition] = msgspec.field(name="partitionData")


class _ProduceRequest(msgspec.Struct, gc=False, kw_only=True):
    transactionalId: str | None = None  # noqa: N815
    acks: _Whole
    timeoutMs: _Whole  # noqa: N815
    topicData: list[_WrittenTopic]  # noqa: N815


class _AnsweredPartition(msgspec.Struct, gc=False):
    index: _Whole
    errorCode: _Whole = 0  # noqa: N815
    baseOffset: _Whole = -1  # noqa: N815


class _AnsweredTopic(msgspec.Struct, gc=False, kw_only=True):
    topicId: str | None = None  # noqa: N815
    topic: str | None = msgspec.field(default=None, name="name")
    other_name: _Absent = msgspec.field(default=0, name="topic")
    partitions: list[_AnsweredPartition] = msgspec.field(name="partitionResponses")


class _ProduceResponse(msgspec.Struct, gc=False):
    responses: list[_AnsweredTopic]


# Fetch requests and responses of the current protocol versions.


class _FetchPartition(msgspec.Struct, gc=False, kw_only=True):
    partition: _Whole
    currentLeaderEpoch: _Whole = -1  # noqa: N815
    fetchOffset: _Whole  # noqa: N815
    logStartOffset: _Whole = -1  # noqa: N815
    partitionMaxBytes: _Whole  # noqa: N815


class _FetchTopic(msgspec.Struct, gc=False, kw_only=True):
    topicId: str | None = None  # noqa: N815
    topic: str | None = None
    partitions: list[_FetchPartition]


class _ForgottenTopic(msgspec.Struct, gc=False, kw_only=True):
    topicId: str | None = None  # noqa: N815
    topic: str | None = None
    partitions: list[_Whole]


class _ReplicaState(msgspec.Struct, gc=False):
    replicaId: _Whole = -1  # noqa: N815


class _FetchRequest(msgspec.Struct, gc=False, kw_only=True):
    replicaId: _Whole = -1  # noqa: N815
    replicaState: _ReplicaState | None = None  # noqa: N815
    maxWaitMs: _Whole  # noqa: N815
    minBytes: _Whole  # noqa: N815
    maxBytes: _Whole = 2**31 - 1  # noqa: N815
    isolationLevel: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    sessionEpoch: _Whole = -1  # noqa: N815
    topics: list[_FetchTopic] | None = None
    forgottenTopicsData: list[_ForgottenTopic] | None = None  # noqa: N815
    rackId: str | None = None  # noqa: N815


class _EpochEndOffset(msgspec.Struct, gc=False):
    endOffset: _Whole = -1  # noqa: N815


class _PartitionData(msgspec.Struct, gc=False, kw_only=True):
    partitionIndex: _Whole  # noqa: N815
    errorCode: _Whole = 0  # noqa: N815
    highWatermark: _Whole = -1  # noqa: N815
    lastStableOffset: _Whole = -1  # noqa: N815
    divergingEpoch: _EpochEndOffset | None = None  # noqa: N815
    preferredReadReplica: _Whole = -1  # noqa: N815
    recordsSizeInBytes: _Whole | None = None  # noqa: N815
    # Fields of earlier versions.
    partitionHeader: _Absent = 0  # noqa: N815
    recordSetSizeInBytes: _Absent = 0  # noqa: N815


class _FetchableTopicResponse(msgspec.Struct, gc=False, kw_only=True):
    topicId: str | None = None  # noqa: N815
    topic: str | None = None
    partitions: list[_PartitionData]


class _FetchResponse(msgspec.Struct, gc=False):
    errorCode: _Whole = 0  # noqa: N815
    sessionId: _Whole = 0  # noqa: N815
    responses: list[_FetchableTopicResponse] | None = None


# A produce with acks 0 has the response "".
_ProduceLine = _Line[_ProduceRequest, _ProduceResponse | str | None]
_FetchLine = _Line[_FetchRequest, _FetchResponse | None]


class _Api(NamedTuple):
    """How to recognize and decode the messages of an API.

    Attributes:
        name: The API.
        start: How its messages usually start.
        is_named: Whether the start of a message may name the API.
        decode: Decodes a message.
    """

    name: str
    start: bytes
    is_named: Callable[[bytes], Any]
    decode: Callable[[bytes], Any]

    @classmethod
    def of(cls, name: str, key: int, line: type[Any]) -> _Api:
        start = b'{"isForwarded":false,"requestHeader":{"requestApiKey":%d,' % key
        is_named = re.compile(rb'"requestApiKey(Name":"%s"|":%d,)' % (name.encode(), key)).search
        return cls(name, start, is_named, msgspec.json.Decoder(line).decode)


_PRODUCE, _FETCH = _Api.of("PRODUCE", 0, _ProduceLine), _Api.of("FETCH", 1, _FetchLine)
# Longest distance from the start of a message to the name of its API.
_HEADER_BYTES = 400
_NO_RESPONSE = _FetchResponse()
_NO_END = _EpochEndOffset()

_partitions = attrgetter("partitions")
_fields_of_line = attrgetter(
    "connection", "listener", "isForwarded", "requestHeader.clientId", "requestHeader.requestApiVersion"
)
_diverging = attrgetter("divergingEpoch")
_sender: Callable[[Any], tuple[bool, str, str | None]] = attrgetter("isForwarded", "listener", "requestHeader.clientId")
_fields_of_request = attrgetter("maxWaitMs", "minBytes", "maxBytes", "isolationLevel", "sessionEpoch")
_fields_of_partition = attrgetter(
    "partition", "fetchOffset", "partitionMaxBytes", "currentLeaderEpoch", "logStartOffset"
)
_fields_of_data = attrgetter("partitionIndex", "errorCode", "highWatermark", "preferredReadReplica", "lastStableOffset")


@dataclass(frozen=True, slots=True)
class RequestLines:
    """Lines of requests, decoded.

    Attributes:
        numbers: Numbers of the lines among those given.
        brokers: Broker ids; `NO_BROKER` for a line without one.
        written_us: Timestamps of the lines.
        messages: Their messages.
    """

    numbers: Numbers
    brokers: Numbers
    written_us: Numbers
    messages: Sequence[Any]

    def __len__(self) -> int:
        return len(self.messages)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Return the chosen lines."""
        if chosen.all():
            return self
        messages = list(compress(self.messages, chosen.tolist()))
        return type(self)(self.numbers[chosen], self.brokers[chosen], self.written_us[chosen], messages)

    def times(self) -> dict[str, Numbers]:
        """Return the times of `Request` as columns."""
        times_ms = _table(self.messages, _times_ms, 6, np.float64)
        return times_of(self.written_us, *np.rint(times_ms * 1000).astype(np.int64).T)

    def fields(self) -> dict[str, Sequence[Any]]:
        """Return further columns of `Request`, which do not depend on the API."""
        columns = list(zip(*map(_fields_of_line, self.messages), strict=True)) or [()] * 5
        return dict(zip(("connection", "listener", "forwarded", "client_id", "version"), columns, strict=True))

    def senders(self) -> tuple[list[tuple[bool, str, str | None]], Numbers]:
        """Return senders, and the place of each line's sender among them.

        Of each: whether its requests were forwarded, its listener and its client.
        """
        return list(map(_sender, self.messages)), np.arange(len(self))


class FetchLines(RequestLines):
    """Lines of fetches; bodies equal those of `kafka_protocol.decode_fetch_request` and `_response`."""

    __slots__ = ()

    def has_rack(self) -> npt.NDArray[np.bool_]:
        """Return for each fetch whether its consumer sets `client.rack`."""
        return np.array([bool(message.request.rackId) for message in self.messages], bool)

    def sessions(self) -> tuple[Numbers, Numbers]:
        """Return the ids of the sessions in requests and responses."""
        requested = [message.request.sessionId for message in self.messages]
        granted = [message.response.sessionId if message.response else 0 for message in self.messages]
        return np.array(requested, np.int64), np.array(granted, np.int64)

    def with_bodies(self) -> tuple[FetchLines, FetchColumns]:
        """Return the fetches with usual topics, and their bodies and responses; others need the complete parser."""
        bodies = _bodies_of(self.messages)
        if bodies is not None:
            return self, bodies
        usual = self.where(np.array(list(map(_is_usual, self.messages)), bool))
        return usual, _bodies_of(usual.messages) or FetchColumns.of([])


class ProduceLines(RequestLines):
    """Lines of produces; bodies equal those of `kafka_protocol.decode_produce`."""

    __slots__ = ()

    def with_bodies(self) -> tuple[ProduceLines, ProduceColumns]:
        """Return the produces with usual topics, and their bodies and responses; others need the complete parser."""
        topics = _TopicNumbers()
        requests = [message.request for message in self.messages]
        answers = [message.response for message in self.messages]
        of_answers = [answer.responses if isinstance(answer, _ProduceResponse) else () for answer in answers]
        written, written_topics, bounds = _flat([each.topicData for each in requests], topics)
        answered, answered_topics, answered_bounds = _flat(of_answers, topics)
        if not _NO_TOPICS.isdisjoint(topics):
            pairs = zip(requests, of_answers, strict=True)
            usual = [_has_topics(each.topicData) and _has_topics(answer) for each, answer in pairs]
            return self.where(np.array(usual, bool)).with_bodies()
        rows = np.column_stack([written_topics, _table(written, _fields_of_written, 2)])
        rows[:, 2] = np.maximum(0, rows[:, 2])
        answer_rows = np.column_stack([answered_topics, _table(answered, _fields_of_answered, 3)])
        limits = _table(requests, _limits_of_produce, 2)
        transactions = [each.transactionalId for each in requests]
        of_answers_rows = answer_rows, answered_bounds
        return self, ProduceColumns.of(_names(topics), transactions, limits, (rows, bounds), of_answers_rows)


_limits_of_produce = attrgetter("acks", "timeoutMs")
_fields_of_written = attrgetter("index", "recordsSizeInBytes")
_fields_of_answered = attrgetter("index", "errorCode", "baseOffset")


def _bodies_of(messages: Sequence[_FetchLine]) -> FetchColumns | None:
    """Return bodies and responses as columns, or None if a fetch is not usual; see `_is_usual`."""
    topics = _TopicNumbers()
    requests = [message.request for message in messages]
    responses = [message.response or _NO_RESPONSE for message in messages]
    limits = np.empty((len(requests), 7), np.int64)
    limits[:, 0] = [each.replicaId if each.replicaState is None else each.replicaState.replicaId for each in requests]
    limits[:, 1:6] = _table(requests, _fields_of_request, 5)
    limits[:, 6] = [each.errorCode for each in responses]
    of_requests = [each.topics or () for each in requests]
    requested, requested_topics, listed_bounds = _flat(of_requests, topics)
    listed = np.empty((len(requested), 6), np.int64)
    listed[:, 0] = requested_topics
    listed[:, 1:] = _table(requested, _fields_of_partition, 5)
    removed, removed_topics, forgotten_bounds = _flat([each.forgottenTopicsData or () for each in requests], topics)
    forgotten = np.empty((len(removed), 2), np.int64)
    forgotten[:, 0], forgotten[:, 1] = removed_topics, removed
    read, read_topics, fetched_bounds = _flat([each.responses or () for each in responses], topics)
    fetched = np.empty((len(read), 8), np.int64)
    fetched[:, 0] = read_topics
    fetched[:, [1, 2, 3, 6, 7]] = _table(read, _fields_of_data, 5)
    fetched[:, 4] = np.maximum(0, np.array([data.recordsSizeInBytes or 0 for data in read], np.int64))
    fetched[:, 5] = -1
    if any(map(_diverging, read)):
        fetched[:, 5] = [(data.divergingEpoch or _NO_END).endOffset for data in read]
    if not (OTHER_TOPICS.isdisjoint(topics) and all(map(_has_partitions, chain.from_iterable(of_requests)))):
        return None
    return FetchColumns(
        _names(topics), limits, listed, listed_bounds, forgotten, forgotten_bounds, fetched, fetched_bounds
    )


# The id of topics without one, and topics without id and name; the metadata log.
_NO_TOPICS = frozenset({NO_TOPIC_ID, None})
OTHER_TOPICS = METADATA_TOPICS | _NO_TOPICS


def _has_topics(topics: Iterable[Any]) -> bool:
    """Return whether all topics have an id or a name."""
    return _NO_TOPICS.isdisjoint(topic.topicId or topic.topic for topic in topics)


def _names(topics: Iterable[str | None]) -> list[str]:
    return [name or "" for name in topics]


def _is_usual(message: _FetchLine) -> bool:
    """Return whether no topic is one of `OTHER_TOPICS`, and the request's topics are as in `_has_partitions`."""
    request, response = message.request, message.response or _NO_RESPONSE
    requested = request.topics or ()
    all_topics: Iterator[Any] = chain(requested, request.forgottenTopicsData or (), response.responses or ())
    is_usual = OTHER_TOPICS.isdisjoint(topic.topicId or topic.topic for topic in all_topics)
    return is_usual and all(map(_has_partitions, requested))


def _has_partitions(topic: _FetchTopic) -> bool:
    """Return whether a topic has partitions, and either id or name; others may be the metadata log."""
    return bool(topic.partitions) and not (topic.topicId and topic.topic)


class _TopicNumbers(dict[str | None, int]):
    """Numbers topics, by id or name, in the order in which they are first looked up."""

    def __missing__(self, topic: str | None) -> int:
        number = self[topic] = len(self)
        return number


def _flat(topics: Sequence[Sequence[Any]], numbers: _TopicNumbers) -> tuple[list[Any], Numbers, Numbers]:
    """Return the partitions of fetches' topics and the numbers of their topics, one fetch after the other.

    Also returns the bounds of the partitions of each fetch.
    """
    flat = list(chain.from_iterable(topics))
    partitions = list(map(_partitions, flat))
    lengths = np.array(list(map(len, partitions)), np.int64)
    numbered = np.array([numbers[topic.topicId or topic.topic] for topic in flat], np.int64)
    bounds = bounds_of(lengths)[bounds_of(list(map(len, topics)))]
    return list(chain.from_iterable(partitions)), np.repeat(numbered, lengths), bounds


def _table(rows: Sequence[Any], fields: Callable[[Any], tuple[Any, ...]], width: int, kind: Any = np.int64) -> Any:
    """Return fields of objects as an array with `width` columns."""
    values = chain.from_iterable(map(fields, rows))
    return np.fromiter(values, kind, len(rows) * width).reshape(len(rows), width)


def times_of(
    written: Numbers, total: Numbers, queue: Numbers, local: Numbers, remote: Numbers, queued: Numbers, sent: Numbers
) -> dict[str, Numbers]:
    """Return the times of `Request` as columns, from the time of each line and the durations in it."""
    arrival = written - total
    done = arrival + queue + local
    return {
        "arrival_us": arrival,
        "start_us": arrival + queue,
        "local_us": done,
        "remote_us": remote,
        "answered_us": np.where(remote != 0, done + remote, np.minimum(done, written - queued - sent)),
        "written_us": written,
    }


def parse_fetches(lines: Sequence[bytes], zone: tzinfo) -> FetchLines:
    """Decode the lines of fetches; lines of other requests and loggers, and those for another parser, are left out.

    `zone` is the time zone of timestamps without one.
    """
    return FetchLines(*_parsed(lines, zone, _FETCH))


def parse_produces(lines: Sequence[bytes], zone: tzinfo) -> ProduceLines:
    """Decode the lines of produces; see `parse_fetches`."""
    return ProduceLines(*_parsed(lines, zone, _PRODUCE))


def _parsed(lines: Sequence[bytes], zone: tzinfo, of_api: _Api) -> tuple[Numbers, Numbers, Numbers, list[Any]]:
    """Return the attributes of `RequestLines` for the lines of an API."""
    numbers: list[int] = []
    heads: list[bytes] = []
    tails: list[bytes] = []
    messages: list[Any] = []
    for number, line in enumerate(lines):
        mark = line.find(_MARKER)
        start = mark + len(_MARKER)
        if mark < 0 or not (
            line.startswith(of_api.start, start) or of_api.is_named(line[start : start + _HEADER_BYTES])
        ):
            continue
        end = line.rfind(b"}") + 1
        message = line[start:end]
        if message.count(b"[") + message.count(b"{") > MAX_DEPTH or (len(message) > 4000 and _has_huge_number(message)):
            continue
        try:
            if not line.isascii():
                line.decode()
            messages.append(of_api.decode(message))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        numbers.append(number)
        heads.append(line[:mark])
        tails.append(line[end:])
    written, brokers, has_time = _stamps(heads, tails, zone)
    is_of_api = [_api_of(*api) == of_api.name for api in map(_api, messages)]
    found = RequestLines(np.array(numbers, np.int64), brokers, written, messages)
    found = found.where(has_time & (brokers <= MAX_BROKER) & np.array(is_of_api, bool))
    return found.numbers, found.brokers, found.written_us, list(found.messages)


def _stamps(
    heads: Sequence[bytes], tails: Sequence[bytes], zone: tzinfo
) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Return time and broker id of each line, and whether it has a time before the message.

    Most lines begin with a time in the layout of the first one. The times of these lines are read at once.

    Args:
        heads: The texts before the messages.
        tails: The texts after them.
        zone: Time zone of timestamps without one.
    """
    written = np.zeros(len(heads), np.int64)
    brokers = np.full(len(heads), NO_BROKER, np.int64)
    has_time = np.zeros(len(heads), bool)
    first = _ISO_TIMESTAMP.match(heads[0].decode()) if heads and heads[0].isascii() else None
    if first is not None:
        start, end = first.start(1), first.end(2)
        rests = [head[end:] for head in heads]
        known = {rest: after_time(rest, len(first[2])) for rest in set(rests)}
        is_utc, brokers = np.array([known[rest] for rest in rests], np.int64).T
        stamps = np.frombuffer(b"".join([head[:end].ljust(end) for head in heads]), np.uint8)
        written, has_time = _times_in(stamps.reshape(len(heads), end), start, is_utc, zone)
    for number in np.flatnonzero(~has_time).tolist():
        time_us, layout = _written(heads[number].decode(), zone)
        if time_us is not None:
            written[number], has_time[number] = time_us, True
            brokers[number] = min(_broker_in(layout), MAX_BROKER + 1)
    for number in np.flatnonzero(brokers == NO_BROKER).tolist():
        brokers[number] = min(_broker_around("", tails[number]), MAX_BROKER + 1)
    return written, brokers, has_time


OTHER_LAYOUT = -1


@lru_cache(maxsize=256)
def after_time(rest: bytes, digits: int) -> tuple[int, int]:
    """Return whether a time is in UTC, and the broker id, from the text after its fraction of `digits` digits.

    The first value is `OTHER_LAYOUT` if the time needs `_written`.
    """
    # A time that is shorter than that of the first line may end within a character.
    text = f"2000-01-01 00:00:00.{'0' * digits}{rest.decode(errors='replace')}"
    match = _ISO_TIMESTAMP.match(text)
    if match is None or len(match[2]) != digits:
        return OTHER_LAYOUT, NO_BROKER
    return bool(match[3]), min(_broker_in(text[match.end() :]), MAX_BROKER + 1)


def _times_in(
    stamps: npt.NDArray[np.uint8], start: int, is_utc: Numbers, zone: tzinfo
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the times in texts of equal length, and which texts have a possible time in the layout of the first one.

    Args:
        stamps: The texts; the first one has a time with fractions of a second, up to its end.
        start: Where the date starts.
        is_utc: Whether the time is in UTC, or `OTHER_LAYOUT`.
        zone: Time zone of the others.
    """
    digits = stamps - ord("0")
    alike = np.where(digits[0] <= 9, digits <= 9, stamps == stamps[0]).all(axis=1)

    def number(begin: int, end: int) -> Numbers:
        total = np.zeros(len(stamps), np.int64)
        for column in digits[:, start + begin : start + end].T:
            total = total * 10 + column
        return total

    hours, minutes, seconds = number(11, 13), number(14, 16), number(17, 19)
    width = stamps.shape[1] - start
    times = (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + number(20, width) * 10 ** (26 - width)
    valid = alike & (is_utc != OTHER_LAYOUT) & (hours < 24) & (minutes < 60) & (seconds < 60)
    days = number(0, 4) * 10_000 + number(5, 7) * 100 + number(8, 10)
    return add_midnights(times, valid, days, is_utc, zone)


def add_midnights(
    times: Numbers, valid: npt.NDArray[np.bool_], days: Numbers, is_utc: Numbers, zone: tzinfo
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return times since the epoch, given times of day in microseconds, and which of the valid ones are possible.

    Args:
        times: Times of day.
        valid: Which times are valid.
        days: Their dates, such as 20261121.
        is_utc: Whether the time is in UTC.
        zone: Time zone of the others.
    """
    keys = days * 2 + is_utc
    for key in np.unique(keys[valid]).tolist():
        date, utc = divmod(key, 2)
        text = f"{date // 10_000:04}-{date // 100 % 100:02}-{date % 100:02}"
        midnight = _midnight_us(text, UTC if utc else zone)
        valid &= (keys != key) | (midnight is not None)
        times[keys == key] += midnight or 0
    return times, valid
