"""Bodies and responses decode to the same values for all Kafka versions."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.sources.request_log.kafka_protocol import (
    DecodedProduce,
    FetchPartitionData,
    FetchRequestBody,
    FetchRequestPartition,
    FetchResponseBody,
    ProducedPartition,
    decode_fetch_request,
    decode_fetch_response,
    decode_produce,
)

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
