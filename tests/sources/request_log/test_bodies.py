"""Bodies and responses decode to the same values for all Kafka versions."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.sources.request_log.fast_parser import parse_produces
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS, fetch_batch, fetches_in
from purgatory_udf.sources.request_log.kafka_protocol import (
    DecodedProduce,
    FetchColumns,
    FetchPartitionData,
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    ProducedPartition,
    decode_fetch_request,
    decode_fetch_response,
    decode_produce,
)
from tests.sources.request_log.log_lines import log_line, message

ID = "UC2ju0ZLS_u_OYKtRyBPew"
COMMON = {"maxWaitMs": 500, "minBytes": 1, "maxBytes": 1_000, "isolationLevel": 1, "sessionId": 4, "sessionEpoch": 2}
PARTITION = {"partition": 6, "currentLeaderEpoch": 3, "fetchOffset": 31, "logStartOffset": 5, "partitionMaxBytes": 90}


@pytest.mark.parametrize(
    ("body", "topic"),
    [
        (
            {
                "replicaId": 3,
                **COMMON,
                "topics": [{"topic": "t", "partitions": [PARTITION]}],
                "forgottenTopicsData": [{"topic": "t", "partitions": [7]}],
            },
            "t",
        ),
        (
            {
                "replicaState": {"replicaId": 3, "replicaEpoch": 10},
                **COMMON,
                "topics": [{"topicId": ID, "partitions": [PARTITION]}],
                "forgottenTopicsData": [{"topicId": ID, "partitions": [7]}],
            },
            ID,
        ),
    ],
    ids=["2.8, fetch 12", "4.3, fetch 18"],
)
def test_fetch_request_is_same_for_all_versions(body: dict[str, Any], topic: str) -> None:
    assert decode_fetch_request(body) == FetchRequestBody(
        replica_id=3,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1_000,
        isolation=1,
        session_id=4,
        session_epoch=2,
        partitions=[FetchRequestPartition(topic, 6, 31, 90, 3, 5)],
        forgotten=[(topic, 7)],
    )


def test_first_version_of_fetch_has_defaults() -> None:
    partition = {"partition": 6, "fetchOffset": 31, "partitionMaxBytes": 90}
    body = {"replicaId": 3, "maxWaitMs": 500, "minBytes": 1, "topics": [{"topic": "t", "partitions": [partition]}]}
    assert decode_fetch_request(body) == FetchRequestBody(
        replica_id=3,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=2**31 - 1,
        isolation=0,
        session_id=0,
        session_epoch=-1,
        partitions=[FetchRequestPartition("t", 6, 31, 90, -1, -1)],
        forgotten=[],
    )


def test_consumer_fetch_has_no_replica() -> None:
    assert decode_fetch_request({**COMMON, "topics": []}).replica_id == -1


@pytest.mark.parametrize(
    ("answer", "topic"),
    [
        (
            {
                "responses": [
                    {
                        "topic": "t",
                        "partitionResponses": [
                            {
                                "partitionHeader": {"partition": 6, "errorCode": 0, "highWatermark": 26},
                                "recordSetSizeInBytes": 187,
                            }
                        ],
                    }
                ]
            },
            "t",
        ),
        (
            {
                "errorCode": 0,
                "sessionId": 0,
                "responses": [
                    {
                        "topicId": ID,
                        "partitions": [
                            {"partitionIndex": 6, "errorCode": 0, "highWatermark": 26, "recordsSizeInBytes": 187}
                        ],
                    }
                ],
            },
            ID,
        ),
    ],
    ids=["old", "4.3"],
)
def test_fetch_response_is_same_for_all_versions(answer: dict[str, Any], topic: str) -> None:
    assert decode_fetch_response(answer) == FetchResponseBody(0, 0, [FetchPartitionData(topic, 6, 0, 26, 187)])


@pytest.mark.parametrize(
    ("body", "answer", "topic"),
    [
        (
            {
                "acks": -1,
                "timeout": 3_000,
                "topicData": [{"name": "t", "partitionData": [{"index": 4, "recordSetSizeInBytes": 214}]}],
            },
            {
                "responses": [
                    {"name": "t", "partitionResponses": [{"index": 4, "errorCode": 7, "baseOffset": 23}]},
                ]
            },
            "t",
        ),
        (
            {
                "transactionalId": None,
                "acks": -1,
                "timeoutMs": 3_000,
                "topicData": [{"topicId": ID, "partitionData": [{"index": 4, "recordsSizeInBytes": 214}]}],
            },
            {
                "responses": [
                    {"topicId": ID, "partitionResponses": [{"index": 4, "errorCode": 7, "baseOffset": 23}]},
                ]
            },
            ID,
        ),
    ],
    ids=["old", "4.3"],
)
def test_produce_is_same_for_all_versions(body: dict[str, Any], answer: dict[str, Any], topic: str) -> None:
    assert decode_produce(body, answer) == DecodedProduce(
        -1, 3_000, None, True, [ProducedPartition(topic, 4, 214, 7, 23)]
    )
    (partition,) = decode_produce(
        body, {"responses": [{"name": topic, "partitionResponses": [{"index": 4}]}]}
    ).partitions
    assert (partition.error, partition.base) == (0, -1)
    unanswered = decode_produce({**body, "acks": 0}, None)
    assert unanswered == DecodedProduce(0, 3_000, None, False, [ProducedPartition(topic, 4, 214, 0, -1)])


def parse_produce(body: dict[str, Any], answer: dict[str, Any] | None) -> DecodedProduce | None:
    """Return the produce of a line with this body and response, or None if the line is left to another parser."""
    line = log_line(5, message("PRODUCE", body, answer)).replace('": ', '":').replace(', "', ',"')
    lines, bodies = parse_produces([line.encode()], UTC).with_bodies()
    return bodies.produce(0) if len(lines) else None


WRITTEN = {"index": 4, "recordsSizeInBytes": 214}
ANSWERED = {"index": 4, "errorCode": 7, "baseOffset": 23}


def test_usual_produce_is_parsed_as_decoded() -> None:
    topics = [
        {"topicId": ID, "partitionData": [WRITTEN, {**WRITTEN, "index": 5}, {"index": 4, "recordsSizeInBytes": -1}]},
        {"name": "t", "partitionData": [WRITTEN]},
    ]
    body = {"transactionalId": "x", "acks": -1, "timeoutMs": 3_000, "topicData": topics, "further": [{"field": 1e9}]}
    answers = [{"topicId": ID, "partitionResponses": [ANSWERED]}, {"name": "t", "partitionResponses": [{"index": 4}]}]
    of_id = [ProducedPartition(ID, 4, 214, 7, 23), ProducedPartition(ID, 5, 214, 0, -1)]
    written = [*of_id, ProducedPartition(ID, 4, 0, 7, 23), ProducedPartition("t", 4, 214, 0, -1)]
    parsed = parse_produce(body, {"responses": answers})
    assert parsed == DecodedProduce(-1, 3_000, "x", True, written) == decode_produce(body, {"responses": answers})


UNUSUAL = [2**62, -(2**70), 1.5, "1", "", None, True, [], {}, "absent"]


@pytest.mark.parametrize("value", UNUSUAL, ids=str)
@pytest.mark.parametrize("field", ["acks", "timeoutMs", "transactionalId", "topicData", "topic", "index", "size"])
def test_unusual_produce_is_not_parsed_differently(field: str, value: Any) -> None:
    partition = {"index": 4, "recordsSizeInBytes": 9}
    topic: dict[str, Any] = {"name": "t", "partitionData": [partition]}
    body: dict[str, Any] = {"acks": 1, "timeoutMs": 30, "transactionalId": None, "topicData": [topic]}
    owner, key = {
        "topic": (topic, "name"),
        "index": (partition, "index"),
        "size": (partition, "recordsSizeInBytes"),
    }.get(field, (body, field))
    owner[key] = value
    if value == "absent":
        del owner[key]
    parsed = parse_produce(body, None)
    assert parsed is None or parsed == decode_produce(body, None)


@pytest.mark.parametrize("value", UNUSUAL, ids=str)
@pytest.mark.parametrize("field", ["responses", "topicId", "partitionResponses", "index", "errorCode", "baseOffset"])
def test_unusual_response_is_not_parsed_differently(field: str, value: Any) -> None:
    partition = {"index": 4, "errorCode": 0, "baseOffset": 7}
    topic: dict[str, Any] = {"topicId": ID, "partitionResponses": [partition]}
    answer: dict[str, Any] = {"responses": [topic]}
    owner = next(each for each in (partition, topic, answer) if field in each)
    owner[field] = value
    if value == "absent":
        del owner[field]
    body = {"acks": 1, "timeoutMs": 30, "topicData": [{"topicId": ID, "partitionData": [WRITTEN]}]}
    parsed = parse_produce(body, answer)
    assert parsed is None or parsed == decode_produce(body, answer)


REQUESTS_AND_RESPONSES = [
    (
        FetchRequestBody(
            *(2, 500, 1, 90, 1, 4, 7),
            [FetchRequestPartition("t", 6, 31, 9, 3, 5), FetchRequestPartition("u", 1, 32, 8, -1, -1)],
            [("v", 4), ("t", 5)],
        ),
        FetchResponseBody(
            70, 4, [FetchPartitionData("t", 6, 0, 26, 187), FetchPartitionData("w", 2, 3, -1, 0, 9, 2, 8)]
        ),
    ),
    (FetchRequestBody(-1, 400, 2**61, 91, 0, 0, -1, [], []), FetchResponseBody(0, 0, [])),
    (
        FetchRequestBody(-1, 400, 3, 92, 0, 0, 0, [FetchRequestPartition("w", 0, 2**61, 7, 6, 4)], []),
        FetchResponseBody(0, 9, [FetchPartitionData("v", -1, 0, 2**61, 1)]),
    ),
]


def test_fetches_as_columns() -> None:
    columns = FetchColumns.of(REQUESTS_AND_RESPONSES)
    assert columns.topics == ["t", "u", "w", "v"]
    assert columns.limits.tolist() == [
        [2, 500, 1, 90, 1, 7, 70],
        [-1, 400, 2**61, 91, 0, -1, 0],
        [-1, 400, 3, 92, 0, 0, 0],
    ]
    assert columns.listed.tolist() == [[0, 6, 31, 9, 3, 5], [1, 1, 32, 8, -1, -1], [2, 0, 2**61, 7, 6, 4]]
    assert columns.forgotten.tolist() == [[3, 4], [0, 5]]
    assert columns.fetched.tolist() == [
        [0, 6, 0, 26, 187, -1, -1, -1],
        [2, 2, 3, -1, 0, 9, 2, 8],
        [3, -1, 0, 2**61, 1, -1, -1, -1],
    ]
    bounds = (columns.listed_bounds, columns.forgotten_bounds, columns.fetched_bounds)
    assert [each.tolist() for each in bounds] == [[0, 2, 2, 3], [0, 2, 2, 2], [0, 2, 2, 3]]


def test_no_fetches_have_empty_columns() -> None:
    columns = FetchColumns.of([])
    tables = (columns.limits, columns.listed, columns.forgotten, columns.fetched)
    assert [table.shape for table in tables] == [(0, 7), (0, 6), (0, 2), (0, 8)]
    assert (columns.topics, columns.listed_bounds.tolist()) == ([], [0])


@pytest.mark.parametrize("chosen", [[0, 1, 2], [1], [2], [2, 0], []])
def test_stored_fetches_are_same(chosen: list[int]) -> None:
    """Fetches are the same after they were stored, all of them, in another order or as a part of a batch."""
    stored = fetch_batch(TIMES, FetchColumns.of(REQUESTS_AND_RESPONSES), {"connection": "c"}, REQUESTS)
    expected = FetchColumns.of([REQUESTS_AND_RESPONSES[number] for number in chosen])
    parts = [stored.take(pa.array(chosen, pa.int64()))]
    if chosen == [number for number in range(3) if number in chosen]:
        parts.append(stored.slice(min(chosen, default=0), len(chosen)))
    for part in parts:
        fetches = fetches_in(part)
        assert fetches.local_us.tolist() == [TIMES["local_us"][number] for number in chosen]
        assert fetches.sessions == [(1, f"s{number}") for number in chosen]
        assert _named(fetches.bodies) == _named(expected)


def test_stored_fetch_lists_only_its_topics() -> None:
    stored = fetch_batch(TIMES, FetchColumns.of(REQUESTS_AND_RESPONSES), {}, REQUESTS)
    assert stored.column("api").to_pylist() == ["FETCH"] * 3
    assert stored.column("body").to_pylist() == ['["t","u","w","v"]', "[]", '["w","v"]']


NUMBERS = ("file", "line", "version", "arrival_us", "start_us", "local_us", "remote_us", "answered_us", "written_us")
TIMES: dict[str, Any] = {name: [7, 8, 9] for name in NUMBERS} | {"broker": [1] * 3, "session": ["s0", "s1", "s2"]}


def _named(columns: FetchColumns) -> list[Any]:
    tables = (columns.listed, columns.forgotten, columns.fetched)
    bounds = (columns.listed_bounds, columns.forgotten_bounds, columns.fetched_bounds)
    rows = [[(columns.topics[topic], *others) for topic, *others in table.tolist()] for table in tables]
    return [columns.limits.tolist(), *rows, *(each.tolist() for each in bounds)]
