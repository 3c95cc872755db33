"""The ends of transactions, as their coordinator has them written: a WRITE_TXN_MARKERS request taken apart.

Each of its markers, of one transaction, is a produce with acks -1 of one control record to each of the transaction's
partitions there, which waits for all of them (Kafka: `KafkaApis.handleWriteTxnMarkersRequest`, one
`ReplicaManager.appendRecords` a marker, with the broker's `request.timeout.ms`); the request is answered after the last
of these. Where the group coordinator writes without a purgatory, it writes the markers of its offsets so, too.

The answer names no offsets. They are found as those of any append that no PRODUCE line shows, and filled in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.cluster.coordinators import OFFSETS_TOPIC
from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.lines.bodies import topic_of, topics_partitions
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import Append, Fact, Key
from purgatory_udf.requestlog.requests.handling import append_and_check
from purgatory_udf.requestlog.requests.operation import LoggedOperation, first_slot, operation
from purgatory_udf.requestlog.requests.recorded import recorded_markers

MARKERS = "WRITE_TXN_MARKERS"
# `request.timeout.ms` of a broker, unless it is set.
TIMEOUT_MS = 30_000
# A batch of one end marker: 61 bytes of header, 17 of record.
MARKER_BYTES = 78
# What is answered so has been appended all the same.
_APPENDED = (errors.NONE, errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def read_markers(
    request: Request, context: Context, report: Report
) -> tuple[list[LoggedOperation], list[tuple[Key, Fact]]]:
    markers = request.body.get("markers") or []
    operations: list[LoggedOperation] = []
    facts: list[tuple[Key, Fact]] = []
    for sub, marker in enumerate(markers):
        codes = dict(_codes(request.answer, int(marker["producerId"])))
        produce, its_facts = _read_marker(request, marker, codes, sub, context)
        facts += its_facts
        if produce["partitions"]:
            report.count("transaction_markers")
            recorded = recorded_markers(request, codes.values(), alone=len(markers) == 1)
            operations.append(operation(request, produce, recorded, sub))
    return operations, facts


def _read_marker(
    request: Request, marker: dict[str, Any], codes: dict[Key, int], sub: int, context: Context
) -> tuple[dict[str, Any], list[tuple[Key, Append]]]:
    at, check = append_and_check(request.start_us, request.local_us, -1)
    ended = context.transactions.name(int(marker["producerId"]))
    partitions: list[dict[str, object]] = []
    facts: list[tuple[Key, Append]] = []
    for topic, partition in topics_partitions(marker.get("topics"), "partitionIndexes", "partitions"):
        key, code = (context.name(topic), partition), codes.get((topic, partition), errors.NONE)
        appended = code in _APPENDED
        append = Append(request.start_us, at, check, request.local_us, records=1, ends_transaction=ended)
        append.bytes = MARKER_BYTES
        if key[0] != OFFSETS_TOPIC or context.is_classic(request.broker):
            append.writer_file, append.writer_line = request.place
            append.slot = first_slot(sub) + len(partitions)
            error = "NONE" if appended else errors.name_of(code)
            written = {"topic": key[0], "partition": partition, "bytes": MARKER_BYTES, "error": error}
            partitions.append({**written, "base_offset": 0, "last_offset": -1})
        if appended:
            facts.append((key, append))
    event = {"time_us": check, "type": "produce", "acks": -1, "timeout_ms": TIMEOUT_MS, "partitions": partitions}
    return event, facts


def _codes(answer: dict[str, Any] | None, producer: int) -> Iterator[tuple[Key, int]]:
    """How it went, partition by partition."""
    for marker in (answer or {}).get("markers") or []:
        if int(marker["producerId"]) == producer:
            for topic in marker.get("topics") or []:
                for partition in topic.get("partitions") or []:
                    yield (
                        (topic_of(topic), int(partition["partitionIndex"])),
                        int(partition.get("errorCode", errors.NONE)),
                    )
