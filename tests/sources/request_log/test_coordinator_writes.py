"""What coordinators write to their own topics waits for replicas as produces do, up to Kafka 3.9.

`GroupMetadataManager.appendForGroup` calls `ReplicaManager.appendRecords` with `offsets.commit.timeout.ms` (5 s) and
acks -1, so `ReplicaManager.delayedProduceRequestRequired` holds, and a DelayedProduce waits in the purgatory Produce
for the partition of `__consumer_offsets`. Times are milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.cluster.internal_topics import has_classic_coordinator, partition_for
from purgatory_udf.sources.request_log.cluster.record_batches import StoredBatch
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from tests.sources.request_log import recordings
from tests.sources.request_log.lines import START_US, T, body, fetched, requests, us, written
from tests.sources.request_log.translate import Translation, translate
from tests.support import recorded

pytestmark = pytest.mark.long

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"


def _beat(at: float) -> str:
    """Answered in the thread that handles it: the coordinator is a classic one."""
    asked = {"groupId": "g", "memberId": "m", "generationId": 1}
    return written(at, body("HEARTBEAT", asked, {"errorCode": 0}))


def _commit(at: float, **times: Any) -> str:
    topics = [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 5}]}]
    asked = {"groupId": "g", "memberId": "m", "generationIdOrMemberEpoch": 1, "generationId": 1, "topics": topics}
    answered = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    return written(at, body("OFFSET_COMMIT", asked, answered, client="member", version=8, **times))


def _given(topic: str, batches: list[StoredBatch], leader: int = 1, **more: Any) -> GivenMetadata:
    changes = [PartitionChange(us(-5_000), topic, 0, GIVEN, leader, 0, (1, 2), (1, 2))]
    return GivenMetadata({}, ClusterMetadata(changes=changes), {(topic, 0): batches}, **more)


# A commit comes at 100 and is answered at 104; broker 2 fetches what it wrote at 103.
BATCH = StoredBatch(7, 7, 120, us(100), False, False, -1)
COMMIT = [_beat(50), _commit(104, local=1.0, remote=3.0)]


def _writes(translation: Translation) -> list[dict[str, Any]]:
    return [event for event in translation.events if event["type"] == "produce"]


def test_a_commit_is_a_produce_of_its_coordinator_with_the_request_that_caused_it() -> None:
    translation = translate(requests(COMMIT), _given(OFFSETS, [BATCH]), {0: "broker-1.log"})
    (write,) = _writes(translation)
    assert {name: value for name, value in write.items() if name not in ("seq", "time_us")} == {
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
    assert 100 <= (write["time_us"] - START_US) / 1000 <= 101, "within the handling of its request"
    assert not [event for event in translation.events if event.get("change") == "log_end" and event["offset"] > 7]
    assert translation.report.counts["coordinator_writes"] == 1
    assert write["seq"] not in translation.recorded, "its line is the commit's"


def test_it_waits_for_the_follower_and_no_longer_than_five_seconds() -> None:
    came = [
        fetched(90, {0: 7}, replica=2, client="f", remote=0.0),
        fetched(104, {0: 8}, replica=2, client="f", remote=0.0),
    ]
    asked = [line.replace(T, OFFSETS) for line in came]
    for lines, expected in (([*COMMIT, *asked], "high_watermark"), ([*COMMIT, asked[0]], "timeout")):
        translation = translate(requests(lines), _given(OFFSETS, [BATCH]))
        (write,) = _writes(translation)
        end = next(
            outcome for outcome in replay(translation.events, Config()).outcomes if outcome.operation_id == write["seq"]
        )
        assert (end.completed_by, end.watched, end.expired) == (expected, True, expected == "timeout")
        assert end.wait_ms <= 5_000


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, [_commit(104, remote=3.0)]),  # nobody has beaten: nothing tells that the coordinator is a classic one
        ({"classic": False}, COMMIT),
        ({"leader": 2}, COMMIT),  # what is here is a copy
    ],
    ids=["unknown", "4.0", "follower"],
)
def test_where_the_coordinator_is_another_it_is_an_append_and_no_more(given: dict[str, Any], lines: list[str]) -> None:
    assert _writes(translate(requests(lines), _given(OFFSETS, [BATCH], **given))) == []


def test_a_version_may_be_said_where_no_heartbeat_tells() -> None:
    assert len(_writes(translate(requests([_commit(104, remote=3.0)]), _given(OFFSETS, [BATCH], classic=True)))) == 1
    versions = ("0.11.0.3", "2.8", "3.9.2", "4.0", "4.1.1")
    assert [has_classic_coordinator(version) for version in versions] == [True, True, True, False, False]
    assert RequestLogOptions(["log"], "out", kafka_version="3.9").classic is True
    with pytest.raises(UserError, match=r"--kafka-version: 'new' is no version of Kafka, such as 3\.9"):
        RequestLogOptions(["log"], "out", kafka_version="new")


def test_a_group_that_is_stored_for_nobodys_request_waits_as_well() -> None:
    follower = [fetched(at, {0: end}, replica=2, client="f").replace(T, OFFSETS) for at, end in ((60, 7), (104, 8))]
    (write,) = _writes(translate(requests([_beat(50), *follower, _beat(900)]), _given(OFFSETS, [BATCH])))
    assert (write["request_id"], "client_id" in write) == (f"{OFFSETS}-0@7", False)


def test_the_state_of_a_transaction_waits_in_every_version() -> None:
    """`TransactionStateManager.appendTransactionToLog`: for as long as the transaction may last."""
    asked = {"transactionalId": "tx", "transactionTimeoutMs": 30_000}
    answered = {"errorCode": 0, "producerId": 5, "producerEpoch": 0}
    assert partition_for("tx", 1) == 0
    begun = written(104, body("INIT_PRODUCER_ID", asked, answered, client="p", remote=3.0))
    (write,) = _writes(translate(requests([begun]), _given(STATE, [BATCH], classic=False)))
    assert (write["timeout_ms"], write["client_id"]) == (30_000, "p")


UNBLOCKED = re.compile(r"Request key TopicPartitionOperationKey\((\w+),(\d+)\) unblocked (\d+) Produce")


def test_as_many_wait_on_each_partition_as_the_brokers_own_purgatories_let_go() -> None:
    name, logged = "W3-groups-k39", Counter[tuple[int, str]]()
    for broker in recordings.BROKERS:
        for line in recorded.lines(recorded.file("traces", name, f"purgatory-{broker}.log")):
            if (said := UNBLOCKED.search(line)) and said[1] == OFFSETS:
                logged[broker, f"{said[1]}-{said[2]}"] += int(said[3])
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
