"""A produce taken apart: the operation, and an append for each of its partitions that was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from purgatory_udf.sources.request_log.assumptions import TXN_JOIN_TO_APPEND_US, Report
from purgatory_udf.sources.request_log.cluster.cluster_context import Context
from purgatory_udf.sources.request_log.cluster.internal_topics import OFFSETS_TOPIC
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import (
    ProducedPartition,
    decode_produce,
    partition_keys,
    topic_of,
)
from purgatory_udf.sources.request_log.requests.partition_facts import Append, Fact, Key, PartitionError
from purgatory_udf.sources.request_log.requests.recorded_operation import (
    AT_ONCE,
    LoggedOperation,
    append_times,
    first_slot,
    logged_operation,
    recorded_markers,
    recorded_produce,
)

ACKS_ALL = -1


def convert_produce(
    request: Request, context: Context, report: Report
) -> tuple[LoggedOperation, list[tuple[Key, Fact]]]:
    produced = decode_produce(request.body, request.answer)
    at, check = append_times(request.start_us, request.local_us, produced.acks)
    report.count("acks_zero_errors", int(not produced.answered))
    late = any(partition.error == errors.REQUEST_TIMED_OUT for partition in produced.partitions)
    in_time = produced.acks == ACKS_ALL and request.remote_us > 0 and not late
    appends: list[tuple[Key, Append]] = []
    troubles: list[tuple[Key, Fact]] = []
    for slot, partition in enumerate(produced.partitions):
        key = (context.name(partition.topic), partition.partition)
        if not _was_appended(partition, produced.answered):
            troubles.append((key, PartitionError(check, partition.error)))
            continue
        append = Append(request.start_us, at, check, check, base=partition.base, bytes=partition.bytes)
        append.file, append.line, append.slot = *request.place, slot
        append.answered_us = request.answered_us if in_time else -1
        if produced.transactional_id:
            report.count("transactional")
            append.transaction = produced.transactional_id
            joined = context.transactions.joined_us(append.transaction, key, request.start_us, request.answered_us)
            if joined is not None:
                append.at_us = append.check_us = joined + TXN_JOIN_TO_APPEND_US
                # The coordinator's answer waits for a thread: under load for longer, but no longer than the produce's.
                append.until_us = max(append.at_us, request.answered_us)
        appends.append((key, append))
    # A transaction's produce is tried first when the last of its partitions has joined and been appended.
    event_us = max([check, *(append.check_us for _, append in appends)])
    if not appends:
        # It may have waited for the coordinator of its transaction, in no purgatory: this is when it was refused.
        event_us = max(event_us, request.answered_us)
    for _, append in appends:
        append.event_us = event_us
    if late:
        expired_us = max(request.answered_us, event_us + max(0, produced.timeout_ms) * 1000)
        troubles += [
            ((context.name(partition.topic), partition.partition), PartitionError(expired_us, partition.error))
            for partition in produced.partitions
            if partition.error == errors.REQUEST_TIMED_OUT
        ]
    event = {
        "time_us": event_us,
        "type": "produce",
        "acks": produced.acks,
        "timeout_ms": max(0, produced.timeout_ms),
        "partitions": [_partition_fields(partition, context, produced.answered) for partition in produced.partitions],
    }
    recorded = recorded_produce(request, produced)
    if not appends:
        recorded.outcome = AT_ONCE
    if request.remote_us:
        # The wait counts from the first try, as the replay's does.
        recorded.remote_ms = max(0, request.answered_us - event_us) / 1000
    return logged_operation(request, event, recorded), [*appends, *troubles]


def _was_appended(part: ProducedPartition, answered: bool) -> bool:
    """What failed after the append (timed out, lost its leader) has an offset all the same."""
    return part.base >= 0 or not answered


def _partition_fields(part: ProducedPartition, context: Context, answered: bool) -> dict[str, object]:
    appended = _was_appended(part, answered)
    base = max(0, part.base)
    return {
        "topic": context.name(part.topic),
        "partition": part.partition,
        "base_offset": base,
        "last_offset": base - 1,
        "bytes": part.bytes,
        "error": "NONE" if appended else errors.name_of(part.error),
    }


# The ends of transactions, as their coordinator has them written: a WRITE_TXN_MARKERS request taken apart.
#
# Each of its markers, of one transaction, is a produce with acks -1 of one control record to each of the transaction's
# partitions there, which waits for all of them (Kafka: `KafkaApis.handleWriteTxnMarkersRequest`, one
# `ReplicaManager.appendRecords` a marker, with the broker's `request.timeout.ms`); the request is answered after the
# last of these. Where the group coordinator writes without a purgatory, it writes the markers of its offsets so, too.
#
# The answer names no offsets. They are found as those of any append that no PRODUCE line shows, and filled in.


WRITE_TXN_MARKERS = "WRITE_TXN_MARKERS"
# `request.timeout.ms` of a broker, unless it is set.
REQUEST_TIMEOUT_MS = 30_000
# A batch of one end marker: 61 bytes of header, 17 of record.
MARKER_BYTES = 78
# What is answered so has been appended all the same.
_APPENDED_CODES = (errors.NONE, errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def convert_markers(
    request: Request, context: Context, report: Report
) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    markers = request.body.get("markers") or []
    operations: list[LoggedOperation] = []
    facts: list[tuple[Key, Fact]] = []
    for sub, marker in enumerate(markers):
        codes = dict(_marker_error_codes(request.answer, int(marker["producerId"])))
        produce, its_facts = _convert_marker(request, marker, codes, sub, context)
        facts += its_facts
        if produce["partitions"]:
            report.count("transaction_markers")
            recorded = recorded_markers(request, codes.values(), alone=len(markers) == 1)
            operations.append(logged_operation(request, produce, recorded, sub))
    return operations, facts


def _convert_marker(
    request: Request, marker: dict[str, Any], codes: dict[Key, int], sub: int, context: Context
) -> tuple[dict[str, Any], list[tuple[Key, Append]]]:
    at, check = append_times(request.start_us, request.local_us, -1)
    ended = context.transactions.transaction_of(int(marker["producerId"]))
    partitions: list[dict[str, object]] = []
    facts: list[tuple[Key, Append]] = []
    for topic, partition in partition_keys(marker.get("topics"), "partitionIndexes", "partitions"):
        key, code = (context.name(topic), partition), codes.get((topic, partition), errors.NONE)
        appended = code in _APPENDED_CODES
        append = Append(request.start_us, at, check, request.local_us, records=1, ends_transaction=ended)
        append.bytes = MARKER_BYTES
        if key[0] != OFFSETS_TOPIC or context.has_classic_coordinator(request.broker):
            append.writer_file, append.writer_line = request.place
            append.slot = first_slot(sub) + len(partitions)
            error = "NONE" if appended else errors.name_of(code)
            written = {"topic": key[0], "partition": partition, "bytes": MARKER_BYTES, "error": error}
            partitions.append({**written, "base_offset": 0, "last_offset": -1})
        if appended:
            facts.append((key, append))
    event = {
        "time_us": check,
        "type": "produce",
        "acks": -1,
        "timeout_ms": REQUEST_TIMEOUT_MS,
        "partitions": partitions,
    }
    return event, facts


def _marker_error_codes(answer: dict[str, Any] | None, producer: int) -> Iterator[tuple[Key, int]]:
    """How it went, partition by partition."""
    for marker in (answer or {}).get("markers") or []:
        if int(marker["producerId"]) == producer:
            for topic in marker.get("topics") or []:
                for partition in topic.get("partitions") or []:
                    yield (
                        (topic_of(topic), int(partition["partitionIndex"])),
                        int(partition.get("errorCode", errors.NONE)),
                    )
