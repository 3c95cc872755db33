"""A ZooKeeper cluster's log: its controller parks who creates topics, and tells every broker of partitions.

Kafka up to 3.9: `ZkAdminManager.createTopics` and `.createPartitions` make a DelayedCreatePartitions, which ends when
the broker's metadata name a leader of each partition (`DelayedCreatePartitions.tryComplete`); UPDATE_METADATA changes
them (`KafkaApis.handleUpdateMetadataRequest`). Times are milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster.cluster_facts import ClusterFacts
from purgatory_udf.sources.request_log.importing.import_options import pseudonyms
from purgatory_udf.sources.request_log.importing.import_tasks import finish_events
from purgatory_udf.sources.request_log.lines.logged_request import Request
from tests.sources.request_log.lines import body, requests, us, written
from tests.sources.request_log.translate import Translation, translate

OK, TIMED_OUT, EXISTS = 0, 7, 36


def _created(at: float, codes: dict[str, int], *, remote: float, timeout: int = 5000, **asked: Any) -> str:
    """Two partitions of each topic, asked of broker 1, the controller; handled for 1 ms."""
    named = [{"name": name, "numPartitions": 2, "replicationFactor": 2, "assignments": []} for name in codes]
    answered = [
        {"name": name, "errorCode": code, "numPartitions": 2 if not code else -1} for name, code in codes.items()
    ]
    request = {"topics": named, "timeoutMs": timeout, "validateOnly": False, **asked}
    return written(at, body("CREATE_TOPICS", request, {"topics": answered}, version=7, remote=remote))


def _updated(at: float, leaders: dict[int, int], topic: str = "new", broker: int = 1) -> str:
    """The controller tells a broker who leads which partition."""
    states = [
        {"partitionIndex": number, "leader": leader, "leaderEpoch": 0, "isr": [1, 2], "replicas": [1, 2]}
        for number, leader in leaders.items()
    ]
    update = {"controllerId": 1, "topicStates": [{"topicName": topic, "partitionStates": states}]}
    return written(at, body("UPDATE_METADATA", update, {"errorCode": 0}, version=7), broker)


def _followed(at: float, partition: int, leader: int) -> str:
    """A follower's first fetch of the partition, which its leader answers after 1 ms."""
    part = {"partition": partition, "fetchOffset": 0, "partitionMaxBytes": 1 << 20, "currentLeaderEpoch": 0}
    asked: dict[str, Any] = {"replicaId": 3 - leader, "maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20}
    asked |= {"isolationLevel": 0, "sessionId": 0, "sessionEpoch": -1}
    asked["topics"] = [{"topic": "new", "partitions": [part]}]
    got = {"partitionIndex": partition, "errorCode": 0, "highWatermark": 0, "recordsSizeInBytes": 0}
    answered = {"errorCode": 0, "sessionId": 0, "responses": [{"topic": "new", "partitions": [got]}]}
    return written(at, body("FETCH", asked, answered, version=12, client=f"broker-{3 - leader}-fetcher-0"), leader)


def _creations(translation: Translation) -> list[Outcome]:
    return [outcome for outcome in replay(translation.events, Config()).outcomes if outcome.kind == "create_topics"]


def test_who_creates_a_topic_waits_until_its_partitions_are_led() -> None:
    """Asked at 9, answered at 30; partition 1 is led by broker 2 from 24 on, as its follower finds."""
    log = [_followed(16, 0, 1), _followed(25, 1, 2), _updated(28, {0: 1, 1: 2}), _created(30, {"new": OK}, remote=20)]
    translation = translate(requests(log))
    (created,) = _creations(translation)
    assert (created.completed_by, created.watched, created.started_us) == ("leaders", True, us(10))
    assert us(23) < created.ended_us <= us(25)
    ((_, recorded),) = ((seq, record) for seq, record in translation.recorded.items() if record.kind == "create_topics")
    assert (recorded.outcome, recorded.remote_ms, recorded.error) == ("completed", 20, "NONE")
    assert translation.report.counts["topic_admin"] == 0


def test_a_topic_that_nobody_leads_in_time_expires_with_its_timeout() -> None:
    log = [_updated(5, {0: 1}), _followed(16, 0, 1), _created(61, {"new": TIMED_OUT}, remote=50, timeout=50)]
    translation = translate(requests(log))
    (created,) = _creations(translation)
    assert (created.completed_by, created.ended_us) == ("timeout", us(61))
    assert [record.outcome for record in translation.recorded.values() if record.kind == "create_topics"] == ["expired"]


@pytest.mark.parametrize(
    ("codes", "asked", "completed_by"),
    [
        ({"old": EXISTS}, {}, "empty"),
        ({"new": OK}, {"validateOnly": True}, "empty"),
        ({"new": TIMED_OUT}, {"timeoutMs": 0}, "no_wait"),
    ],
)
def test_who_need_not_wait_is_answered_at_once(codes: dict[str, int], asked: dict[str, Any], completed_by: str) -> None:
    translation = translate(requests([_updated(5, {0: 1}), _created(30, codes, remote=0, **asked)]))
    (created,) = _creations(translation)
    assert (created.completed_by, created.watched) == (completed_by, False)
    assert [record.outcome for record in translation.recorded.values()] == ["at_once"]


def test_who_grows_a_topic_waits_for_all_of_its_partitions() -> None:
    """From one partition to two; its topics are answered as `results`."""
    asked = {"topics": [{"name": "new", "count": 2, "assignments": None}], "timeoutMs": 5000, "validateOnly": False}
    answered = {"results": [{"name": "new", "errorCode": OK}]}
    grown = written(30, body("CREATE_PARTITIONS", asked, answered, version=3, remote=20))
    translation = translate(requests([_updated(2, {0: 1}), _followed(5, 0, 1), _followed(25, 1, 2), grown]))
    (created,) = _creations(translation)
    assert (created.completed_by, created.watched) == ("leaders", True)
    assert [event["topics"] for event in translation.events if event["type"] == "create_topics"] == [
        [{"topic": "new", "partitions": 2}]
    ]


def test_an_import_makes_it_an_event_of_the_contract_with_pseudonyms_where_they_are_asked_for() -> None:
    translation = translate(requests([_updated(5, {0: 1}), _created(30, {"new": OK}, remote=20)]))
    (event,) = (event for event in translation.events if event["type"] == "create_topics")
    row = {"file": 0, "at_line": 2, "sub": 0, "time_us": event["time_us"], "event": json.dumps(event)}
    row |= {"recorded": "{}", "offsets": None, "request_id": "request-1.log:2"}
    rename = pseudonyms("k")
    for name, work in (("new", finish_events(None)), (rename("topic", "new"), finish_events(rename))):
        (batch,) = work(iter([pa.RecordBatch.from_pylist([row])]))
        (finished,) = batch.to_pylist()
        assert (finished["type"], finished["timeout_ms"], finished["reason"]) == ("create_topics", 5000, None)
        assert finished["topics"] == [{"topic": name, "partitions": 2}]


def test_without_a_zookeeper_controller_it_is_passed_on_and_no_operation() -> None:
    translation = translate(requests([_created(30, {"new": OK}, remote=20)]))
    assert [event for event in translation.events if event["type"] == "create_topics"] == []
    assert translation.report.counts["topic_admin"] == 1


def test_deletions_and_elections_are_counted_and_no_more() -> None:
    others = [written(30, body(api, {}, {}, remote=20)) for api in ("DELETE_TOPICS", "ELECT_LEADERS")]
    assert translate(requests([_updated(5, {0: 1}), *others])).report.counts["topic_admin"] == 2


def _telling(log: list[str]) -> ClusterFacts:
    telling = ClusterFacts()
    for request in requests(log):
        assert isinstance(request, Request)
        telling.read(request)
    return telling


def test_what_a_controller_tells_is_who_leads_and_when_a_topic_goes() -> None:
    """-2 is `LeaderAndIsr.LEADER_DURING_DELETE`; before version 5 partitions came one by one, with their topics."""
    state = {"topicName": "t", "partitionIndex": 3, "leader": 2, "leaderEpoch": 7, "isr": [2], "replicas": [2, 1]}
    single = written(9, body("UPDATE_METADATA", {"ungroupedPartitionStates": [state]}, {"errorCode": 0}, version=4))
    telling = _telling([single, _updated(20, {0: -2})])
    assert telling.zookeeper and ClusterFacts.resumed(telling.snapshot()).zookeeper
    changes = [
        (change.topic, change.partition, change.leader, change.leader_epoch, change.isr, change.deleted)
        for change in telling.changes
    ]
    assert changes == [("t", 3, 2, 7, (2,), False), ("new", 0, -2, 0, (1, 2), True)]
