"""Conversion of produces and of transaction markers: operations, and an append for each partition that was written.

A transaction coordinator completes transactions with WRITE_TXN_MARKERS. Each marker in the request is for one
transaction, and is a produce with acks -1 of one control record to each of the transaction's partitions on the broker;
it waits for all partitions (`KafkaApis.handleWriteTxnMarkersRequest`: one `ReplicaManager.appendRecords` per marker,
with the broker's `request.timeout.ms`). The request is answered after the last of them. Where group coordinators append
without a purgatory, they do the same with markers in `__consumer_offsets`.

The response has no offsets. They are derived later, like those of any append without a PRODUCE line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import (
    APPEND_FRACTION,
    APPEND_FRACTION_NO_WAIT,
    MAX_APPEND_US,
    RESPONSE_TO_CHECK_US,
    TXN_JOIN_TO_APPEND_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    Booleans,
    Fact,
    FactBlock,
    FactsOfPartitions,
    Integers,
    Key,
    PartitionError,
    fields_of,
)
from purgatory_udf.sources.request_log.internal_topics import OFFSETS_TOPIC
from purgatory_udf.sources.request_log.kafka_protocol import (
    ProduceColumns,
    ProducedPartition,
    decode_produce,
    partition_keys,
    topic_of,
)
from purgatory_udf.sources.request_log.logged_request import (
    AT_ONCE,
    COMPLETED,
    RECORDED_OUTCOME,
    ConvertedColumns,
    LoggedOperation,
    Request,
    append_times,
    either,
    first_slot,
    logged_operation,
    named_errors,
    recorded_markers,
    recorded_produce,
    structs_of,
)

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


# The fields of the event of a produce, in the order of its JSON. Numbers that the contract rejects fit as well.
PRODUCE = pa.struct(
    [
        ("time_us", pa.int64()),
        ("acks", pa.int64()),
        ("timeout_ms", pa.int64()),
        (
            "partitions",
            pa.list_(
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("partition", pa.int64()),
                        ("base_offset", pa.int64()),
                        ("last_offset", pa.int64()),
                        ("bytes", pa.int64()),
                        ("error", pa.string()),
                    ]
                )
            ),
        ),
        ("client_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class LoggedProduces:
    """Produces as columns. `bodies` are their bodies and responses; see `Request` for the other columns."""

    broker: Integers
    file: Integers
    line: Integers
    client_id: pa.Array
    start_us: Integers
    local_us: Integers
    remote_us: Integers
    answered_us: Integers
    written_us: Integers
    bodies: ProduceColumns

    def are_usual(self) -> Booleans:
        """Return which produces `convert_produces` converts; the others need `convert_produce`.

        A usual produce has no transactional id, and all of its partitions were appended in time.
        """
        bodies = self.bodies
        _, _, _, error, base = bodies.partitions.T
        lengths = np.diff(bodies.bounds)
        is_answered = np.repeat(bodies.limits[:, 2] == 1, lengths)
        has_failed = (is_answered & (base < 0)) | (error == errors.REQUEST_TIMED_OUT)
        failures = np.diff(np.append(0, np.cumsum(has_failed))[bodies.bounds])
        in_transaction = np.array([name is not None for name in bodies.transactions], bool)
        is_named = ~pc.equal(self.client_id, "").fill_null(False).to_numpy(zero_copy_only=False)
        return (failures == 0) & (lengths > 0) & ~in_transaction & is_named


def convert_produces(produces: LoggedProduces, context: Context, report: Report) -> ConvertedColumns:
    """Convert usual produces, with the same result as `convert_produce` for each of them."""
    bodies = produces.bodies
    acks, timeout_ms, answered = bodies.limits.T
    start, local = produces.start_us, produces.local_us
    handling, waits = local - start, acks == ACKS_ALL
    in_time = np.minimum(np.rint(handling * APPEND_FRACTION).astype(np.int64), MAX_APPEND_US)
    at = start + np.where(waits, in_time, np.rint(handling * APPEND_FRACTION_NO_WAIT).astype(np.int64))
    check = np.where(waits, local, local + RESPONSE_TO_CHECK_US)
    answered_us = np.where(waits & (produces.remote_us > 0), produces.answered_us, -1)
    report.count("acks_zero_errors", int(np.sum(answered == 0)))
    topic, partition, size, _, base = bodies.partitions.T
    of_produce = np.repeat(np.arange(len(acks)), np.diff(bodies.bounds))
    names = [context.name(name) for name in bodies.topics]
    of_append = {
        "start_us": start[of_produce],
        "at_us": at[of_produce],
        "check_us": check[of_produce],
        "until_us": check[of_produce],
        "event_us": check[of_produce],
        "answered_us": answered_us[of_produce],
        "base": base,
        "bytes": size,
        "file": produces.file[of_produce],
        "line": produces.line[of_produce],
        "slot": np.arange(len(of_produce)) - bodies.bounds[of_produce],
    }
    # Ids and names of the same topic become one name.
    known, numbers = np.unique(np.array(names, object), return_inverse=True)
    facts = _facts_of_appends(produces.broker[of_produce], known.tolist(), numbers[topic], partition, of_append)
    waited_us = np.where(produces.remote_us != 0, np.maximum(0, produces.answered_us - check), 0)
    columns = {"time_us": check, "broker": produces.broker, "file": produces.file, "line": produces.line}
    operations = {
        **{name: pa.array(column) for name, column in columns.items()},
        "produce": _events(produces, check, names),
        "recorded": _recorded(produces, waited_us),
    }
    return ConvertedColumns("produce", operations, timeout_ms, waited_us, np.zeros(len(acks), bool), facts)


def _recorded(produces: LoggedProduces, waited_us: Integers) -> pa.StructArray:
    """Return the recorded outcomes (RECORDED_OUTCOME), as `recorded_produce` for each produce."""
    bodies, count = produces.bodies, len(waited_us)
    acks, error = bodies.limits[:, 0], bodies.partitions[:, 3]
    of_produce = np.repeat(np.arange(count), np.diff(bodies.bounds))
    first_error = np.zeros(count, np.int64)
    for number in np.flatnonzero(error)[::-1].tolist():
        first_error[of_produce[number]] = error[number]
    columns = {
        "api": pa.repeat("PRODUCE", count),
        "kind": pc.binary_join_element_wise("produce acks=", pa.array(acks).cast(pa.string()), ""),
        "outcome": either(produces.remote_us != 0, COMPLETED, AT_ONCE),
        "remote_ms": waited_us / 1000,
        "local_ms": (produces.local_us - produces.start_us) / 1000,
        "written_us": produces.written_us,
        "error": named_errors(first_error),
        "bytes": pa.nulls(count),
        "timed_out": np.zeros(count, np.int64),
        "generation": pa.nulls(count),
        "complete": np.ones(count, bool),
    }
    return structs_of(columns, RECORDED_OUTCOME)


def _events(produces: LoggedProduces, time_us: Integers, names: Sequence[str]) -> pa.StructArray:
    """Return the events (PRODUCE); `names` are those of the topics in the bodies."""
    bodies = produces.bodies
    acks, timeout_ms, _ = bodies.limits.T
    topic, partition, size, _, base = bodies.partitions.T
    base_offset = np.maximum(0, base)
    partitions = {
        "topic": pa.array(names, pa.string()).take(pa.array(topic)),
        "partition": partition,
        "base_offset": base_offset,
        "last_offset": base_offset - 1,
        "bytes": size,
        "error": pa.repeat("NONE", len(base)),
    }
    lists = structs_of(partitions, PRODUCE.field("partitions").type.value_type)
    columns = {
        "time_us": time_us,
        "acks": acks,
        "timeout_ms": np.maximum(0, timeout_ms),
        "partitions": pa.ListArray.from_arrays(pa.array(bodies.bounds, pa.int32()), lists),
        "client_id": produces.client_id,
    }
    return structs_of(columns, PRODUCE)


def _facts_of_appends(
    brokers: Integers, names: list[str], topic: Integers, partition: Integers, columns: dict[str, Integers]
) -> FactsOfPartitions:
    """Return the appends as facts of their partitions.

    Args:
        brokers: Broker of each append.
        names: Names of topics.
        topic: The number of each append's topic among them.
        partition: Partition of each append.
        columns: Their integers that are not the default values.
    """
    order = np.lexsort((partition, topic, brokers))
    places = np.stack([brokers, topic, partition])[:, order]
    defaults = msgspec.structs.asdict(Append(0, 0, 0, 0))
    integers = [
        columns.get(name, np.full(len(order), defaults[name])) for name, is_int in fields_of(Append).items() if is_int
    ]
    rows = np.stack(integers)[:, order]
    borders = [0, *(np.flatnonzero(np.any(np.diff(places), axis=0)) + 1).tolist(), len(order)]
    facts: FactsOfPartitions = {}
    for first, last in pairwise(borders) if len(order) else ():
        broker, name, number = places[:, first].tolist()
        facts[broker, (names[name], number)] = [FactBlock.of(Append, rows[:, first:last])]
    return facts


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
