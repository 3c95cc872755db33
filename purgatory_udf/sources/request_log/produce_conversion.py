"""Conversion of produces and of transaction markers: operations, and an append for each partition that was written.

A transaction coordinator completes transactions with WRITE_TXN_MARKERS. Each marker in the request is for one
transaction, and is a produce with acks -1 of one control record to each of the transaction's partitions on the broker;
it waits for all partitions (`KafkaApis.handleWriteTxnMarkersRequest`: one `ReplicaManager.appendRecords` per marker,
with the broker's `request.timeout.ms`). The request is answered after the last of them. Where group coordinators append
without a purgatory, they do the same with markers in `__consumer_offsets`.

The response has no offsets. They are derived later, like those of any append without a PRODUCE line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import TXN_JOIN_TO_APPEND_US, Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.internal_topics import OFFSETS_TOPIC
from purgatory_udf.sources.request_log.kafka_protocol import (
    ProducedPartition,
    decode_produce,
    partition_keys,
    topic_of,
)
from purgatory_udf.sources.request_log.logged_request import (
    AT_ONCE,
    LoggedOperation,
    Request,
    append_times,
    first_slot,
    logged_operation,
    recorded_markers,
    recorded_produce,
)
from purgatory_udf.sources.request_log.partition_facts import Append, Fact, Key, PartitionError

ACKS_ALL = -1

WRITE_TXN_MARKERS = "WRITE_TXN_MARKERS"
# Default of a broker's `request.timeout.ms`.
REQUEST_TIMEOUT_MS = 30_000
# Size of a batch with one end marker: 61 bytes of header, 17 bytes of record.
MARKER_BYTES = 78
# Errors of partitions to which the marker was appended.
_APPENDED_CODES = (errors.NONE, errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def convert_produce(
    request: Request, context: Context, report: Report
) -> tuple[LoggedOperation, list[tuple[Key, Fact]]]:
    """Convert a PRODUCE request into its operation and facts. Raises one of `logged_request.MALFORMED`.

    Each fact comes with the name and number of its partition.
    """
    produced = request.produce or decode_produce(request.body, request.answer)
    at, check = append_times(request.start_us, request.local_us, produced.acks)
    if not produced.answered:
        report.count("acks_zero_errors")
    timed_out = errors.REQUEST_TIMED_OUT in [partition.error for partition in produced.partitions]
    in_time = produced.acks == ACKS_ALL and request.remote_us > 0 and not timed_out
    answered_us = request.answered_us if in_time else -1
    (file, line), transaction = request.place, produced.transactional_id or None
    # The produce of a transaction is first checked when the last of its partitions has been added and appended.
    event_us = check
    appends: list[tuple[Key, Append]] = []
    failures: list[tuple[Key, Fact]] = []
    for slot, partition in enumerate(produced.partitions):
        key = (context.name(partition.topic), partition.partition)
        if not _was_appended(partition, produced.answered):
            failures.append((key, PartitionError(check, partition.error)))
            continue
        append = Append(
            request.start_us,
            at,
            check,
            check,
            answered_us=answered_us,
            base=partition.base,
            bytes=partition.bytes,
            file=file,
            line=line,
            slot=slot,
            transaction=transaction,
        )
        if transaction:
            report.count("transactional")
            joined = context.transactions.joined_us(transaction, key, request.start_us, request.answered_us)
            if joined is not None:
                append.at_us = append.check_us = joined + TXN_JOIN_TO_APPEND_US
                # Under load the coordinator's response is handled later, but before the produce is answered.
                append.until_us = max(append.at_us, request.answered_us)
                event_us = max(event_us, append.check_us)
        appends.append((key, append))
    if not appends:
        # It may have waited for the transaction coordinator, in no purgatory, until that refused it.
        event_us = max(event_us, request.answered_us)
    for _, append in appends:
        append.event_us = event_us
    if timed_out:
        expired_us = max(request.answered_us, event_us + max(0, produced.timeout_ms) * 1000)
        failures += [
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
        # The wait is measured from the first check, as in the replay.
        recorded.remote_ms = max(0, request.answered_us - event_us) / 1000
    return logged_operation(request, event, recorded), [*appends, *failures]


def _was_appended(part: ProducedPartition, answered: bool) -> bool:
    """Return whether the records were appended. If the partition failed only afterwards, it still has an offset."""
    return part.base >= 0 or not answered


def _partition_fields(part: ProducedPartition, context: Context, answered: bool) -> dict[str, object]:
    """Return a partition in the form of the event. `last_offset` is set when the end of the append is known."""
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


def convert_markers(
    request: Request, context: Context, report: Report
) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    """Convert a WRITE_TXN_MARKERS request into an operation for each marker, and facts."""
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
    """Return the event of one marker, and its appends. If nothing waits for the marker, the event has no partitions."""
    at, check = append_times(request.start_us, request.local_us, -1)
    ended = context.transactions.transaction_of(int(marker["producerId"]))
    partitions: list[dict[str, object]] = []
    facts: list[tuple[Key, Append]] = []
    for topic, partition in partition_keys(marker.get("topics"), "partitionIndexes", "partitions"):
        key, code = (context.name(topic), partition), codes.get((topic, partition), errors.NONE)
        appended = code in _APPENDED_CODES
        append = Append(request.start_us, at, check, request.local_us, records=1, ends_transaction=ended)
        append.bytes, append.aborts = MARKER_BYTES, not marker.get("transactionResult", True)
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
    """Yield the error code of each partition in the response to a producer's marker."""
    for marker in (answer or {}).get("markers") or []:
        if int(marker["producerId"]) == producer:
            for topic in marker.get("topics") or []:
                for partition in topic.get("partitions") or []:
                    yield (
                        (topic_of(topic), int(partition["partitionIndex"])),
                        int(partition.get("errorCode", errors.NONE)),
                    )
