"""Conversion of the requests of a log into operations and facts: fetches by session, all others one by one.

Requests to the controller wait for the metadata quorum and not in a purgatory of a broker, so they are only counted.
With ZooKeeper (up to Kafka 3.9) there is one exception: requests that create topics or add partitions wait in the
controller's purgatory `topic`, until its metadata have a leader without an error for each partition
(`ZkAdminManager.createTopics` and `.createPartitions`, DelayedCreatePartitions). A KRaft broker forwards these
requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.cluster_facts import TOPIC_CREATION_APIS
from purgatory_udf.sources.request_log.fact_kinds import Append, Fact, Key, LocalStart, RecordDeletion, RemoteLookup
from purgatory_udf.sources.request_log.fetch_conversion import READ_COMMITTED
from purgatory_udf.sources.request_log.group_conversion import (
    GROUP_APIS,
    LEFT_OUT_HEARTBEATS,
    coordinator_answers,
    group_operations,
)
from purgatory_udf.sources.request_log.internal_topics import (
    COORDINATOR_APIS,
    DEFAULT_PARTITIONS,
    OFFSETS_TOPIC,
    TRANSACTION_TIMEOUT_MS,
    TRANSACTIONS_TOPIC,
    coordinator_appends,
    partition_for,
)
from purgatory_udf.sources.request_log.kafka_protocol import (
    is_metadata_fetch,
    topic_of,
)
from purgatory_udf.sources.request_log.logged_request import (
    MALFORMED,
    BadLine,
    LoggedOperation,
    Request,
    append_times,
    logged_operation,
    malformed_line,
    recorded_creation,
    recorded_delete_records,
    recorded_list_offsets,
)
from purgatory_udf.sources.request_log.produce_conversion import (
    WRITE_TXN_MARKERS,
    convert_markers,
    convert_produce,
)
from purgatory_udf.sources.request_log.share_conversion import ShareGroupConverter

# Errors of topics that were created nevertheless.
_CREATED_CODES = (errors.NONE, errors.REQUEST_TIMED_OUT)

LIST_OFFSETS = "LIST_OFFSETS"
# The special timestamp for the start of the local log (Kafka: `ListOffsetsRequest.EARLIEST_LOCAL_TIMESTAMP`).
EARLIEST_LOCAL = -4

CONTROLLER_LISTENER = "CONTROLLER"
# Prefix of the client ids of Raft clients, which do not depend on the listener's name.
RAFT_CLIENT_PREFIX = "raft-client-"
# APIs that only controllers handle, or that brokers forward to them.
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
# APIs of requests that a ZooKeeper controller parks in purgatories, and a KRaft broker forwards to the controller.
_TOPIC_ADMIN_APIS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"})

# APIs, in addition to FETCH, of requests that become events or facts. All others are only counted.
CONVERTED_APIS = frozenset(
    {"PRODUCE", "DELETE_RECORDS", LIST_OFFSETS, WRITE_TXN_MARKERS, *TOPIC_CREATION_APIS, *GROUP_APIS, *COORDINATOR_APIS}
)


def convert_topic_creation(request: Request, context: Context) -> LoggedOperation:
    """Convert a CREATE_TOPICS or CREATE_PARTITIONS request to a ZooKeeper controller into its operation."""
    body, answer = request.body, request.answer or {}
    answers = {str(topic["name"]): topic for topic in answer.get("topics") or answer.get("results") or []}
    codes = {name: int(topic.get("errorCode", 0)) for name, topic in answers.items()}
    created = [] if body.get("validateOnly") else body.get("topics") or []
    topics = [
        {"topic": name, "partitions": _partition_count(requested, answers.get(name, {}), context)}
        for requested in created
        for name in [str(requested["name"])]
        if codes.get(name, errors.NONE) in _CREATED_CODES
    ]
    event = {
        "time_us": request.local_us,
        "type": "create_topics",
        "timeout_ms": int(body.get("timeoutMs", body.get("timeout", 0))),
        "topics": topics,
    }
    return logged_operation(request, event, recorded_creation(request, codes.values()))


def _partition_count(requested: dict[str, Any], response: dict[str, Any], context: Context) -> int:
    """Return the topic's partition count: from the response, the request, or else from other requests of the log."""
    counts = (response.get("numPartitions", -1), requested.get("count", requested.get("numPartitions", -1)))
    known = context.partition_counts.get(str(requested["name"]), 1)
    assigned = len(requested.get("assignments") or ())
    return next((int(number) for number in counts if number and int(number) > 0), assigned or known)


def skip_cause(request: Request) -> str:
    """Return the cause by which a request without an event is counted."""
    if is_controller_request(request):
        return "controller"
    return "topic_admin" if request.api in _TOPIC_ADMIN_APIS else "no_purgatory"


def is_controller_request(request: Request) -> bool:
    """Return whether a request is to the controller, or was forwarded to it."""
    return (
        is_sent_to_controller(request.forwarded, request.listener, request.client_id)
        or request.api in CONTROLLER_APIS
        or (request.api == "FETCH" and is_metadata_fetch(request.body))
    )


def is_sent_to_controller(forwarded: bool, listener: str, client_id: str | None) -> bool:
    """Return whether the controller got a request, by its listener or its client."""
    return forwarded or listener == CONTROLLER_LISTENER or (client_id or "").startswith(RAFT_CLIENT_PREFIX)


def convert_request(
    request: Request, context: Context, report: Report
) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    """Convert any request but a fetch into operations and facts. Raises one of `logged_request.MALFORMED`."""
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
    elif request.api == LIST_OFFSETS:
        operations, facts = _convert_list_offsets(request, context)
        report.count("no_purgatory", int(not operations))
    elif request.api == WRITE_TXN_MARKERS:
        operations, facts = convert_markers(request, context, report)
    elif request.api in GROUP_APIS:
        if request.body.get("groupId") in context.modern_groups:
            report.count("modern_group")
        else:
            operations = list(group_operations(request, context, report))
    else:
        report.count("modern_group" if request.api in LEFT_OUT_HEARTBEATS else skip_cause(request))
    if request.api in GROUP_APIS:
        facts.extend(_coordinator_answer_facts(request, context))
    if request.api in COORDINATOR_APIS:
        facts.extend(_coordinator_append_facts(request, context))
    return operations, facts


def _convert_delete_records(request: Request, context: Context) -> tuple[LoggedOperation, list[tuple[Key, Fact]]]:
    """Convert a DELETE_RECORDS request into its operation and facts."""
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


def _coordinator_answer_facts(request: Request, context: Context) -> Iterator[tuple[Key, Fact]]:
    """Yield the facts that the response shows about the coordinator of the group's partition of the offsets topic."""
    key = OFFSETS_TOPIC, context.group_partition(str(request.body["groupId"]))
    for answer in coordinator_answers(request, context.has_classic_coordinator(request.broker)):
        yield key, answer


def looks_up(body: dict[str, Any]) -> bool:
    """Return whether a LIST_OFFSETS request is converted: it may require a lookup, or shows the local log start.

    A lookup is possible if a timestamp is a real one, not a special value.
    """
    return bool(looked_up_topics(body)) or any(timestamp == EARLIEST_LOCAL for _, _, timestamp in _timestamps(body))


def looked_up_topics(body: dict[str, Any]) -> tuple[str, ...]:
    """Return the topics of which a LIST_OFFSETS request has real timestamps."""
    return tuple(sorted({topic for topic, _, timestamp in _timestamps(body) if timestamp >= 0}))


def _timestamps(body: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, partition, timestamp) for each partition of a LIST_OFFSETS request."""
    for topic in body.get("topics") or []:
        for partition in topic["partitions"]:
            yield topic_of(topic), int(partition["partitionIndex"]), int(partition["timestamp"])


def _convert_list_offsets(request: Request, context: Context) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    """Convert a LIST_OFFSETS request into facts and, if lookups make it wait, its operation.

    The lookups of a request that was answered in time are assumed to have ended with its response. If a partition timed
    out, the lookups of the others are assumed to have ended halfway through the wait.
    """
    answers = {
        (topic_of(topic), int(partition["partitionIndex"])): partition
        for topic in (request.answer or {}).get("topics") or []
        for partition in topic["partitions"]
    }
    timed_out = any(answer.get("errorCode") == errors.REQUEST_TIMED_OUT for answer in answers.values())
    ended_us = request.answered_us - (request.remote_us // 2 if timed_out else 0)
    partitions: list[dict[str, object]] = []
    facts: list[tuple[Key, Fact]] = []
    for topic, partition, timestamp in _timestamps(request.body):
        key, answer = (context.name(topic), partition), answers.get((topic, partition), {})
        code, offset = int(answer.get("errorCode", errors.NONE)), int(answer.get("offset", -1))
        partitions.append({"topic": key[0], "partition": partition, "timestamp": timestamp})
        if key[0] not in context.tiered:
            continue
        if timestamp == EARLIEST_LOCAL and code == errors.NONE and offset >= 0:
            facts.append((key, LocalStart(request.local_us, offset, True)))
        elif timestamp >= 0 and code != errors.REQUEST_TIMED_OUT and context.lookups_wait:
            # After the request itself, even if it was answered at once because the lookup could not begin.
            facts.append((key, RemoteLookup(max(ended_us, request.local_us + 1), code, offset, *request.place)))
    if not context.lookups_wait or not looked_up_topics(request.body):
        return [], facts
    event = {
        "time_us": request.local_us,
        "type": "list_offsets",
        "timeout_ms": int(request.body.get("timeoutMs", 0)),
        "isolation": "read_committed" if request.body.get("isolationLevel") == READ_COMMITTED else "read_uncommitted",
        "partitions": partitions,
    }
    return [logged_operation(request, event, recorded_list_offsets(request, answers.values()))], facts


def _coordinator_append_facts(request: Request, context: Context) -> Iterator[tuple[Key, Fact]]:
    """Yield appends that a coordinator may have made for the request. Followers or `--batches` confirm them later."""
    at, check = append_times(request.start_us, request.local_us, -1)
    for topic, name, records in coordinator_appends(request):
        partitions = context.partition_counts.get(topic, DEFAULT_PARTITIONS[topic])
        append = Append(request.start_us, at, check, request.local_us, records=records, client=request.client_id)
        append.writer_file, append.writer_line = request.place
        if topic == TRANSACTIONS_TOPIC:
            append.wait_ms = context.transactions.timeouts_ms.get(name, TRANSACTION_TIMEOUT_MS)
        yield (topic, partition_for(name, partitions)), append


class ConvertedRequest(NamedTuple):
    """Operations and facts of one request; `bad` is set if its body was malformed."""

    broker: int
    operations: list[LoggedOperation]
    facts: list[tuple[Key, Fact]]
    bad: BadLine | None = None


def convert_requests(requests: Iterable[Request], context: Context, report: Report) -> Iterator[ConvertedRequest]:
    """Convert requests other than fetches, in any order. A malformed request yields a bad line and raises no error."""
    for request in requests:
        try:
            operations, facts = convert_request(request, context, report)
        except MALFORMED as error:
            yield ConvertedRequest(request.broker, [], [], malformed_line(request, error))
        else:
            yield ConvertedRequest(request.broker, operations, facts)


def convert_share_groups(
    requests: Iterable[tuple[str, Request]], context: Context, report: Report
) -> Iterator[ConvertedRequest]:
    """Convert pairs of group key and request, which are grouped by share group and then in order of handling."""
    for _, pairs in groupby(requests, key=lambda pair: pair[0]):
        of_group = [request for _, request in pairs]
        converter = ShareGroupConverter(context, report)
        converter.look_ahead(of_group)
        for request in of_group:
            yield convert_share_request(converter, request)


def convert_share_request(converter: ShareGroupConverter, request: Request) -> ConvertedRequest:
    """Convert the next request of a share group; for a malformed request, `bad` of the result is set."""
    try:
        operations, facts = converter.convert(request)
    except MALFORMED as error:
        return ConvertedRequest(request.broker, [], [], malformed_line(request, error))
    return ConvertedRequest(request.broker, operations, facts)
