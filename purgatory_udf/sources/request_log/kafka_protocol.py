"""Kafka's error codes that occur in the requests of the import, and decoders of the bodies of fetches and produces.

The codes are those of `org.apache.kafka.common.protocol.Errors`. Bodies and responses are decoded to types that are the
same for Kafka 2.8 to 4.x. A topic is identified as in the body: by its id if it has one (fetch 13+, produce 13+), else
by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from purgatory_udf.contract.value_types import abbreviated_json

NAMES = {
    -1: "UNKNOWN_SERVER_ERROR",
    0: "NONE",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    9: "REPLICA_NOT_AVAILABLE",
    10: "MESSAGE_TOO_LARGE",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    21: "INVALID_REQUIRED_ACKS",
    22: "ILLEGAL_GENERATION",
    23: "INCONSISTENT_GROUP_PROTOCOL",
    25: "UNKNOWN_MEMBER_ID",
    26: "INVALID_SESSION_TIMEOUT",
    27: "REBALANCE_IN_PROGRESS",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    35: "UNSUPPORTED_VERSION",
    36: "TOPIC_ALREADY_EXISTS",
    41: "NOT_CONTROLLER",
    42: "INVALID_REQUEST",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    51: "CONCURRENT_TRANSACTIONS",
    56: "KAFKA_STORAGE_ERROR",
    59: "UNKNOWN_PRODUCER_ID",
    69: "GROUP_ID_NOT_FOUND",
    70: "FETCH_SESSION_ID_NOT_FOUND",
    71: "INVALID_FETCH_SESSION_EPOCH",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    79: "MEMBER_ID_REQUIRED",
    81: "GROUP_MAX_SIZE_REACHED",
    82: "FENCED_INSTANCE_ID",
    87: "INVALID_RECORD",
    90: "PRODUCER_FENCED",
    100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
    106: "FETCH_SESSION_TOPIC_ID_ERROR",
    109: "OFFSET_MOVED_TO_TIERED_STORAGE",
    110: "FENCED_MEMBER_EPOCH",
    111: "UNRELEASED_INSTANCE_ID",
    112: "UNSUPPORTED_ASSIGNOR",
    113: "STALE_MEMBER_EPOCH",
    120: "TRANSACTION_ABORTABLE",
    121: "INVALID_RECORD_STATE",
    122: "SHARE_SESSION_NOT_FOUND",
    123: "INVALID_SHARE_SESSION_EPOCH",
    124: "FENCED_STATE_EPOCH",
    128: "INVALID_REGULAR_EXPRESSION",
    133: "SHARE_SESSION_LIMIT_REACHED",
}

UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
KAFKA_STORAGE_ERROR = 56
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
UNKNOWN_TOPIC_ID = 100
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
UNSUPPORTED_VERSION = 35
MEMBER_ID_REQUIRED = 79
OFFSET_MOVED_TO_TIERED_STORAGE = 109
SHARE_SESSION_LIMIT_REACHED = 133

# Errors with which a broker refuses a group's request before the group sees it: it is not the coordinator, or not yet,
# or the client is not authorized.
REFUSED_BY_COORDINATOR = frozenset(
    {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, GROUP_AUTHORIZATION_FAILED}
)

# Errors of partitions that a broker excludes from a fetch before it reads: they neither delay nor complete the fetch.
EXCLUDED_FROM_FETCH = frozenset({TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, 103, 106})


def name_of(code: int) -> str:
    """Return the name of an error code, or the number as text if the code is not in `NAMES`."""
    return NAMES.get(code, str(code))


NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPICS = frozenset({METADATA_TOPIC_ID, METADATA_TOPIC})

Key = tuple[str, int]
Numbers = npt.NDArray[np.int64]


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


@dataclass(slots=True)
class FetchRequestBody:
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


@dataclass(slots=True)
class FetchResponseBody:
    """A fetch response; `error` is the error code of the whole response, and partitions have their own."""

    error: int
    session_id: int
    partitions: list[FetchPartitionData]

    @property
    def bytes(self) -> int:
        """Total size of the records."""
        return sum([partition.bytes for partition in self.partitions])


@dataclass(frozen=True, slots=True)
class FetchColumns:
    """Bodies and responses of many fetches as columns of numbers.

    In `listed`, `forgotten` and `fetched`, the first column has the number of a topic in `topics`. Their bounds are the
    numbers of the first rows of each fetch, and the number of rows.

    Attributes:
        topics: Names or ids, each once.
        limits: Replica id, maximum wait, minimum and maximum bytes, isolation, session epoch and error of the response,
            one row per fetch.
        listed: The fields of `FetchRequestPartition`, one row per partition of a request.
        forgotten: Topic and partition, one row per partition that a request removes from its session.
        fetched: The fields of `FetchPartitionData`, one row per partition of a response.
    """

    topics: Sequence[str]
    limits: Numbers
    listed: Numbers
    listed_bounds: Numbers
    forgotten: Numbers
    forgotten_bounds: Numbers
    fetched: Numbers
    fetched_bounds: Numbers

    @classmethod
    def of(cls, fetches: Sequence[tuple[FetchRequestBody, FetchResponseBody]]) -> FetchColumns:
        """Return the columns of decoded fetches."""
        topics: dict[str, int] = {}

        def flat(lists: Iterable[Sequence[tuple[Any, ...]]], width: int) -> tuple[Numbers, Numbers]:
            numbered = [[(topics.setdefault(each[0], len(topics)), *each[1:]) for each in rows] for rows in lists]
            values = np.array(list(chain.from_iterable(numbered)), np.int64).reshape(-1, width)
            return values, bounds_of(list(map(len, numbered)))

        rows = [
            (
                *(request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation),
                *(request.session_epoch, response.error),
            )
            for request, response in fetches
        ]
        limits = np.array(rows, np.int64).reshape(-1, 7)
        listed = flat((request.partitions for request, _ in fetches), 6)
        forgotten = flat((request.forgotten for request, _ in fetches), 2)
        fetched = flat((response.partitions for _, response in fetches), 8)
        return cls(list(topics), limits, *listed, *forgotten, *fetched)


def distinct(numbers: Numbers, most: int) -> tuple[Numbers, Numbers]:
    """Return the distinct numbers in ascending order, and the place of each number among them.

    All numbers are at least 0 and less than `most`.
    """
    if most > 1000 + 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    is_used = np.zeros(most, bool)
    is_used[numbers] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[numbers]


def bounds_of(lengths: Sequence[int] | Numbers) -> Numbers:
    """Return the numbers of the first rows of lists with these lengths, in sequence, and the number of rows."""
    return np.append(0, np.cumsum(np.array(lengths, np.int64)))


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


@dataclass(frozen=True, slots=True)
class ProduceColumns:
    """Bodies and responses of many produces as columns of numbers.

    Attributes:
        topics: Names or ids, each once.
        transactions: The transactional id of each produce.
        limits: `acks`, timeout in ms, and 1 if there was a response, else 0; one row per produce.
        partitions: The fields of `ProducedPartition`, with the number of a topic in `topics`; one row per partition.
        bounds: Numbers of the first rows of each produce in `partitions`, and the number of rows.
    """

    topics: Sequence[str]
    transactions: Sequence[str | None]
    limits: Numbers
    partitions: Numbers
    bounds: Numbers

    @classmethod
    def of(
        cls,
        topics: Sequence[str],
        transactions: Sequence[str | None],
        limits: Numbers,
        written: tuple[Numbers, Numbers],
        answered: tuple[Numbers, Numbers],
    ) -> ProduceColumns:
        """Join requests and responses.

        Args:
            topics: As the attribute.
            transactions: As the attribute.
            limits: `acks` and timeout.
            written: Topic, partition and bytes of the partitions in requests, and the bounds of each request's rows.
            answered: Topic, partition, error and offset of the partitions in responses, and their bounds.
        """
        rows, bounds = written
        answers, answer_bounds = answered
        owners = [np.repeat(np.arange(len(limits)), np.diff(each)) for each in (answer_bounds, bounds)]
        partitions = np.unique(np.concatenate([answers[:, 1], rows[:, 1]]), return_inverse=True)[1].reshape(-1)
        topic = np.concatenate([answers[:, 0], rows[:, 0]])
        of_line = np.concatenate(owners) * max(1, len(topics)) + topic
        keys, places = np.unique(of_line * (len(partitions) + 1) + partitions, return_inverse=True)
        # Of several answers for a partition, the last one counts.
        last = np.full(len(keys), len(answers))
        last[places[: len(answers)]] = np.arange(len(answers))
        result = np.append(answers[:, 2:], [[NONE, -1]], axis=0)[last[places[len(answers) :]]]
        has_answer = np.diff(answer_bounds) > 0
        return cls(topics, transactions, np.column_stack([limits, has_answer]), np.column_stack([rows, result]), bounds)

    def produce(self, number: int) -> DecodedProduce:
        """Return one of the produces."""
        acks, timeout_ms, answered = self.limits[number].tolist()
        rows = self.partitions[self.bounds[number] : self.bounds[number + 1]].tolist()
        partitions = [ProducedPartition(self.topics[topic], *fields) for topic, *fields in rows]
        return DecodedProduce(acks, timeout_ms, self.transactions[number], bool(answered), partitions)


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
    """Decode the body of a FETCH request of any version. Raises one of `logged_request.MALFORMED`."""
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
    """Decode a FETCH response of any version. Raises one of `logged_request.MALFORMED`."""
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
    """Decode a PRODUCE request of any version and its response. Raises one of `logged_request.MALFORMED`.

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
