"""Builds lines of a request log. Times are milliseconds since the start of the log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.logged_request import BadLine, Place, Request

# 2026-11-21 02:54:20 UTC
START = datetime(2026, 11, 21, 2, 54, 20, tzinfo=UTC)
START_US = 1_795_229_660_000_000
KEYS = {
    "PRODUCE": 0,
    "FETCH": 1,
    "METADATA": 3,
    "OFFSET_COMMIT": 8,
    "JOIN_GROUP": 11,
    "HEARTBEAT": 12,
    "LEAVE_GROUP": 13,
    "SYNC_GROUP": 14,
    "ADD_PARTITIONS_TO_TXN": 24,
    "CONSUMER_GROUP_HEARTBEAT": 68,
}
T = "w1aw1aw1aw1aw1aw1aw1aw"


def us(ms: float) -> int:
    """Return a time of the log in microseconds since the epoch."""
    return START_US + round(ms * 1000)


def message(
    api: str,
    request: dict[str, Any],
    response: dict[str, Any] | None,
    *,
    version: int = 13,
    client: str = "c",
    queue: float = 0.0,
    local: float = 1.0,
    remote: float = 0.0,
    listener: str = "PLAINTEXT",
) -> dict[str, Any]:
    """Return the JSON of the message, which follows `Completed request:`; times are in milliseconds."""
    return {
        "isForwarded": False,
        "requestHeader": {
            "requestApiKey": KEYS.get(api, 99),
            "requestApiVersion": version,
            "correlationId": 1,
            "clientId": client,
            "requestApiKeyName": api,
        },
        "request": request,
        "response": response,
        "connection": f"127.0.0.1:9092-{client}",
        "totalTimeMs": queue + local + remote,
        "requestQueueTimeMs": queue,
        "localTimeMs": local,
        "remoteTimeMs": remote,
        "throttleTimeMs": 0,
        "responseQueueTimeMs": 0.0,
        "sendTimeMs": 0.0,
        "listener": listener,
    }


def log_line(at: float, json_body: dict[str, Any], broker: int = 1) -> str:
    """Return the line of a message that a broker writes at a time, in the layout of the bundled recordings."""
    stamp = (START + timedelta(milliseconds=at)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return f"{stamp} [data-plane-kafka-network-thread-{broker}-P-P-0] Completed request:{json.dumps(json_body)}"


def parse(lines: Iterable[str]) -> list[Request]:
    """Parse lines of file 0, which must all be requests."""
    read = [read_line(line, Place(0, number)) for number, line in enumerate(lines, start=1)]
    assert not [line for line in read if not isinstance(line, Request)], read
    return [line for line in read if isinstance(line, Request)]


def parse_bad(line: str) -> BadLine:
    """Parse a line that must be rejected."""
    read = read_line(line, Place(0, 1))
    assert isinstance(read, BadLine), read
    return read


def produce_line(
    at: float,
    base: int,
    *,
    size: int = 100,
    acks: int = -1,
    error: int = 0,
    transaction: str | None = None,
    **times: Any,
) -> str:
    """Return the line of a produce to partition 0, which was handled for 1 ms and answered at a time."""
    request = {
        "transactionalId": transaction,
        "acks": acks,
        "timeoutMs": 3_000,
        "topicData": [{"topicId": T, "partitionData": [{"index": 0, "recordsSizeInBytes": size}]}],
    }
    answer = {"index": 0, "errorCode": error, "baseOffset": base}
    response = {"responses": [{"topicId": T, "partitionResponses": [answer]}]} if acks else None
    return log_line(at, message("PRODUCE", request, response, client="p", **times))


def fetch_line(
    at: float,
    listed: dict[int, int],
    got: dict[int, int] | None = None,
    *,
    replica: int = -1,
    session: int = 0,
    epoch: int = -1,
    granted: int | None = None,
    forgotten: Iterable[int] = (),
    error: int = 0,
    wait: int = 500,
    min_bytes: int = 1,
    diverging_end_offset: int | None = None,
    partition_error: int = 0,
    high_watermark: int = 0,
    rack: str | None = None,
    client: str = "c",
    broker: int = 1,
    **times: Any,
) -> str:
    """Return the line of a fetch, answered at a time: `listed` are offsets and `got` are sizes, both by partition."""
    request: dict[str, Any] = {
        "maxWaitMs": wait,
        "minBytes": min_bytes,
        "maxBytes": 1_000_000,
        "isolationLevel": 0,
        "sessionId": session,
        "sessionEpoch": epoch,
        "topics": [
            {
                "topicId": T,
                "partitions": [
                    {
                        "partition": partition,
                        "currentLeaderEpoch": 0,
                        "fetchOffset": offset,
                        "partitionMaxBytes": 50_000,
                    }
                    for partition, offset in listed.items()
                ],
            }
        ],
        "forgottenTopicsData": [{"topicId": T, "partitions": list(forgotten)}] if forgotten else [],
    }
    if rack is not None:
        request["rackId"] = rack
    if replica >= 0:
        request["replicaState"] = {"replicaId": replica, "replicaEpoch": 1}
    diverging = {}
    if diverging_end_offset is not None:
        diverging = {"divergingEpoch": {"epoch": 0, "endOffset": diverging_end_offset}}
    response = {
        "errorCode": error,
        "sessionId": session if granted is None else granted,
        "responses": [
            {
                "topicId": T,
                "partitions": [
                    {
                        "partitionIndex": partition,
                        "errorCode": partition_error,
                        "highWatermark": high_watermark,
                        "recordsSizeInBytes": size,
                    }
                    | diverging
                    for partition, size in (got or {}).items()
                ],
            }
        ],
    }
    return log_line(at, message("FETCH", request, response, client=client, **times), broker)
