"""The columns of the tables that `metrics` writes, with and without comments (see `tables`).

Tables by window omit windows without events.
"""

from __future__ import annotations

import pyarrow as pa

from purgatory_udf.contract.tables import BOOL, DOUBLE, INT, LONG, TEXT, TIMESTAMP, column, table, without_comments

_FAILED = (
    "Expired operations that failed: all kinds but fetches, share fetches and initial joins, which are meant to end at "
    "their deadline; without operations that were still open at the end of the trace"
)
_WINDOW_MS = column("window_ms", LONG, "Length of the window in milliseconds")


def _quantiles(figure: str) -> list[pa.Field]:
    return [column(f"p{share}_ms", DOUBLE, f"{figure}, {share}th percentile in milliseconds") for share in (50, 95, 99)]


_EXPIRES = table(
    column("mbean", TEXT, "Kafka MBean of the `ExpiresPerSec` meter"),
    column("broker", INT, "Broker ID"),
    column("topic", TEXT, "Topic of a meter per partition; otherwise null"),
    column("partition", INT, "Partition of a meter per partition; otherwise null"),
    column("fetcher", TEXT, "`consumer` or `follower` for a fetch meter; otherwise null"),
    column("window_start", TIMESTAMP, "Start of the window"),
    _WINDOW_MS,
    column("expired", LONG, "Marks of the meter: partitions of produce and delete-records requests, or whole fetches"),
    column("per_second", DOUBLE, "Marks per second"),
    column("after_end", LONG, "Marks after the last event of the trace"),
)

_OPERATIONS = table(
    column("kind", TEXT, "Kind of the operations"),
    column("broker", INT, "Broker ID"),
    column("window_start", TIMESTAMP, "Start of the window in which the operations ended"),
    _WINDOW_MS,
    column("operations", LONG, "Number of operations that ended"),
    column("on_arrival", LONG, "Operations that completed on arrival"),
    column("after_a_wait", LONG, "Operations that completed after a wait"),
    column("expired", LONG, "Operations that expired"),
    column("failed", LONG, _FAILED),
    column("after_end", LONG, "Operations that expired after the last event of the trace"),
    column("waited_ms", LONG, "Sum of the waits in milliseconds"),
)

_CAUSES = table(
    column("kind", TEXT, "Kind of the operations"),
    column("expired", BOOL, "Whether the operations expired"),
    column("watched", BOOL, "Whether the operations were in the purgatory"),
    column("completed_by", TEXT, "Rule that completed the operations, or `timeout`"),
    column("operations", LONG, "Number of operations"),
    column("waited_ms", LONG, "Sum of the waits in milliseconds"),
    *_quantiles("Wait"),
    column("max_ms", LONG, "Longest wait in milliseconds"),
)

_WAITS = table(
    column("kind", TEXT, "Kind of the operations"),
    column("by", TEXT, "Dimension: `all`, `broker`, `topic`, `partition`, `client` or `group`"),
    column("value", TEXT, "Value of the dimension; empty for `all`"),
    column("operations", LONG, "Number of operations"),
    column("waited", LONG, "Number of operations that had to wait"),
    column("waited_share", DOUBLE, "`waited` divided by `operations`"),
    column("expired", LONG, "Number of operations that expired"),
    column("failed", LONG, _FAILED),
    column("waited_ms", LONG, "Sum of the waits in milliseconds"),
    *_quantiles("Wait of the operations that had to wait"),
    column("max_ms", LONG, "Longest wait in milliseconds"),
    column("expired_max_ms", LONG, "Longest wait of the operations that expired, in milliseconds"),
)


def _gauge(name: str, meaning: str) -> list[pa.Field]:
    return [
        column(f"{name}_last", LONG, f"{meaning}: last reading in the window"),
        column(f"{name}_max", LONG, f"{meaning}: maximum"),
        column(f"{name}_mean", DOUBLE, f"{meaning}: mean over time"),
    ]


_PURGATORIES = table(
    column("broker", INT, "Broker ID"),
    column("purgatory", TEXT, "Name of the purgatory as in `purgatory_gauges`"),
    column("window_start", TIMESTAMP, "Start of the window"),
    _WINDOW_MS,
    *_gauge("purgatory_size", "`PurgatorySize`"),
    *_gauge("num_delayed", "`NumDelayedOperations`"),
    *_gauge("dead_watches", "Watcher list entries of ended operations"),
    column("dead_bytes_max", LONG, "`dead_watches_max` times the configured bytes per entry"),
    column("purged", LONG, "Entries of ended operations that were purged in the window"),
)

_REBALANCES = table(
    column("broker", INT, "Broker ID of the coordinator"),
    column("group", TEXT, "Group ID"),
    column("generation", INT, "Generation that the rebalance led to"),
    column("started_at", TIMESTAMP, "When the group entered PreparingRebalance"),
    column("joined_at", TIMESTAMP, "When the join phase ended"),
    column("ended_at", TIMESTAMP, "When the rebalance ended or was interrupted; null if it is still open"),
    column("length_ms", LONG, "Milliseconds from `started_at` to `ended_at`"),
    column("joining_ms", LONG, "Milliseconds from `started_at` to `joined_at`"),
    column("reason", TEXT, "Why the rebalance started"),
    column("joined_because", TEXT, "Why the join phase ended"),
    column("ended_as", TEXT, "Stable, Empty or Dead; `interrupted` by another rebalance; `open`"),
    column("members", pa.list_(TEXT), "Member IDs after the rebalance"),
    column("missing", pa.list_(TEXT), "Members before the rebalance that are missing afterwards"),
    column("joined", pa.list_(TEXT), "Members after the rebalance that were not there before"),
    column("last_to_join", TEXT, "Member that sent the last join request of the rebalance"),
    column("after_end", BOOL, "Whether the rebalance started after the last event of the trace"),
)

_GROUPS = table(
    column("broker", INT, "Broker ID of the coordinator"),
    column("group", TEXT, "Group ID"),
    column("protocol", TEXT, "`classic`, or `consumer` (KIP-848); a group that was converted has a row for each"),
    column("rebalances", LONG, "Number of rebalances"),
    column("stabilized", LONG, "Rebalances after which the group was Stable"),
    column(
        "to_stable_ms",
        LONG,
        "Sum of the lengths of the rebalances in `stabilized` (time to stability), in milliseconds",
    ),
    column("max_to_stable_ms", LONG, "Length of the longest rebalance in `stabilized`, in milliseconds"),
    column("sessions_lost", LONG, "Members with an expired session"),
    column(
        "rebalance_timeouts",
        LONG,
        "`classic`: joins and syncs that expired; `consumer`: members that did not revoke, join or sync in time",
    ),
    column("held_back", LONG, "`consumer`: waits of members for partitions of others, as in `metrics/held_back`"),
    column("held_back_ms", LONG, "Sum of the waits in `held_back`, in milliseconds"),
)

_HELD_BACK = table(
    column("broker", INT, "Broker ID of the coordinator"),
    column("group", TEXT, "Group ID"),
    column("member_id", TEXT, "Member that owned the partitions"),
    column("client_id", TEXT, "Client ID of that member"),
    column("waiting_member_id", TEXT, "Member that waited for them"),
    column("waiting_client_id", TEXT, "Client ID of the waiting member"),
    column("partitions", pa.list_(TEXT), "Partitions as `topic-partition`"),
    column("started_at", TIMESTAMP, "When the coordinator assigned the partitions to the waiting member"),
    column("ended_at", TIMESTAMP, "When they were free; null if the other member still owned them at the last event"),
    column("held_ms", LONG, "Milliseconds from `started_at` to `ended_at`, or to the last event"),
    column("ended_by", TEXT, "What freed them, such as a heartbeat, or a reconciliation that expired; `open`"),
)

_SHARE_FETCHES = table(
    column("broker", INT, "Broker ID"),
    column("group", TEXT, "Share group ID"),
    column("operations", LONG, "Number of share fetches"),
    column("on_arrival", LONG, "Share fetches that completed on arrival"),
    column("after_a_wait", LONG, "Share fetches that completed after a wait"),
    column("expired", LONG, "Share fetches that expired, with and without records"),
    column("with_records", LONG, "Expired share fetches that were answered with records"),
    column(
        "unwoken",
        LONG,
        "Of these, fetches for which one byte was enough: records became available, such as by a release, but nothing "
        "woke the fetch",
    ),
    column(
        "after_leader_loss",
        LONG,
        "Share fetches that expired after the broker had stopped leading one of their partitions",
    ),
    column("after_end", LONG, "Share fetches that expired after the last event of the trace"),
    column("waited_ms", LONG, "Sum of the waits in milliseconds"),
    column("max_ms", LONG, "Longest wait in milliseconds"),
)

_DELIVERIES = table(
    column("broker", INT, "ID of the broker that led the partition"),
    column("group", TEXT, "Share group ID"),
    column("topic", TEXT, "Topic name"),
    column("partition", INT, "Partition number"),
    column("delivery_count", INT, "How often the records had been delivered, this time included"),
    column("records", LONG, "Number of records whose delivery has ended"),
    column("accepted", LONG, "Records that were accepted"),
    column("released", LONG, "Records that were released"),
    column("rejected", LONG, "Records that were rejected"),
    column("lock_expired", LONG, "Records whose acquisition lock expired"),
    column("session_ended", LONG, "Records whose member's session ended"),
    column("archived", LONG, "Records that were archived because of the delivery limit"),
    column("held_ms", LONG, "Sum over the records of the milliseconds for which the member held them"),
    column("max_held_ms", LONG, "Longest time for which a member held a record, in milliseconds"),
)

COMMENTED_METRICS: dict[str, pa.Schema] = {
    "metrics/expires": _EXPIRES,
    "metrics/operations": _OPERATIONS,
    "metrics/causes": _CAUSES,
    "metrics/waits": _WAITS,
    "metrics/purgatories": _PURGATORIES,
    "metrics/rebalances": _REBALANCES,
    "metrics/groups": _GROUPS,
    "metrics/held_back": _HELD_BACK,
    "metrics/share_fetches": _SHARE_FETCHES,
    "metrics/deliveries": _DELIVERIES,
}
METRICS: dict[str, pa.Schema] = {name: without_comments(schema) for name, schema in COMMENTED_METRICS.items()}
