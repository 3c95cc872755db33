"""A request of the log: its times, its operation with the recorded outcome, and a line that cannot be used.

`complete_parser` and `fast_parser` make requests from lines.

A line has only S and L, the start and the end of handling. The times in between follow from assumptions, and are
corrected later if readers' offsets contradict them (`time_correction`):

    produce, acks -1     S ──── 0.4, at most 0.6 ms ──── L            the records are in the log
                                                         check        the fetches that wait for them are checked

    produce, acks 0, 1   S ─────────── 0.8 ───────────── L ─ 0.2 ms   the response leaves at L, before that check

    follower's fetch     S ─ 0.05 ─┬──────┬──────┬─ 0.8 ─ L           partitions with a new offset, one after the other:
                                   └ the offset is recorded first, operations that waited for it complete afterwards
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.value_types import INT32
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import (
    APPEND_FRACTION,
    APPEND_FRACTION_NO_WAIT,
    FIRST_READ_FRACTION,
    MAX_APPEND_US,
    READS_FRACTION,
    RESPONSE_TO_CHECK_US,
    TIMER_EARLY_US,
    WAKE_FRACTION,
)
from purgatory_udf.sources.request_log.fact_kinds import Booleans, FactsOfPartitions, Integers
from purgatory_udf.sources.request_log.kafka_protocol import DecodedProduce, FetchRequestBody, FetchResponseBody


class Place(NamedTuple):
    """File number and line number of a request, which also order simultaneous events of a broker."""

    file: int
    line: int


class Request(msgspec.Struct, gc=False):
    """A request with its times, body and response.

    Times are microseconds since the epoch, on the broker's clock. Comments elsewhere call three of them S, L and R:

        arrival ── queue ── start ──── handling ──── local ── purgatory ── answered ── sent (the line is written)
                            S                        L                     R

    `written_us` is the timestamp of the line, in whole milliseconds in many logs. `broker` is -1 if the line does not
    have the broker's id. Without a response, `answer` is None. `fetch` is the decoded body and response of a
    fetch and `produce` that of a produce, if it was decoded already; then `body` and `answer` may be empty.
    """

    broker: int
    place: Place
    api: str
    version: int
    client_id: str | None
    connection: str
    listener: str
    forwarded: bool
    arrival_us: int
    start_us: int
    local_us: int
    remote_us: int
    answered_us: int
    written_us: int
    body: dict[str, Any]
    answer: dict[str, Any] | None
    fetch: tuple[FetchRequestBody, FetchResponseBody] | None = None
    produce: DecodedProduce | None = None

    @property
    def handling_us(self) -> int:
        """Duration of the handling (from S to L), in microseconds."""
        return self.local_us - self.start_us


MARKER = "Completed request:"
NETWORK_THREAD = re.compile(r"network-thread-(\d+)-")

# Names of APIs by number, for Kafka 2.8, which may log the number alone. Only APIs that the import uses are listed.
API_NAMES = {
    0: "PRODUCE",
    1: "FETCH",
    3: "METADATA",
    6: "UPDATE_METADATA",
    8: "OFFSET_COMMIT",
    11: "JOIN_GROUP",
    12: "HEARTBEAT",
    13: "LEAVE_GROUP",
    14: "SYNC_GROUP",
    19: "CREATE_TOPICS",
    20: "DELETE_TOPICS",
    21: "DELETE_RECORDS",
    22: "INIT_PRODUCER_ID",
    24: "ADD_PARTITIONS_TO_TXN",
    25: "ADD_OFFSETS_TO_TXN",
    26: "END_TXN",
    27: "WRITE_TXN_MARKERS",
    28: "TXN_OFFSET_COMMIT",
    37: "CREATE_PARTITIONS",
    56: "ALTER_PARTITION",
    75: "DESCRIBE_TOPIC_PARTITIONS",
}
NO_BROKER = -1
# Bounds beyond which a line is rejected: 30 years in ms, the nesting depth of a body, and the largest broker id.
MAX_MS = 1e12
MAX_DEPTH = 400
MAX_BROKER = 2**31 - 1
# Current names of APIs that were renamed.
RENAMED_APIS = {"ALTER_ISR": "ALTER_PARTITION"}


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of the request logger that cannot be used: `rule` is the kind of error, `raw` the text of the line."""

    place: Place
    rule: str
    reason: str
    raw: str


# Errors raised by decoding a body that does not have the schema of its API and version.
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


def malformed_line(request: Request, error: Exception) -> BadLine:
    """Return the bad line for a request with an undecodable body: an unknown version, or truncated."""
    reason = f"malformed: body of {request.api} version {request.version}: {type(error).__name__}: {error}"
    return BadLine(request.place, "malformed", reason, json.dumps(request.body))


Event = dict[str, Any]

AnyNumber = TypeVar("AnyNumber", int, Integers)

# Range of slot numbers for the partitions of each event of a line.
_SLOTS_PER_EVENT = 1 << 16
AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"
# Kind of consumers' fetches that wait for remote storage.
REMOTE_FETCH = "remote fetch"


class RecordedOutcome(msgspec.Struct, gc=False):
    """Outcome of a request in the log, in the terms of the replay's outcomes.

    Attributes:
        api: API of the request.
        kind: A finer division than `api`: fetches by reader and remote storage, produces by acks.
        outcome: `at_once`, `completed` or `expired`.
        remote_ms: Wait in the purgatory.
        local_ms: Duration of the handling.
        written_us: Timestamp of the line.
        error: Name of the first error in the response, else NONE.
        bytes: Size of the records that a fetch returned.
        timed_out: Number of partitions with the error REQUEST_TIMED_OUT.
        generation: Generation that a JOIN_GROUP returned.
        complete: False if the log lacks a part of the request or of its outcome.
    """

    api: str
    kind: str
    outcome: str
    remote_ms: float
    local_ms: float
    written_us: int
    error: str
    bytes: int | None = None
    timed_out: int = 0
    generation: int | None = None
    complete: bool = True


# Columns of `RecordedOutcome`.
RECORDED_OUTCOME = pa.struct(
    [
        ("api", pa.string()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        ("remote_ms", pa.float64()),
        ("local_ms", pa.float64()),
        ("written_us", pa.int64()),
        ("error", pa.string()),
        ("bytes", pa.int64()),
        ("timed_out", pa.int32()),
        ("generation", pa.int32()),
        ("complete", pa.bool_()),
    ]
)


class LoggedOperation(msgspec.Struct, gc=False):
    """An operation with its event and recorded outcome; `sub` numbers the events of one line.

    The offsets of a produce are filled in when all appends of its partitions are known. `recorded` is None for events
    that are not compared with their replay.
    """

    broker: int
    place: Place
    event: Event
    recorded: RecordedOutcome | None
    sub: int = 0


@dataclass(frozen=True, slots=True)
class ConvertedColumns:
    """Operations and facts of many requests of an API, as columns.

    `kind` is the type of the events. `operations` has a row for each operation: `time_us`, `broker`, `file`, `line`
    and, if they are needed, the event in the column `kind`, and `recorded` (`RECORDED_OUTCOME`). `limit_ms` are their
    maximum waits, `waited_us` the recorded ones, and `expired` whether they expired.
    """

    kind: str
    operations: dict[str, pa.Array]
    limit_ms: Integers
    waited_us: Integers
    expired: Booleans
    facts: FactsOfPartitions


def either(values: Booleans, if_true: str, if_false: str) -> pa.Array:
    """Return one of two strings for each value."""
    return pc.if_else(pa.array(values), if_true, if_false)


def named_errors(codes: Integers) -> pa.Array:
    """Return the names of error codes."""
    known, places = np.unique(codes, return_inverse=True)
    return pa.array(map(errors.name_of, known.tolist()), pa.string()).take(pa.array(places))


def structs_of(columns: Mapping[str, Any], type_: pa.StructType) -> pa.StructArray:
    """Return structs of these columns, which have the names of the type's fields."""
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in type_]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def first_slot(sub: AnyNumber) -> AnyNumber:
    """Return the slot of the first partition of the event `sub` of a line; the others have the slots after it."""
    return sub * _SLOTS_PER_EVENT


def logged_operation(request: Request, event: Event, recorded: RecordedOutcome | None, sub: int = 0) -> LoggedOperation:
    """Build an operation; sets the broker and the client id of the event.

    Args:
        request: The request of the log.
        event: Fields of the event, to which broker and client id are added.
        recorded: What the broker recorded; None for events that are not compared with their replay.
        sub: Number of the event among those of the request's line, from 0.
    """
    event["broker"] = request.broker
    if request.client_id is not None:
        event["client_id"] = request.client_id
    return LoggedOperation(request.broker, request.place, event, recorded, sub)


def recorded_share_fetch(request: Request, codes: Iterable[int], acquired: bool) -> RecordedOutcome:
    """Return the outcome of a share fetch.

    It has expired if it waited until its deadline, or was answered without records and errors after a wait: an expired
    share fetch may have records. One that acknowledges records may have waited only until their states were written.

    Args:
        request: The request.
        codes: The error codes of its partitions.
        acquired: Whether the response has records.
    """
    recorded = _recorded(request, "share fetch", codes)
    is_late = request.remote_us >= int(request.body["maxWaitMs"]) * 1000 - TIMER_EARLY_US
    if request.remote_us and (is_late or (not acquired and recorded.error == "NONE")):
        recorded.outcome = EXPIRED
    return recorded


def recorded_produce(request: Request, produced: DecodedProduce) -> RecordedOutcome:
    """Return the recorded outcome of a produce: expired if it waited and a partition timed out."""
    recorded = _recorded(
        request, f"produce acks={produced.acks}", [partition.error for partition in produced.partitions]
    )
    return _expired_if_timed_out(recorded)


def recorded_markers(request: Request, codes: Iterable[int], *, alone: bool) -> RecordedOutcome:
    """Return the outcome of one marker. Its wait is known only if it is `alone` in the request."""
    recorded = _recorded(request, "transaction markers", codes)
    recorded.complete = alone
    return _expired_if_timed_out(recorded)


def recorded_delete_records(request: Request) -> RecordedOutcome:
    """Return the recorded outcome of a DELETE_RECORDS request: expired if it waited and a partition timed out."""
    topics = (request.answer or {}).get("topics") or []
    codes = [int(partition.get("errorCode", 0)) for topic in topics for partition in topic["partitions"]]
    return _expired_if_timed_out(_recorded(request, "delete_records", codes))


def recorded_list_offsets(request: Request, partitions: Iterable[dict[str, Any]]) -> RecordedOutcome:
    """Return the outcome of LIST_OFFSETS, from the partitions of the response."""
    codes = [int(partition.get("errorCode", 0)) for partition in partitions]
    return _expired_if_timed_out(_recorded(request, "list_offsets", codes))


def recorded_creation(request: Request, codes: Iterable[int]) -> RecordedOutcome:
    """Return the outcome of CREATE_TOPICS or CREATE_PARTITIONS, from the error codes of the topics."""
    return _expired_if_timed_out(_recorded(request, "create_topics", codes))


def recorded_group(request: Request, code: int) -> RecordedOutcome:
    """Return the outcome of a request to a group's coordinator, with its error code."""
    recorded = _recorded(request, request.api.lower(), [code])
    generation = int((request.answer or {}).get("generationId", -1)) if request.api == "JOIN_GROUP" else -1
    if generation > INT32:
        raise ValueError(f"generationId is {generation}, expected a 32-bit integer")
    recorded.generation = generation if generation >= 0 else None
    return recorded


def _recorded(request: Request, kind: str, codes: Iterable[int]) -> RecordedOutcome:
    """Return the recorded outcome of a request as if it did not expire: completed if it waited, otherwise at once.

    `kind` is the kind of operation, `codes` are the error codes in the response.
    """
    codes = [code for code in codes if code]
    return RecordedOutcome(
        api=request.api,
        kind=kind,
        outcome=COMPLETED if request.remote_us else AT_ONCE,
        remote_ms=request.remote_us / 1000,
        local_ms=request.handling_us / 1000,
        written_us=request.written_us,
        error=errors.name_of(codes[0] if codes else errors.NONE),
        timed_out=codes.count(errors.REQUEST_TIMED_OUT),
    )


def _expired_if_timed_out(recorded: RecordedOutcome) -> RecordedOutcome:
    """Set the outcome of a request that waited to expired if its response has REQUEST_TIMED_OUT."""
    if recorded.outcome == COMPLETED and recorded.timed_out:
        recorded.outcome = EXPIRED
    return recorded


def append_times(start_us: int, local_us: int, acks: int) -> tuple[int, int]:
    """Return when a produce's records are in the log, and when the fetches that wait for them are checked.

    Args:
        start_us: S of the request.
        local_us: L of the request.
        acks: The produce's `acks`.
    """
    handling = local_us - start_us
    if acks == -1:
        return start_us + min(round(handling * APPEND_FRACTION), MAX_APPEND_US), local_us
    return start_us + round(handling * APPEND_FRACTION_NO_WAIT), local_us + RESPONSE_TO_CHECK_US


def follower_read_times(
    start_us: Integers, local_us: Integers, number: Integers, moved: Integers
) -> tuple[Integers, Integers]:
    """Return when the broker records a follower's new offset, and when the operations that waited for it are completed.

    Args:
        start_us: S of the fetch.
        local_us: L of the fetch.
        number: Position of the partition among those with a new offset, from 0.
        moved: Number of partitions of the fetch with a new offset.
    """
    handling = local_us - start_us
    slot = handling * READS_FRACTION / moved
    at = start_us + np.rint(handling * FIRST_READ_FRACTION + slot * number).astype(np.int64)
    return at, at + np.rint(slot * WAKE_FRACTION).astype(np.int64)
