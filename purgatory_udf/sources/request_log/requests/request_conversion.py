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
    partition_for,
    writes,
)
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.lines.log_line import MALFORMED, BadLine, malformed
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    is_metadata_fetch,
    topic_of,
)
from purgatory_udf.sources.request_log.requests.fetch_conversion import SessionReader
from purgatory_udf.sources.request_log.requests.group_conversion import GROUP_APIS, MODERN, group_operations
from purgatory_udf.sources.request_log.requests.partition_facts import Append, Fact, Key, Trim
from purgatory_udf.sources.request_log.requests.produce_conversion import MARKERS, read_markers, read_produce
from purgatory_udf.sources.request_log.requests.recorded_operation import (
    LoggedOperation,
    append_and_check,
    operation,
    recorded_creation,
    recorded_delete_records,
)

# Topics that a ZooKeeper controller creates, or grows: whoever asks waits in its purgatory `topic`.
#
# Kafka up to 3.9: `ZkAdminManager.createTopics` and `.createPartitions` park a DelayedCreatePartitions until the
# broker's metadata name a leader of each partition of each topic without an error. A KRaft broker passes the request
# on.


CREATIONS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS"})
# What a topic has been made in spite of.
_MADE = (errors.NONE, errors.REQUEST_TIMED_OUT)


def read_creation(request: Request, context: Context) -> LoggedOperation:
    body, answer = request.body, request.answer or {}
    answers = {str(topic["name"]): topic for topic in answer.get("topics") or answer.get("results") or []}
    codes = {name: int(topic.get("errorCode", 0)) for name, topic in answers.items()}
    made = [] if body.get("validateOnly") else body.get("topics") or []
    topics = [
        {"topic": name, "partitions": _partitions(asked, answers.get(name, {}), context)}
        for asked in made
        for name in [str(asked["name"])]
        if codes.get(name, errors.NONE) in _MADE
    ]
    event = {
        "time_us": request.local_us,
        "type": "create_topics",
        "timeout_ms": int(body.get("timeoutMs", body.get("timeout", 0))),
        "topics": topics,
    }
    return operation(request, event, recorded_creation(request, codes.values()))


def _partitions(asked: dict[str, Any], answered: dict[str, Any], context: Context) -> int:
    """How many the topic has then. Where neither side says, as many as anybody was seen to use."""
    said = (answered.get("numPartitions", -1), asked.get("count", asked.get("numPartitions", -1)))
    known = context.partition_counts.get(str(asked["name"]), 1)
    assigned = len(asked.get("assignments") or ())
    return next((int(number) for number in said if number and int(number) > 0), assigned or known)


# Which requests are the controller's business: they wait for the metadata quorum, in no purgatory of a broker.


LISTENER = "CONTROLLER"
# Raft clients call themselves so, whatever the listener's name.
RAFT_CLIENT = "raft-client-"
# Requests that only controllers answer, or that brokers pass on to them.
APIS = frozenset(
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
_OF_TOPICS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"})


def left_to(request: Request) -> str:
    """The cause under which a request is counted that is none of the purgatories that an import tells of."""
    if is_controllers(request):
        return "controller"
    return "topic_admin" if request.api in _OF_TOPICS else "no_purgatory"


def is_controllers(request: Request) -> bool:
    return (
        request.forwarded
        or request.listener == LISTENER
        or request.api in APIS
        or (request.client_id or "").startswith(RAFT_CLIENT)
        or (request.api == "FETCH" and _is_of_metadata(request))
    )


def _is_of_metadata(request: Request) -> bool:
    if request.fetch is None:
        return is_metadata_fetch(request.body)
    topics = {partition.topic for partition in request.fetch[0].partitions}
    return METADATA_TOPIC_ID in topics or METADATA_TOPIC in topics


# Requests that become events, or tell of appends. All others only count.
USED_APIS = frozenset({"PRODUCE", "DELETE_RECORDS", MARKERS, *CREATIONS, *GROUP_APIS, *COORDINATOR_APIS})


def take_apart(
    request: Request, context: Context, report: Report
) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    if is_controllers(request):
        report.count("controller")
        return [], []
    operations: list[LoggedOperation] = []
    facts: list[tuple[Key, Fact]] = []
    if request.api == "PRODUCE":
        produce, facts = read_produce(request, context, report)
        operations = [produce]
    elif request.api == "DELETE_RECORDS":
        deletion, facts = _delete_records(request, context)
        operations = [deletion]
    elif request.api in CREATIONS and context.zookeeper:
        operations = [read_creation(request, context)]
    elif request.api == MARKERS:
        operations, facts = read_markers(request, context, report)
    elif request.api in GROUP_APIS:
        if request.body.get("groupId") in context.modern_groups:
            report.count("modern_group")
        else:
            classic = context.is_classic(request.broker)
            operations = list(group_operations(request, context.name, report, classic))
    else:
        report.count("modern_group" if request.api in MODERN else left_to(request))
    if request.api in COORDINATOR_APIS:
        facts.extend(_coordinator_writes(request, context))
    return operations, facts


def _delete_records(request: Request, context: Context) -> tuple[LoggedOperation, list[tuple[Key, Fact]]]:
    partitions: list[dict[str, object]] = []
    facts: list[tuple[Key, Fact]] = []
    for topic in request.body.get("topics") or []:
        name = context.name(topic_of(topic))
        for trim in topic["partitions"]:
            partition, offset = int(trim["partitionIndex"]), int(trim["offset"])
            partitions.append({"topic": name, "partition": partition, "offset": offset})
            facts.append(((name, partition), Trim(request.start_us, offset)))
    event = {
        "time_us": request.local_us,
        "type": "delete_records",
        "timeout_ms": max(0, int(request.body["timeoutMs"])),
        "partitions": partitions,
    }
    return operation(request, event, recorded_delete_records(request)), facts


def _coordinator_writes(request: Request, context: Context) -> Iterator[tuple[Key, Fact]]:
    at, check = append_and_check(request.start_us, request.local_us, -1)
    for topic, name, records in writes(request):
        partitions = context.partition_counts.get(topic, DEFAULT_PARTITIONS[topic])
        append = Append(request.start_us, at, check, request.local_us, records=records, client=request.client_id)
        append.writer_file, append.writer_line = request.place
        if topic == TRANSACTIONS_TOPIC:
            append.waits_ms = context.transactions.timeouts_ms.get(name, TRANSACTION_TIMEOUT_MS)
        yield (topic, partition_for(name, partitions)), append


# Every request of a log taken apart, in whatever portions: sessions one by one, all other requests each by itself.


class Parts(NamedTuple):
    """What one request came to."""

    broker: int
    operations: list[LoggedOperation]
    facts: list[tuple[Key, Fact]]
    bad: BadLine | None = None


def parts_of(requests: Iterable[Request], context: Context, report: Report) -> Iterator[Parts]:
    """Of requests other than fetches, in any order."""
    for request in requests:
        try:
            operations, facts = take_apart(request, context, report)
        except MALFORMED as error:
            yield Parts(request.broker, [], [], malformed(request, error))
        else:
            yield Parts(request.broker, operations, facts)


def parts_of_sessions(fetches: Iterable[tuple[str, Request]], context: Context, report: Report) -> Iterator[Parts]:
    """Of (session, fetch), together by broker and session, each session's in the order of handling."""
    for (broker, _), session in groupby(fetches, key=lambda fetch: (fetch[1].broker, fetch[0])):
        reader = SessionReader(context, report)
        for _, request in session:
            try:
                operation, facts = reader.read(request)
            except MALFORMED as error:
                yield Parts(broker, [], [], malformed(request, error))
            else:
                yield Parts(broker, [operation] if operation else [], facts)
                yield from copies_of(reader)
        yield Parts(broker, [], reader.finish())


def copies_of(reader: SessionReader) -> Iterator[Parts]:
    """What the reader has found out about the follower's own broker."""
    for broker, fact in reader.copied():
        yield Parts(broker, [], [fact])
