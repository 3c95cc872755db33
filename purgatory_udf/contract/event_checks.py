"""The fields of every event type, the check of each field, and its default.

A field has a default only where the contract or Kafka's protocol defines one, or where "unknown" is a valid value
(None). Counts, offsets and sizes are never negative, except for -1 where Kafka uses it for "none". Delays may be
negative where Kafka answers at once for them: a fetch's `max_wait_ms` and the timeout of create-topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.value_types import (
    INT32,
    INT64,
    Check,
    Rejection,
    Schema,
    boolean,
    distinct,
    if_field,
    integer,
    invalid_value,
    label,
    list_of,
    name,
    nullable,
    one_of,
    schema_of,
    text,
    with_schema,
    wrong_type,
)

REQUIRED: Any = object()

Row = dict[str, Any]
Reader = Callable[[Any], Row]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object. `default` replaces a missing or null value; without it, the field is required."""

    name: str
    check: Check
    default: Any = REQUIRED


# The fields of each reader that `object_reader` has returned.
FIELDS: dict[Reader, tuple[Field, ...]] = {}


def object_reader(*fields: Field, cross_check: Callable[[Row], None] | None = None) -> Reader:
    """Return a function that reads objects with these fields. It drops unknown fields, and raises `Rejection`.

    `cross_check` is called with the fields of an object to check them against each other; it raises `Rejection`, too.
    """
    parts = tuple((field.name, field.check, field.default) for field in fields)

    @with_schema(_schema(fields))
    def read(values: Any) -> Row:
        if type(values) is not dict:
            raise wrong_type(values, "an object")
        get = values.get
        row = {}
        name = ""
        try:
            for name, check, default in parts:
                value = get(name)
                row[name] = default if value is None and default is not REQUIRED else check(value)
        except Rejection as rejection:
            raise _missing(rejection, name, values).within(name) from None
        if cross_check is not None:
            cross_check(row)
        return row

    FIELDS[read] = fields
    return read


def _missing(rejection: Rejection, name: str, values: Mapping[str, Any]) -> Rejection:
    """Return the rejection of a None value, reworded as that of a missing field if the object lacks the field."""
    return rejection if name in values else Rejection("missing field", f"missing, expected {rejection.expected}")


def _schema(fields: tuple[Field, ...]) -> Schema:
    properties = {
        field.name: schema_of(field.check)
        if field.default is REQUIRED
        else {**nullable(schema_of(field.check)), "default": field.default}
        for field in fields
    }
    required = [field.name for field in fields if field.default is REQUIRED]
    return {"type": "object", "properties": properties, "required": required}


# pandas stores nanoseconds in 64 bits, up to the year 2262, and deadlines must fit too. The limit (the year 2255) also
# rejects times in nanoseconds.
LATEST_US = 9_000_000_000_000_000

NO_ERROR = "NONE"
KNOWN_ACKS = (0, 1, -1)

int32 = integer(-INT32 - 1, INT32)
int64 = integer(-INT64 - 1, INT64)
count32 = integer(0, INT32)
count64 = integer(0, INT64)
count_or_none32 = integer(-1, INT32)
# Not INT64, because the log end after the last offset must fit too.
offset = integer(0, INT64 - 1)
offset_or_none = integer(-1, INT64 - 1)
brokers = distinct(count32)

COMMON = (
    Field("time_us", integer(1, LATEST_US)),
    Field("type", text),
    Field("seq", int64, None),
    Field("broker", count32, 0),
)
REQUEST = (*COMMON, Field("request_id", label), Field("client_id", text, None))
TOPIC_PARTITION = (Field("topic", name), Field("partition", count32))


def per_partition(*fields: Field) -> Field:
    """Return the field `partitions`: a list of distinct topic-partitions with these fields."""
    return Field("partitions", distinct(object_reader(*TOPIC_PARTITION, *fields), "topic", "partition"))


# produce: an appended partition requires its offsets and bytes; a partition with an error, or a request with invalid
# acks, may omit them.


def _batch(row: Row) -> None:
    if row["last_offset"] < row["base_offset"] - 1:
        raise invalid_value(row["last_offset"], "an integer >= base_offset - 1").within("last_offset")


_APPENDED = object_reader(
    *TOPIC_PARTITION,
    Field("base_offset", offset),
    Field("last_offset", offset_or_none),
    Field("bytes", count64),
    Field("error", name, NO_ERROR),
    cross_check=_batch,
)
_NOT_APPENDED = object_reader(
    *TOPIC_PARTITION,
    Field("base_offset", offset_or_none, None),
    Field("last_offset", offset_or_none, None),
    Field("bytes", count64, None),
    Field("error", name, NO_ERROR),
)


@with_schema(if_field("error", {"not": {"enum": [NO_ERROR, None]}}, schema_of(_NOT_APPENDED), schema_of(_APPENDED)))
def _produced(values: Any) -> Row:
    appended = type(values) is not dict or values.get("error") in (None, NO_ERROR)
    return (_APPENDED if appended else _NOT_APPENDED)(values)


def _produce_with(partition: Reader) -> Reader:
    return object_reader(
        *REQUEST,
        Field("acks", int32),
        Field("timeout_ms", count32),
        Field("partitions", distinct(partition, "topic", "partition")),
    )


_PRODUCE = _produce_with(_produced)
_PRODUCE_INVALID_ACKS = _produce_with(_NOT_APPENDED)


# The fields that every produce requires; appended partitions require more.
PRODUCE_FIELDS = FIELDS[_PRODUCE_INVALID_ACKS]


@with_schema(
    if_field(
        "acks",
        {"type": "integer", "not": {"enum": list(KNOWN_ACKS)}},
        schema_of(_PRODUCE_INVALID_ACKS),
        schema_of(_PRODUCE),
    )
)
def produce(values: Row) -> Row:
    """Return the fields of an event `produce`. With an `acks` that Kafka refuses, partitions need no offsets.

    Raises:
        Rejection: A field is missing or invalid.
    """
    acks = values.get("acks")
    return (_PRODUCE_INVALID_ACKS if type(acks) is int and acks not in KNOWN_ACKS else _PRODUCE)(values)


fetch = object_reader(
    *REQUEST,
    Field("replica_id", integer(-2, INT32), -1),
    Field("max_wait_ms", int32),
    Field("min_bytes", count64),
    Field("max_bytes", count64, INT32),
    Field("isolation", one_of("read_uncommitted", "read_committed"), "read_uncommitted"),
    per_partition(
        Field("fetch_offset", offset),
        Field("max_bytes", count64),
        Field("current_leader_epoch", count_or_none32, -1),
        Field("throttled", boolean, False),
        Field("preferred_replica", count32, None),
    ),
    Field("hard_max_bytes", boolean, False),
)

delete_records = object_reader(*REQUEST, Field("timeout_ms", count32), per_partition(Field("offset", offset_or_none)))

create_topics = object_reader(
    *REQUEST,
    Field("timeout_ms", int32),
    Field("topics", distinct(object_reader(Field("topic", name), Field("partitions", integer(1, INT32))), "topic")),
)

# Of a partition: a time in milliseconds, or a negative number for a position such as -1, the latest.
list_offsets = object_reader(
    *REQUEST,
    Field("timeout_ms", int32, 0),
    Field("isolation", one_of("read_uncommitted", "read_committed"), "read_uncommitted"),
    per_partition(Field("timestamp", int64)),
)

# The end of a read of remote storage, or of a lookup there, that a fetch or a list-offsets request waits for.
_ENDED = (*COMMON, Field("request_id", label), *TOPIC_PARTITION, Field("error", name, NO_ERROR))

remote_read = object_reader(*_ENDED, Field("bytes", count64, 0), Field("last_offset", offset, None))

remote_lookup = object_reader(*_ENDED, Field("offset", offset_or_none, None))

remote_quota = object_reader(*COMMON, Field("exhausted", boolean))

reader_queue = object_reader(*COMMON, Field("full", boolean))

# Share groups (KIP-932). Of the acknowledgement of a range, `types` has one type for all offsets, or one per offset.


def _acknowledged(row: Row) -> None:
    if row["last_offset"] < row["first_offset"]:
        raise invalid_value(row["last_offset"], "an integer >= first_offset").within("last_offset")
    if len(row["types"]) not in (1, row["last_offset"] - row["first_offset"] + 1):
        raise invalid_value(row["types"], "one type, or one per offset").within("types")


_ACKNOWLEDGEMENTS = list_of(
    object_reader(
        *TOPIC_PARTITION,
        Field("first_offset", offset),
        Field("last_offset", offset),
        Field("types", list_of(integer(0, 4))),
        Field("accepted", boolean, None),
        cross_check=_acknowledged,
    )
)

_SHARE_MEMBER = (Field("group", name), Field("member_id", text))
_STATE_WRITE = (
    Field("state_write_ms", count32, None),
    Field(
        "state_write_errors",
        distinct(object_reader(*TOPIC_PARTITION, Field("error", name)), "topic", "partition"),
        None,
    ),
)

share_fetch = object_reader(
    *REQUEST,
    *_SHARE_MEMBER,
    Field("session_epoch", integer(-1, INT32), 0),
    Field("max_wait_ms", int32),
    Field("min_bytes", count64),
    Field("max_bytes", count64, INT32),
    Field("max_records", count32, INT32),
    Field("batch_size", count32, INT32),
    Field("acquire_mode", integer(0, 1), 0),
    per_partition(Field("state_read_ms", count32, None), Field("error", name, NO_ERROR)),
    Field("acknowledgements", _ACKNOWLEDGEMENTS, None),
    *_STATE_WRITE,
    Field("error", name, NO_ERROR),
)

share_acknowledge = object_reader(
    *REQUEST,
    *_SHARE_MEMBER,
    Field("session_epoch", integer(-1, INT32), None),
    Field("acknowledgements", _ACKNOWLEDGEMENTS),
    *_STATE_WRITE,
)

share_release = object_reader(
    *COMMON,
    Field("request_id", label, None),
    Field("client_id", text, None),
    *_SHARE_MEMBER,
    *_STATE_WRITE,
    Field("connection_closed", boolean, False),
)

share_group = object_reader(
    *COMMON,
    Field("group", name),
    Field("record_lock_duration_ms", integer(1, INT32), None),
    Field("delivery_count_limit", integer(1, INT32), None),
    Field("partition_max_record_locks", integer(1, INT32), None),
    Field("auto_offset_reset", one_of("latest", "earliest"), None),
    Field("isolation", one_of("read_uncommitted", "read_committed"), None),
    Field("dead_letter_queue", boolean, None),
)

share_dead_letter = object_reader(
    *COMMON,
    Field("group", name),
    *TOPIC_PARTITION,
    Field("first_offset", offset),
    Field("last_offset", offset),
)

RECORD_STATES = ("AVAILABLE", "ACKNOWLEDGED", "ARCHIVING", "ARCHIVED")

share_state = object_reader(
    *COMMON,
    Field("group", name),
    *TOPIC_PARTITION,
    Field("start_offset", offset_or_none),
    Field(
        "states",
        list_of(
            object_reader(
                Field("first_offset", offset),
                Field("last_offset", offset),
                Field("state", one_of(*RECORD_STATES)),
                Field("delivery_count", count32),
            )
        ),
        None,
    ),
)

_AT_OFFSET = (Field("offset", offset),)
_WAKE = (Field("wake", boolean, True),)

# The fields of each partition change, in addition to those of `partition`.
CHANGES: dict[str, tuple[Field, ...]] = {
    "log_end": (*_AT_OFFSET, Field("bytes", count64, 0), Field("batches", integer(1, INT32), None)),
    "high_watermark": _AT_OFFSET,
    "last_stable": (
        *_AT_OFFSET,
        Field("aborted", list_of(object_reader(Field("first_offset", offset), Field("last_offset", offset))), None),
    ),
    "log_start": _AT_OFFSET,
    "segment_roll": _AT_OFFSET,
    "truncate": _AT_OFFSET,
    "leader": (
        Field("leader_epoch", count32, None),
        Field("replicas", brokers, None),
        Field("isr", brokers, None),
        Field("min_isr", count32, None),
    ),
    "isr": (Field("isr", brokers),),
    "replica_end": (Field("replica_id", count32), *_AT_OFFSET),
    "throttled": (Field("replica_id", count32),),
    "unthrottled": (Field("replica_id", count32),),
    "online": _WAKE,
    "not_leader": _WAKE,
    "offline": _WAKE,
    "deleted": _WAKE,
    "stopped": (),
    "local_log_start": _AT_OFFSET,
    "follower": _WAKE,
    "none": _WAKE,
}

_CHANGE = Field("change", one_of(*CHANGES))
CHANGED_FIELDS = {change: (*COMMON, *TOPIC_PARTITION, _CHANGE, *fields) for change, fields in CHANGES.items()}
_CHANGED = {change: object_reader(*fields) for change, fields in CHANGED_FIELDS.items()}
_UNCHANGED = object_reader(*COMMON, *TOPIC_PARTITION, _CHANGE)


@with_schema(
    {
        **schema_of(_UNCHANGED),
        "allOf": [
            if_field("change", {"const": change}, schema_of(object_reader(*fields)))
            for change, fields in CHANGES.items()
            if fields
        ],
    }
)
def partition(values: Row) -> Row:
    """Return the fields of an event `partition`, which depend on its `change`.

    Raises:
        Rejection: A field is missing or invalid.
    """
    change = values.get("change")
    # The field's own check rejects an unknown change and a value that is not a string.
    return _CHANGED.get(change if type(change) is str else "", _UNCHANGED)(values)


_COORDINATOR = Field("coordinator", one_of("old", "new"), None)

MEMBER = (
    *REQUEST,
    Field("group", text),
    Field("member_id", text),
    Field("group_instance_id", text, None),
    _COORDINATOR,
)

_OWNED = list_of(object_reader(Field("topic", name), Field("partitions", list_of(count32))))

_ASSIGNMENTS = list_of(object_reader(Field("member_id", text), Field("assigned", _OWNED)))

join_group = object_reader(
    *MEMBER,
    Field("assigned_member_id", text, None),
    Field("leader_member_id", text, None),
    Field("api_version", count32, 5),
    Field("session_timeout_ms", count32),
    Field("rebalance_timeout_ms", count32),
    Field("protocols", list_of(text)),
    Field("subscribed_topics", list_of(text), None),
    Field("owned", _OWNED, None),
    Field("assignments", _ASSIGNMENTS, None),
)

sync_group = object_reader(
    *MEMBER,
    Field("generation", count_or_none32),
    Field("leader", boolean, False),
    Field("assignments", _ASSIGNMENTS, None),
)

heartbeat = object_reader(*MEMBER, Field("generation", count_or_none32))

# Kafka's LeaveGroup has no generation; OffsetCommit's default is -1.
leave_group = object_reader(*MEMBER, Field("generation", count_or_none32, None))

offset_commit = object_reader(
    *MEMBER,
    Field("generation", count_or_none32, -1),
    Field("member_epoch", int32, None),
    per_partition(Field("offset", offset)),
)

# The consumer protocol (KIP-848). A heartbeat omits what has not changed since the last one.

consumer_group_heartbeat = object_reader(
    *MEMBER,
    Field("member_epoch", integer(-2, INT32)),
    Field("rebalance_timeout_ms", count_or_none32, None),
    Field("session_timeout_ms", count32, None),
    Field("subscribed_topics", list_of(text), None),
    Field("subscribed_regex", text, None),
    Field("server_assignor", text, None),
    Field("owned", _OWNED, None),
    Field("assigned", _OWNED, None),
    Field("assigned_epoch", int32, None),
    Field("assignments", _ASSIGNMENTS, None),
)

# Events of the coordinator. A loaded group has one `group_loaded` event per member, or one without a member if it is
# empty.

_OF_GROUP = (*COMMON, Field("group", text), _COORDINATOR)

group_loaded = object_reader(
    *_OF_GROUP,
    Field("generation", count32),
    Field("leader_member_id", text, None),
    Field("client_id", text, None),
    Field("member_id", text),
    Field("group_instance_id", text, None),
    Field("session_timeout_ms", count32),
    Field("rebalance_timeout_ms", count32),
    Field("protocols", list_of(text)),
)

group_unloaded = object_reader(*_OF_GROUP)

# The process of the coordinator ended.
group_stopped = object_reader(*_OF_GROUP)

# A topic as the group coordinators see it: created, with more partitions, or deleted (0).
topic = object_reader(*COMMON, Field("topic", name), Field("topic_id", text, None), Field("partition_count", count32))

clock = object_reader(*COMMON)

# The broker stands still from `paused` to `resumed`: none of its timers fires.
paused = object_reader(*COMMON)

resumed = object_reader(*COMMON)

TYPES: dict[str, Reader] = {
    "produce": produce,
    "fetch": fetch,
    "delete_records": delete_records,
    "partition": partition,
    "join_group": join_group,
    "sync_group": sync_group,
    "heartbeat": heartbeat,
    "leave_group": leave_group,
    "offset_commit": offset_commit,
    "consumer_group_heartbeat": consumer_group_heartbeat,
    "topic": topic,
    "create_topics": create_topics,
    "group_loaded": group_loaded,
    "group_unloaded": group_unloaded,
    "group_stopped": group_stopped,
    "clock": clock,
    "list_offsets": list_offsets,
    "remote_read": remote_read,
    "remote_lookup": remote_lookup,
    "remote_quota": remote_quota,
    "reader_queue": reader_queue,
    "share_fetch": share_fetch,
    "share_acknowledge": share_acknowledge,
    "share_release": share_release,
    "share_group": share_group,
    "share_state": share_state,
    "share_dead_letter": share_dead_letter,
    "paused": paused,
    "resumed": resumed,
}
