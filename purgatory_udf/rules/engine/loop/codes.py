"""Numeric codes in the engine's records, and their names in the contract."""

from __future__ import annotations

from purgatory_udf.rules.engine.jit import Int64Enum


class Code(Int64Enum):
    """Kind of an event; for requests also the kind of their operation and purgatory."""

    PRODUCE = 1
    FETCH = 2
    DELETE_RECORDS = 3
    CREATE_TOPICS = 4
    HEARTBEAT = 5
    REBALANCE = 6
    LIST_OFFSETS = 7
    # Ends of reads of remote storage: events with a part, but no operations.
    REMOTE_READ = 8
    REMOTE_LOOKUP = 9
    LOG_END = 10
    HIGH_WATERMARK = 11
    LAST_STABLE = 12
    LOG_START = 13
    SEGMENT_ROLL = 14
    TRUNCATE = 15
    LEADER = 16
    ISR = 17
    REPLICA_END = 18
    ONLINE = 19
    NOT_LEADER = 20
    OFFLINE = 21
    DELETED = 22
    THROTTLED = 23
    UNTHROTTLED = 24
    STOPPED = 25
    LOCAL_LOG_START = 26
    FOLLOWER = 27
    NONE = 28
    # What `LEADER`, `DELETED` and `STOPPED` mean for the partition's topic.
    LED = 30
    UNLED = 31
    TOPIC_STOPPED = 32
    # What a fetch becomes that waits for reads of remote storage.
    REMOTE_FETCH = 33
    # Changes of a broker.
    REMOTE_QUOTA = 34
    READER_QUEUE = 35


REQUESTS = (Code.PRODUCE, Code.FETCH, Code.DELETE_RECORDS, Code.CREATE_TOPICS, Code.LIST_OFFSETS)
# Events with greater codes are changes: they have a key instead of request parts.
LAST_WITH_PARTS = Code.REMOTE_LOOKUP
# Names in the contract.
KINDS = {code: code.name.lower() for code in (*REQUESTS, Code.REMOTE_FETCH)}
REMOTE_EVENTS = (Code.REMOTE_READ, Code.REMOTE_LOOKUP, Code.REMOTE_QUOTA, Code.READER_QUEUE)
CHANGES = {code.name.lower(): code for code in Code if Code.LOG_END <= code <= Code.NONE}

PURGATORIES = {
    Code.PRODUCE: "Produce",
    Code.FETCH: "Fetch",
    Code.DELETE_RECORDS: "DeleteRecords",
    Code.CREATE_TOPICS: "topic",
    Code.LIST_OFFSETS: "RemoteListOffsets",
    Code.REMOTE_FETCH: "RemoteFetch",
    Code.HEARTBEAT: "Heartbeat",
    Code.REBALANCE: "Rebalance",
}


class Acks(Int64Enum):
    """When a produce is answered, which follows from its `acks`."""

    DELAYED = 0  # acks=all
    AT_ONCE = 1  # acks 0 or 1
    INVALID = 2  # any other acks
    ALL_IN_ERROR = 3  # acks=all, but no partition was appended to


class Reader(Int64Enum):
    """The kind of reader, which determines the end up to which a fetch may read."""

    FOLLOWER = 0
    CONSUMER = 1
    COMMITTED = 2  # a consumer with isolation.level=read_committed


class Error(Int64Enum):
    """The error of a partition in a response: Kafka's error codes, renumbered, and two codes that Kafka does not have.

    `UNANSWERED` means that there is no response, because the broker stopped. `RECORDED` is any other error; its name is
    in the trace.
    """

    NONE = 0
    NOT_LEADER_OR_FOLLOWER = 1
    KAFKA_STORAGE_ERROR = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 4
    REQUEST_TIMED_OUT = 5
    FENCED_LEADER_EPOCH = 6
    UNKNOWN_LEADER_EPOCH = 7
    OFFSET_OUT_OF_RANGE = 8
    INVALID_REQUIRED_ACKS = 9
    UNANSWERED = 10
    OFFSET_MOVED_TO_TIERED_STORAGE = 11
    UNKNOWN_SERVER_ERROR = 12
    RECORDED = 99


class Rule(Int64Enum):
    """The rule that ended an operation. Its name in lower case is the value of `completed_by` in the tables."""

    TIMEOUT = 0
    PENDING = 0  # the operation is open
    MIN_BYTES = 1
    NOT_LEADER = 2
    UNKNOWN_PARTITION = 3
    OFFLINE = 4
    FENCED_EPOCH = 5
    UNKNOWN_EPOCH = 6
    OFFSET_OUT_OF_RANGE = 7
    TRUNCATED = 8
    OLDER_SEGMENT = 9
    NO_PARTITIONS = 10
    HIGH_WATERMARK = 11
    NOT_ENOUGH_REPLICAS = 12
    ACKS = 13
    INVALID_ACKS = 14
    APPEND_ERROR = 15
    EMPTY = 16
    LOW_WATERMARK = 17
    LEADERS = 18
    NO_WAIT = 19
    PREFERRED_REPLICA = 20
    BROKER_STOPPED = 21
    TIERED_OFFSET = 22
    REMOTE_READS = 23
    NO_LOOKUP = 24
    REMOTE_LOOKUP = 25


UNKNOWN = -1
FOREVER = 2**62

# Not in any real key: `ANY_BROKER` for topics, which all brokers know from the metadata, `NO_PARTITION` for topics and
# for a broker's requests without partitions.
ANY_BROKER = "*"
NO_PARTITION = -1


def key_of(broker: int | str, topic: str, partition: int) -> str:
    """Return the name of a key, `broker/partition/topic`."""
    return f"{broker}/{partition}/{topic}"


def key_parts(key: str) -> tuple[str, int, str]:
    """Split the name of a key into broker, topic and partition."""
    broker, partition, topic = key.split("/", 2)
    return broker, int(partition), topic
