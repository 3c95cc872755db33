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


class AskedPartition(NamedTuple):
    """What a fetch asks of one partition."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    log_start: int


class ReadPartition(NamedTuple):
    """What a fetch was answered for one partition."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    bytes: int
    # Where a follower's log and the leader's part, if they do: it truncates its own and asks again.
    parts_at: int = -1
    # The replica that a consumer is sent to instead.
    preferred: int = -1


class FetchBody(msgspec.Struct, array_like=True, gc=False):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    partitions: list[AskedPartition]
    forgotten: list[Key]
    # A consumer that says where it is: it may be sent to a follower near it.
    racked: bool = False


class FetchAnswer(msgspec.Struct, array_like=True, gc=False):
    error: int
    session_id: int
    partitions: list[ReadPartition]

    @property
    def bytes(self) -> int:
        return sum([partition.bytes for partition in self.partitions])


def fetch_texts(asked: FetchBody, answered: FetchAnswer) -> tuple[str, str]:
    """In few bytes, with which `fetch_in` is soon done."""
    return _to_text(asked).decode(), _to_text(answered).decode()


def fetch_in(asked: str, answered: str | None) -> tuple[FetchBody, FetchAnswer] | None:
    """None where these are the broker's own texts."""
    if answered is None or not asked.startswith("["):
        return None
    return _asked_in(asked), _answer_in(answered)


_to_text = msgspec.json.Encoder().encode
_asked_in = msgspec.json.Decoder(FetchBody).decode
_answer_in = msgspec.json.Decoder(FetchAnswer).decode


class ProducedPartition(NamedTuple):
    """What a produce wrote to one partition. `base` is -1 and `error` 0 where no answer was owed (acks 0)."""

    topic: str
    partition: int
    bytes: int
    error: int
    base: int


@dataclass(slots=True)
class ProduceBody:
    acks: int
    timeout_ms: int
    transactional_id: str | None
    answered: bool
    partitions: list[ProducedPartition]


# No offset, size or number in a log comes near it; and what is added to one still has 64 bits.
MOST = 2**62


def _whole(value: Any) -> int:
    number = int(value)
    if not -MOST < number < MOST:
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
            return max(0, _whole(entry[field] or 0))
    return 0


def fetch_of(body: dict[str, Any]) -> FetchBody:
    state = body.get("replicaState")
    replica = state.get("replicaId", -1) if isinstance(state, dict) else body.get("replicaId", -1)
    listed = []
    for topic in body.get("topics") or []:
        name = topic_of(topic)
        for partition in topic["partitions"]:
            listed.append(
                AskedPartition(
                    name,
                    _whole(_first(partition, "partition", "partitionIndex")),
                    _whole(partition["fetchOffset"]),
                    _whole(partition["partitionMaxBytes"]),
                    _whole(partition.get("currentLeaderEpoch", -1)),
                    _whole(partition.get("logStartOffset", -1)),
                )
            )
    forgotten = [
        (topic_of(topic), _whole(partition))
        for topic in body.get("forgottenTopicsData") or []
        for partition in topic["partitions"]
    ]
    return FetchBody(
        replica_id=_whole(replica),
        max_wait_ms=_whole(body["maxWaitMs"]),
        min_bytes=_whole(body["minBytes"]),
        max_bytes=_whole(body.get("maxBytes", 2**31 - 1)),
        isolation=_whole(body.get("isolationLevel", 0)),
        session_id=_whole(body.get("sessionId", 0)),
        session_epoch=_whole(body.get("sessionEpoch", -1)),
        partitions=listed,
        forgotten=forgotten,
        racked=bool(body.get("rackId")),
    )


def fetch_answer_of(answer: dict[str, Any] | None) -> FetchAnswer:
    answer = answer or {}
    read = []
    for topic in answer.get("responses") or []:
        name = topic_of(topic)
        for partition in _first(topic, "partitions", "partitionResponses"):
            head = partition.get("partitionHeader", partition)
            read.append(
                ReadPartition(
                    name,
                    _whole(_first(head, "partitionIndex", "partition")),
                    _whole(head.get("errorCode", 0)),
                    _whole(head.get("highWatermark", -1)),
                    record_bytes(partition),
                    _whole((head.get("divergingEpoch") or {}).get("endOffset", -1)),
                    _whole(head.get("preferredReadReplica", -1)),
                )
            )
    return FetchAnswer(_whole(answer.get("errorCode", 0)), _whole(answer.get("sessionId", 0)), read)


def produce_of(body: dict[str, Any], answer: dict[str, Any] | None) -> ProduceBody:
    answers: dict[Key, tuple[int, int]] = {}
    for topic in (answer or {}).get("responses") or []:
        name = topic_of(topic)
        for partition in _first(topic, "partitionResponses", "partitions"):
            place = _whole(_first(partition, "index", "partition", "partitionIndex"))
            answers[name, place] = (_whole(partition.get("errorCode", 0)), _whole(partition.get("baseOffset", -1)))
    written = []
    for topic in _first(body, "topicData", "topics"):
        name = topic_of(topic)
        for partition in _first(topic, "partitionData", "partitions", "data"):
            place = _whole(_first(partition, "index", "partition", "partitionIndex"))
            error, base = answers.get((name, place), (0, -1))
            written.append(ProducedPartition(name, place, record_bytes(partition), error, base))
    return ProduceBody(
        acks=_whole(body["acks"]),
        timeout_ms=_whole(_first(body, "timeoutMs", "timeout")),
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


def topics_partitions(topics: Any, *partitions: str) -> Iterator[Key]:
    """(topic, partition) of a list of topics whose partitions are plain numbers, under any of the given names."""
    for topic in topics or []:
        for partition in _first(topic, *partitions):
            yield topic_of(topic), _whole(partition)
