"""What the words of `completed_by` mean, as a sentence's end: "it was over because …"."""

from __future__ import annotations

_SHARED = {
    "not_leader": "the broker no longer led the partition",
    "unknown_partition": "the partition had been deleted",
    "offline": "the partition's log directory was offline",
    "empty": "it asked for nothing",
    "broker_stopped": "the broker stopped: nobody was answered",
    "unloaded": "the broker had given the group away: another coordinates it now",
}

_RULES = {
    "produce": {
        "high_watermark": "every in-sync replica had its records: the high watermark had passed them",
        "not_enough_replicas": "its records were replicated, but to fewer replicas than min.insync.replicas",
        "acks": "acks=0 or 1 waits for no replica",
        "invalid_acks": "there are no such acks",
        "append_error": "none of its partitions could be appended to",
    },
    "fetch": {
        "min_bytes": "as many bytes as it asked for were readable",
        "preferred_replica": "another replica is nearer to the consumer, which is told so at once",
        "truncated": "the log had been cut off before its offset (case C)",
        "older_segment": "its offset lies in an older segment than the log's end (case C)",
        "fenced_epoch": "its leader epoch was older than the broker's",
        "unknown_epoch": "its leader epoch was newer than the broker's",
        "offset_out_of_range": "its offset lies outside the log",
        "no_partitions": "it asked for no partition",
    },
    "delete_records": {"low_watermark": "the log began at or after the offset that it asked for"},
    "create_topics": {"leaders": "every partition of its topics had a leader", "no_wait": "it was told not to wait"},
    "heartbeat": {
        "heartbeat": "the member sent its next heartbeat",
        "offset_commit": "the member committed offsets",
        "join_group": "the member joined again",
        "sync_group": "the member asked for its assignment",
        "leave_group": "the member left",
        "new_generation": "a new generation began, and a new session with it",
        "assignment": "the member got its assignment, and a new session with it",
        "awaiting_join": "the member waits in a join, which has no session",
        "awaiting_sync": "the member waits for its assignment, which has no session",
        "group_loaded": "the broker loaded the group, and a new session began with it",
        "group_unloaded": "the broker gave the group away: another coordinates it now",
        "group_stopped": "the broker that coordinated the group stopped, and nobody was answered",
        "replaced": "another member took over its instance id",
        "removed": "the member was removed from the group",
    },
    "join": {"all_joined": "every member had joined", "no_members": "no member was left"},
    "initial_join": {"no_members": "no member was left"},
    "sync": {
        "rebalance": "another rebalance began",
        "all_synced": "the leader's assignment had come, and every member had asked for it",
    },
}


def meaning(kind: str, rule: str) -> str:
    """Why the rule ends an operation of the kind; a rule without a sentence speaks for itself."""
    return _RULES.get(kind, {}).get(rule) or _SHARED.get(rule) or rule.replace("_", " ")


# A partition event by what it says happened.
HAPPENED = {
    "produce": "an append",
    "fetch": "a follower's fetch",
    "log_end": "an append",
    "high_watermark": "a new high watermark",
    "last_stable": "a new last stable offset",
    "log_start": "a new log start",
    "segment_roll": "a new segment",
    "truncate": "a truncation",
    "leader": "a leader election",
    "isr": "a change of the in-sync set",
    "replica_end": "a follower's progress",
    "throttled": "a replication quota",
    "unthrottled": "the end of a replication quota",
    "online": "the partition coming online",
    "not_leader": "the loss of leadership",
    "offline": "a failed log directory",
    "deleted": "the partition's deletion",
    "stopped": "the broker's stop",
}
