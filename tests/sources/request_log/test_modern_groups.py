"""Groups of newer protocols than the classic one: consumer groups (KIP-848) become events, the others are counted."""

from __future__ import annotations

import json
from base64 import b64encode
from struct import pack
from typing import Any

import pytest

from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.importing.carried_state import CarriedState
from purgatory_udf.sources.request_log.importing.import_options import anonymised, pseudonyms
from purgatory_udf.sources.request_log.importing.log_reader import Tally
from purgatory_udf.sources.request_log.logged_request import Request
from tests.sources.request_log.log_lines import T, log_line, message, parse, us
from tests.sources.request_log.translate import translate

NAMED = GivenMetadata(names={T: "t"})
OWNED = [{"topicId": T, "partitions": [0, 2]}]
FULL = {"rebalanceTimeoutMs": 5000, "subscribedTopicNames": ["t"], "subscribedTopicRegex": "", "topicPartitions": []}


def _heartbeat(at: float, api: str, group: str, request: dict[str, Any] | None = None, **response: Any) -> str:
    body = {"groupId": group, "memberId": "m", "memberEpoch": 3, **(request or {})}
    return log_line(at, message(api, body, {"errorCode": 0, "memberId": "m", "memberEpoch": 3, **response}))


def _consumer(at: float, request: dict[str, Any] | None = None, **response: Any) -> str:
    return _heartbeat(at, "CONSUMER_GROUP_HEARTBEAT", "g", request, **response)


def _commit(at: float, group: str) -> str:
    partition: dict[str, Any] = {"partitionIndex": 0, "committedOffset": 5}
    request = {"groupId": group, "memberId": "m", "generationIdOrMemberEpoch": 3}
    response = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    request["topics"] = [{"name": "t", "partitions": [partition]}]
    return log_line(at, message("OFFSET_COMMIT", request, response, version=9))


def _events(lines: list[str], given: GivenMetadata = NAMED) -> list[dict[str, Any]]:
    """Return the events of a log, without what all events have."""
    others = ("seq", "time_us", "broker", "request_id", "client_id", "group")
    return [
        {name: value for name, value in event.items() if name not in others}
        for event in translate(parse(lines), given).events
    ]


@pytest.mark.parametrize("api", ["STREAMS_GROUP_HEARTBEAT", "SHARE_GROUP_HEARTBEAT"])
def test_commits_of_other_groups_are_left_out(api: str) -> None:
    log = parse([_commit(5, "new"), _heartbeat(10, api, "new"), _commit(20, "new"), _commit(30, "classic")])
    translation = translate(log)
    assert [(event["type"], event["group"]) for event in translation.events] == [("offset_commit", "classic")]
    assert translation.report.counts["modern_group"] == 3


def test_heartbeat_has_fields_that_were_sent() -> None:
    """A response without an assignment is recorded as one: it has an epoch, and no `assigned`."""
    events = _events(
        [
            _consumer(10, {"memberId": "", "memberEpoch": 0, **FULL}, assignment={"topicPartitions": OWNED}),
            _consumer(20, {"rebalanceTimeoutMs": -1, "topicPartitions": OWNED}, assignment=None),
            _consumer(30, {"memberEpoch": -2, "instanceId": "i"}, errorCode=82, memberEpoch=0),
        ]
    )
    head = {"type": "consumer_group_heartbeat", "coordinator": "new", "member_id": "m"}
    owned = [{"topic": "t", "partitions": [0, 2]}]
    subscription = {"rebalance_timeout_ms": 5000, "subscribed_topics": ["t"], "subscribed_regex": "", "owned": []}
    assert events == [
        {**head, "member_epoch": 0, **subscription, "assigned_epoch": 3, "assigned": owned},
        {**head, "member_epoch": 3, "owned": owned, "assigned_epoch": 3},
        {**head, "member_epoch": -2, "group_instance_id": "i"},
    ]


def test_refused_protocol_is_no_sign_of_new_coordinator() -> None:
    """Before 4.0, a broker answers UNSUPPORTED_VERSION unless it has the early access to KIP-848."""
    (event,) = _events([_consumer(10, errorCode=35)])
    assert event["coordinator"] == "old"


@pytest.mark.parametrize(("fetch_version", "coordinator"), [(0, None), (4, "new")])
def test_api_versions_show_new_coordinator(fetch_version: int, coordinator: str | None) -> None:
    """KIP-896: Kafka 4.0 no longer supports versions 0 to 3 of fetches."""
    versions = {"apiKeys": [{"apiKey": 1, "minVersion": fetch_version, "maxVersion": 17}]}
    supported = log_line(5, message("API_VERSIONS", {}, versions, listener="CONTROLLER"))
    (commit,) = _events([supported, _commit(10, "g")])
    assert commit.get("coordinator") == coordinator


def _text(name: str) -> bytes:
    return pack(">h", len(name)) + name.encode()


def test_metadata_of_classic_members_are_decoded() -> None:
    """They decide when the group becomes a consumer group. Other protocol types have another format."""
    owned = pack(">i", 1) + _text("t") + pack(">iii", 2, 0, 1)
    subscription = pack(">hi", 1, 1) + _text("t") + pack(">i4s", 4, b"data") + owned
    assignment = pack(">h", 0) + owned + pack(">i", -1)
    texts = [b64encode(data).decode() for data in (subscription, assignment, b"\0\1")]

    def join(at: float, metadata: str) -> str:
        protocols = {"protocolType": "consumer", "protocols": [{"name": "range", "metadata": metadata}]}
        request = {"groupId": "g", "memberId": "m", "sessionTimeoutMs": 7000, **protocols}
        return log_line(at, message("JOIN_GROUP", request, {"errorCode": 0, "generationId": 1}, version=9))

    without_data = b64encode(pack(">hi", 1, 1) + _text("t") + pack(">i", -1) + owned).decode()
    sync = {"groupId": "g", "memberId": "m", "generationId": 1}
    sync["assignments"] = [{"memberId": "m", "assignment": texts[1]}]
    lines = [join(10, texts[0]), log_line(20, message("SYNC_GROUP", sync, {"errorCode": 0})), join(30, texts[2])]
    lines.append(join(40, without_data))
    decoded, synced, unreadable, short = _events(lines, GivenMetadata(classic=False))
    partitions = [{"topic": "t", "partitions": [0, 1]}]
    assert (decoded["subscribed_topics"], decoded["owned"]) == (["t"], partitions)
    assert short == decoded
    assert synced["assignments"] == [{"member_id": "m", "assigned": partitions}]
    assert "subscribed_topics" not in unreadable


def test_log_shows_topics_and_session_timeouts() -> None:
    created = {"topics": [{"name": "t", "topicId": T, "errorCode": 0, "numPartitions": 3}]}
    change = {"name": "consumer.session.timeout.ms", "configOperation": 0, "value": "9000"}
    resource = {"resourceType": 32, "resourceName": "g", "configs": [change]}
    grown = {"topics": [{"name": "t", "count": 5}]}
    metadata = {"leaderId": 1, "replicaNodes": [1], "isrNodes": [1], "errorCode": 0}
    partitions = [{"partitionIndex": number, **metadata} for number in range(5)]
    topics = {"topics": [{"name": "t", "topicId": T, "errorCode": 0, "partitions": partitions}]}
    events = _events(
        [
            log_line(5, message("CREATE_TOPICS", {"topics": []}, created, version=7)),
            _consumer(10),
            log_line(15, message("INCREMENTAL_ALTER_CONFIGS", {"resources": [resource]}, {"responses": []})),
            _consumer(20),
            log_line(25, message("CREATE_PARTITIONS", grown, {"results": [{"name": "t", "errorCode": 0}]})),
            log_line(30, message("METADATA", {}, topics)),
            log_line(35, message("DELETE_TOPICS", {}, {"responses": [{"name": "t", "errorCode": 0}]})),
        ]
    )
    sizes = [(event["partition_count"], event["topic_id"]) for event in events if event["type"] == "topic"]
    assert sizes == [(3, T), (5, T), (0, T)]
    heartbeats = [event for event in events if event["type"] == "consumer_group_heartbeat"]
    assert [event.get("session_timeout_ms") for event in heartbeats] == [None, 9000]


def test_given_sizes_hold_from_start_of_log() -> None:
    """A size from `--topics` is the latest one; requests that create the topic date it."""
    sized = GivenMetadata(names={T: "t"}, sizes={"t": 3})
    created = {"topics": [{"name": "t", "topicId": T, "errorCode": 0, "numPartitions": 3}]}
    creation = log_line(5, message("CREATE_TOPICS", {"topics": []}, created, version=7))
    for lines, is_created in (([], False), ([creation], True)):
        events = translate(parse([_consumer(2), *lines, _consumer(10)]), sized).events
        (topic,) = (event for event in events if event["type"] == "topic")
        assert topic["partition_count"] == 3
        assert (topic["time_us"] > us(4)) == is_created


def test_names_of_consumer_groups_are_pseudonyms() -> None:
    partitions = [{"topic": "orders", "partitions": [0]}]
    assignments = [{"member_id": "member", "assigned": partitions}]
    named = {"subscribed_topics": ["orders"], "subscribed_regex": "ord.*", "owned": partitions, "assigned": partitions}
    text = json.dumps(anonymised({**named, "assignments": assignments}, pseudonyms()))
    assert not any(name in text for name in ("orders", "ord.*", '"member"'))


def test_facts_of_pieces_are_merged() -> None:
    tallies = [Tally(), Tally()]
    for tally, group in zip(tallies, ("b", "a"), strict=True):
        (beat,) = parse([_heartbeat(10, "SHARE_GROUP_HEARTBEAT", group)])
        tally.count_skipped(beat)
    tallies[0].count_version(1, "CONSUMER_GROUP_HEARTBEAT", {"errorCode": 0})
    ends = [tally.end(file=0, piece=0, line=1).to_pylist()[0] for tally in tallies]
    total = Tally.of((end["counts"], end["body"]) for end in ends)
    assert (total.modern_groups, total.new_brokers, total.consumer_brokers) == ({"a", "b"}, {1}, {1})


def test_followed_topics_are_written_once() -> None:
    created = {"topics": [{"name": "t", "topicId": T, "errorCode": 0, "numPartitions": 3}]}
    log = parse([log_line(5, message("CREATE_TOPICS", {"topics": []}, created, version=7)), _consumer(10)])
    carried = CarriedState(first_us=us(0), last_us=us(60), has_consumer_groups=True, fetched_counts={"t": 3})
    context = carried.context(log[:1], GivenMetadata(), {}, follower_reads=False)
    span = carried.time_range(us(60), hold_us=0)
    assert [size.partitions for size in carried.new_sizes(context, span)] == [3]
    resumed = CarriedState.resumed(carried.snapshot())
    assert resumed.new_sizes(context, span._replace(from_us=span.until_us)) == []


def _admin(api: str, forwarded: bool) -> Request:
    (request,) = parse([log_line(5, {**message(api, {}, {}), "isForwarded": forwarded})])
    return request


@pytest.mark.parametrize("api", ["CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"])
def test_topic_admin_requests_have_own_cause(api: str) -> None:
    """With ZooKeeper, `ZkAdminManager` and `ReplicaManager.electLeaders` park them in purgatories."""
    counts = translate([_admin(api, False), _admin(api, True)]).report.counts
    assert (counts["topic_admin"], counts["controller"], counts["no_purgatory"]) == (1, 1, 0)
