"""Appends of coordinators to their own topics wait for replicas like produces, those of groups up to Kafka 3.9.

`GroupMetadataManager.appendForGroup` calls `ReplicaManager.appendRecords` with `offsets.commit.timeout.ms` (5 s) and
acks -1, so that `ReplicaManager.delayedProduceRequestRequired` is true and a DelayedProduce waits in the purgatory
`Produce` for the partition of `__consumer_offsets`. Times are milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.assumptions import BATCH_TIME_TOLERANCE_US
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.internal_topics import (
    StoredBatch,
    coordinator_appends,
    has_classic_coordinator,
    partition_for,
)
from tests.sources.request_log import recordings
from tests.sources.request_log.log_lines import START_US, T, fetch_line, log_line, message, parse, us
from tests.sources.request_log.translate import Translation, translate
from tests.support import recorded

pytestmark = pytest.mark.long

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"


def _heartbeat(at: float) -> str:
    """Return a heartbeat answered without a wait, as by a classic coordinator."""
    request = {"groupId": "g", "memberId": "m", "generationId": 1}
    return log_line(at, message("HEARTBEAT", request, {"errorCode": 0}))


def _commit(at: float, **times: Any) -> str:
    topics = [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 5}]}]
    request = {"groupId": "g", "memberId": "m", "generationIdOrMemberEpoch": 1, "generationId": 1, "topics": topics}
    response = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    return log_line(at, message("OFFSET_COMMIT", request, response, client="member", version=8, **times))


def _given(topic: str, batches: list[StoredBatch], leader: int = 1, **more: Any) -> GivenMetadata:
    changes = [PartitionChange(us(-5_000), topic, 0, GIVEN, leader, 0, (1, 2), (1, 2))]
    return GivenMetadata({}, ClusterMetadata(changes=changes), {(topic, 0): batches}, **more)


# A commit arrives at 100 and is answered at 104, after broker 2 has fetched its record.
BATCH = StoredBatch(7, 7, 120, us(100), False, False, -1)
COMMIT = [_heartbeat(50), _commit(104, local=1.0, remote=3.0)]


def _produces(translation: Translation) -> list[dict[str, Any]]:
    return [event for event in translation.events if event["type"] == "produce"]


def test_commit_becomes_produce_of_its_coordinator() -> None:
    translation = translate(parse(COMMIT), _given(OFFSETS, [BATCH]), {0: "broker-1.log"})
    (produce,) = _produces(translation)
    assert {name: value for name, value in produce.items() if name not in ("seq", "time_us")} == {
        "type": "produce",
        "broker": 1,
        "request_id": "broker-1.log:2",
        "client_id": "member",
        "acks": -1,
        "timeout_ms": 5_000,
        "partitions": [
            {"topic": OFFSETS, "partition": 0, "base_offset": 7, "last_offset": 7, "bytes": 120, "error": "NONE"}
        ],
    }
    assert 100 <= (produce["time_us"] - START_US) / 1000 <= 101, "within the handling of its request"
    assert not [event for event in translation.events if event.get("change") == "log_end" and event["offset"] > 7]
    assert translation.report.counts["coordinator_writes"] == 1
    assert produce["seq"] not in translation.recorded, "the outcome of the line is that of the commit"


@pytest.mark.parametrize(("late_us", "request_id"), [(0, "0:2"), (1, f"{OFFSETS}-0@7")])
def test_batch_may_precede_its_commit_shortly(late_us: int, request_id: str) -> None:
    """Timestamps of batches are whole milliseconds. A commit that starts later has not written the batch."""
    at = 104 + (BATCH_TIME_TOLERANCE_US + late_us) / 1000
    commit = _commit(at, local=1.0, remote=3.0)
    (produce,) = _produces(translate(parse([_heartbeat(50), commit, _heartbeat(900)]), _given(OFFSETS, [BATCH])))
    assert produce["request_id"] == request_id


def test_commit_waits_for_follower_up_to_timeout() -> None:
    fetches = [
        fetch_line(90, {0: 7}, replica=2, client="f", remote=0.0),
        fetch_line(104, {0: 8}, replica=2, client="f", remote=0.0),
    ]
    follower = [line.replace(T, OFFSETS) for line in fetches]
    for lines, expected in (([*COMMIT, *follower], "high_watermark"), ([*COMMIT, follower[0]], "timeout")):
        translation = translate(parse(lines), _given(OFFSETS, [BATCH]))
        (produce,) = _produces(translation)
        end = next(
            outcome
            for outcome in replay(translation.events, Config()).outcomes
            if outcome.operation_id == produce["seq"]
        )
        assert (end.completed_by, end.watched, end.expired) == (expected, True, expected == "timeout")
        assert end.wait_ms <= 5_000


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, [_commit(104, remote=3.0)]),  # no heartbeat shows that the coordinator is a classic one
        ({"classic": False}, COMMIT),
        ({"leader": 2}, COMMIT),  # the broker only copies the partition
    ],
    ids=["unknown", "4.0", "follower"],
)
def test_commit_at_other_coordinators_only_appends(given: dict[str, Any], lines: list[str]) -> None:
    assert _produces(translate(parse(lines), _given(OFFSETS, [BATCH], **given))) == []


def test_kafka_version_selects_coordinator() -> None:
    assert len(_produces(translate(parse([_commit(104, remote=3.0)]), _given(OFFSETS, [BATCH], classic=True)))) == 1
    versions = ("0.11.0.3", "2.8", "3.9.2", "4.0", "4.1.1")
    assert [has_classic_coordinator(version) for version in versions] == [True, True, True, False, False]
    assert RequestLogOptions(["log"], "out", kafka_version="3.9").classic is True
    with pytest.raises(UserError, match=r"--kafka-version: 'new' is not a Kafka version; expected one such as 3\.9"):
        RequestLogOptions(["log"], "out", kafka_version="new")


@pytest.mark.parametrize(("classic", "coordinator"), [(True, None), (None, None), (False, "new")])
def test_given_version_decides_coordinator_of_groups(classic: bool | None, coordinator: str | None) -> None:
    translation = translate(parse([_heartbeat(50)]), _given(OFFSETS, [BATCH], classic=classic))
    assert [event.get("coordinator") for event in translation.events if event["type"] == "heartbeat"] == [coordinator]


def test_stored_group_without_request_waits() -> None:
    follower = [fetch_line(at, {0: end}, replica=2, client="f").replace(T, OFFSETS) for at, end in ((60, 7), (104, 8))]
    (produce,) = _produces(translate(parse([_heartbeat(50), *follower, _heartbeat(900)]), _given(OFFSETS, [BATCH])))
    assert (produce["request_id"], "client_id" in produce) == (f"{OFFSETS}-0@7", False)


def test_requests_that_may_append() -> None:
    group, transaction = {"groupId": "g"}, {"transactionalId": "x"}
    topics: dict[str, Any] = {"topics": [{"partitions": [{}, {}]}, {"partitions": [{}]}, {}]}
    several = {"transactions": [transaction, {"transactionalId": "y", "verifyOnly": True}]}
    requests: list[tuple[str, dict[str, Any], int, tuple[str, str, int] | None]] = [
        ("OFFSET_COMMIT", {**group, **topics}, 0, (OFFSETS, "g", 3)),
        ("TXN_OFFSET_COMMIT", {**group, **transaction, **topics}, 0, (OFFSETS, "g", 3)),
        ("OFFSET_COMMIT", group, 0, None),
        ("SYNC_GROUP", {**group, "assignments": [{}, {}]}, 0, (OFFSETS, "g", 1)),
        ("SYNC_GROUP", {**group, "assignments": []}, 0, None),
        ("JOIN_GROUP", group, 0, (OFFSETS, "g", 1)),
        ("LEAVE_GROUP", group, 25, None),
        ("ADD_PARTITIONS_TO_TXN", several, 0, (STATE, "x", 1)),
        ("ADD_PARTITIONS_TO_TXN", {"v3AndBelowTransactionalId": "z"}, 0, (STATE, "z", 1)),
        ("ADD_OFFSETS_TO_TXN", {**group, **transaction}, 0, (STATE, "x", 1)),
        ("INIT_PRODUCER_ID", {"transactionalId": None}, 0, None),
        ("HEARTBEAT", {**group, **transaction, **several}, 0, None),
    ]
    for api, body, error, append in requests:
        (request,) = parse([log_line(5, message(api, body, {"errorCode": error}))])
        assert list(coordinator_appends(request)) == ([] if append is None else [append]), (api, body)


def test_transaction_state_waits_in_all_versions() -> None:
    """`TransactionStateManager.appendTransactionToLog` waits at most for the transaction timeout."""
    request = {"transactionalId": "tx", "transactionTimeoutMs": 30_000}
    response = {"errorCode": 0, "producerId": 5, "producerEpoch": 0}
    assert partition_for("tx", 1) == 0
    # Its hash is negative; a recorded broker that leads partition 0 of 6 answered it.
    assert partition_for("g-idle", 6) == 0
    init_producer = log_line(104, message("INIT_PRODUCER_ID", request, response, client="p", remote=3.0))
    (produce,) = _produces(translate(parse([init_producer]), _given(STATE, [BATCH], classic=False)))
    assert (produce["timeout_ms"], produce["client_id"]) == (30_000, "p")


UNBLOCKED = re.compile(r"Request key TopicPartitionOperationKey\((\w+),(\d+)\) unblocked (\d+) Produce")


@pytest.mark.nightly
def test_completions_match_purgatory_logs() -> None:
    name, logged = "W3-groups-k39", Counter[tuple[int, str]]()
    for broker in recordings.BROKERS:
        for line in recorded.lines(recorded.data_file("traces", name, f"purgatory-{broker}.log")):
            if (match := UNBLOCKED.search(line)) and match[1] == OFFSETS:
                logged[broker, f"{match[1]}-{match[2]}"] += int(match[3])
    translation = translate(recordings.log(name), recordings.given(name))
    waited = Counter(
        (outcome.broker, outcome.trigger)
        for outcome in replay(translation.events, Config()).outcomes
        if outcome.kind == "produce"
        and outcome.watched
        and not outcome.expired
        and (outcome.key or "").startswith(OFFSETS)
    )
    assert sum(logged.values()) == 648 and waited == logged
