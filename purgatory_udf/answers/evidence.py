"""Evidence about operations: their requests, their watches, and the events of their partitions.

Events of a partition are read from the beginning of the trace, because the last recorded progress of a follower may be
much older than the operation. They are counted by operation, partition, and kind of event.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.common.console import report_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from purgatory_udf.answers.run_tables import RunTables

Place = tuple[str, int]

# Types of requests that are always one operation, and of those that are answered at once or start other operations.
DELAYED_REQUESTS = ("produce", "fetch", "delete_records", "create_topics", "list_offsets", "share_fetch")
_OTHER_REQUESTS = (
    "join_group", "sync_group", "heartbeat", "leave_group", "offset_commit", "consumer_group_heartbeat",
    "share_acknowledge", "share_release",
)  # fmt: skip

# Kinds of operations that are not watched on all of their partitions.
_WATCHED_ON_SOME = ("remote_fetch", "share_fetch")

_WANTED = pa.schema([("operation_id", pa.int64())])
_PLACES = pa.schema(
    [
        ("operation_id", pa.int64()),
        ("broker", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("started_us", pa.int64()),
        ("ended_us", pa.int64()),
        ("trigger", pa.string()),
        ("by_watermark", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class PartitionEvents:
    """Events of one kind on one partition, up to the end of an operation.

    Attributes:
        what: The kind of event, such as an append.
        replica: The replica that sent it, if it is a fetch of a follower.
        times: Number of these events during the operation's wait.
        last_us: Time of the last one, in epoch microseconds.
        reached: The offset that the last one reported.
    """

    what: str
    replica: int | None
    times: int
    last_us: int
    reached: int | None


@dataclass
class Evidence:
    """The rows of the tables about one operation.

    Attributes:
        operation_id: The operation's id.
        end: Its completion, expiration or cancellation; None while it is open.
        request: Its event.
        watches: Its rows in `watches`, or its partitions if the run does not write these.
        partition_events: The events on its partitions up to its end.
        in_sync: The in-sync replicas of its partitions at its end.
        deciding: The event that ended it, if the tables name one.
        changes: The state changes of its group while it waited.
        reads_ended: When its reads or lookups in remote storage ended, in epoch microseconds; possibly after its end.
        deliveries: Of a share fetch, the records that it acquired, and earlier deliveries of these.
        recorded: The outcome that the broker logged, if its request log was imported.
        pauses: The pauses, during its wait, of its broker and of the replicas that it may have waited for.
        waits_as_requested: Whether remote fetches wait for their own maximum wait, as up to Kafka 3.7, and not for
            `remote.fetch.max.wait.ms`.
    """

    operation_id: int
    end: Mapping[str, Any] | None
    request: Mapping[str, Any] | None = None
    watches: list[Mapping[str, Any]] = field(default_factory=list)
    partition_events: dict[Place, list[PartitionEvents]] = field(default_factory=dict)
    in_sync: dict[Place, list[int]] = field(default_factory=dict)
    deciding: Mapping[str, Any] | None = None
    changes: list[Mapping[str, Any]] = field(default_factory=list)
    reads_ended: dict[Place, int] = field(default_factory=dict)
    deliveries: list[Mapping[str, Any]] = field(default_factory=list)
    recorded: Mapping[str, Any] | None = None
    pauses: list[Mapping[str, Any]] = field(default_factory=list)
    waits_as_requested: bool = False


def collect(tables: RunTables, ids: Iterable[int]) -> list[Evidence]:
    """Return the evidence about operations, in the order of `ids`, without ids of events that are no requests.

    It is fast enough for dozens of operations, not for thousands.
    """
    remote_fetch = tables.run.configuration.get("remote_fetch")
    waits_as_requested = remote_fetch is not None and remote_fetch["max_wait_ms"] is None
    report_step("reading the events of operations")
    by_id = {operation_id: Evidence(operation_id, None, waits_as_requested=waits_as_requested) for operation_id in ids}
    tables.add_rows("wanted", pa.table([list(by_id)], schema=_WANTED))
    for end in tables.rows("explain/ends"):
        by_id[end["operation_id"]].end = end
    for request in tables.rows("explain/requests"):
        by_id[request["seq"]].request = request
    for watch in tables.rows("explain/watches"):
        by_id[watch["operation_id"]].watches.append(watch)
    for recorded in tables.rows("explain/recorded"):
        by_id[recorded["operation_id"]].recorded = recorded
    if any(each.end and each.end["kind"] == "share_fetch" for each in by_id.values()):
        for delivery in tables.rows("explain/deliveries"):
            by_id[delivery["asked"]].deliveries.append(delivery)
    _add_partition_events(tables, by_id)
    if not tables.run.configuration.get("write_watches", True):
        _derive_watches(by_id)
    _add_pauses(tables, by_id)
    types = (*DELAYED_REQUESTS, *_OTHER_REQUESTS)
    return [each for each in by_id.values() if each.end or (each.request and each.request["type"] in types)]


def _derive_watches(by_id: Mapping[int, Evidence]) -> None:
    """Add the watches that the run did not write: those of operations that are watched on all of their partitions."""
    for each in by_id.values():
        parts = each.end["partitions"] or [] if each.end and each.end["kind"] not in _WATCHED_ON_SOME else []
        places = sorted((part["topic"], part["partition"]) for part in parts)
        each.watches += [{"topic": topic, "partition": partition} for topic, partition in places]


def _add_partition_events(tables: RunTables, by_id: dict[int, Evidence]) -> None:
    """Add to each operation the events on its partitions up to its end."""
    places = [
        {
            "operation_id": each.operation_id,
            "broker": each.end["broker"],
            "topic": part["topic"],
            "partition": part["partition"],
            "started_us": each.end["started_us"],
            # An operation expires before the events of its deadline's microsecond.
            "ended_us": each.end["ended_us"] - bool(each.end["expired"]),
            "trigger": each.end["trigger"],
            "by_watermark": _needs_watermark(each),
        }
        for each in by_id.values()
        if each.end
        for part in each.end["partitions"] or []
    ]
    if not places or not tables.has("events"):
        return
    tables.add_rows("places", pa.Table.from_pylist(places, schema=_PLACES))
    _count_partition_events(tables, by_id)
    if any(each.end and each.end["kind"] in ("remote_fetch", "list_offsets") for each in by_id.values()):
        for row in tables.rows("explain/remote_reads"):
            by_id[row["operation_id"]].reads_ended[row["topic"], row["partition"]] = row["ended_us"]


def _needs_watermark(evidence: Evidence) -> bool:
    """Return whether a high watermark ends the operation: a produce or the fetch of a consumer."""
    request = evidence.request
    return request is not None and (
        request["type"] == "produce" or (request["type"] == "fetch" and (request["replica_id"] or 0) < 0)
    )


def _add_pauses(tables: RunTables, by_id: dict[int, Evidence]) -> None:
    """Add to each operation the pauses of its broker and of the in-sync replicas of its partitions."""
    pauses = tables.rows("explain/pauses") if tables.has("events") else []
    for each in by_id.values():
        if not each.end:
            continue
        brokers = {each.end["broker"], *(replica for replicas in each.in_sync.values() for replica in replicas)}
        each.pauses = [
            pause
            for pause in pauses
            if pause["broker"] in brokers
            and pause["resumed_us"] >= each.end["started_us"]
            and pause["paused_us"] < each.end["ended_us"]
        ]


def _count_partition_events(tables: RunTables, by_id: dict[int, Evidence]) -> None:
    latest: dict[tuple[int, Place], tuple[int, int]] = {}
    deciding: dict[int, tuple[int, int]] = {}
    for row in tables.rows("explain/partition_events"):
        operation, place = by_id[row["operation_id"]], (row["topic"], row["partition"])
        counted_events = PartitionEvents(row["what"], row["replica"], row["times"], row["last_us"], row["reached"])
        operation.partition_events.setdefault(place, []).append(counted_events)
        key, moment = (operation.operation_id, place), (row["in_sync_us"], row["in_sync_seq"])
        if row["in_sync"] is not None and moment > latest.get(key, (-1, -1)):
            latest[key] = moment
            operation.in_sync[place] = row["in_sync"]
        if row["end_seq"] is not None:
            order = row["rank"], row["end_seq"]
            if order < deciding.get(operation.operation_id, (sys.maxsize, 0)):
                deciding[operation.operation_id] = order
                operation.deciding = {
                    "what": row["what"],
                    "replica": row["replica"],
                    "request_id": row["end_request_id"],
                    "in_sync": row["end_in_sync"],
                }
