"""Any request but a fetch, taken apart: operations, and facts for the partitions it touched. Requests stand alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster.cluster_context import Context
from purgatory_udf.sources.request_log.cluster.internal_topics import (
    COORDINATOR_APIS,
    DEFAULT_PARTITIONS,
    TRANSACTION_TIMEOUT_MS,
    TRANSACTIONS_TOPIC,
    coordinator_appends,
    partition_for,
)
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.lines.log_line import MALFORMED, BadLine, malformed_line
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    is_metadata_fetch,
    topic_of,
)
from purgatory_udf.sources.request_log.requests.fetch_conversion import SessionConverter
from purgatory_udf.sources.request_log.requests.group_conversion import (
    GROUP_APIS,
    NON_CLASSIC_HEARTBEATS,
    group_operations,
)
from purgatory_udf.sources.request_log.requests.partition_facts import Append, Fact, Key, RecordDeletion
from purgatory_udf.sources.request_log.requests.produce_conversion import (
    WRITE_TXN_MARKERS,
    convert_markers,
    convert_produce,
)
from purgatory_udf.sources.request_log.requests.recorded_operation import (
    LoggedOperation,
    append_times,
    logged_operation,
    recorded_creation,
    recorded_delete_records,
)

# Topics that a ZooKeeper controller creates, or grows: whoever asks waits in its purgatory `topic`.
#
# Kafka up to 3.9: `ZkAdminManager.createTopics` and `.createPartitions` park a DelayedCreatePartitions until the
# broker's metadata name a leader of each partition of each topic without an error. A KRaft broker passes the request
# on.


TOPIC_CREATION_APIS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS"})
# What a topic has been made in spite of.
_CREATED_CODES = (errors.NONE, errors.REQUEST_TIMED_OUT)


def convert_topic_creation(request: Request, context: Context) -> LoggedOperation:
    body, answer = request.body, request.answer or {}
    answers = {str(topic["name"]): topic for topic in answer.get("topics") or answer.get("results") or []}
    codes = {name: int(topic.get("errorCode", 0)) for name, topic in answers.items()}
    made = [] if body.get("validateOnly") else body.get("topics") or []
    topics = [
        {"topic": name, "partitions": _partition_count(asked, answers.get(name, {}), context)}
        for asked in made
        for name in [str(asked["name"])]
        if codes.get(name, errors.NONE) in _CREATED_CODES
    ]
    event = {
        "time_us": request.local_us,
        "type": "create_topics",
        "timeout_ms": int(body.get("timeoutMs", body.get("timeout", 0))),
        "topics": topics,
    }
    return logged_operation(request, event, recorded_creation(request, codes.values()))


def _partition_count(asked: dict[str, Any], answered: dict[str, Any], context: Context) -> int:
    """How many the topic has then. Where neither side says, as many as anybody was seen to use."""
    said = (answered.get("numPartitions", -1), asked.get("count", asked.get("numPartitions", -1)))
    known = context.partition_counts.get(str(asked["name"]), 1)
    assigned = len(asked.get("assignments") or ())
    return next((int(number) for number in said if number and int(number) > 0), assigned or known)


# Which requests are the controller's business: they wait for the metadata quorum, in no purgatory of a broker.


CONTROLLER_LISTENER = "CONTROLLER"
# Raft clients call themselves so, whatever the listener's name.
RAFT_CLIENT_PREFIX = "raft-client-"
# Requests that only controllers answer, or that brokers pass on to them.
CONTROLLER_APIS = frozenset(
    {
        "VOTE",
        "BEGIN_QUORUM_EPOCH",
        "END_QUORUM_EPOCH",
        "DESCRIBE_QUORUM",
        "FETCH_SNAPSHOT",
        "BROKER_REGISTRATION",
        "BROKER_HEARTBEAT",
        "CONTROLLER_REGISTRATION",
        "ALTER_PARTITION",
        "ALLOCATE_PRODUCER_IDS",
        "UPDATE_RAFT_VOTER",
        "ENVELOPE",
        "ASSIGN_REPLICAS_TO_DIRS",
    }
)
# What a ZooKeeper controller parks in the purgatory `topic`, and a KRaft broker passes on.
_TOPIC_ADMIN_APIS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"})


def skip_cause(request: Request) -> str:
    """The cause under which a request is counted that is none of the purgatories that an import tells of."""
    if is_controller_request(request):
        return "controller"
    return "topic_admin" if request.api in _TOPIC_ADMIN_APIS else "no_purgatory"


def is_controller_request(request: Request) -> bool:
    return (
        request.forwarded
        or request.listener == CONTROLLER_LISTENER
        or request.api in CONTROLLER_APIS
        or (request.client_id or "").startswith(RAFT_CLIENT_PREFIX)
        or (request.api == "FETCH" and _fetches_metadata_log(request))
    )


def _fetches_metadata_log(request: Request) -> bool:
    if request.fetch is None:
        return is_metadata_fetch(request.body)
    topics = {partition.topic for partition in request.fetch[0].partitions}
    return METADATA_TOPIC_ID in topics or METADATA_TOPIC in topics


# Requests that become events, or tell of appends. All others only count.
CONVERTED_APIS = frozenset(
    {"PRODUCE", "DELETE_RECORDS", WRITE_TXN_MARKERS, *TOPIC_CREATION_APIS, *GROUP_APIS, *COORDINATOR_APIS}
)


def convert_request(
    request: Request, context: Context, report: Report
) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    if is_controller_request(request):
        report.count("controller")
        return [], []
    operations: list[LoggedOperation] = []
    facts: list[tuple[Key, Fact]] = []
    if request.api == "PRODUCE":
        produce, facts = convert_produce(request, context, report)
        operations = [produce]
    elif request.api == "DELETE_RECORDS":
        deletion, facts = _convert_delete_records(request, context)
        operations = [deletion]
    elif request.api in TOPIC_CREATION_APIS and context.zookeeper:
        operations = [convert_topic_creation(request, context)]
    elif request.api == WRITE_TXN_MARKERS:
        operations, facts = convert_markers(request, context, report)
    elif request.api in GROUP_APIS:
        if request.body.get("groupId") in context.modern_groups:
            report.count("modern_group")
        else:
            classic = context.has_classic_coordinator(request.broker)
            operations = list(group_operations(request, context.name, report, classic))
    else:
        report.count("modern_group" if request.api in NON_CLASSIC_HEARTBEATS else skip_cause(request))
    if request.api in COORDINATOR_APIS:
        facts.extend(_coordinator_append_facts(request, context))
    return operations, facts


def _convert_delete_records(request: Request, context: Context) -> tuple[LoggedOperation, list[tuple[Key, Fact]]]:
    partitions: list[dict[str, object]] = []
    facts: list[tuple[Key, Fact]] = []
    for topic in request.body.get("topics") or []:
        name = context.name(topic_of(topic))
        for trim in topic["partitions"]:
            partition, offset = int(trim["partitionIndex"]), int(trim["offset"])
            partitions.append({"topic": name, "partition": partition, "offset": offset})
            facts.append(((name, partition), RecordDeletion(request.start_us, offset)))
    event = {
        "time_us": request.local_us,
        "type": "delete_records",
        "timeout_ms": max(0, int(request.body["timeoutMs"])),
        "partitions": partitions,
    }
    return logged_operation(request, event, recorded_delete_records(request)), facts


def _coordinator_append_facts(request: Request, context: Context) -> Iterator[tuple[Key, Fact]]:
    at, check = append_times(request.start_us, request.local_us, -1)
    for topic, name, records in coordinator_appends(request):
        partitions = context.partition_counts.get(topic, DEFAULT_PARTITIONS[topic])
        append = Append(request.start_us, at, check, request.local_us, records=records, client=request.client_id)
        append.writer_file, append.writer_line = request.place
        if topic == TRANSACTIONS_TOPIC:
            append.wait_ms = context.transactions.timeouts_ms.get(name, TRANSACTION_TIMEOUT_MS)
        yield (topic, partition_for(name, partitions)), append


# Every request of a log taken apart, in whatever portions: sessions one by one, all other requests each by itself.


class ConvertedRequest(NamedTuple):
    """What one request came to."""

    broker: int
    operations: list[LoggedOperation]
    facts: list[tuple[Key, Fact]]
    bad: BadLine | None = None


def convert_requests(requests: Iterable[Request], context: Context, report: Report) -> Iterator[ConvertedRequest]:
    """Of requests other than fetches, in any order."""
    for request in requests:
        try:
            operations, facts = convert_request(request, context, report)
        except MALFORMED as error:
            yield ConvertedRequest(request.broker, [], [], malformed_line(request, error))
        else:
            yield ConvertedRequest(request.broker, operations, facts)


def convert_sessions(
    fetches: Iterable[tuple[str, Request]], context: Context, report: Report
) -> Iterator[ConvertedRequest]:
    """Of (session, fetch), together by broker and session, each session's in the order of handling."""
    for (broker, _), session in groupby(fetches, key=lambda fetch: (fetch[1].broker, fetch[0])):
        reader = SessionConverter(context, report)
        for _, request in session:
            try:
                operation, facts = reader.convert(request)
            except MALFORMED as error:
                yield ConvertedRequest(broker, [], [], malformed_line(request, error))
            else:
                yield ConvertedRequest(broker, [operation] if operation else [], facts)
                yield from follower_facts(reader)
        yield ConvertedRequest(broker, [], reader.finish())


def follower_facts(reader: SessionConverter) -> Iterator[ConvertedRequest]:
    """What the reader has found out about the follower's own broker."""
    for broker, fact in reader.take_follower_copies():
        yield ConvertedRequest(broker, [], [fact])
