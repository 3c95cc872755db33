"""Reads a dump of the metadata log, the file of `--isr`.

Its lines are the output of `kafka-dump-log --cluster-metadata-decoder`. `cluster_metadata` has the types of the result,
and what requests show of the same facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.cluster_metadata import (
    BROKER_RESOURCE,
    FENCED,
    GIVEN,
    GROUP_RESOURCE,
    REGISTERED,
    REMOTE_STORAGE,
    STOPPING,
    TOPIC_RESOURCE,
    UNFENCED,
    BrokerUnfenced,
    ClusterMetadata,
    Key,
    LifecycleEvent,
    PartitionChange,
    replica_ids,
    sessions_of,
    share_settings_of,
)
from purgatory_udf.sources.request_log.log_files import open_text

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
