"""Who led a partition, who was in sync, and when: from a dump of the metadata log, and from the request log itself.

PARTITION_RECORD, PARTITION_CHANGE_RECORD   `kafka-dump-log --cluster-metadata-decoder` (`--isr`)
METADATA, DESCRIBE_TOPIC_PARTITIONS         a snapshot that some broker gave a client
ALTER_PARTITION                             the in-sync set that the controller granted a leader
DELETE_TOPICS                               the end of a topic
UPDATE_METADATA                             what a ZooKeeper controller tells every broker
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.lines.log_files import open_text
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import NO_TOPIC_ID, topic_of

# When brokers stopped and started, as their controller came to know it.
#
# BROKER_REGISTRATION, REGISTER_BROKER_RECORD    a process has started; if it is not the first, the one before has
# ended BROKER_HEARTBEAT answered `shouldShutDown`     a process that was told to stop may do so now
# BROKER_REGISTRATION_CHANGE_RECORD              the controller has given a broker up (`fenced`), or counts on it again
#
# A broker that only stood still is given up, and counted on again, without registering anew: it has not stopped.


REGISTERED, REGISTERED_AGAIN, MAY_STOP, STOPPING, FENCED, UNFENCED = (
    "registered", "registered again", "may stop", "stopping", "fenced", "unfenced",
)  # fmt: skip
# The requests that tell of it; of heartbeats only those are kept that let a broker stop.
REGISTRATION, HEARTBEAT = "BROKER_REGISTRATION", "BROKER_HEARTBEAT"
NEVER = 2**62


class LifecycleEvent(NamedTuple):
    at_us: int
    broker: int
    kind: str


class BrokerStop(NamedTuple):
    """The broker was not there from `at_us` to `started_us`. Where nobody saw it stop, that is when it was back."""

    broker: int
    at_us: int
    started_us: int


def permits_shutdown(request: Request) -> bool:
    return request.api == HEARTBEAT and bool((request.answer or {}).get("shouldShutDown"))


def lifecycle_events_in(request: Request) -> Iterator[LifecycleEvent]:
    """What one line of a controller's log says."""
    if not request.answer or request.answer.get("errorCode"):
        return
    if request.api == REGISTRATION:
        again = int(request.body.get("previousBrokerEpoch", -1)) >= 0
        yield LifecycleEvent(
            request.arrival_us, int(request.body["brokerId"]), REGISTERED_AGAIN if again else REGISTERED
        )
    elif permits_shutdown(request):
        yield LifecycleEvent(request.answered_us, int(request.body["brokerId"]), MAY_STOP)


def broker_stops(signs: Iterable[LifecycleEvent]) -> list[BrokerStop]:
    """In the order of time."""
    of: dict[int, list[LifecycleEvent]] = {}
    for sign in sorted(signs):
        of.setdefault(sign.broker, []).append(sign)
    return sorted((stop for its_signs in of.values() for stop in _stops_of(its_signs)), key=lambda stop: stop.at_us)


def _stops_of(signs: Iterable[LifecycleEvent]) -> Iterator[BrokerStop]:
    known = ordered = False
    gone_us: int | None = None
    broker = -1
    for at_us, broker, what in signs:
        if what in (REGISTERED, REGISTERED_AGAIN):
            if known or what == REGISTERED_AGAIN:
                yield BrokerStop(broker, at_us if gone_us is None else gone_us, at_us)
            known, ordered, gone_us = True, False, None
        elif what == STOPPING:
            ordered = True
        elif what == UNFENCED:
            gone_us = None
        else:
            ordered |= what == MAY_STOP
            gone_us = at_us if gone_us is None else gone_us
    if ordered and gone_us is not None:
        yield BrokerStop(broker, gone_us, NEVER)


Key = tuple[str, int]

_RECORD = re.compile(r"offset: \d+ .*?CreateTime: (\d+) .*?payload: (\{.*\})\s*$")
NO_LEADER_CHANGE = -2
# What a controller calls the leader of a partition that is being deleted (Kafka: `LeaderAndIsr.LEADER_DURING_DELETE`).
LEADER_DURING_DELETE = -2
UPDATE_METADATA = "UPDATE_METADATA"
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
# A broker is fenced (1), or no longer (-1).
UNFENCE = -1
_REGISTRATION_CHANGE = "BROKER_REGISTRATION_CHANGE_RECORD"
_UNFENCED = frozenset({_REGISTRATION_CHANGE, "UNFENCE_BROKER_RECORD"})

# How a change was learnt; a better source's changes replace a worse one's of the same partition.
GIVEN, GRANTED, REPORTED = "given", "granted", "reported"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """What became of one partition at a time. A None says nothing about its field; `deleted` ends the partition.

    `asked_us`: when the leader asked for what it was granted.
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
        """Whether it says the same again."""
        return replace(self, at_us=other.at_us, asked_us=other.asked_us) == other


class BrokerUnfenced(NamedTuple):
    """A broker that the controller had given up is back: its replicas count again."""

    at_us: int
    broker: int


@dataclass(slots=True)
class ClusterMetadata:
    """Everything of the cluster that brokers' logs need to know of each other."""

    names: dict[str, str] = field(default_factory=dict)
    changes: list[PartitionChange] = field(default_factory=list)
    unfenced: list[BrokerUnfenced] = field(default_factory=list)
    lifecycle: list[LifecycleEvent] = field(default_factory=list)
    min_isr: int | None = None
    topic_min_isr: dict[str, int] = field(default_factory=dict)

    def min_isr_of(self, topic: str) -> int | None:
        return self.topic_min_isr.get(topic, self.min_isr)


def _replicas(value: Any) -> tuple[int, ...] | None:
    return tuple(int(replica) for replica in value) if value is not None else None


def read_metadata_dump(path: str | Path) -> ClusterMetadata:
    """A decoded metadata log. Raises UserError when no record of a partition is in it."""
    cluster = ClusterMetadata()
    # A change record leaves out what did not change, and never says the epoch: it counts the leaders named.
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
                at_us, *key, GIVEN, leader, epoch, _replicas(data.get("replicas")), _replicas(data.get("isr"))
            )
        )


def _lifecycle_events(at_us: int, kind: str, data: dict[str, Any]) -> Iterator[LifecycleEvent]:
    """Of a broker's stop and start."""
    if kind == "REGISTER_BROKER_RECORD":
        yield LifecycleEvent(at_us, int(data["brokerId"]), REGISTERED)
    elif kind == _REGISTRATION_CHANGE:
        if data.get("inControlledShutdown"):
            yield LifecycleEvent(at_us, int(data["brokerId"]), STOPPING)
        if data.get("fenced"):
            yield LifecycleEvent(at_us, int(data["brokerId"]), UNFENCED if data["fenced"] == UNFENCE else FENCED)


def changes_in(request: Request) -> Iterator[PartitionChange]:
    """What one line of the log says of partitions, dated by its answer."""
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
                        _replicas(partition.get("replicaNodes")),
                        _replicas(partition["isrNodes"]),
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
                        _replicas(partition["isr"]),
                        asked_us=request.arrival_us,
                    )


def _updates(request: Request) -> Iterator[PartitionChange]:
    """Of partitions one by one, or from version 5 on by topic."""
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
            _replicas(state.get("replicas")),
            _replicas(state["isr"]),
            deleted=leader == LEADER_DURING_DELETE,
        )


def deletions_in(request: Request) -> Iterator[tuple[int, str]]:
    """(when, topic) of the topics that a DELETE_TOPICS line says are gone."""
    if request.api == "DELETE_TOPICS" and request.answer:
        for topic in request.answer.get("responses") or []:
            if not topic.get("errorCode"):
                yield request.answered_us, topic_of(topic)


def min_isr_in(request: Request) -> Iterator[tuple[str, int]]:
    """(topic, min.insync.replicas) as the answer to CREATE_TOPICS lists a new topic's settings."""
    if request.api == "CREATE_TOPICS" and request.answer:
        for topic in request.answer.get("topics") or []:
            for config in topic.get("configs") or []:
                if config.get("name") == "min.insync.replicas" and config.get("value"):
                    yield str(topic["name"]), int(config["value"])


def with_topic_names(changes: Iterable[PartitionChange], name: Callable[[str], str]) -> list[PartitionChange]:
    """The changes with topic names for ids."""
    return [replace(change, topic=name(change.topic)) for change in changes]


def merge_changes(changes: Sequence[PartitionChange]) -> PartitionChange | None:
    """What one partition's changes have come to by the last of them; None if there is none."""
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
    """From what JSON has kept of one."""
    lists = {name: _replicas(fields[name]) for name in ("replicas", "isr")}
    return PartitionChange(**{**fields, **lists})
