"""Groups of newer protocols than the classic one (KIP-848, Streams, share) have no classic coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.sources.request_log.following.carried_state import Carried
from purgatory_udf.sources.request_log.importing.log_reader import Tally
from purgatory_udf.sources.request_log.lines.logged_request import Request
from tests.sources.request_log.lines import body, requests, written
from tests.sources.request_log.translate import translate


def _beat(at: float, api: str, group: str) -> str:
    return written(at, body(api, {"groupId": group, "memberId": "m", "memberEpoch": 3}, {"errorCode": 0}))


def _commit(at: float, group: str) -> str:
    partition: dict[str, Any] = {"partitionIndex": 0, "committedOffset": 5}
    asked = {"groupId": group, "memberId": "m", "generationIdOrMemberEpoch": 3}
    answered = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    asked["topics"] = [{"name": "t", "partitions": [partition]}]
    return written(at, body("OFFSET_COMMIT", asked, answered, version=9))


@pytest.mark.parametrize("api", ["CONSUMER_GROUP_HEARTBEAT", "STREAMS_GROUP_HEARTBEAT", "SHARE_GROUP_HEARTBEAT"])
def test_the_commits_of_a_group_with_another_heartbeat_are_left_out_and_counted(api: str) -> None:
    """Kafka: `GroupCoordinatorService.consumerGroupHeartbeat`; a member epoch is no classic generation."""
    log = requests([_commit(5, "new"), _beat(10, api, "new"), _commit(20, "new"), _commit(30, "classic")])
    translation = translate(log)
    assert [(event["type"], event["group"]) for event in translation.events] == [("offset_commit", "classic")]
    assert translation.report.counts["modern_group"] == 3


def test_what_a_stretch_has_seen_of_newer_protocols_is_known_to_the_whole() -> None:
    tallies = [Tally(), Tally()]
    for tally, group in zip(tallies, ("b", "a"), strict=True):
        (beat,) = requests([_beat(10, "CONSUMER_GROUP_HEARTBEAT", group)])
        tally.not_kept(beat)
    ends = [tally.end(file=0, piece=0, line=1).to_pylist()[0] for tally in tallies]
    assert Tally.of((end["counts"], end["body"]) for end in ends).modern == {"a", "b"}
    assert Carried.resumed(Carried(modern=["a"]).snapshot()).modern == ["a"]


def _admin(api: str, forwarded: bool) -> Request:
    (request,) = requests([written(5, {**body(api, {}, {}), "isForwarded": forwarded})])
    return request


@pytest.mark.parametrize("api", ["CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"])
def test_requests_about_topics_are_not_said_never_to_wait(api: str) -> None:
    """Kafka up to 3.9 with ZooKeeper: `ZkAdminManager`, `ReplicaManager.electLeaders` park them."""
    counts = translate([_admin(api, False), _admin(api, True)]).report.counts
    assert (counts["topic_admin"], counts["controller"], counts["no_purgatory"]) == (1, 1, 0)
