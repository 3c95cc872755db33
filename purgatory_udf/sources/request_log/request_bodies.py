"""Bodies and responses of fetches and produces, decoded to types that are the same for Kafka 2.8 to 4.x.

A topic is identified as in the body: by its id if it has one (fetch 13+, produce 13+), else by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from purgatory_udf.contract.value_types import abbreviated_json

NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
METADATA_TOPIC = "__cluster_metadata"

Key = tuple[str, int]


class FetchRequestPartition(NamedTuple):
    """One partition of a fetch request; `topic` is an id or a name, and `log_start` the follower's log start offset."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    log_start: int


class FetchPartitionData(NamedTuple):
    """One partition of a fetch response.

    `diverging_end_offset` is where a follower's log diverges from the leader's, so that the follower must truncate; -1
    if it does not. `preferred_replica` is the replica to which a consumer is redirected; -1 if it is not. `last_stable`
    is the last stable offset; -1 if the response has none.
    """

    topic: str
    partition: int
    error: int
    high_watermark: int
    bytes: int
    diverging_end_offset: int = -1
    preferred_replica: int = -1
    last_stable: int = -1


class FetchRequestBody(msgspec.Struct, array_like=True, gc=False):
    """A fetch request. `has_rack` is whether the consumer sets `client.rack`, so that followers may serve it."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    partitions: list[FetchRequestPartition]
    forgotten: list[Key]
    has_rack: bool = False


class FetchResponseBody(msgspec.Struct, array_like=True, gc=False):
    """A fetch response; `error` is the error code of the whole response, and partitions have their own."""

    error: int
    session_id: int
    partitions: list[FetchPartitionData]

    @property
    def bytes(self) -> int:
        """Total size of the records."""
        return sum([partition.bytes for partition in self.partitions])


def encode_fetch(request: FetchRequestBody, response: FetchResponseBody) -> tuple[str, str]:
    """Encode a fetch and its response as compact JSON text, for `decode_fetch`."""
    return _encode_text(request).decode(), _encode_text(response).decode()


def decode_fetch(request: str, response: str | None) -> tuple[FetchRequestBody, FetchResponseBody] | None:
    """Decode texts made by `encode_fetch`; return None for the broker's own JSON, or without a response."""
    if response is None or not request.startswith("["):
        return None
    return _decode_request_text(request), _decode_response_text(response)


_encode_text = msgspec.json.Encoder().encode
_decode_request_text = msgspec.json.Decoder(FetchRequestBody).decode
_decode_response_text = msgspec.json.Decoder(FetchResponseBody).decode


class ProducedPartition(NamedTuple):
    """One partition of a produce and its response. Without a response (acks 0), `base` is -1 and `error` 0."""

    topic: str
    partition: int
    bytes: int
    error: int
    base: int


@dataclass(slots=True)
class DecodedProduce:
    """A produce and its response; `answered` is false if there was no response (acks 0)."""

    acks: int
    timeout_ms: int
    transactional_id: str | None
    answered: bool
    partitions: list[ProducedPartition]


# Bound of the numbers in a body; larger ones are rejected, so that sums still fit into 64 bits.
MAX_NUMBER = 2**62


def _bounded_int(value: Any) -> int:
    """Return a value as an integer. Raises ValueError if it is out of range."""
    number = int(value)
    if not -MAX_NUMBER < number < MAX_NUMBER:
        raise ValueError(f"number {abbreviated_json(number)} is out of range")
    return number


def topic_of(entry: dict[str, Any]) -> str:
    """Return the id of a topic, or its name if it has no id.

    The field of the name depends on the API and its version. Raises KeyError if there is neither.
    """
    topic_id = entry.get("topicId")
    if topic_id and topic_id != NO_TOPIC_ID:
        return str(topic_id)
    for field in ("topic", "name", "topicName"):
        if entry.get(field) is not None:
            return str(entry[field])
    raise KeyError("topic")


def _first(entry: dict[str, Any], *fields: str) -> Any:
    """Return the first of the fields that is present. Raises KeyError if none is."""
    for field in fields:
        if field in entry:
            return entry[field]
    raise KeyError(fields[0])


def record_bytes(entry: dict[str, Any]) -> int:
    """Return the size of the records in bytes, which the log contains instead of the records themselves."""
    for field in ("recordsSizeInBytes", "recordSetSizeInBytes"):
        if field in entry:
            return max(0, _bounded_int(entry[field] or 0))
    return 0


def decode_fetch_request(body: dict[str, Any]) -> FetchRequestBody:
    """Decode the body of a FETCH request of any version. Raises one of `log_line.MALFORMED`."""
    state = body.get("replicaState")
    replica = state.get("replicaId", -1) if isinstance(state, dict) else body.get("replicaId", -1)
    listed = []
    for topic in body.get("topics") or []:
        name = topic_of(topic)
        for partition in topic["partitions"]:
            listed.append(
                FetchRequestPartition(
                    name,
                    _bounded_int(_first(partition, "partition", "partitionIndex")),
                    _bounded_int(partition["fetchOffset"]),
                    _bounded_int(partition["partitionMaxBytes"]),
                    _bounded_int(partition.get("currentLeaderEpoch", -1)),
                    _bounded_int(partition.get("logStartOffset", -1)),
                )
            )
    forgotten = [
        (topic_of(topic), _bounded_int(partition))
        for topic in body.get("forgottenTopicsData") or []
        for partition in topic["partitions"]
    ]
    return FetchRequestBody(
        replica_id=_bounded_int(replica),
        max_wait_ms=_bounded_int(body["maxWaitMs"]),
        min_bytes=_bounded_int(body["minBytes"]),
        max_bytes=_bounded_int(body.get("maxBytes", 2**31 - 1)),
        isolation=_bounded_int(body.get("isolationLevel", 0)),
        session_id=_bounded_int(body.get("sessionId", 0)),
        session_epoch=_bounded_int(body.get("sessionEpoch", -1)),
        partitions=listed,
        forgotten=forgotten,
        has_rack=bool(body.get("rackId")),
    )


def decode_fetch_response(answer: dict[str, Any] | None) -> FetchResponseBody:
    """Decode a FETCH response of any version. Raises one of `log_line.MALFORMED`."""
    answer = answer or {}
    read = []
    for topic in answer.get("responses") or []:
        name = topic_of(topic)
        for partition in _first(topic, "partitions", "partitionResponses"):
            head = partition.get("partitionHeader", partition)
            read.append(
                FetchPartitionData(
                    name,
                    _bounded_int(_first(head, "partitionIndex", "partition")),
                    _bounded_int(head.get("errorCode", 0)),
                    _bounded_int(head.get("highWatermark", -1)),
                    record_bytes(partition),
                    _bounded_int((head.get("divergingEpoch") or {}).get("endOffset", -1)),
                    _bounded_int(head.get("preferredReadReplica", -1)),
                    _bounded_int(head.get("lastStableOffset", -1)),
                )
            )
    return FetchResponseBody(_bounded_int(answer.get("errorCode", 0)), _bounded_int(answer.get("sessionId", 0)), read)


def decode_produce(body: dict[str, Any], answer: dict[str, Any] | None) -> DecodedProduce:
    """Decode a PRODUCE request of any version and its response. Raises one of `log_line.MALFORMED`.

    `answer` is None if the log has no response.
    """
    answers: dict[Key, tuple[int, int]] = {}
    for topic in (answer or {}).get("responses") or []:
        name = topic_of(topic)
        for partition in _first(topic, "partitionResponses", "partitions"):
            place = _bounded_int(_first(partition, "index", "partition", "partitionIndex"))
            answers[name, place] = (
                _bounded_int(partition.get("errorCode", 0)),
                _bounded_int(partition.get("baseOffset", -1)),
            )
    written = []
    for topic in _first(body, "topicData", "topics"):
        name = topic_of(topic)
        for partition in _first(topic, "partitionData", "partitions", "data"):
            place = _bounded_int(_first(partition, "index", "partition", "partitionIndex"))
            error, base = answers.get((name, place), (0, -1))
            written.append(ProducedPartition(name, place, record_bytes(partition), error, base))
    return DecodedProduce(
        acks=_bounded_int(body["acks"]),
        timeout_ms=_bounded_int(_first(body, "timeoutMs", "timeout")),
        transactional_id=body.get("transactionalId"),
        answered=bool(answers),
        partitions=written,
    )


def is_metadata_fetch(body: dict[str, Any]) -> bool:
    """Return whether a fetch reads the metadata log.

    Controllers serve such fetches from the purgatory of their Raft client, which is not replayed.
    """
    return any(
        topic.get("topicId") == METADATA_TOPIC_ID or topic.get("topic") == METADATA_TOPIC
        for topic in body.get("topics") or []
    )


def partition_keys(topics: Any, *fields: str) -> Iterator[Key]:
    """Yield (topic, partition) for topics with a list of partition numbers, in the first of the fields present."""
    for topic in topics or []:
        for partition in _first(topic, *fields):
            yield topic_of(topic), _bounded_int(partition)
