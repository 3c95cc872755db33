"""The columns of every table, as Arrow schemas with a comment on each column.

Each table is defined once, by `column(name, type, comment)`. Two schemas are derived from that:

- without comments (`EVENTS`, `TABLES["events"]`, …), for rows in memory. Comments would enlarge every batch, state
  value and Parquet footer.
- with comments (`COMMENTED_TABLES["events"]`, …), for the creation of Delta tables, so that `DESCRIBE TABLE` and
  catalogs show them. The comments are also the column texts of `docs/tables.md`; a test compares both.

These are Arrow schemas, because the rules run without Spark. Spark's schemas are converted from them.
"""

from __future__ import annotations

import pyarrow as pa

TEXT = pa.string()
INT = pa.int32()
LONG = pa.int64()
DOUBLE = pa.float64()
BOOL = pa.bool_()
TIMESTAMP = pa.timestamp("us", tz="UTC")

# The key of a field's metadata from which both Spark and Delta take a column's comment.
COMMENT = "comment"

RUN_ID = "ID of the run that wrote the row"


def column(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    """Return a nullable field that carries its comment."""
    return pa.field(name, kind, metadata={COMMENT: comment})


def table(*columns: pa.Field) -> pa.Schema:
    """Return a table's schema with comments, with `run_id` as the first column."""
    return pa.schema([column("run_id", TEXT, RUN_ID), *columns])


def with_comments(schema: pa.Schema, commented: pa.Schema) -> pa.Schema:
    """Return the schema with the comments of those columns that `commented` has too; nested fields are unchanged."""
    comments = {field.name: field.metadata for field in commented}
    return pa.schema([field.with_metadata(comments.get(field.name)) for field in schema])


def without_comments(schema: pa.Schema) -> pa.Schema:
    """Return the schema without any metadata, nested fields included."""
    return pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in kind])
    return kind


_EVENT_PARTITION = pa.struct(
    [
        column("topic", TEXT, "Topic name"),
        column("partition", INT, "Partition number"),
        column("base_offset", LONG, "`produce`: first offset of the appended batch"),
        column("last_offset", LONG, "`produce`: last offset of the appended batch"),
        column("bytes", LONG, "`produce`: bytes appended to the log"),
        column(
            "error",
            TEXT,
            "Kafka error name, or NONE. `produce`: of the append; `share_fetch`: of the read of the group's state",
        ),
        column("fetch_offset", LONG, "`fetch`: offset to read from"),
        column("max_bytes", LONG, "`fetch`: maximum bytes of this partition"),
        column("current_leader_epoch", INT, "`fetch`: leader epoch that the client knows; -1 if it sends none"),
        column("throttled", BOOL, "`fetch` of a follower: whether a replication quota holds the partition back"),
        column(
            "offset",
            LONG,
            "`delete_records`: first offset to keep, or -1 for the high watermark; `offset_commit`: committed offset",
        ),
        column("preferred_replica", INT, "`fetch`: broker ID of the replica that the consumer is sent to instead"),
        column("timestamp", LONG, "`list_offsets`: time in milliseconds, or a negative number such as -1, the latest"),
        column("state_read_ms", LONG, "`share_fetch`: how long reading the group's state took, if it is read first"),
    ]
)

_EVENT_TOPIC = pa.struct(
    [
        column("topic", TEXT, "Topic name"),
        column("partitions", INT, "Number of partitions"),
    ]
)

_EVENT_OWNED = pa.struct(
    [
        column("topic", TEXT, "Topic name"),
        column("partitions", pa.list_(INT), "Partition numbers"),
    ]
)

_EVENT_ASSIGNMENT = pa.struct(
    [
        column("member_id", TEXT, "Member ID"),
        column("assigned", pa.list_(_EVENT_OWNED), "Assigned partitions"),
    ]
)

_EVENT_ACKNOWLEDGEMENT = pa.struct(
    [
        column("topic", TEXT, "Topic name"),
        column("partition", INT, "Partition number"),
        column("first_offset", LONG, "First acknowledged offset"),
        column("last_offset", LONG, "Last acknowledged offset"),
        column("types", pa.list_(INT), "Type of all offsets or of each: 0 gap, 1 accept, 2 release, 3 reject, 4 renew"),
        column("accepted", BOOL, "Whether the broker is known to have accepted it"),
    ]
)

_EVENT_WRITE_ERROR = pa.struct(
    [
        column("topic", TEXT, "Topic name"),
        column("partition", INT, "Partition number"),
        column("error", TEXT, "Kafka error name"),
    ]
)

_EVENT_RANGE = pa.struct([column("first_offset", LONG, "First offset"), column("last_offset", LONG, "Last offset")])

_EVENT_RECORD_STATE = pa.struct(
    [
        column("first_offset", LONG, "First offset"),
        column("last_offset", LONG, "Last offset"),
        column("state", TEXT, "AVAILABLE, ACKNOWLEDGED, ARCHIVING or ARCHIVED"),
        column("delivery_count", INT, "How often the records have been delivered"),
    ]
)

_EVENTS = table(
    column("event_time", TIMESTAMP, "`time_us` as a timestamp"),
    column(
        "time_us",
        LONG,
        "When the event happened, in microseconds since the epoch; for a request, when the broker first tried it",
    ),
    column("seq", LONG, "Position among events of equal time; for a request, also the ID of its operation"),
    column("broker", INT, "ID of the broker where the event happened"),
    column("type", TEXT, "Event type, such as `produce`, `join_group` or `partition`"),
    column("request_id", TEXT, "Label of the request; not necessarily unique"),
    column("client_id", TEXT, "Client ID of the request; `group_loaded`: of the member"),
    column("acks", INT, "`produce`: required acknowledgments; -1 for all in-sync replicas"),
    column(
        "timeout_ms", LONG, "`produce`, `delete_records`, `create_topics`, `list_offsets`: maximum wait in milliseconds"
    ),
    column(
        "replica_id",
        INT,
        "`fetch`: broker ID of the follower, negative for a consumer; "
        "`replica_end`, `throttled`, `unthrottled`: broker ID of the follower",
    ),
    column("max_wait_ms", LONG, "`fetch`, `share_fetch`: maximum wait in milliseconds"),
    column("min_bytes", LONG, "`fetch`, `share_fetch`: minimum bytes of the response"),
    column("max_bytes", LONG, "`fetch`, `share_fetch`: maximum bytes of the response"),
    column("isolation", TEXT, "`fetch`, `list_offsets`, `share_group`: `read_uncommitted` or `read_committed`"),
    column(
        "partitions",
        pa.list_(_EVENT_PARTITION),
        "`produce`, `fetch`, `delete_records`, `offset_commit`, `list_offsets`, `share_fetch`: partitions of the "
        "request",
    ),
    column("topics", pa.list_(_EVENT_TOPIC), "`create_topics`: topics to create"),
    column(
        "topic",
        TEXT,
        "`partition`, `topic`, `remote_read`, `remote_lookup`, `share_state`, `share_dead_letter`: topic name",
    ),
    column(
        "partition",
        INT,
        "`partition`, `remote_read`, `remote_lookup`, `share_state`, `share_dead_letter`: partition number",
    ),
    column("change", TEXT, "`partition`: what changed, such as `log_end` or `leader`"),
    column("offset", LONG, "`partition`: new offset, for the changes that move one; `remote_lookup`: offset found"),
    column("bytes", LONG, "`log_end`: bytes appended since the previous log end; `remote_read`: bytes read"),
    column("leader_epoch", INT, "`leader`: leader epoch"),
    column("replicas", pa.list_(INT), "`leader`: broker IDs of the replicas"),
    column("isr", pa.list_(INT), "`leader`, `isr`: broker IDs of the in-sync replicas"),
    column("min_isr", INT, "`leader`: `min.insync.replicas`"),
    column("group", TEXT, "Events of groups and share groups: group ID"),
    column("member_id", TEXT, "Events of groups and share groups: member ID; empty if the member has none yet"),
    column("assigned_member_id", TEXT, "`join_group`: member ID that the recorded response assigned"),
    column(
        "leader_member_id",
        TEXT,
        "`join_group`: leader named by the recorded response; `group_loaded`: leader of the group",
    ),
    column("group_instance_id", TEXT, "Group events: `group.instance.id` of a static member"),
    column("api_version", INT, "`join_group`: version of the request"),
    column(
        "session_timeout_ms",
        LONG,
        "`join_group`, `group_loaded`, `consumer_group_heartbeat`: session timeout in milliseconds",
    ),
    column("rebalance_timeout_ms", LONG, "`join_group`, `group_loaded`: rebalance timeout in milliseconds"),
    column("protocols", pa.list_(TEXT), "`join_group`, `group_loaded`: supported assignors, most preferred first"),
    column("generation", INT, "`group_loaded`: stored generation; other group events: generation sent by the member"),
    column("leader", BOOL, "`sync_group`: whether the request carries the assignment"),
    column(
        "source",
        TEXT,
        "Input file, Kafka topic-partition, or `simulate`; null if no single line of a request log caused the event",
    ),
    column("line", LONG, "Line in the input file, or offset in the topic-partition"),
    column(
        "hard_max_bytes",
        BOOL,
        "`fetch`: whether a first batch larger than the maximum is cut (request versions up to 2)",
    ),
    column("batches", INT, "`log_end`: number of batches in `bytes`"),
    column(
        "wake",
        BOOL,
        "`online`, `follower`, `not_leader`, `offline`, `deleted`, `none`: whether the broker checks its purgatories",
    ),
    column(
        "error",
        TEXT,
        "`remote_read`, `remote_lookup`: Kafka error name, or NONE; `share_fetch`: error of the share session",
    ),
    column("exhausted", BOOL, "`remote_quota`: whether the quota of remote reads is exhausted"),
    column("full", BOOL, "`reader_queue`: whether the queue of remote reads is full"),
    column("coordinator", TEXT, "Group events: `new` for the group coordinator of Kafka 4.0, `old` for the one before"),
    column(
        "member_epoch",
        INT,
        "`consumer_group_heartbeat`: epoch sent by the member: 0 to join, -1 to leave, -2 to leave as a static member; "
        "`offset_commit`: epoch of a member of the consumer protocol",
    ),
    column(
        "subscribed_topics",
        pa.list_(TEXT),
        "`consumer_group_heartbeat`, `join_group`: topics that the member subscribes to",
    ),
    column("subscribed_regex", TEXT, "`consumer_group_heartbeat`: regular expression that the member subscribes to"),
    column("server_assignor", TEXT, "`consumer_group_heartbeat`: `uniform` or `range`"),
    column(
        "owned", pa.list_(_EVENT_OWNED), "`consumer_group_heartbeat`, `join_group`: partitions that the member owns"
    ),
    column(
        "assigned",
        pa.list_(_EVENT_OWNED),
        "`consumer_group_heartbeat`: partitions that the recorded response assigned; null if it contained none",
    ),
    column("assigned_epoch", INT, "`consumer_group_heartbeat`: member epoch of the recorded response"),
    column(
        "assignments",
        pa.list_(_EVENT_ASSIGNMENT),
        "Partitions of each member. `sync_group` of the leader: the assignment that it computed; "
        "`consumer_group_heartbeat`, `join_group`: the target that the coordinator computed, if it was recorded",
    ),
    column("topic_id", TEXT, "`topic`: topic ID, in the form that Kafka prints"),
    column("partition_count", INT, "`topic`: number of partitions"),
    column("session_epoch", INT, "`share_fetch`, `share_acknowledge`: epoch of the share session"),
    column("max_records", LONG, "`share_fetch`: maximum records of the response"),
    column("batch_size", LONG, "`share_fetch`: records from which on the response is divided into batches"),
    column("acquire_mode", INT, "`share_fetch`: 0 acquires whole batches of the log, 1 at most `max_records`"),
    column(
        "acknowledgements",
        pa.list_(_EVENT_ACKNOWLEDGEMENT),
        "`share_acknowledge`, `share_fetch`: acknowledged records",
    ),
    column(
        "state_write_ms",
        LONG,
        "`share_acknowledge`, `share_fetch`, `share_release`: how long the share coordinator took to write the state, "
        "in milliseconds",
    ),
    column("record_lock_duration_ms", LONG, "`share_group`: `share.record.lock.duration.ms`"),
    column("delivery_count_limit", INT, "`share_group`: `share.delivery.count.limit`"),
    column("partition_max_record_locks", INT, "`share_group`: `share.partition.max.record.locks`"),
    column("auto_offset_reset", TEXT, "`share_group`: `share.auto.offset.reset`, `latest` or `earliest`"),
    column("start_offset", LONG, "`share_state`: first offset that is not done; -1 if the state is not initialized"),
    column("states", pa.list_(_EVENT_RECORD_STATE), "`share_state`: states of records from the start offset on"),
    column(
        "state_write_errors",
        pa.list_(_EVENT_WRITE_ERROR),
        "`share_acknowledge`, `share_fetch`, `share_release`: partitions of which the state could not be written",
    ),
    column("aborted", pa.list_(_EVENT_RANGE), "`last_stable`: records of aborted transactions below the offset"),
    column(
        "last_offset",
        LONG,
        "`remote_read` of a share fetch: last offset of the records that were read; `share_dead_letter`: last offset",
    ),
    column("first_offset", LONG, "`share_dead_letter`: first offset"),
    column("connection_closed", BOOL, "`share_release`: whether the connection of the member was closed"),
    column("dead_letter_queue", BOOL, "`share_group`: whether the group has a dead-letter queue"),
)

_REJECTED_EVENTS = table(
    column("raw", TEXT, "Text of the line; bytes that are not UTF-8 are replaced"),
    column("reason", TEXT, "Why the line is rejected: the field, its value and the expected value"),
    column("source", TEXT, "Input file, or Kafka topic-partition"),
    column("line", LONG, "Line in the input file, or offset in the topic-partition"),
)

_OUTCOME_HEAD = (
    column(
        "operation_id",
        LONG,
        "`seq` of the event that started the operation; negative for a group operation that no request started",
    ),
    column(
        "kind",
        TEXT,
        "`produce`, `fetch`, `remote_fetch`, `share_fetch`, `delete_records`, `create_topics`, `list_offsets`, "
        "`initial_join`, `join`, `sync`, `heartbeat`, `session` or `reconciliation`",
    ),
    column("broker", INT, "ID of the broker that held the operation"),
    column("request_id", TEXT, "Label of the request"),
    column("client_id", TEXT, "Client ID of the request"),
    column("key", TEXT, "First watch key: topic-partition, topic, group or group-member"),
    column("started_at", TIMESTAMP, "When the broker first tried the operation"),
)
_DEADLINE = column("deadline", TIMESTAMP, "`started_at`, truncated to a millisecond, plus the timeout")
_WAIT_MS = column("wait_ms", LONG, "Wait in milliseconds, counted between truncated times as Kafka's timer does")
_TOPIC = column("topic", TEXT, "Topic name")
_PARTITION = column("partition", INT, "Partition number; -1 for the topic as a whole")
_PART_BYTES = column(
    "bytes",
    LONG,
    "`fetch`: readable bytes; `remote_fetch`, `share_fetch`: bytes in the response; `produce`: appended bytes",
)
_FETCHER = column(
    "fetcher",
    TEXT,
    "`fetch`: `consumer` or `follower`; `remote_fetch`: `consumer`; `share_fetch`: `remote` if it waited for remote "
    "storage when it expired; `remote_twice` if it then expired again",
)
_ANSWERED_BYTES = column(
    "answered_bytes",
    LONG,
    "`fetch`, `remote_fetch`, `share_fetch`: bytes in the response, within the limits of the request and of each "
    "partition, each read from one segment; a batch beyond a limit is cut, or left out if it is the first of its "
    "partition",
)


def _readable(when: str) -> pa.Field:
    return column(
        "bytes",
        LONG,
        f"`fetch`: readable bytes {when}, over all partitions and segments, each up to the maximum of its partition; "
        "`remote_fetch`, `share_fetch`: bytes in the response",
    )


_COMPLETIONS = table(
    *_OUTCOME_HEAD,
    column("completed_at", TIMESTAMP, "Time of the event that completed the operation"),
    _DEADLINE,
    _WAIT_MS,
    column("watched", BOOL, "Whether the operation was in the purgatory; false if it completed on arrival"),
    column("completed_by", TEXT, "Rule that completed the operation; `docs/kafka-rules.md` lists all rules"),
    column("trigger", TEXT, "Key of the event that completed the operation; null if it completed on arrival"),
    _readable("on completion"),
    column(
        "partitions",
        pa.list_(
            pa.struct(
                [
                    _TOPIC,
                    _PARTITION,
                    column("error", TEXT, "Kafka error name, or NONE"),
                    _PART_BYTES,
                ]
            )
        ),
        "Result of each partition, or of each topic of `create_topics`; empty for a group operation",
    ),
    _ANSWERED_BYTES,
)

_EXPIRATIONS = table(
    *_OUTCOME_HEAD,
    column(
        "expired_at",
        TIMESTAMP,
        "When the operation expired: its deadline, or if the broker was paused then, when it resumed",
    ),
    _DEADLINE,
    _WAIT_MS,
    column("watched", BOOL, "Whether the operation was in the purgatory"),
    column("completed_by", TEXT, "Always `timeout`"),
    column("trigger", TEXT, "Always null"),
    _readable("at the deadline"),
    column(
        "partitions",
        pa.list_(
            pa.struct(
                [
                    _TOPIC,
                    _PARTITION,
                    column("error", TEXT, "Kafka error name, or NONE; REQUEST_TIMED_OUT if it was still pending"),
                    _PART_BYTES,
                ]
            )
        ),
        "Result of each partition, or of each topic of `create_topics`; empty for a group operation",
    ),
    _FETCHER,
    column("after_end", BOOL, "Whether the operation expired after the last event of the trace"),
    _ANSWERED_BYTES,
)

_CANCELLATIONS = table(
    *_OUTCOME_HEAD,
    column("cancelled_at", TIMESTAMP, "Time of the event that reported the stop of the broker"),
    _DEADLINE,
    _WAIT_MS,
    column("watched", BOOL, "Always true"),
    column("reason", TEXT, "Why the operation was cancelled: `broker_stopped`"),
    column(
        "trigger",
        TEXT,
        "First key reported as stopped: a pending partition, a topic of `create_topics`, or the key of a group "
        "operation",
    ),
    column(
        "partitions",
        pa.list_(
            pa.struct(
                [
                    _TOPIC,
                    _PARTITION,
                    column("error", TEXT, "Kafka error name, or NONE; null if the partition was still pending"),
                    column("bytes", LONG, "`produce`: appended bytes"),
                ]
            )
        ),
        "State of each partition when the broker stopped",
    ),
    _FETCHER,
)

_WATCHES = table(
    column("operation_id", LONG, "ID of the watching operation"),
    column("kind", TEXT, "Kind of the operation"),
    column("broker", INT, "ID of the broker that held the operation"),
    _TOPIC,
    _PARTITION,
    column("keys", INT, "Number of keys of the operation"),
    column("started_at", TIMESTAMP, "When the broker first tried the operation"),
    column("deadline", TIMESTAMP, "Deadline of the operation"),
    column("ended_at", TIMESTAMP, "When the partition was settled or the operation ended, whichever came first"),
    column(
        "status",
        TEXT,
        "`satisfied`; `error`: settled by an error; `forced`: a fetch ended by something other than its bytes; "
        "`expired`; `cancelled`",
    ),
    column(
        "increments",
        LONG,
        "`fetch` over several keys: how many changes of this key (appended bytes, checks) it saw",
    ),
)

_SHARE_DELIVERIES = table(
    column("broker", INT, "ID of the broker that led the partition"),
    column("group", TEXT, "Share group ID"),
    _TOPIC,
    column("partition", INT, "Partition number"),
    column("first_offset", LONG, "First offset of the records"),
    column("last_offset", LONG, "Last offset of the records"),
    column("delivery_count", INT, "How often the records had been delivered, this time included"),
    column("operation_id", LONG, "ID of the share fetch that acquired the records"),
    column("request_id", TEXT, "Label of that share fetch"),
    column("client_id", TEXT, "Client ID of that share fetch"),
    column("member_id", TEXT, "Member that held the records"),
    column("acquired_at", TIMESTAMP, "When the member acquired the records"),
    column(
        "ended_at",
        TIMESTAMP,
        "When the broker received the acknowledgement, or the delivery ended otherwise",
    ),
    column("held_ms", LONG, "Time from `acquired_at` to `ended_at` in milliseconds"),
    column(
        "ended_by",
        TEXT,
        "`accepted`, `released`, `rejected` or `gap`: acknowledged so; `lock_expired`; `session_ended`; `fenced`: the "
        "broker dropped its state of the partition",
    ),
    column("state", TEXT, "State of the records after that: AVAILABLE, ACKNOWLEDGED, ARCHIVING or ARCHIVED"),
    column("after_end", BOOL, "Whether the delivery ended after the last event of the trace"),
)

_GROUP_TRANSITIONS = table(
    column("broker", INT, "Broker ID of the coordinator"),
    column("group", TEXT, "Group ID"),
    column("at", TIMESTAMP, "When the state changed"),
    column(
        "from_state",
        TEXT,
        "State before: Empty, PreparingRebalance, CompletingRebalance, Stable or Dead; with the consumer protocol "
        "(KIP-848) Empty, Assigning, Reconciling or Stable",
    ),
    column("to_state", TEXT, "State after"),
    column("reason", TEXT, "Why the state changed, such as a member that joined, left or expired"),
    column("generation", INT, "Generation, or group epoch, after the change"),
    column("members", pa.list_(TEXT), "Member IDs after the change"),
)

_OWNED_PARTITION = [_TOPIC, column("partition", INT, "Partition number")]

_MEMBER_TRANSITIONS = table(
    column("broker", INT, "Broker ID of the coordinator"),
    column("group", TEXT, "Group ID"),
    column("at", TIMESTAMP, "When the member changed"),
    column("member_id", TEXT, "Member ID"),
    column("from_state", TEXT, "State before; null if the member is new"),
    column(
        "to_state",
        TEXT,
        "State after: STABLE; UNREVOKED_PARTITIONS: has to give partitions up; UNRELEASED_PARTITIONS: waits for "
        "partitions of others; REMOVED: no longer in the group",
    ),
    column("reason", TEXT, "Why it changed, such as a heartbeat, or a session or reconciliation that expired"),
    column("epoch", INT, "Member epoch after the change; of a removed member, its last one"),
    column("assigned", pa.list_(pa.struct(_OWNED_PARTITION)), "Partitions assigned to the member"),
    column("revoking", pa.list_(pa.struct(_OWNED_PARTITION)), "Partitions that the member has to give up"),
    column(
        "held_by",
        pa.list_(pa.struct([*_OWNED_PARTITION, column("member_id", TEXT, "Member that has not given it up")])),
        "Partitions of its target that the member waits for",
    ),
    column("classic", BOOL, "Whether it is a member of the classic protocol inside of the group"),
)

_GROUP_DISAGREEMENTS = table(
    column("broker", INT, "Broker ID of the coordinator"),
    column("group", TEXT, "Group ID"),
    column("seq", LONG, "`seq` of the request's event"),
    column("asked_at", TIMESTAMP, "When the request arrived"),
    column("answered_at", TIMESTAMP, "When the replay answered it; null if it did not"),
    column("api", TEXT, "Type of the request"),
    column("request_id", TEXT, "Label of the request"),
    column("member_id", TEXT, "Member ID in the request"),
    column(
        "disagreement",
        TEXT,
        "What differs: `leader`, `member_id`, `join_refused`, `unknown_member`, `fenced_instance`, "
        "`illegal_generation`, `error`, `generation`, `member_epoch` or `assignment`",
    ),
    column("recorded", TEXT, "Value in the trace"),
    column("replayed", TEXT, "Value in the replay"),
)

_PURGATORY_GAUGES = table(
    column("broker", INT, "Broker ID"),
    column(
        "purgatory",
        TEXT,
        "Produce, Fetch, RemoteFetch, ShareFetch, DeleteRecords, topic, RemoteListOffsets, Rebalance or Heartbeat",
    ),
    column("at", TIMESTAMP, "Time of the reading, a multiple of 200 ms"),
    column("watched", LONG, "`PurgatorySize`: entries of the watcher lists, including those of ended operations"),
    column("delayed", LONG, "`NumDelayedOperations`: operations that the timer holds"),
    column("purged", LONG, "Entries of ended operations that were purged since the previous reading"),
)

_RUNS = table(
    column("job", TEXT, "Name of the job, such as `ingest` or `replay`"),
    column("status", TEXT, "`running` or `finished`"),
    column("trace", TEXT, "Input of the run (JSON)"),
    column("configuration", TEXT, "All settings (JSON)"),
    column(
        "versions", TEXT, "Versions of the product and Python, and of Spark and Delta or of DuckDB and deltalake (JSON)"
    ),
    column("counts", TEXT, "Counts of lines, events, operations, open operations and more (JSON)"),
    column("started_at", TIMESTAMP, "When the run started"),
    column("finished_at", TIMESTAMP, "When the run finished; null before that"),
    column("wall_seconds", DOUBLE, "Duration of the run in seconds"),
)

_RECORDED = table(
    column("operation_id", LONG, "`seq` of the request's event"),
    column("broker", INT, "ID of the broker that wrote the log"),
    column(
        "kind",
        TEXT,
        "`consumer fetch`, `follower fetch`, `remote fetch`, `share fetch`, `produce acks=-1` and so on; for a group, "
        "the API",
    ),
    column("api", TEXT, "API name in the log"),
    column("request_id", TEXT, "Label of the request"),
    column("started_at", TIMESTAMP, "When the request arrived"),
    column("written_at", TIMESTAMP, "When the log line was written, after the response"),
    column("recorded_outcome", TEXT, "`at_once`, `completed` (after a wait) or `expired`"),
    column("recorded_remote_ms", DOUBLE, "`remoteTimeMs` of the log: milliseconds in the purgatory"),
    column("recorded_local_ms", DOUBLE, "`localTimeMs` of the log: milliseconds of handling by the broker"),
    column("recorded_error", TEXT, "First Kafka error name of the response, or NONE"),
    column("recorded_bytes", LONG, "`fetch`: bytes in the response"),
    column("recorded_timed_out", INT, "Number of partitions with REQUEST_TIMED_OUT in the response"),
    column("recorded_generation", INT, "`join_group`: generation in the response of a successful join"),
    column(
        "recorded_complete",
        BOOL,
        "Whether the log shows all partitions of the request; not those of a fetch session that began before the log",
    ),
    column("source", TEXT, "Input file"),
    column("line", LONG, "Line in the input file"),
)

_FIDELITY = table(
    column("operation_id", LONG, "`seq` of the request's event"),
    column("broker", INT, "Broker ID"),
    column("kind", TEXT, "Kind as in `recorded`"),
    column("request_id", TEXT, "Label of the request"),
    column("started_at", TIMESTAMP, "When the request arrived"),
    column(
        "recorded_outcome",
        TEXT,
        "`at_once`, `completed` or `expired`; for a group, the error or generation of the response",
    ),
    column("replayed_outcome", TEXT, "The same from the replay; `none` if the operation has no outcome there"),
    column("recorded_ms", DOUBLE, "Recorded wait in milliseconds"),
    column("replayed_ms", DOUBLE, "Replayed wait in milliseconds"),
    column("difference_ms", DOUBLE, "Recorded minus replayed wait, without the usual delay of the broker's timer"),
    column("agrees", BOOL, "Whether both outcomes are equal"),
    column("cause", TEXT, "Why the outcomes differ; the HTML page of `fidelity` explains each cause"),
)

_TRUTH_REQUESTS = table(
    column("operation_id", LONG, "`seq` of the request's event"),
    column("client_id", TEXT, "Client ID of the request"),
    column("request_id", TEXT, "Label of the request"),
    column("sent_at", TIMESTAMP, "When the client sent the request"),
    column("arrived_at", TIMESTAMP, "When the broker received the request"),
    column("answered_at", TIMESTAMP, "When the broker completed the request"),
    column("throttle_ms", LONG, "Milliseconds for which a quota held the response back"),
    column("received_at", TIMESTAMP, "When the client received the response"),
)

_WHAT_IF = table(
    column("variant", TEXT, "Name of the variant"),
    column("operation_id", LONG, "ID of the operation"),
    column("kind", TEXT, "Kind of the operation"),
    column("broker", INT, "ID of the broker that held the operation"),
    column("request_id", TEXT, "Label of the request"),
    column("client_id", TEXT, "Client ID of the request"),
    column("key", TEXT, "First watch key: topic-partition, topic, group or group-member"),
    column("started_at", TIMESTAMP, "When the broker first tried the operation"),
    column(
        "change",
        TEXT,
        "`expiration appears`, `expiration vanishes`, `waits longer`, `waits less`, `ended by something else` or "
        "`in one of both only`",
    ),
    column("baseline_expired", BOOL, "Whether the operation expires under the baseline"),
    column("variant_expired", BOOL, "Whether the operation expires under the variant"),
    column("baseline_completed_by", TEXT, "Rule that completes it under the baseline"),
    column("variant_completed_by", TEXT, "Rule that completes it under the variant"),
    column("baseline_wait_ms", LONG, "Wait under the baseline in milliseconds"),
    column("variant_wait_ms", LONG, "Wait under the variant in milliseconds"),
    column("shift_ms", LONG, "Wait under the variant minus wait under the baseline"),
    column("baseline_bytes", LONG, "`fetch`: readable bytes at the end, under the baseline"),
    column("variant_bytes", LONG, "`fetch`: readable bytes at the end, under the variant"),
)

_BLAME = table(
    column("operation_id", LONG, "ID of the operation that waited"),
    column("kind", TEXT, "Kind of the operation"),
    column("started_at", TIMESTAMP, "Start of this part of the wait"),
    column("ended_at", TIMESTAMP, "End of this part"),
    column("wait_ms", LONG, "Length in milliseconds; the parts of an operation add up to its `wait_ms`"),
    column("cause", TEXT, "Missing condition; `docs/diagnosis.md` lists all causes"),
    column("broker", INT, "ID of the broker that held the operation"),
    column("replica", INT, "`follower_behind`, `below_min_isr`: broker ID of the replica that was missing"),
    column("client_id", TEXT, "Client ID of the request"),
    column("group", TEXT, "Group ID of a group operation"),
    column("member_id", TEXT, "Member that was missing"),
    column("topic", TEXT, "Topic of the partition that was missing"),
    column("partition", INT, "Partition number"),
)

_FINDINGS = table(
    column("rank", INT, "1 for the finding with the most excess waiting"),
    column("kind", TEXT, "Kind of the finding; `docs/diagnosis.md` has a section for each"),
    column("started_at", TIMESTAMP, "Start of the incident"),
    column("ended_at", TIMESTAMP, "End of the incident"),
    column("broker", INT, "Broker ID of the culprit"),
    column("replica", INT, "Broker ID of the culprit in its role as a follower"),
    column("client_id", TEXT, "Client ID of the culprit"),
    column("group", TEXT, "Group ID"),
    column("member_id", TEXT, "Member ID of the culprit"),
    column("topic", TEXT, "Topic, if the incident concerns only one"),
    column("partition", INT, "Partition, if the incident concerns only one"),
    column("operations", LONG, "Number of operations that waited longer because of it"),
    column("expired", LONG, "Number of these operations that expired"),
    column("excess_wait_s", DOUBLE, "How much longer than usual they waited, in operation-seconds"),
    column("share", DOUBLE, "`excess_wait_s` divided by the total excess of the trace"),
    column("confidence", DOUBLE, "From 0 to 1"),
    column("summary", TEXT, "What happened, in a sentence"),
    column("suggestions", pa.list_(TEXT), "What to look at or to change"),
    column("clients", pa.list_(TEXT), "Client IDs of the operations"),
    column("evidence", pa.list_(LONG), "IDs of operations that `explain` explains"),
)

# The schemas that Delta tables are created with.
COMMENTED_TABLES: dict[str, pa.Schema] = {
    "events": _EVENTS,
    "rejected_events": _REJECTED_EVENTS,
    "watches": _WATCHES,
    "completions": _COMPLETIONS,
    "expirations": _EXPIRATIONS,
    "cancellations": _CANCELLATIONS,
    "share_deliveries": _SHARE_DELIVERIES,
    "group_transitions": _GROUP_TRANSITIONS,
    "member_transitions": _MEMBER_TRANSITIONS,
    "group_disagreements": _GROUP_DISAGREEMENTS,
    "purgatory_gauges": _PURGATORY_GAUGES,
    "runs": _RUNS,
    "recorded": _RECORDED,
    "fidelity": _FIDELITY,
    "blame": _BLAME,
    "findings": _FINDINGS,
}
COMMENTED_TRUTH: dict[str, pa.Schema] = {
    "truth_completions": _COMPLETIONS,
    "truth_expirations": _EXPIRATIONS,
    "truth_cancellations": _CANCELLATIONS,
    "truth_requests": _TRUTH_REQUESTS,
}
COMMENTED_WHAT_IF: pa.Schema = _WHAT_IF

# The schemas that rows are built with.
TABLES: dict[str, pa.Schema] = {name: without_comments(schema) for name, schema in COMMENTED_TABLES.items()}

EVENTS = TABLES["events"]
REJECTED_EVENTS = TABLES["rejected_events"]
WATCHES = TABLES["watches"]
COMPLETIONS = TABLES["completions"]
EXPIRATIONS = TABLES["expirations"]
CANCELLATIONS = TABLES["cancellations"]
GROUP_TRANSITIONS = TABLES["group_transitions"]
MEMBER_TRANSITIONS = TABLES["member_transitions"]
GROUP_DISAGREEMENTS = TABLES["group_disagreements"]
PURGATORY_GAUGES = TABLES["purgatory_gauges"]
RECORDED = TABLES["recorded"]
FIDELITY = TABLES["fidelity"]
TRUTH_REQUESTS = without_comments(_TRUTH_REQUESTS)
WHAT_IF = without_comments(_WHAT_IF)

EVENT_PARTITION = EVENTS.field("partitions").type.value_type
EVENT_TOPIC = EVENTS.field("topics").type.value_type
OUTCOME_PARTITION = COMPLETIONS.field("partitions").type.value_type

# Each ended operation has one row in one of these tables.
ENDS = ("completions", "expirations", "cancellations")

# What `simulate` writes in addition to `events`.
TRUTH: dict[str, pa.Schema] = {
    "truth_completions": COMPLETIONS,
    "truth_expirations": EXPIRATIONS,
    "truth_cancellations": CANCELLATIONS,
    "truth_requests": TRUTH_REQUESTS,
}
