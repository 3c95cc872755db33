"""What requests asked and were answered, in one shape whichever protocol version wrote it (Kafka 2.8 to 4.x).

A topic is what the body calls it: its id where it has one (fetch 13+, produce 13+), else its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from purgatory_udf.contract.value_checks import shown

NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
METADATA_TOPIC = "__cluster_metadata"

Key = tuple[str, int]


class FetchRequestPartition(NamedTuple):
    """What a fetch asks of one partition."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    log_start: int


class FetchPartitionData(NamedTuple):
    """What a fetch was answered for one partition."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    bytes: int
    # Where a follower's log and the leader's part, if they do: it truncates its own and asks again.
    diverging_end_offset: int = -1
    # The replica that a consumer is sent to instead.
    preferred_replica: int = -1


class FetchRequestBody(msgspec.Struct, array_like=True, gc=False):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    partitions: list[FetchRequestPartition]
    forgotten: list[Key]
    # A consumer that says where it is: it may be sent to a follower near it.
    has_rack: bool = False


class FetchResponseBody(msgspec.Struct, array_like=True, gc=False):
    error: int
    session_id: int
    partitions: list[FetchPartitionData]

    @property
    def bytes(self) -> int:
        return sum([partition.bytes for partition in self.partitions])


def encode_fetch(asked: FetchRequestBody, answered: FetchResponseBody) -> tuple[str, str]:
    """In few bytes, with which `fetch_in` is soon done."""
    return _encode_text(asked).decode(), _encode_text(answered).decode()


def decode_fetch(asked: str, answered: str | None) -> tuple[FetchRequestBody, FetchResponseBody] | None:
    """None where these are the broker's own texts."""
    if answered is None or not asked.startswith("["):
        return None
    return _decode_request_text(asked), _decode_response_text(answered)


_encode_text = msgspec.json.Encoder().encode
_decode_request_text = msgspec.json.Decoder(FetchRequestBody).decode
_decode_response_text = msgspec.json.Decoder(FetchResponseBody).decode


class ProducedPartition(NamedTuple):
    """What a produce wrote to one partition. `base` is -1 and `error` 0 where no answer was owed (acks 0)."""

    topic: str
    partition: int
    bytes: int
    error: int
    base: int


@dataclass(slots=True)
class DecodedProduce:
    acks: int
    timeout_ms: int
    transactional_id: str | None
    answered: bool
    partitions: list[ProducedPartition]


# No offset, size or number in a log comes near it; and what is added to one still has 64 bits.
MAX_NUMBER = 2**62


def _bounded_int(value: Any) -> int:
    number = int(value)
    if not -MAX_NUMBER < number < MAX_NUMBER:
        raise ValueError(f"{shown(number)} is out of range")
    return number


def topic_of(entry: dict[str, Any]) -> str:
    """The id, unless it is the null id; else the name under any of the names it has had."""
    topic_id = entry.get("topicId")
    if topic_id and topic_id != NO_TOPIC_ID:
        return str(topic_id)
    for field in ("topic", "name", "topicName"):
        if entry.get(field) is not None:
            return str(entry[field])
    raise KeyError("topic")


def _first(entry: dict[str, Any], *fields: str) -> Any:
    for field in fields:
        if field in entry:
            return entry[field]
    raise KeyError(fields[0])


def record_bytes(entry: dict[str, Any]) -> int:
    """The log replaces records by their size: `recordsSizeInBytes`, in 2.8 `recordSetSizeInBytes`."""
    for field in ("recordsSizeInBytes", "recordSetSizeInBytes"):
        if field in entry:
            return max(0, _bounded_int(entry[field] or 0))
    return 0


def decode_fetch_request(body: dict[str, Any]) -> FetchRequestBody:
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
                )
            )
    return FetchResponseBody(_bounded_int(answer.get("errorCode", 0)), _bounded_int(answer.get("sessionId", 0)), read)


def decode_produce(body: dict[str, Any], answer: dict[str, Any] | None) -> DecodedProduce:
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
    """The controllers' own log is fetched through the raft client, which has a purgatory of its own."""
    return any(
        topic.get("topicId") == METADATA_TOPIC_ID or topic.get("topic") == METADATA_TOPIC
        for topic in body.get("topics") or []
    )


def partition_keys(topics: Any, *partitions: str) -> Iterator[Key]:
    """(topic, partition) of a list of topics whose partitions are plain numbers, under any of the given names."""
    for topic in topics or []:
        for partition in _first(topic, *partitions):
            yield topic_of(topic), _bounded_int(partition)
