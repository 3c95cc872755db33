"""The effect of each event of a trace: requests become delayed operations, changes of a replica trigger checks.

| change | purgatories checked |
|---|---|
| `log_end`, an append | Fetch; if it raised the high watermark: Produce, Fetch, DeleteRecords |
| `high_watermark` | Produce, Fetch, DeleteRecords, unless it is lower than the current one |
| `replica_end`, `isr` | the same three, if it raised the high watermark |
| `leader`, `online`, `not_leader`, `offline`, `deleted` | the same three; then topic, for a `leader` |
| `follower`, `none` | the same three |
| `follower`, `not_leader`, `offline`, `deleted`, `none` | RemoteFetch and RemoteListOffsets as well |
| these and `online`, with `wake` false | Produce, DeleteRecords |
| `log_start` | DeleteRecords |
| `last_stable`, `segment_roll`, `truncate` | none: seen at the next check of any partition of an operation |
| `local_log_start` | none |
| `throttled`, `unthrottled` | none: seen at the next check, too |
| `stopped` | none: operations that wait for the partition end without an answer |

The functions of this module apply one event to `cluster`. Those of requests return the operation. If `respond` is
given, it is called with the operation once that is answered: at once, or when a later event or a deadline completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from purgatory_udf.common.configuration import INT32_MAX, fetch_keys
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.contract.overrides import RequestContext, apply_override
from purgatory_udf.rules.purgatory.delayed_operation import DelayedRequest, TraceRequest
from purgatory_udf.rules.reference.broker import Cluster, ReplicaBroker, ReplicaCluster
from purgatory_udf.rules.reference.delayed_fetch import (
    DelayedFetch,
    FetchPartitionStatus,
    ReadLimits,
    start_offset_metadata,
)
from purgatory_udf.rules.reference.delayed_produce import (
    HIGH_WATERMARK,
    NONE,
    CreateTopicStatus,
    DelayedCreateTopics,
    DelayedDeleteRecords,
    DelayedProduce,
    DeleteRecordsPartitionStatus,
    ProducePartitionStatus,
)
from purgatory_udf.rules.reference.delayed_remote import (
    DelayedRemoteFetch,
    DelayedRemoteListOffsets,
    ListOffsetsPartitionStatus,
)
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch, ShareFetch
from purgatory_udf.rules.reference.partition import FetchIsolation, Partition, ReplicaStatus
from purgatory_udf.rules.reference.share_broker import SHARE_SESSION_LIMIT_REACHED
from purgatory_udf.rules.reference.share_delivery import RemoteData
from purgatory_udf.rules.reference.share_records import (
    Acknowledgement,
    Acquirer,
    RecordState,
    ShareGroupLimits,
    StateBatch,
)
from purgatory_udf.rules.reference.share_state import GroupKey, PersistedState, ShareAnswer, StateRead

Event = Mapping[str, Any]
Respond = Callable[[Any], None]

# The partition number of a topic in the outcome of a create-topics request.
ALL_PARTITIONS = -1

# The acquire mode in which a share fetch acquires at most `max_records` records.
RECORD_LIMIT = 1
SHARE_GROUP_SETTINGS = ShareGroupLimits._fields


def produce(cluster: Cluster, event: Event, respond: Respond | None = None) -> DelayedProduce:
    """Apply a produce request: append its records, and answer it or let it wait."""
    broker = cluster.broker(_broker_id(event))
    statuses = [
        ProducePartitionStatus(
            topic=entry["topic"],
            partition=entry["partition"],
            error=entry.get("error") or NONE,
            bytes=entry.get("bytes") or 0,
            replica=_replica(broker, entry),
            required_offset=_number(entry, "last_offset", -1) + 1,
        )
        for entry in event["partitions"]
    ]
    delay_ms = _overridden(cluster, event, "timeout_ms", "produce.timeout_ms")
    operation = DelayedProduce(_request(event, "produce", _first_partition(event)), delay_ms, statuses)
    operation.respond = respond
    broker.append_records(operation, event["acks"], event["time_us"])
    return operation


def fetch(cluster: Cluster, event: Event, respond: Respond | None = None) -> DelayedFetch | DelayedRemoteFetch:
    """Apply a fetch request: answer it or let it wait.

    As in Kafka, its `min_bytes` are capped by its `max_bytes`, and these by the broker's own limit.
    """
    broker = cluster.broker(_broker_id(event))
    replica_id = _number(event, "replica_id", -1)
    follower = replica_id >= 0
    isolation = _isolation(follower, event.get("isolation"))
    max_bytes = min(_number(event, "max_bytes", INT32_MAX), cluster.config.fetch.max_bytes)
    min_bytes = _overridden(cluster, event, "min_bytes", *fetch_keys("min_bytes", follower))
    operation = DelayedFetch(
        _request(event, "fetch", _first_partition(event), "follower" if follower else "consumer"),
        _overridden(cluster, event, "max_wait_ms", *fetch_keys("max_wait_ms", follower)),
        [
            _fetch_partition_status(_replica(broker, entry), entry, isolation, replica_id)
            for entry in event["partitions"]
        ],
        isolation,
        min(min_bytes, max_bytes) if cluster.config.fetch.cap_min_bytes else min_bytes,
        ReadLimits(max_bytes, bool(event.get("hard_max_bytes"))),
    )
    operation.respond = respond
    return broker.fetch_messages(operation, replica_id, event["time_us"])


def delete_records(cluster: Cluster, event: Event, respond: Respond | None = None) -> DelayedDeleteRecords:
    """Apply a delete-records request: answer it, or let it wait for the replicas."""
    broker = cluster.broker(_broker_id(event))
    statuses = [
        _delete_records_partition_status(_replica(broker, entry), entry["offset"]) for entry in event["partitions"]
    ]
    delay_ms = _overridden(cluster, event, "timeout_ms", "delete_records.timeout_ms")
    operation = DelayedDeleteRecords(_request(event, "delete_records", _first_partition(event)), delay_ms, statuses)
    operation.respond = respond
    broker.delete_records(operation, event["time_us"])
    return operation


def create_topics(cluster: Cluster, event: Event, respond: Respond | None = None) -> DelayedCreateTopics:
    """Apply a create-topics request. With a timeout of 0 or less it is answered at once."""
    broker = cluster.broker(_broker_id(event))
    statuses = [
        CreateTopicStatus(topic=entry["topic"], partition=ALL_PARTITIONS, partitions=entry["partitions"])
        for entry in event["topics"]
    ]
    delay_ms = _overridden(cluster, event, "timeout_ms", "create_topics.timeout_ms")
    request = _request(event, "create_topics", statuses[0].topic if statuses else None)
    operation = DelayedCreateTopics(request, delay_ms, statuses, cluster.has_leaders)
    operation.respond = respond
    broker.create_topics(operation, may_wait=delay_ms > 0, now_us=event["time_us"])
    return operation


def list_offsets(cluster: Cluster, event: Event, respond: Respond | None = None) -> DelayedRemoteListOffsets:
    """Apply a list-offsets request. A time in a tiered partition that is not empty requires a lookup."""
    broker = cluster.broker(_broker_id(event))
    statuses, lookups = [], []
    for entry in event["partitions"]:
        replica = _replica(broker, entry)
        statuses.append(
            ListOffsetsPartitionStatus(
                topic=entry["topic"], partition=entry["partition"], error=replica.status.error, replica=replica
            )
        )
        is_tiered = replica.log.local_start is not None and not replica.log.is_empty
        if replica.status is ReplicaStatus.ONLINE and entry["timestamp"] >= 0 and is_tiered:
            lookups.append(replica.key)
    timeout_ms = _number(event, "timeout_ms", 0)
    delay_ms = timeout_ms if timeout_ms > 0 else cluster.config.list_offsets.request_timeout_ms
    operation = DelayedRemoteListOffsets(_request(event, "list_offsets", _first_partition(event)), delay_ms, statuses)
    operation.respond = respond
    broker.list_offsets(operation, lookups, event["time_us"])
    return operation


def share_fetch(cluster: ReplicaCluster, event: Event, respond: Respond | None = None) -> DelayedShareFetch:
    """Apply a fetch of a share group. Its acknowledgements are processed first."""
    broker = cluster.broker(_broker_id(event))
    partitions = tuple(_key(entry) for entry in event["partitions"])
    request = _request(event, "share_fetch", str(partitions[0]) if partitions else None)
    max_bytes = min(_number(event, "max_bytes", INT32_MAX), cluster.config.fetch.max_bytes)
    min_bytes = _number(event, "min_bytes", 1)
    fetch = ShareFetch(
        group=event["group"],
        acquirer=Acquirer(event["seq"], request.request_id, request.client_id, event["member_id"]),
        partitions=partitions,
        min_bytes=min(min_bytes, max_bytes) if cluster.config.fetch.cap_min_bytes else min_bytes,
        max_bytes=max_bytes,
        max_records=_overridden(cluster, event, "max_records", "share.max_records"),
        batch_size=_number(event, "batch_size", INT32_MAX),
        is_exact=_number(event, "acquire_mode", 0) == RECORD_LIMIT and cluster.config.share.limits_failing_deliveries,
        session_epoch=_number(event, "session_epoch", 0),
        reads_committed=cluster.share_groups.limits(event["group"]).isolation == "read_committed",
    )
    delay_ms = _overridden(cluster, event, "max_wait_ms", "share.max_wait_ms")
    operation = DelayedShareFetch(request, delay_ms, fetch, broker.shares)
    operation.respond = respond
    error = event.get("error") or NONE
    is_limit = error == SHARE_SESSION_LIMIT_REACHED and cluster.config.share.max_sessions is not None
    if error == NONE or is_limit:
        error = broker.shares.sessions.fetch_error(fetch)
    if error != NONE:
        broker.shares.refuse(operation, error, event["time_us"])
        return operation
    if event.get("acknowledgements"):
        _acknowledge(cluster, event)
    reads = {
        _key(entry): StateRead(_number(entry, "state_read_ms", 0), entry.get("error") or NONE)
        for entry in event["partitions"]
        if entry.get("state_read_ms") or (entry.get("error") or NONE) != NONE
    }
    broker.shares.fetch_messages(operation, event["time_us"], reads)
    return operation


REQUESTS: dict[str, Callable[[Cluster, Event], DelayedRequest]] = {
    "produce": produce,
    "fetch": fetch,
    "delete_records": delete_records,
    "create_topics": create_topics,
    "list_offsets": list_offsets,
    "share_fetch": share_fetch,
}


def _share_acknowledge(cluster: ReplicaCluster, event: Event) -> None:
    shares = cluster.broker(_broker_id(event)).shares
    error = shares.sessions.acknowledge_error(event["group"], event["member_id"], event.get("session_epoch"))
    if error == NONE:
        _acknowledge(cluster, event)
        return
    answer = _share_answer(event)
    answer.errors, answer.written_us = {_key(each): error for each in event["acknowledgements"]}, event["time_us"]
    shares.answers.append(answer)


def _acknowledge(cluster: ReplicaCluster, event: Event) -> None:
    """Apply the event's acknowledgements by a member of a share group, each partition's ranges in their order.

    With what-if settings for the group, the recorded fact that a range was `accepted` does not hold for records whose
    acquisition lock has expired in the replay.
    """
    is_what_if = cluster.share_groups.settings.overrides(event["group"])
    acknowledgements: dict[TopicPartition, list[Acknowledgement]] = {}
    for each in event["acknowledgements"]:
        offsets, accepted = (each["first_offset"], each["last_offset"]), bool(each.get("accepted"))
        acknowledgement = Acknowledgement(*offsets, tuple(each["types"]), accepted, is_what_if)
        acknowledgements.setdefault(_key(each), []).append(acknowledgement)
    shares = cluster.broker(_broker_id(event)).shares
    acquirer = Acquirer(event["seq"], event.get("request_id"), event.get("client_id"), event["member_id"])
    shares.acknowledge(_share_answer(event), event["group"], acquirer, acknowledgements, event["time_us"])


def _share_release(cluster: ReplicaCluster, event: Event) -> None:
    shares = cluster.broker(_broker_id(event)).shares
    shares.release_session(_share_answer(event), event["group"], event["member_id"], event["time_us"])
    if event.get("connection_closed"):
        shares.close_connection(event["group"], event["time_us"])


def _share_group(cluster: ReplicaCluster, event: Event) -> None:
    settings = {name: event[name] for name in SHARE_GROUP_SETTINGS if event.get(name) is not None}
    cluster.share_groups.configure(event["group"], ShareGroupLimits(**settings))


def _share_state(cluster: ReplicaCluster, event: Event) -> None:
    batches = [
        StateBatch(each["first_offset"], each["last_offset"], RecordState[each["state"]], each["delivery_count"])
        for each in event.get("states") or ()
    ]
    key = GroupKey(event["group"], _key(event))
    start = event["start_offset"]
    cluster.share_groups.load(key, PersistedState(None if start < 0 else start, batches))


def _share_dead_letter(cluster: ReplicaCluster, event: Event) -> None:
    shares = cluster.broker(_broker_id(event)).shares
    key = GroupKey(event["group"], _key(event))
    shares.end_dead_letters(key, event["first_offset"], event["last_offset"], event["time_us"])


def _share_answer(event: Event) -> ShareAnswer:
    answer = ShareAnswer(event["seq"], event.get("request_id"), event["type"], event.get("state_write_ms"))
    answer.write_errors = {_key(each): each["error"] for each in event.get("state_write_errors") or ()}
    return answer


SHARE_EVENTS: dict[str, Callable[[ReplicaCluster, Event], None]] = {
    "share_acknowledge": _share_acknowledge,
    "share_release": _share_release,
    "share_group": _share_group,
    "share_state": _share_state,
    "share_dead_letter": _share_dead_letter,
}


def _remote_read(cluster: ReplicaCluster, event: Event) -> None:
    broker = cluster.broker(_broker_id(event))
    data = RemoteData(event.get("error") or NONE, _number(event, "bytes", 0), event.get("last_offset"))
    broker.end_remote_read(_replica(broker, event), str(event["request_id"]), data, event["time_us"])


def _remote_lookup(cluster: Cluster, event: Event) -> None:
    broker = cluster.broker(_broker_id(event))
    replica, error = _replica(broker, event), event.get("error") or NONE
    broker.end_remote_lookup(replica, str(event["request_id"]), error, event["time_us"])


def _remote_quota(cluster: ReplicaCluster, event: Event) -> None:
    cluster.broker(_broker_id(event)).remote_storage.quota_exhausted = bool(event["exhausted"])


def _reader_queue(cluster: ReplicaCluster, event: Event) -> None:
    cluster.broker(_broker_id(event)).remote_storage.queue_full = bool(event["full"])


# Events of remote storage on which share groups depend as well.
SHARE_STORAGE_EVENTS: dict[str, Callable[[ReplicaCluster, Event], None]] = {
    "remote_read": _remote_read,
    "remote_quota": _remote_quota,
    "reader_queue": _reader_queue,
}

REMOTE_STORAGE_EVENTS: dict[str, Callable[[Cluster, Event], None]] = {
    **SHARE_STORAGE_EVENTS,
    "remote_lookup": _remote_lookup,
}


def _broker_id(event: Event) -> int:
    return _number(event, "broker", 0)


def _number(values: Event, name: str, default: int) -> int:
    value = values.get(name)
    return default if value is None else int(value)


def _overridden(cluster: ReplicaCluster, event: Event, field: str, *keys: str) -> int:
    """Return a field of a request with the what-if settings applied that select its client, broker, topics and group.

    `keys` are the names of the settings that override the field.
    """
    topics = [entry["topic"] for entry in event.get("partitions") or event.get("topics") or ()]
    subject = RequestContext(event.get("client_id"), _broker_id(event), topics, event.get("group"))
    return apply_override(event[field], cluster.config.setting(keys, subject))


def _replica(broker: ReplicaBroker, entry: Event) -> Partition:
    return broker.replica_of(entry)


def _key(entry: Event) -> TopicPartition:
    return TopicPartition(entry["topic"], entry["partition"])


def _first_partition(event: Event) -> str | None:
    """Return the text of the request's first partition, which is its `key` in the tables; None without partitions."""
    entries = event["partitions"]
    return str(TopicPartition(entries[0]["topic"], entries[0]["partition"])) if entries else None


def _request(event: Event, kind: str, key: str | None, fetcher: str | None = None) -> TraceRequest:
    return TraceRequest(
        operation_id=event["seq"],
        kind=kind,
        broker=_broker_id(event),
        started_us=event["time_us"],
        request_id=event.get("request_id"),
        client_id=event.get("client_id"),
        key=key,
        fetcher=fetcher,
    )


def _isolation(follower: bool, isolation: str | None) -> FetchIsolation:
    if follower:
        return FetchIsolation.LOG_END
    return FetchIsolation.TXN_COMMITTED if isolation == "read_committed" else FetchIsolation.HIGH_WATERMARK


def _fetch_partition_status(
    replica: Partition, entry: Event, isolation: FetchIsolation, replica_id: int
) -> FetchPartitionStatus:
    return FetchPartitionStatus(
        replica=replica,
        fetch_offset=entry["fetch_offset"],
        max_bytes=_number(entry, "max_bytes", INT32_MAX),
        current_leader_epoch=_number(entry, "current_leader_epoch", -1),
        replica_id=replica_id,
        throttled_in_request=replica_id >= 0 and bool(entry.get("throttled")),
        preferred_replica=entry.get("preferred_replica") if replica_id < 0 else None,
        start_metadata=start_offset_metadata(replica, entry["fetch_offset"], isolation),
    )


def _delete_records_partition_status(replica: Partition, offset: int) -> DeleteRecordsPartitionStatus:
    """Return the status of a partition. An offset of -1 means the current high watermark, 0 if that is unknown."""
    if offset == HIGH_WATERMARK:
        offset = 0 if replica.high_watermark is None else replica.high_watermark.offset
    return DeleteRecordsPartitionStatus(
        topic=replica.key.topic, partition=replica.key.partition, replica=replica, offset=offset
    )


Change = Callable[[ReplicaBroker, Partition, Event], None]


def _log_end(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    change = replica.append(event["offset"], event.get("bytes") or 0, event.get("batches") == 1)
    broker.check_after_append(replica, change, event["time_us"])


def _high_watermark(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    if replica.set_high_watermark(event["offset"]):
        broker.check_all(replica, event["time_us"])


def _last_stable(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    replica.set_last_stable_offset(event["offset"])
    replica.aborted += [(each["first_offset"], each["last_offset"]) for each in event.get("aborted") or ()]


def _log_start(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    replica.log.advance_start(event["offset"])
    broker.check_low_watermark(replica, event["time_us"])


def _segment_roll(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    replica.log.roll(event["offset"])


def _truncate(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    replica.truncate(event["offset"])


def _leader(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    isr = event.get("isr")
    replica.make_leader(event.get("leader_epoch"), None if isr is None else tuple(isr), event.get("min_isr"))
    broker.check_all(replica, event["time_us"])


def _isr(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    if replica.set_isr(tuple(event["isr"])):
        broker.check_all(replica, event["time_us"])


def _replica_end(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    if replica.update_follower_fetch_state(event["replica_id"], event["offset"]):
        broker.check_all(replica, event["time_us"])


def _throttled_change(throttled: bool) -> Change:
    def change(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
        replica.throttled_followers[event["replica_id"]] = throttled

    return change


def _status_change(status: ReplicaStatus) -> Change:
    def change(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
        replica.status = status
        if status is not ReplicaStatus.ONLINE:
            broker.fence_shares(replica, event["time_us"])
        _check_status(broker, replica, event)

    return change


def _check_status(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    """Check the purgatories that a change of the replica's status may affect; fewer of them if `wake` is false.

    The table of the module has the purgatories by change.
    """
    now_us = event["time_us"]
    if event.get("wake") is False:
        broker.check_per_partition(replica, now_us)
        return
    broker.check_replica(replica, now_us)
    if event["change"] != "online":
        broker.check_remote(replica, now_us)


def _local_log_start(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    replica.log.advance_local_start(event["offset"])
    broker.remote_storage.is_used = True


def _stopped(broker: ReplicaBroker, replica: Partition, event: Event) -> None:
    broker.stop(replica, event["time_us"])


CHANGES: dict[str, Change] = {
    "log_end": _log_end,
    "high_watermark": _high_watermark,
    "last_stable": _last_stable,
    "log_start": _log_start,
    "segment_roll": _segment_roll,
    "truncate": _truncate,
    "leader": _leader,
    "isr": _isr,
    "replica_end": _replica_end,
    "throttled": _throttled_change(True),
    "unthrottled": _throttled_change(False),
    "online": _status_change(ReplicaStatus.ONLINE),
    "not_leader": _status_change(ReplicaStatus.NOT_LEADER),
    "offline": _status_change(ReplicaStatus.OFFLINE),
    "deleted": _status_change(ReplicaStatus.DELETED),
    "stopped": _stopped,
    "local_log_start": _local_log_start,
    "follower": _status_change(ReplicaStatus.FOLLOWER),
    "none": _check_status,
}


def apply_change(cluster: ReplicaCluster, event: Event) -> None:
    """Apply a `partition` event at its broker, then update which partitions of the topic have a leader."""
    broker = cluster.broker(event.get("broker") or 0)
    replica = broker.replica_of(event)
    if event["change"] == "leader":
        replica.aborted = cluster.aborted_records(replica.key)
    CHANGES[event["change"]](broker, replica, event)
    if event["change"] == "leader":
        cluster.on_leader_elected(replica.key, event["time_us"])
    elif event["change"] == "deleted":
        cluster.on_partition_deleted(replica.key)
