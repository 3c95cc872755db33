"""An object's fields: which there are, what each may be, and what stands for one that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from purgatory_udf.contract.value_checks import (
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
    """`default` stands for a field that is missing or null; without one the field is required."""

    name: str
    check: Check
    default: Any = REQUIRED


# The fields of each reader that `record` has made.
FIELDS: dict[Reader, tuple[Field, ...]] = {}


def object_reader(*fields: Field, also: Callable[[Row], None] | None = None) -> Reader:
    """A reader of such objects: fields that are not named are left out; `also` judges fields against each other."""
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
        if also is not None:
            also(row)
        return row

    FIELDS[read] = fields
    return read


def _missing(rejection: Rejection, name: str, values: Mapping[str, Any]) -> Rejection:
    """What a check says of None, where the field was not given at all, is that it is missing."""
    return rejection if name in values else Rejection("missing field", "missing", rejection.expected)


def _schema(fields: tuple[Field, ...]) -> Schema:
    properties = {
        field.name: schema_of(field.check)
        if field.default is REQUIRED
        else {**nullable(schema_of(field.check)), "default": field.default}
        for field in fields
    }
    required = [field.name for field in fields if field.default is REQUIRED]
    return {"type": "object", "properties": properties, "required": required}


# The event contract, type by type: what each field may be, and what stands for one that is not given.
#
# A field has a default exactly where the contract or Kafka's protocol names one, or where "not said" is an answer
# (None). Counts, offsets and sizes are never negative, but for the -1 with which Kafka says "none"; a delay may be
# where Kafka itself answers at once for one (a fetch's wait, the time-out of a topic creation).


# pandas counts nanoseconds in 64 bits, up to the year 2262; a deadline must fit too. A time in nanoseconds does not.
LATEST_US = 9_000_000_000_000_000

NO_ERROR = "NONE"
KNOWN_ACKS = (0, 1, -1)

int32 = integer(-INT32 - 1, INT32)
int64 = integer(-INT64 - 1, INT64)
count32 = integer(0, INT32)
count64 = integer(0, INT64)
count_or_none32 = integer(-1, INT32)
# One more than an offset is an offset too: the end of the log after it.
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
    return Field("partitions", distinct(object_reader(*TOPIC_PARTITION, *fields), "topic", "partition"))


# produce: a partition that was appended says where; one in error, or of an unknown acks, may leave that out.


def _batch(row: Row) -> None:
    if row["last_offset"] < row["base_offset"] - 1:
        raise invalid_value(row["last_offset"], "an integer >= base_offset - 1").within("last_offset")


_APPENDED = object_reader(
    *TOPIC_PARTITION,
    Field("base_offset", offset),
    Field("last_offset", offset_or_none),
    Field("bytes", count64),
    Field("error", name, NO_ERROR),
    also=_batch,
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


# The fields of any produce. Of a partition that was appended more is required than this says.
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

_AT_OFFSET = (Field("offset", offset),)

# change: the fields that it has beyond the partition itself.
CHANGES: dict[str, tuple[Field, ...]] = {
    "log_end": (*_AT_OFFSET, Field("bytes", count64, 0), Field("batches", integer(1, INT32), None)),
    "high_watermark": _AT_OFFSET,
    "last_stable": _AT_OFFSET,
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
    "online": (),
    "not_leader": (),
    "offline": (),
    "deleted": (),
    "stopped": (),
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
    change = values.get("change")
    # A change that is not known, or no string at all, is refused by the field's own check.
    return _CHANGED.get(change if type(change) is str else "", _UNCHANGED)(values)


MEMBER = (*REQUEST, Field("group", text), Field("member_id", text), Field("group_instance_id", text, None))

join_group = object_reader(
    *MEMBER,
    Field("assigned_member_id", text, None),
    Field("leader_member_id", text, None),
    Field("api_version", count32, 5),
    Field("session_timeout_ms", count32),
    Field("rebalance_timeout_ms", count32),
    Field("protocols", list_of(text)),
)

sync_group = object_reader(*MEMBER, Field("generation", count_or_none32), Field("leader", boolean, False))

heartbeat = object_reader(*MEMBER, Field("generation", count_or_none32))

# Kafka's LeaveGroup has no generation, and OffsetCommit's is -1 unless said.
leave_group = object_reader(*MEMBER, Field("generation", count_or_none32, None))

offset_commit = object_reader(*MEMBER, Field("generation", count_or_none32, -1), per_partition(Field("offset", offset)))

# A coordinator's, not a member's: a group comes to its broker, one event a member (or one of no member, if it is
# empty), or goes from it.

_OF_GROUP = (*COMMON, Field("group", text))

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

# The coordinator's process ended.
group_stopped = object_reader(*_OF_GROUP)

clock = object_reader(*COMMON)

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
    "create_topics": create_topics,
    "group_loaded": group_loaded,
    "group_unloaded": group_unloaded,
    "group_stopped": group_stopped,
    "clock": clock,
}
