"""What a recorded change does to a replica, and whom it wakes.

| change | checks |
|---|---|
| `log_end`, an append | Fetch; if it raised the high watermark: Produce, Fetch, DeleteRecords |
| `high_watermark` | Produce, Fetch, DeleteRecords, unless it is lower than it was |
| `replica_end`, `isr` | the same three, if it raised the high watermark |
| `leader`, `online`, `not_leader`, `offline`, `deleted` | the same three; a leader's topic after them |
| `log_start` | DeleteRecords |
| `last_stable`, `segment_roll`, `truncate` | nobody: seen at the next check of any partition of an operation |
| `throttled`, `unthrottled` | nobody either |
| `stopped` | nobody: who waits for the partition ends without an answer |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from purgatory_udf.reference.broker import Broker
from purgatory_udf.reference.cluster import Cluster
from purgatory_udf.reference.partition import Partition, Standing
from purgatory_udf.reference.topic_partition import TopicPartition

Event = Mapping[str, Any]
Change = Callable[[Broker, Partition, Event], None]


def _log_end(broker: Broker, replica: Partition, event: Event) -> None:
    change = replica.append(event["offset"], event.get("bytes") or 0, event.get("batches") == 1)
    broker.check_after_append(replica, change, event["time_us"])


def _high_watermark(broker: Broker, replica: Partition, event: Event) -> None:
    if replica.take_high_watermark(event["offset"]):
        broker.check_all(replica, event["time_us"])


def _last_stable(broker: Broker, replica: Partition, event: Event) -> None:
    replica.take_last_stable(event["offset"])


def _log_start(broker: Broker, replica: Partition, event: Event) -> None:
    replica.log.advance_start(event["offset"])
    broker.check_low_watermark(replica, event["time_us"])


def _segment_roll(broker: Broker, replica: Partition, event: Event) -> None:
    replica.log.roll(event["offset"])


def _truncate(broker: Broker, replica: Partition, event: Event) -> None:
    replica.truncate(event["offset"])


def _leader(broker: Broker, replica: Partition, event: Event) -> None:
    isr = event.get("isr")
    replica.lead(event.get("leader_epoch"), None if isr is None else tuple(isr), event.get("min_isr"))
    broker.check_all(replica, event["time_us"])


def _isr(broker: Broker, replica: Partition, event: Event) -> None:
    if replica.change_isr(tuple(event["isr"])):
        broker.check_all(replica, event["time_us"])


def _replica_end(broker: Broker, replica: Partition, event: Event) -> None:
    if replica.follower_reached(event["replica_id"], event["offset"]):
        broker.check_all(replica, event["time_us"])


def _throttles(throttled: bool) -> Change:
    def change(broker: Broker, replica: Partition, event: Event) -> None:
        replica.throttles[event["replica_id"]] = throttled

    return change


def _stands(standing: Standing) -> Change:
    def change(broker: Broker, replica: Partition, event: Event) -> None:
        replica.standing = standing
        broker.check_all(replica, event["time_us"])

    return change


def _stopped(broker: Broker, replica: Partition, event: Event) -> None:
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
    "throttled": _throttles(True),
    "unthrottled": _throttles(False),
    "online": _stands(Standing.ONLINE),
    "not_leader": _stands(Standing.NOT_LEADER),
    "offline": _stands(Standing.OFFLINE),
    "deleted": _stands(Standing.DELETED),
    "stopped": _stopped,
}


def apply_change(cluster: Cluster, event: Event) -> None:
    """Apply a `partition` event at its broker, then tell the cluster who leads."""
    broker = cluster.broker(event.get("broker") or 0)
    key = TopicPartition(event["topic"], event["partition"])
    CHANGES[event["change"]](broker, broker.replica(key), event)
    if event["change"] == "leader":
        cluster.leader_elected(key, event["time_us"])
    elif event["change"] == "deleted":
        cluster.deleted(key)
