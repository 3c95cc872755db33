"""Requests and responses between clients and brokers, named as in Kafka, and incremental fetch sessions.

Only requests that the event contract describes become events of the trace. Metadata requests, and lookups of offsets
and coordinators, do not.

In a fetch session (KIP-227), a fetch request contains only the partitions that have changed since the last one. The
broker keeps the whole list, which is also in the recorded event. A partition that returned data moves to the end of the
list, so the next response starts with other partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import simpy

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.share_records import AcquiredRange

NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Returned in place of a response when the connection closes or the request times out."""

    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request of a client (or follower), with its client id and request id."""

    client_id: str = ""
    request_id: str = ""

    @property
    def expects_response(self) -> bool:
        """Whether the broker sends a response. It does not for a produce with acks=0."""
        return True


@dataclass(slots=True)
class Batch:
    """A record batch for one partition, as the producer's accumulator holds it."""

    key: TopicPartition
    created_us: int
    records: int = 0
    bytes: int = 0
    attempts: int = 0
    not_before_us: int = 0
    # The transactional producer of this batch, None without a transaction.
    transaction: str | None = None
    is_end_marker: bool = False
    # Whether it is the marker of an aborted transaction.
    aborts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(ClientRequest):
    """A produce request; `quota` is the client's byte-rate quota."""

    acks: int
    timeout_ms: int
    batches: list[Batch]
    quota: float | None = None

    @property
    def expects_response(self) -> bool:
        return self.acks != 0


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """A produce response: the error of each partition by name, `NONE` without one."""

    errors: dict[TopicPartition, str]

    @property
    def has_errors(self) -> bool:
        return any(error != NONE for error in self.errors.values())


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """The position from which a partition is fetched, and the leader epoch that the client knows."""

    offset: int
    max_bytes: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(ClientRequest):
    """A fetch request within a session.

    `partitions` contains only the partitions that differ from the session's previous fetch, `forgotten` the partitions
    to remove from the session. Session 0 requests a new session.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: str
    session: int
    partitions: dict[TopicPartition, FetchPartition]
    forgotten: list[TopicPartition]
    quota: float | None = None


@dataclass(frozen=True, slots=True)
class FetchResponsePartition:
    """The records returned for one partition: offsets from `offset` up to, not including, `next_offset`."""

    key: TopicPartition
    error: str
    offset: int
    next_offset: int
    bytes: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """A fetch response; `error` is an error of the whole session."""

    session: int
    partitions: list[FetchResponsePartition]
    error: str = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoordinatorRequest(ClientRequest):
    """A group request of the event contract with its fields; the leader's sync_group carries the `assignment`."""

    type: str
    group: str
    fields: dict[str, Any]
    assignment: dict[str, list[TopicPartition]] | None = None


@dataclass(frozen=True, slots=True)
class GroupCoordinatorResponse:
    """A group coordinator's response.

    `members` and `protocol` are set for the leader of a new generation, `assigned` for a member that has synced.
    """

    error: str
    member_id: str = ""
    generation: int = -1
    leader: str | None = None
    members: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    protocol: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(ClientRequest):
    """A request for the committed offsets of a group."""

    group: str
    keys: list[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(ClientRequest):
    """A request for the earliest offset, or for the latest offset visible at the isolation level."""

    keys: list[TopicPartition]
    earliest: bool
    isolation: str = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """The response to a request for offsets; partitions without an offset are missing."""

    offsets: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(ClientRequest):
    """A request for the coordinator of a group."""

    group: str


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    """The response to a lookup of a coordinator: its broker id, or None if no broker that may be it is up."""

    broker: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTransactionCoordinatorRequest(ClientRequest):
    """A request for the coordinator of a transactional id."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequest(ClientRequest):
    """A request to commit or abort a transaction with records in the partitions `keys`.

    Commit and abort have the same effect on waiting requests, except on those of share groups with read_committed.
    """

    name: str
    keys: tuple[TopicPartition, ...]
    commits: bool


@dataclass(frozen=True, slots=True)
class EndTransactionResponse:
    """The response to END_TXN, sent when the coordinator has stored the decision.

    `written` is triggered when all partitions have the end marker. Until then the producer's next transaction is
    refused.
    """

    written: simpy.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(ClientRequest):
    """A request for the cluster's metadata."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The leader and epoch of each partition, and the number of partitions of each topic.

    A partition without a leader is missing from `leaders`.
    """

    leaders: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest(ClientRequest):
    """A request to create topics, given with their numbers of partitions."""

    timeout_ms: int
    topics: dict[str, int]


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    """The response to a request to create topics: the error of each topic by name, `NONE` without one."""

    errors: dict[str, str]


# The ranges that a member acknowledges in a partition: first and last offset, and types as in `share_acknowledge`.
Acknowledgements = dict[TopicPartition, list[tuple[int, int, list[int]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest(ClientRequest):
    """A request of a member of a share group. It acknowledges records, and may be the last of its session."""

    group: str
    member_id: str
    acknowledgements: Acknowledgements = field(default_factory=dict)
    ends_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchRequest(ShareRequest):
    """A fetch of a share group, with all partitions of the session; epoch 0 starts a session."""

    epoch: int
    partitions: list[TopicPartition]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    acquire_mode: int


@dataclass(frozen=True, slots=True)
class ShareResponse:
    """A response to a member of a share group.

    Attributes:
        error: The error of the whole request.
        acquired: Acquired ranges by partition: first offset, last offset, delivery count.
        errors: Errors of partitions that were fetched or acknowledged.
    """

    error: str = NONE
    acquired: dict[TopicPartition, list[AcquiredRange]] = field(default_factory=dict)
    errors: dict[TopicPartition, str] = field(default_factory=dict)


NO_SESSION = 0
FETCH_SESSION_NOT_FOUND = "FETCH_SESSION_ID_NOT_FOUND"

FetchPartitions = dict[TopicPartition, FetchPartition]


class FetchSessionHandler:
    """The client's side of a fetch session with one broker (Kafka: `FetchSessionHandler`)."""

    def __init__(self) -> None:
        self._session = NO_SESSION
        self._known: FetchPartitions = {}

    def build_request(self, partitions: FetchPartitions, **fields: Any) -> FetchRequest:
        """Return the session's next request, which sets its partitions to `partitions`.

        `fields` are the other fields of the request.
        """
        known = self._known if self._session != NO_SESSION else {}
        self._known = dict(partitions)
        return FetchRequest(
            session=self._session,
            partitions={key: partition for key, partition in partitions.items() if known.get(key) != partition},
            forgotten=[key for key in known if key not in partitions],
            **fields,
        )

    def handle_response(self, response: FetchResponse) -> None:
        """Use the session id of the response, which the broker assigned, in the next request."""
        self._session = response.session

    def handle_error(self) -> None:
        """Start a new session with the next request, because the broker may have lost the session or the request."""
        self._session = NO_SESSION


class FetchSessionCache:
    """The broker's side of fetch sessions: the partitions of every session, in order."""

    def __init__(self) -> None:
        self._lists: dict[int, FetchPartitions] = {}
        self._ids = count(1)

    def update(self, fetch: FetchRequest) -> tuple[int, FetchPartitions] | None:
        """Apply a request; return the session id and its partitions, or None if the session is unknown."""
        if fetch.session == NO_SESSION:
            session = next(self._ids)
            self._lists[session] = dict(fetch.partitions)
            return session, self._lists[session]
        partitions = self._lists.get(fetch.session)
        if partitions is None:
            return None
        for key in fetch.forgotten:
            partitions.pop(key, None)
        partitions.update(fetch.partitions)
        return fetch.session, partitions

    def move_to_end(self, session: int, keys: list[TopicPartition]) -> None:
        """Move the partitions that returned data to the end of the session's list."""
        partitions = self._lists.get(session)
        for key in keys:
            if partitions is not None and key in partitions:
                partitions[key] = partitions.pop(key)

    def clear(self) -> None:
        """Drop all sessions, as a broker restart does."""
        self._lists.clear()
