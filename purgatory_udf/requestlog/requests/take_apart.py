"""Any request but a fetch, taken apart: operations, and facts for the partitions it touched. Requests stand alone."""

from __future__ import annotations

from collections.abc import Iterator

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.cluster.coordinators import (
    COORDINATOR_APIS,
    DEFAULT_PARTITIONS,
    TRANSACTIONS_TOPIC,
    partition_for,
    writes,
)
from purgatory_udf.requestlog.cluster.writing import TRANSACTION_TIMEOUT_MS
from purgatory_udf.requestlog.lines.bodies import topic_of
from purgatory_udf.requestlog.lines.controller import is_controllers, left_to
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.creations import CREATIONS, read_creation
from purgatory_udf.requestlog.requests.facts import Append, Fact, Key, Trim
from purgatory_udf.requestlog.requests.groups import GROUP_APIS, MODERN, group_operations
from purgatory_udf.requestlog.requests.handling import append_and_check
from purgatory_udf.requestlog.requests.markers import MARKERS, read_markers
from purgatory_udf.requestlog.requests.operation import LoggedOperation, operation
from purgatory_udf.requestlog.requests.produces import read_produce
from purgatory_udf.requestlog.requests.recorded import recorded_delete_records

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
