"""Leaders, in-sync sets and broker lifecycle over time, from requests and from a dump of the metadata log.

Partitions:

    PARTITION_RECORD, PARTITION_CHANGE_RECORD   records of the metadata log (`read_metadata_dump`)
    METADATA, DESCRIBE_TOPIC_PARTITIONS         the state that a broker reported to a client
    ALTER_PARTITION                             the in-sync set that the controller granted a leader
    DELETE_TOPICS                               the deletion of a topic
    UPDATE_METADATA                             the state that a ZooKeeper controller sent to a broker

Brokers:

    BROKER_REGISTRATION, REGISTER_BROKER_RECORD     a process has started, so an earlier one has ended
    BROKER_HEARTBEAT answered `shouldShutDown`      a broker in controlled shutdown may exit
    BROKER_REGISTRATION_CHANGE_RECORD               the controller has fenced or unfenced a broker

A broker that does not respond for a while is fenced and unfenced without a new registration. It has not stopped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.kafka_protocol import NO_TOPIC_ID, topic_of
from purgatory_udf.sources.request_log.log_files import open_text
from purgatory_udf.sources.request_log.logged_request import Request

REGISTERED, REGISTERED_AGAIN, MAY_STOP, STOPPING, FENCED, UNFENCED = (
    "registered", "registered again", "may stop", "stopping", "fenced", "unfenced",
)  # fmt: skip
# APIs of the broker lifecycle; of heartbeats only those are kept that permit a shutdown.
REGISTRATION, HEARTBEAT = "BROKER_REGISTRATION", "BROKER_HEARTBEAT"
# A time in microseconds that is later than any other.
NEVER = 2**62

Key = tuple[str, int]


class LifecycleEvent(NamedTuple):
    """A change in the life of a broker, from the controller's point of view, such as its registration.

    `kind` is one of this module's constants, such as `REGISTERED` or `MAY_STOP`.
    """

    at_us: int
    broker: int
    kind: str


class BrokerStop(NamedTuple):
    """A broker was down from `at_us` to `started_us`. If the stop is not dated, both are the time of the restart."""

    broker: int
    at_us: int
    started_us: int


def permits_shutdown(request: Request) -> bool:
    """Return whether a request is a broker's heartbeat with the response `shouldShutDown`: the broker may exit."""
    return request.api == HEARTBEAT and bool((request.answer or {}).get("shouldShutDown"))


def lifecycle_events_in(request: Request) -> Iterator[LifecycleEvent]:
    """Yield the lifecycle event that a successful registration or heartbeat of a broker shows; otherwise nothing."""
    if not request.answer or request.answer.get("errorCode"):
        return
    if request.api == REGISTRATION:
        again = int(request.body.get("previousBrokerEpoch", -1)) >= 0
        yield LifecycleEvent(
            request.arrival_us, int(request.body["brokerId"]), REGISTERED_AGAIN if again else REGISTERED
        )
    elif permits_shutdown(request):
        yield LifecycleEvent(request.answered_us, int(request.body["brokerId"]), MAY_STOP)


def broker_stops(events: Iterable[LifecycleEvent]) -> list[BrokerStop]:
    """Return the stops of brokers in time order."""
    by_broker: dict[int, list[LifecycleEvent]] = {}
    for event in sorted(events):
        by_broker.setdefault(event.broker, []).append(event)
    return sorted((stop for events in by_broker.values() for stop in _stops_of(events)), key=lambda stop: stop.at_us)


def _stops_of(events: Iterable[LifecycleEvent]) -> Iterator[BrokerStop]:
    """Yield the stops of one broker from its events in time order."""
    is_registered = is_shutting_down = False
    down_us: int | None = None
    broker = -1
    for at_us, broker, kind in events:
        if kind in (REGISTERED, REGISTERED_AGAIN):
            if is_registered or kind == REGISTERED_AGAIN:
                yield BrokerStop(broker, at_us if down_us is None else down_us, at_us)
            is_registered, is_shutting_down, down_us = True, False, None
        elif kind == STOPPING:
            is_shutting_down = True
        elif kind == UNFENCED:
            down_us = None
        else:
            is_shutting_down |= kind == MAY_STOP
            down_us = at_us if down_us is None else down_us
    if is_shutting_down and down_us is not None:
        yield BrokerStop(broker, down_us, NEVER)


# Leader of a partition that is being deleted (Kafka: `LeaderAndIsr.LEADER_DURING_DELETE`).
LEADER_DURING_DELETE = -2
UPDATE_METADATA = "UPDATE_METADATA"
TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
# Setting of a group of the consumer protocol, and the operation of INCREMENTAL_ALTER_CONFIGS that gives it a value.
SESSION_TIMEOUT, SET = "consumer.session.timeout.ms", 0
# Settings of a share group, by name, and their fields in the event `share_group`.
SHARE_SETTINGS = {
    "share.record.lock.duration.ms": "record_lock_duration_ms",
    "share.delivery.count.limit": "delivery_count_limit",
    "share.partition.max.record.locks": "partition_max_record_locks",
    "share.auto.offset.reset": "auto_offset_reset",
    "share.isolation.level": "isolation",
    "errors.deadletterqueue.topic.name": "dead_letter_queue",
}
# The topic setting of tiered storage, and APIs that show or change settings.
REMOTE_STORAGE = "remote.storage.enable"
CONFIG_APIS = frozenset({"ALTER_CONFIGS", "DESCRIBE_CONFIGS", "INCREMENTAL_ALTER_CONFIGS"})
# Sources of a change, best first: a file of the operator, ALTER_PARTITION, or any other request of the log. If a
# partition has changes from a file, those from requests are not used for it.
GIVEN, GRANTED, REPORTED = "given", "granted", "reported"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """New state of a partition from `at_us` on.

    None means that a field is unknown or unchanged. `deleted` is whether the partition was deleted. `asked_us` is the
    time at which the leader requested the change from the controller (ALTER_PARTITION).
    """

    at_us: int
    topic: str
    partition: int
    source: str
    leader: int | None = None
    leader_epoch: int | None = None
    replicas: tuple[int, ...] | None = None
    isr: tuple[int, ...] | None = None
    deleted: bool = False
    asked_us: int = 0

    def repeats(self, other: PartitionChange) -> bool:
        """Return whether `other` has the same state and source as this change, possibly at another time."""
        return replace(self, at_us=other.at_us, asked_us=other.asked_us) == other


class TopicSize(NamedTuple):
    """A topic has this number of partitions from `at_us` on; 0 means that it was deleted."""

    at_us: int
    topic: str
    partitions: int


class GroupSession(NamedTuple):
    """The session timeout of a consumer group from `at_us` on, in milliseconds; None: that of the brokers."""

    at_us: int
    group: str
    timeout_ms: int | None


class ShareSetting(NamedTuple):
    """A setting of a share group from `at_us` on: a field of the event `share_group`, and its value; None: default."""

    at_us: int
    group: str
    field: str
    value: int | str | None


class BrokerUnfenced(NamedTuple):
    """The controller has unfenced a broker; its replicas may rejoin in-sync sets."""

    at_us: int
    broker: int


@dataclass(slots=True)
class ClusterMetadata:
    """Contents of a metadata log: topic names by id, changes of partitions and brokers, and settings.

    `tiered` are the topics with `remote.storage.enable`.
    """

    names: dict[str, str] = field(default_factory=dict)
    changes: list[PartitionChange] = field(default_factory=list)
    unfenced: list[BrokerUnfenced] = field(default_factory=list)
    lifecycle: list[LifecycleEvent] = field(default_factory=list)
    min_isr: int | None = None
    topic_min_isr: dict[str, int] = field(default_factory=dict)
    tiered: set[str] = field(default_factory=set)
    group_sessions: list[GroupSession] = field(default_factory=list)
    share_settings: list[ShareSetting] = field(default_factory=list)

    def min_isr_of(self, topic: str) -> int | None:
        """Return `min.insync.replicas` of a topic, else the cluster's default, else None."""
        return self.topic_min_isr.get(topic, self.min_isr)


def replica_ids(value: Any) -> tuple[int, ...] | None:
    """Return a list of broker ids as a tuple; None stays None."""
    return tuple(int(replica) for replica in value) if value is not None else None


def changes_in(request: Request) -> Iterator[PartitionChange]:
    """Yield the partition changes of one request, dated by its response."""
    answer = request.answer
    if not answer:
        return
    if request.api in ("METADATA", "DESCRIBE_TOPIC_PARTITIONS"):
        for topic in answer.get("topics") or []:
            if topic.get("errorCode") or not (topic.get("name") or topic.get("topicId", NO_TOPIC_ID) != NO_TOPIC_ID):
                continue
            for partition in topic.get("partitions") or []:
                if partition.get("errorCode") in (0, None) and partition.get("isrNodes") is not None:
                    yield PartitionChange(
                        request.answered_us,
                        topic_of(topic),
                        int(partition["partitionIndex"]),
                        REPORTED,
                        int(partition["leaderId"]),
                        int(partition["leaderEpoch"]) if partition.get("leaderEpoch", -1) >= 0 else None,
                        replica_ids(partition.get("replicaNodes")),
                        replica_ids(partition["isrNodes"]),
                    )
    elif request.api == UPDATE_METADATA:
        yield from _updates(request)
    elif request.api == "ALTER_PARTITION" and not answer.get("errorCode"):
        for topic in answer.get("topics") or []:
            for partition in topic["partitions"]:
                if not partition.get("errorCode"):
                    yield PartitionChange(
                        request.answered_us,
                        topic_of(topic),
                        int(partition["partitionIndex"]),
                        GRANTED,
                        int(partition["leaderId"]),
                        int(partition["leaderEpoch"]),
                        None,
                        replica_ids(partition["isr"]),
                        asked_us=request.arrival_us,
                    )


def _updates(request: Request) -> Iterator[PartitionChange]:
    """Yield the changes of an UPDATE_METADATA request: up to version 4 ungrouped, from version 5 on by topic."""
    states = [(state.get("topicName"), state) for state in request.body.get("ungroupedPartitionStates") or []]
    for topic in request.body.get("topicStates") or []:
        states += [(topic["topicName"], state) for state in topic["partitionStates"]]
    for name, state in states:
        leader = int(state["leader"])
        yield PartitionChange(
            request.answered_us,
            str(name),
            int(state["partitionIndex"]),
            REPORTED,
            leader,
            int(state["leaderEpoch"]),
            replica_ids(state.get("replicas")),
            replica_ids(state["isr"]),
            deleted=leader == LEADER_DURING_DELETE,
        )


def deletions_in(request: Request) -> Iterator[tuple[int, str]]:
    """Yield (time in microseconds, topic name or id) for each topic that a DELETE_TOPICS request has deleted."""
    if request.api == "DELETE_TOPICS" and request.answer:
        for topic in request.answer.get("responses") or []:
            if not topic.get("errorCode"):
                yield request.answered_us, topic_of(topic)


def min_isr_in(request: Request) -> Iterator[tuple[str, int]]:
    """Yield (topic, `min.insync.replicas`) from the settings in a CREATE_TOPICS response."""
    if request.api == "CREATE_TOPICS" and request.answer:
        for topic in request.answer.get("topics") or []:
            for config in topic.get("configs") or []:
                if config.get("name") == "min.insync.replicas" and config.get("value"):
                    yield str(topic["name"]), int(config["value"])


def tiered_topics_in(request: Request) -> Iterator[str]:
    """Yield the topics for which a request enables remote storage, or a response shows that it is enabled."""
    answer, body = request.answer or {}, request.body
    if request.api == "CREATE_TOPICS":
        created = {topic["name"] for topic in answer.get("topics") or [] if not topic.get("errorCode")}
        settings = [*(answer.get("topics") or []), *(body.get("topics") or [])]
        named = [(topic["name"], topic) for topic in settings if topic["name"] in created]
    elif request.api in CONFIG_APIS:
        resources = answer.get("results") if request.api == "DESCRIBE_CONFIGS" else body.get("resources")
        topics = [resource for resource in resources or [] if resource.get("resourceType") == TOPIC_RESOURCE]
        named = [(topic["resourceName"], topic) for topic in topics]
    else:
        return
    for name, topic in named:
        values = {config.get("name"): config.get("value") for config in topic.get("configs") or []}
        if values.get(REMOTE_STORAGE) == "true":
            yield str(name)


def created_sizes_in(request: Request) -> Iterator[TopicSize]:
    """Yield the size of each topic that a CREATE_TOPICS or CREATE_PARTITIONS request has created or enlarged."""
    answer = request.answer or {}
    if request.body.get("validateOnly"):
        return
    requested = {str(topic["name"]): int(topic.get("count", 0)) for topic in request.body.get("topics") or []}
    for topic in answer.get("topics") or answer.get("results") or []:
        size = int(topic.get("numPartitions") or requested.get(str(topic["name"])) or 0)
        if not topic.get("errorCode") and size > 0:
            yield TopicSize(request.answered_us, str(topic["name"]), size)


def group_sessions_in(request: Request) -> Iterator[GroupSession]:
    """Yield the session timeouts of consumer groups that an INCREMENTAL_ALTER_CONFIGS request has set."""
    return sessions_of(_group_settings_in(request))


def share_settings_in(request: Request) -> Iterator[ShareSetting]:
    """Yield the settings of share groups that an INCREMENTAL_ALTER_CONFIGS request has set."""
    return share_settings_of(_group_settings_in(request))


# Time, group, name and value of a group's setting; None: the brokers' setting.
_GroupSetting = tuple[int, str, str, str | None]


def _group_settings_in(request: Request) -> Iterator[_GroupSetting]:
    refused = {
        str(response["resourceName"])
        for response in (request.answer or {}).get("responses") or []
        if response.get("errorCode")
    }
    for resource in request.body.get("resources") or []:
        group = str(resource["resourceName"])
        if resource["resourceType"] != GROUP_RESOURCE or group in refused or request.body.get("validateOnly"):
            continue
        for config in resource.get("configs") or []:
            value = config.get("value") if config.get("configOperation") == SET else None
            yield request.answered_us, group, str(config.get("name")), value


def sessions_of(settings: Iterable[_GroupSetting]) -> Iterator[GroupSession]:
    """Yield the session timeouts of consumer groups among settings of groups."""
    for at_us, group, name, value in settings:
        if name == SESSION_TIMEOUT:
            yield GroupSession(at_us, group, None if value is None else int(value))


def share_settings_of(settings: Iterable[_GroupSetting]) -> Iterator[ShareSetting]:
    """Yield the settings of share groups among settings of groups."""
    for at_us, group, name, value in settings:
        field = SHARE_SETTINGS.get(name)
        if field == "auto_offset_reset":
            # Other values are durations; the first acquired offset shows where the group began.
            yield ShareSetting(at_us, group, field, value if value in ("earliest", "latest") else None)
        elif field == "isolation":
            yield ShareSetting(at_us, group, field, value)
        elif field == "dead_letter_queue":
            yield ShareSetting(at_us, group, field, bool(value) or None)
        elif field is not None:
            yield ShareSetting(at_us, group, field, None if value is None else int(value))


def with_topic_names(changes: Iterable[PartitionChange], name: Callable[[str], str]) -> list[PartitionChange]:
    """Return the changes with topic ids replaced by names."""
    return [replace(change, topic=name(change.topic)) for change in changes]


def merge_changes(changes: Sequence[PartitionChange]) -> PartitionChange | None:
    """Merge changes of one partition, in time order, into one change with the latest value of each field.

    A deletion resets all fields. Returns None if there are no changes.
    """
    latest: PartitionChange | None = None
    for change in changes:
        if latest is None or change.deleted or latest.deleted:
            latest = change
            continue
        fields = ("leader", "leader_epoch", "replicas", "isr")
        known = {name: getattr(latest, name) for name in fields if getattr(change, name) is None}
        latest = replace(change, **known)
    return latest


def change_from_json(fields: Mapping[str, Any]) -> PartitionChange:
    """Restore a change from its fields as JSON values."""
    lists = {name: replica_ids(fields[name]) for name in ("replicas", "isr")}
    return PartitionChange(**{**fields, **lists})


_RECORD = re.compile(r"offset: \d+ .*?CreateTime: (\d+) .*?payload: (\{.*\})\s*$")
NO_LEADER_CHANGE = -2
# The field `fenced` of BROKER_REGISTRATION_CHANGE_RECORD: 1 fences a broker, -1 unfences it.
UNFENCE = -1
_REGISTRATION_CHANGE = "BROKER_REGISTRATION_CHANGE_RECORD"
_UNFENCED = frozenset({_REGISTRATION_CHANGE, "UNFENCE_BROKER_RECORD"})


def read_metadata_dump(path: str | Path) -> ClusterMetadata:
    """Read a decoded metadata log. Raises UserError if it has no record of a partition."""
    cluster = ClusterMetadata()
    # A change record omits unchanged fields and the leader epoch, which rises by one with each leader in a record.
    leaders: dict[Key, tuple[int, int]] = {}
    with open_text(path) as lines:
        for line in lines:
            record = _RECORD.search(line)
            if record is None:
                continue
            try:
                payload = json.loads(record[2])
            except ValueError:
                continue
            _read_record(cluster, leaders, int(record[1]) * 1000, str(payload.get("type")), payload.get("data") or {})
    if not cluster.changes:
        raise UserError(f"{path}: no PARTITION_RECORD found; expected kafka-dump-log --cluster-metadata-decoder")
    return cluster


def _read_record(
    cluster: ClusterMetadata, leaders: dict[Key, tuple[int, int]], at_us: int, kind: str, data: dict[str, Any]
) -> None:
    cluster.lifecycle.extend(_lifecycle_events(at_us, kind, data))
    if kind == "TOPIC_RECORD":
        cluster.names[data["topicId"]] = data["name"]
    elif kind == "REMOVE_TOPIC_RECORD":
        for topic, partition in [key for key in leaders if key[0] == data["topicId"]]:
            del leaders[topic, partition]
            cluster.changes.append(PartitionChange(at_us, topic, partition, GIVEN, deleted=True))
    elif kind == "CONFIG_RECORD" and data.get("name") == "min.insync.replicas":
        value = data.get("value")
        if value is None:
            return
        if data["resourceType"] == TOPIC_RESOURCE:
            cluster.topic_min_isr[data["resourceName"]] = int(value)
        elif data["resourceType"] == BROKER_RESOURCE and not data["resourceName"]:
            cluster.min_isr = int(value)
    elif kind == "CONFIG_RECORD" and data.get("name") == REMOTE_STORAGE:
        if data["resourceType"] == TOPIC_RESOURCE and data.get("value") == "true":
            cluster.tiered.add(data["resourceName"])
    elif kind == "CONFIG_RECORD" and data["resourceType"] == GROUP_RESOURCE:
        setting = at_us, str(data["resourceName"]), str(data.get("name")), data.get("value")
        cluster.group_sessions.extend(sessions_of([setting]))
        cluster.share_settings.extend(share_settings_of([setting]))
    elif kind in _UNFENCED and (kind != _REGISTRATION_CHANGE or data.get("fenced") == UNFENCE):
        cluster.unfenced.append(BrokerUnfenced(at_us, int(data.get("brokerId", data.get("id", -1)))))
    elif kind in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
        key = (data["topicId"], int(data["partitionId"]))
        leader, epoch = leaders.get(key, (-1, -1))
        named = data.get("leader", NO_LEADER_CHANGE if kind == "PARTITION_CHANGE_RECORD" else -1)
        if kind == "PARTITION_RECORD":
            leader, epoch = named, int(data["leaderEpoch"])
        elif named != NO_LEADER_CHANGE:
            leader, epoch = named, epoch + 1
        leaders[key] = leader, epoch
        cluster.changes.append(
            PartitionChange(
                at_us, *key, GIVEN, leader, epoch, replica_ids(data.get("replicas")), replica_ids(data.get("isr"))
            )
        )


def _lifecycle_events(at_us: int, kind: str, data: dict[str, Any]) -> Iterator[LifecycleEvent]:
    """Yield the lifecycle events that a record of the metadata log, of the type `kind`, shows at `at_us`."""
    if kind == "REGISTER_BROKER_RECORD":
        yield LifecycleEvent(at_us, int(data["brokerId"]), REGISTERED)
    elif kind == _REGISTRATION_CHANGE:
        if data.get("inControlledShutdown"):
            yield LifecycleEvent(at_us, int(data["brokerId"]), STOPPING)
        if data.get("fenced"):
            yield LifecycleEvent(at_us, int(data["brokerId"]), UNFENCED if data["fenced"] == UNFENCE else FENCED)
