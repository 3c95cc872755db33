"""Log of a ZooKeeper cluster: the controller parks topic creations, and sends partition states to all brokers.

Kafka up to 3.9: `ZkAdminManager.createTopics` and `.createPartitions` create a DelayedCreatePartitions, which completes
when the broker's metadata have a leader for each partition (`DelayedCreatePartitions.tryComplete`). UPDATE_METADATA
changes the metadata (`KafkaApis.handleUpdateMetadataRequest`). Times are milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster_facts import ClusterFacts
from purgatory_udf.sources.request_log.importing.import_options import pseudonyms
from purgatory_udf.sources.request_log.importing.import_passes import UNORDERED
from purgatory_udf.sources.request_log.importing.import_tasks import finish_events
from purgatory_udf.sources.request_log.logged_request import Request
from tests.sources.request_log.log_lines import log_line, message, parse, us
from tests.sources.request_log.translate import Translation, translate

OK, TIMED_OUT, EXISTS = 0, 7, 36


def _create_topics(at: float, codes: dict[str, int], *, remote: float, timeout: int = 5000, **fields: Any) -> str:
    """Return a CREATE_TOPICS line of broker 1, the controller, for topics with two partitions; handled for 1 ms."""
    named = [{"name": name, "numPartitions": 2, "replicationFactor": 2, "assignments": []} for name in codes]
    results = [
        {"name": name, "errorCode": code, "numPartitions": 2 if not code else -1} for name, code in codes.items()
    ]
    request = {"topics": named, "timeoutMs": timeout, "validateOnly": False, **fields}
    return log_line(at, message("CREATE_TOPICS", request, {"topics": results}, version=7, remote=remote))


def _update_metadata(at: float, leaders: dict[int, int], topic: str = "new", broker: int = 1) -> str:
    """Return an UPDATE_METADATA line with the leaders by partition."""
    states = [
        {"partitionIndex": number, "leader": leader, "leaderEpoch": 0, "isr": [1, 2], "replicas": [1, 2]}
        for number, leader in leaders.items()
    ]
    update = {"controllerId": 1, "topicStates": [{"topicName": topic, "partitionStates": states}]}
    return log_line(at, message("UPDATE_METADATA", update, {"errorCode": 0}, version=7), broker)


def _follower_fetch(at: float, partition: int, leader: int) -> str:
    """Return the line of a follower's first fetch from a partition, answered by the leader after 1 ms."""
    part = {"partition": partition, "fetchOffset": 0, "partitionMaxBytes": 1 << 20, "currentLeaderEpoch": 0}
    request: dict[str, Any] = {"replicaId": 3 - leader, "maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20}
    request |= {"isolationLevel": 0, "sessionId": 0, "sessionEpoch": -1}
    request["topics"] = [{"topic": "new", "partitions": [part]}]
    got = {"partitionIndex": partition, "errorCode": 0, "highWatermark": 0, "recordsSizeInBytes": 0}
    response = {"errorCode": 0, "sessionId": 0, "responses": [{"topic": "new", "partitions": [got]}]}
    return log_line(
        at, message("FETCH", request, response, version=12, client=f"broker-{3 - leader}-fetcher-0"), leader
    )


def _creations(translation: Translation) -> list[Outcome]:
    return [outcome for outcome in replay(translation.events, Config()).outcomes if outcome.kind == "create_topics"]


def test_topic_creation_waits_for_leaders() -> None:
    """Requested at 9, answered at 30; broker 2 leads partition 1 from 24 on, as its follower's fetch shows."""
    log = [
        _follower_fetch(16, 0, 1),
        _follower_fetch(25, 1, 2),
        _update_metadata(28, {0: 1, 1: 2}),
        _create_topics(30, {"new": OK}, remote=20),
    ]
    translation = translate(parse(log))
    (created,) = _creations(translation)
    assert (created.completed_by, created.watched, created.started_us) == ("leaders", True, us(10))
    assert us(23) < created.ended_us <= us(25)
    ((_, recorded),) = ((seq, record) for seq, record in translation.recorded.items() if record.kind == "create_topics")
    assert (recorded.outcome, recorded.remote_ms, recorded.error) == ("completed", 20, "NONE")
    assert translation.report.counts["topic_admin"] == 0


def test_topic_creation_expires_without_leader() -> None:
    log = [
        _update_metadata(5, {0: 1}),
        _follower_fetch(16, 0, 1),
        _create_topics(61, {"new": TIMED_OUT}, remote=50, timeout=50),
    ]
    translation = translate(parse(log))
    (created,) = _creations(translation)
    assert (created.completed_by, created.ended_us) == ("timeout", us(61))
    assert [record.outcome for record in translation.recorded.values() if record.kind == "create_topics"] == ["expired"]


@pytest.mark.parametrize(
    ("codes", "fields", "completed_by"),
    [
        ({"old": EXISTS}, {}, "empty"),
        ({"new": OK}, {"validateOnly": True}, "empty"),
        ({"new": TIMED_OUT}, {"timeoutMs": 0}, "no_wait"),
    ],
)
def test_topic_creation_may_complete_at_once(codes: dict[str, int], fields: dict[str, Any], completed_by: str) -> None:
    translation = translate(parse([_update_metadata(5, {0: 1}), _create_topics(30, codes, remote=0, **fields)]))
    (created,) = _creations(translation)
    assert (created.completed_by, created.watched) == (completed_by, False)
    assert [record.outcome for record in translation.recorded.values()] == ["at_once"]


def test_topic_growth_waits_for_all_partitions() -> None:
    """From one partition to two. The response has its topics in `results`."""
    request = {"topics": [{"name": "new", "count": 2, "assignments": None}], "timeoutMs": 5000, "validateOnly": False}
    response = {"results": [{"name": "new", "errorCode": OK}]}
    grown = log_line(30, message("CREATE_PARTITIONS", request, response, version=3, remote=20))
    translation = translate(
        parse([_update_metadata(2, {0: 1}), _follower_fetch(5, 0, 1), _follower_fetch(25, 1, 2), grown])
    )
    (created,) = _creations(translation)
    assert (created.completed_by, created.watched) == ("leaders", True)
    assert [event["topics"] for event in translation.events if event["type"] == "create_topics"] == [
        [{"topic": "new", "partitions": 2}]
    ]


def test_topic_creation_becomes_event() -> None:
    translation = translate(parse([_update_metadata(5, {0: 1}), _create_topics(30, {"new": OK}, remote=20)]))
    (event,) = (event for event in translation.events if event["type"] == "create_topics")
    row = {"file": 0, "line": 2, "sub": 0, "time_us": event["time_us"], "event": json.dumps(event)}
    rename = pseudonyms("k")
    for name, work in (
        ("new", finish_events(None, "request-{}.log".format)),
        (rename("topic", "new"), finish_events(rename, "request-{}.log".format)),
    ):
        (batch,) = work(iter([pa.RecordBatch.from_pylist([row], schema=UNORDERED)]))
        (finished,) = batch.to_pylist()
        assert (finished["type"], finished["timeout_ms"], finished["reason"]) == ("create_topics", 5000, None)
        assert finished["topics"] == [{"topic": name, "partitions": 2}]


def test_kraft_topic_creation_is_only_counted() -> None:
    translation = translate(parse([_create_topics(30, {"new": OK}, remote=20)]))
    assert [event for event in translation.events if event["type"] == "create_topics"] == []
    assert translation.report.counts["topic_admin"] == 1


def test_deletions_and_elections_are_only_counted() -> None:
    others = [log_line(30, message(api, {}, {}, remote=20)) for api in ("DELETE_TOPICS", "ELECT_LEADERS")]
    assert translate(parse([_update_metadata(5, {0: 1}), *others])).report.counts["topic_admin"] == 2


def _facts(log: list[str]) -> ClusterFacts:
    facts = ClusterFacts()
    for request in parse(log):
        assert isinstance(request, Request)
        facts.read(request)
    return facts


def test_update_metadata_has_leaders_and_deletions() -> None:
    """-2 is `LeaderAndIsr.LEADER_DURING_DELETE`; before version 5 partitions are not grouped by topic."""
    state = {"topicName": "t", "partitionIndex": 3, "leader": 2, "leaderEpoch": 7, "isr": [2], "replicas": [2, 1]}
    single = log_line(9, message("UPDATE_METADATA", {"ungroupedPartitionStates": [state]}, {"errorCode": 0}, version=4))
    facts = _facts([single, _update_metadata(20, {0: -2})])
    assert facts.zookeeper and ClusterFacts.resumed(facts.snapshot()).zookeeper
    changes = [
        (change.topic, change.partition, change.leader, change.leader_epoch, change.isr, change.deleted)
        for change in facts.changes
    ]
    assert changes == [("t", 3, 2, 7, (2,), False), ("new", 0, -2, 0, (1, 2), True)]
