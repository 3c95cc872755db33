"""What clients and brokers say to each other. Only what the event contract knows of becomes an event."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import simpy

from purgatory_udf.contract.topic_partition import TopicPartition

NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Disconnected:
    """What a client has in place of an answer when the connection breaks, or it waits no longer."""

    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    client_id: str = ""
    request_id: str = ""

    @property
    def owed_an_answer(self) -> bool:
        return True


# Produce.


@dataclass(slots=True)
class Batch:
    """Records on their way to one partition."""

    key: TopicPartition
    created_us: int
    records: int = 0
    bytes: int = 0
    attempts: int = 0
    not_before_us: int = 0
    # Whose transaction it is part of, or whose it `ends`.
    transaction: str | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request):
    acks: int
    timeout_ms: int
    batches: list[Batch]
    quota: float | None = None

    @property
    def owed_an_answer(self) -> bool:
        return self.acks != 0


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    errors: dict[TopicPartition, str]

    @property
    def failed(self) -> bool:
        return any(error != NONE for error in self.errors.values())


# Fetch.


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """From where a partition is to be read."""

    offset: int
    max_bytes: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Request):
    """`wants` has what differs from the session's last fetch; session 0 asks for a new one."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: str
    session: int
    wants: dict[TopicPartition, FetchPartition]
    forgotten: list[TopicPartition]
    quota: float | None = None


@dataclass(frozen=True, slots=True)
class FetchResponsePartition:
    key: TopicPartition
    error: str
    offset: int
    next_offset: int
    bytes: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    session: int
    partitions: list[FetchResponsePartition]
    error: str = NONE


# Groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(Request):
    """One of the contract's group events, with its fields; `assignment` travels with the leader's sync."""

    type: str
    group: str
    fields: dict[str, Any]
    assignment: dict[str, list[TopicPartition]] | None = None


@dataclass(frozen=True, slots=True)
class GroupResponse:
    """`members` and `protocol` are for the leader of a new generation, `assigned` for a member that has synced."""

    error: str
    member_id: str = ""
    generation: int = -1
    leader: str | None = None
    members: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    protocol: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(Request):
    group: str
    keys: list[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request):
    """`earliest` or the latest offset that a reader may see."""

    keys: list[TopicPartition]
    earliest: bool
    isolation: str = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """Where there is one."""

    offsets: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(Request):
    group: str


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    broker: int | None


# Transactions.


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTransactionCoordinatorRequest(Request):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequest(Request):
    """`keys`: the partitions that have records of it. How it ends makes no difference to who waits."""

    name: str
    keys: tuple[TopicPartition, ...]
    commits: bool


@dataclass(frozen=True, slots=True)
class EndTransactionResponse:
    """`written` happens when all its partitions say so; until then the producer's next one is refused."""

    written: simpy.Event


# The cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Request):
    pass


@dataclass(frozen=True, slots=True)
class Metadata:
    """Who leads each partition, in which epoch. A partition without a leader is missing."""

    leaders: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest(Request):
    timeout_ms: int
    topics: dict[str, int]


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    errors: dict[str, str]


# Incremental fetch sessions (KIP-227): a fetch says only what has changed since the last one.
#
# What the broker waits on is the session's whole list, so that is what the event has. A partition that gave data goes
# to the end of the list: the next answer begins with others.


NO_SESSION = 0
FETCH_SESSION_NOT_FOUND = "FETCH_SESSION_ID_NOT_FOUND"

FetchPartitions = dict[TopicPartition, FetchPartition]


class FetchSessionHandler:
    """The client's side, one for each broker."""

    def __init__(self) -> None:
        self._session = NO_SESSION
        self._known: FetchPartitions = {}

    def next(self, wants: FetchPartitions, **fields: Any) -> FetchRequest:
        """The fetch that makes the session's list what is wanted now."""
        known = self._known if self._session != NO_SESSION else {}
        self._known = dict(wants)
        return FetchRequest(
            session=self._session,
            wants={key: want for key, want in wants.items() if known.get(key) != want},
            forgotten=[key for key in known if key not in wants],
            **fields,
        )

    def answered(self, answer: FetchResponse) -> None:
        self._session = answer.session

    def failed(self) -> None:
        """Begin anew: the broker may have lost the session, or this request."""
        self._session = NO_SESSION


class FetchSessionCache:
    """The broker's side: of every session, the whole list in its order."""

    def __init__(self) -> None:
        self._lists: dict[int, FetchPartitions] = {}
        self._ids = count(1)

    def update(self, fetch: FetchRequest) -> tuple[int, FetchPartitions] | None:
        """The session and what it wants now; None where the session is not known (any more)."""
        if fetch.session == NO_SESSION:
            session = next(self._ids)
            self._lists[session] = dict(fetch.wants)
            return session, self._lists[session]
        wants = self._lists.get(fetch.session)
        if wants is None:
            return None
        for key in fetch.forgotten:
            wants.pop(key, None)
        wants.update(fetch.wants)
        return fetch.session, wants

    def gave(self, session: int, keys: list[TopicPartition]) -> None:
        wants = self._lists.get(session)
        for key in keys:
            if wants is not None and key in wants:
                wants[key] = wants.pop(key)

    def clear(self) -> None:
        self._lists.clear()
