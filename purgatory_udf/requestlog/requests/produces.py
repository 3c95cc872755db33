"""A produce taken apart: the operation, and an append for each of its partitions that was written."""

from __future__ import annotations

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.lines.bodies import ProducedPartition, produce_of
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import Append, Fact, Key, Trouble
from purgatory_udf.requestlog.requests.handling import append_and_check
from purgatory_udf.requestlog.requests.operation import AT_ONCE, LoggedOperation, operation
from purgatory_udf.requestlog.requests.recorded import recorded_produce
from purgatory_udf.requestlog.supposed import JOINED_TO_APPENDED_US

ALL = -1


def read_produce(request: Request, context: Context, report: Report) -> tuple[LoggedOperation, list[tuple[Key, Fact]]]:
    produced = produce_of(request.body, request.answer)
    at, check = append_and_check(request.start_us, request.local_us, produced.acks)
    report.count("acks_zero_errors", int(not produced.answered))
    late = any(partition.error == errors.REQUEST_TIMED_OUT for partition in produced.partitions)
    in_time = produced.acks == ALL and request.remote_us > 0 and not late
    appends: list[tuple[Key, Append]] = []
    troubles: list[tuple[Key, Fact]] = []
    for slot, partition in enumerate(produced.partitions):
        key = (context.name(partition.topic), partition.partition)
        if not _was_appended(partition, produced.answered):
            troubles.append((key, Trouble(check, partition.error)))
            continue
        append = Append(request.start_us, at, check, check, base=partition.base, bytes=partition.bytes)
        append.file, append.line, append.slot = *request.place, slot
        append.answered_us = request.answered_us if in_time else -1
        if produced.transactional_id:
            report.count("transactional")
            append.transaction = produced.transactional_id
            joined = context.transactions.joined(append.transaction, key, request.start_us, request.answered_us)
            if joined is not None:
                append.at_us = append.check_us = joined + JOINED_TO_APPENDED_US
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
            ((context.name(partition.topic), partition.partition), Trouble(expired_us, partition.error))
            for partition in produced.partitions
            if partition.error == errors.REQUEST_TIMED_OUT
        ]
    event = {
        "time_us": event_us,
        "type": "produce",
        "acks": produced.acks,
        "timeout_ms": max(0, produced.timeout_ms),
        "partitions": [_written(partition, context, produced.answered) for partition in produced.partitions],
    }
    recorded = recorded_produce(request, produced)
    if not appends:
        recorded.outcome = AT_ONCE
    if request.remote_us:
        # The wait counts from the first try, as the replay's does.
        recorded.remote_ms = max(0, request.answered_us - event_us) / 1000
    return operation(request, event, recorded), [*appends, *troubles]


def _was_appended(part: ProducedPartition, answered: bool) -> bool:
    """What failed after the append (timed out, lost its leader) has an offset all the same."""
    return part.base >= 0 or not answered


def _written(part: ProducedPartition, context: Context, answered: bool) -> dict[str, object]:
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
