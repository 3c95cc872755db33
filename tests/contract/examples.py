"""One complete event of each type and partition change, its required fields, and the defaults of the others."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

TIME = 1_700_000_000_000_000
HEAD: Event = {"time_us": TIME, "seq": 7, "broker": 2}
REQUEST: Event = {**HEAD, "request_id": "r-1", "client_id": "c-1"}
MEMBER: Event = {**REQUEST, "group": "g", "member_id": "m-1", "group_instance_id": "i-1", "coordinator": "new"}
OWNED: list[Event] = [{"topic": "orders", "partitions": [3, 4]}]
ASSIGNMENTS: list[Event] = [{"member_id": "m-1", "assigned": OWNED}]
PLACE: Event = {"topic": "orders", "partition": 3}
OFFSET: Event = {**PLACE, "offset": 40}
WRITE_ERRORS = [{**PLACE, "error": "COORDINATOR_NOT_AVAILABLE"}]
ACKNOWLEDGEMENTS: list[Event] = [{**PLACE, "first_offset": 40, "last_offset": 42, "types": [1, 1, 2], "accepted": True}]

PRODUCED: Event = {**PLACE, "base_offset": 10, "last_offset": 19, "bytes": 1000, "error": "NONE"}
FETCHED: Event = {
    **PLACE,
    "fetch_offset": 10,
    "max_bytes": 1048576,
    "current_leader_epoch": 4,
    "throttled": True,
    "preferred_replica": 2,
}

FETCH: Event = {
    **REQUEST,
    "type": "fetch",
    "replica_id": 5,
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 1000,
    "hard_max_bytes": True,
    "isolation": "read_committed",
    "partitions": [FETCHED],
}
JOIN: Event = {
    **MEMBER,
    "type": "join_group",
    "assigned_member_id": "m-2",
    "leader_member_id": "m-3",
    "api_version": 9,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 60_000,
    "protocols": ["range", "sticky"],
    "subscribed_topics": ["orders"],
    "owned": OWNED,
    "assignments": ASSIGNMENTS,
}
LEADER: Event = {
    "change": "leader",
    "leader_epoch": 4,
    "replicas": [1, 2, 3],
    "isr": [1, 2],
    "min_isr": 2,
}


def change(**fields: Any) -> Event:
    return {**HEAD, **PLACE, "type": "partition", **fields}


WHOLE: dict[str, Event] = {
    "produce": {**REQUEST, "type": "produce", "acks": -1, "timeout_ms": 30_000, "partitions": [PRODUCED]},
    "fetch": FETCH,
    "delete_records": {**REQUEST, "type": "delete_records", "timeout_ms": 30_000, "partitions": [OFFSET]},
    "create_topics": {
        **REQUEST,
        "type": "create_topics",
        "timeout_ms": 30_000,
        "topics": [{"topic": "orders", "partitions": 6}],
    },
    "join_group": JOIN,
    "sync_group": {**MEMBER, "type": "sync_group", "generation": 3, "leader": True, "assignments": ASSIGNMENTS},
    "heartbeat": {**MEMBER, "type": "heartbeat", "generation": 3},
    "leave_group": {**MEMBER, "type": "leave_group", "generation": 3},
    "offset_commit": {
        **MEMBER,
        "type": "offset_commit",
        "generation": 3,
        "member_epoch": 3,
        "partitions": [OFFSET],
    },
    "consumer_group_heartbeat": {
        **MEMBER,
        "type": "consumer_group_heartbeat",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "session_timeout_ms": 9_000,
        "subscribed_topics": ["orders"],
        "subscribed_regex": "or.*",
        "server_assignor": "uniform",
        "owned": OWNED,
        "assigned": OWNED,
        "assigned_epoch": 4,
        "assignments": ASSIGNMENTS,
    },
    "topic": {**HEAD, "type": "topic", "topic": "orders", "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "partition_count": 6},
    "group_loaded": {
        **HEAD,
        "type": "group_loaded",
        "group": "g",
        "coordinator": "old",
        "generation": 3,
        "leader_member_id": "m-3",
        "client_id": "c-1",
        "member_id": "m-1",
        "group_instance_id": "i-1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocols": ["range"],
    },
    "group_unloaded": {**HEAD, "type": "group_unloaded", "group": "g", "coordinator": "old"},
    "group_stopped": {**HEAD, "type": "group_stopped", "group": "g", "coordinator": "old"},
    "clock": {**HEAD, "type": "clock"},
    "paused": {**HEAD, "type": "paused"},
    "resumed": {**HEAD, "type": "resumed"},
    "log_end": change(change="log_end", offset=40, bytes=100, batches=1),
    "high_watermark": change(change="high_watermark", offset=40),
    "last_stable": change(change="last_stable", offset=40),
    "log_start": change(change="log_start", offset=40),
    "segment_roll": change(change="segment_roll", offset=40),
    "truncate": change(change="truncate", offset=40),
    "leader": change(**LEADER),
    "isr": change(change="isr", isr=[1, 2]),
    "replica_end": change(change="replica_end", replica_id=3, offset=40),
    "throttled": change(change="throttled", replica_id=3),
    "unthrottled": change(change="unthrottled", replica_id=3),
    "online": change(change="online", wake=False),
    "not_leader": change(change="not_leader", wake=False),
    "offline": change(change="offline", wake=False),
    "deleted": change(change="deleted", wake=False),
    "stopped": change(change="stopped"),
    "local_log_start": change(change="local_log_start", offset=40),
    "follower": change(change="follower", wake=False),
    "none": change(change="none", wake=False),
    "list_offsets": {
        **REQUEST,
        "type": "list_offsets",
        "timeout_ms": 30_000,
        "isolation": "read_committed",
        "partitions": [{**PLACE, "timestamp": 1_700_000_000_000}],
    },
    "remote_read": {**HEAD, **PLACE, "type": "remote_read", "request_id": "r-1", "bytes": 100, "error": "NONE"},
    "remote_lookup": {**HEAD, **OFFSET, "type": "remote_lookup", "request_id": "r-1", "error": "NONE"},
    "remote_quota": {**HEAD, "type": "remote_quota", "exhausted": True},
    "reader_queue": {**HEAD, "type": "reader_queue", "full": True},
    "share_fetch": {
        **REQUEST,
        "type": "share_fetch",
        "group": "g",
        "member_id": "m-1",
        "session_epoch": 3,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "max_records": 500,
        "batch_size": 100,
        "acquire_mode": 1,
        "partitions": [{**PLACE, "state_read_ms": 12}],
        "acknowledgements": ACKNOWLEDGEMENTS,
        "state_write_ms": 5,
        "state_write_errors": WRITE_ERRORS,
        "error": "INVALID_SHARE_SESSION_EPOCH",
    },
    "share_acknowledge": {
        **REQUEST,
        "type": "share_acknowledge",
        "group": "g",
        "member_id": "m-1",
        "session_epoch": 4,
        "acknowledgements": ACKNOWLEDGEMENTS,
        "state_write_ms": 5,
        "state_write_errors": WRITE_ERRORS,
    },
    "share_release": {
        **REQUEST,
        "type": "share_release",
        "group": "g",
        "member_id": "m-1",
        "state_write_ms": 5,
        "state_write_errors": WRITE_ERRORS,
    },
    "share_group": {
        **HEAD,
        "type": "share_group",
        "group": "g",
        "record_lock_duration_ms": 30_000,
        "delivery_count_limit": 5,
        "partition_max_record_locks": 2000,
        "auto_offset_reset": "earliest",
    },
    "share_state": {
        **HEAD,
        **PLACE,
        "type": "share_state",
        "group": "g",
        "start_offset": 40,
        "states": [{"first_offset": 42, "last_offset": 44, "state": "AVAILABLE", "delivery_count": 2}],
    },
}

REQUEST_NEEDS = ["time_us", "type", "request_id"]
MEMBER_NEEDS = [*REQUEST_NEEDS, "group", "member_id"]
CHANGE_NEEDS = ["time_us", "type", "topic", "partition", "change"]
PLACE_NEEDS = ["partitions", "partitions[0].topic", "partitions[0].partition"]

NEEDS: dict[str, list[str]] = {
    "produce": [
        *REQUEST_NEEDS,
        "acks",
        "timeout_ms",
        *PLACE_NEEDS,
        "partitions[0].base_offset",
        "partitions[0].last_offset",
        "partitions[0].bytes",
    ],
    "fetch": [
        *REQUEST_NEEDS,
        "max_wait_ms",
        "min_bytes",
        *PLACE_NEEDS,
        "partitions[0].fetch_offset",
        "partitions[0].max_bytes",
    ],
    "delete_records": [*REQUEST_NEEDS, "timeout_ms", *PLACE_NEEDS, "partitions[0].offset"],
    "create_topics": [*REQUEST_NEEDS, "timeout_ms", "topics", "topics[0].topic", "topics[0].partitions"],
    "join_group": [*MEMBER_NEEDS, "session_timeout_ms", "rebalance_timeout_ms", "protocols"],
    "sync_group": [*MEMBER_NEEDS, "generation"],
    "heartbeat": [*MEMBER_NEEDS, "generation"],
    "leave_group": MEMBER_NEEDS,
    "offset_commit": [*MEMBER_NEEDS, *PLACE_NEEDS, "partitions[0].offset"],
    "consumer_group_heartbeat": [*MEMBER_NEEDS, "member_epoch"],
    "topic": ["time_us", "type", "topic", "partition_count"],
    "group_loaded": [
        "time_us",
        "type",
        "group",
        "generation",
        "member_id",
        "session_timeout_ms",
        "rebalance_timeout_ms",
        "protocols",
    ],
    "group_unloaded": ["time_us", "type", "group"],
    "group_stopped": ["time_us", "type", "group"],
    "clock": ["time_us", "type"],
    "paused": ["time_us", "type"],
    "resumed": ["time_us", "type"],
    "log_end": [*CHANGE_NEEDS, "offset"],
    "high_watermark": [*CHANGE_NEEDS, "offset"],
    "last_stable": [*CHANGE_NEEDS, "offset"],
    "log_start": [*CHANGE_NEEDS, "offset"],
    "segment_roll": [*CHANGE_NEEDS, "offset"],
    "truncate": [*CHANGE_NEEDS, "offset"],
    "leader": CHANGE_NEEDS,
    "isr": [*CHANGE_NEEDS, "isr"],
    "replica_end": [*CHANGE_NEEDS, "replica_id", "offset"],
    "throttled": [*CHANGE_NEEDS, "replica_id"],
    "unthrottled": [*CHANGE_NEEDS, "replica_id"],
    "online": CHANGE_NEEDS,
    "not_leader": CHANGE_NEEDS,
    "offline": CHANGE_NEEDS,
    "deleted": CHANGE_NEEDS,
    "stopped": CHANGE_NEEDS,
    "local_log_start": [*CHANGE_NEEDS, "offset"],
    "follower": CHANGE_NEEDS,
    "none": CHANGE_NEEDS,
    "list_offsets": [*REQUEST_NEEDS, *PLACE_NEEDS, "partitions[0].timestamp"],
    "remote_read": [*REQUEST_NEEDS, "topic", "partition"],
    "remote_lookup": [*REQUEST_NEEDS, "topic", "partition"],
    "remote_quota": ["time_us", "type", "exhausted"],
    "reader_queue": ["time_us", "type", "full"],
    "share_fetch": [*MEMBER_NEEDS, "max_wait_ms", "min_bytes", *PLACE_NEEDS],
    "share_acknowledge": [*MEMBER_NEEDS, "acknowledgements"],
    "share_release": ["time_us", "type", "group", "member_id"],
    "share_group": ["time_us", "type", "group"],
    "share_state": ["time_us", "type", "group", "topic", "partition", "start_offset"],
}

# The defaults of optional fields by event type; the empty key has those of every type.
DEFAULTS: dict[str, Event] = {
    "": {"seq": None, "broker": 0, "client_id": None, "group_instance_id": None, "coordinator": None},
    "fetch": {
        "replica_id": -1,
        "max_bytes": 2147483647,
        "hard_max_bytes": False,
        "isolation": "read_uncommitted",
    },
    "join_group": {
        "assigned_member_id": None,
        "leader_member_id": None,
        "api_version": 5,
        "subscribed_topics": None,
        "owned": None,
        "assignments": None,
    },
    "sync_group": {"leader": False, "assignments": None},
    "consumer_group_heartbeat": {
        "rebalance_timeout_ms": None,
        "session_timeout_ms": None,
        "subscribed_topics": None,
        "subscribed_regex": None,
        "server_assignor": None,
        "owned": None,
        "assigned": None,
        "assigned_epoch": None,
        "assignments": None,
    },
    "topic": {"topic_id": None},
    "group_loaded": {"leader_member_id": None},
    "leave_group": {"generation": None},
    "offset_commit": {"generation": -1, "member_epoch": None},
    "log_end": {"bytes": 0, "batches": None},
    "leader": {"leader_epoch": None, "replicas": None, "isr": None, "min_isr": None},
    **{change: {"wake": True} for change in ("online", "not_leader", "offline", "deleted", "follower", "none")},
    "list_offsets": {"timeout_ms": 0, "isolation": "read_uncommitted"},
    "remote_read": {"bytes": 0, "error": "NONE"},
    "remote_lookup": {"offset": None, "error": "NONE"},
    "share_fetch": {
        "session_epoch": 0,
        "max_bytes": 2147483647,
        "max_records": 2147483647,
        "batch_size": 2147483647,
        "acquire_mode": 0,
        "acknowledgements": None,
        "state_write_ms": None,
        "state_write_errors": None,
        "error": "NONE",
    },
    "share_acknowledge": {"session_epoch": None, "state_write_ms": None, "state_write_errors": None},
    "share_release": {"request_id": None, "state_write_ms": None, "state_write_errors": None},
    "share_group": {
        "record_lock_duration_ms": None,
        "delivery_count_limit": None,
        "partition_max_record_locks": None,
        "auto_offset_reset": None,
    },
    "share_state": {"states": None},
}
PARTITION_DEFAULTS: dict[str, Event] = {
    "produce": {"error": "NONE"},
    "fetch": {"current_leader_epoch": -1, "throttled": False, "preferred_replica": None},
    "share_fetch": {"state_read_ms": None},
}
