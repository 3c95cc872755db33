"""Groups of newer protocols than the classic one (KIP-848, Streams, share) have no classic coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.sources.request_log.importing.carried_state import Carried
from purgatory_udf.sources.request_log.importing.log_reader import Tally
from purgatory_udf.sources.request_log.log_line import Request
from tests.sources.request_log.log_lines import log_line, message, parse
from tests.sources.request_log.translate import translate


def _heartbeat(at: float, api: str, group: str) -> str:
    return log_line(at, message(api, {"groupId": group, "memberId": "m", "memberEpoch": 3}, {"errorCode": 0}))


def _commit(at: float, group: str) -> str:
    partition: dict[str, Any] = {"partitionIndex": 0, "committedOffset": 5}
    request = {"groupId": group, "memberId": "m", "generationIdOrMemberEpoch": 3}
    response = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    request["topics"] = [{"name": "t", "partitions": [partition]}]
    return log_line(at, message("OFFSET_COMMIT", request, response, version=9))


@pytest.mark.parametrize("api", ["CONSUMER_GROUP_HEARTBEAT", "STREAMS_GROUP_HEARTBEAT", "SHARE_GROUP_HEARTBEAT"])
def test_commits_of_modern_groups_are_left_out(api: str) -> None:
    """Kafka: `GroupCoordinatorService.consumerGroupHeartbeat`; the member epoch in a commit is not a generation."""
    log = parse([_commit(5, "new"), _heartbeat(10, api, "new"), _commit(20, "new"), _commit(30, "classic")])
    translation = translate(log)
    assert [(event["type"], event["group"]) for event in translation.events] == [("offset_commit", "classic")]
    assert translation.report.counts["modern_group"] == 3


def test_modern_groups_of_pieces_are_merged() -> None:
    tallies = [Tally(), Tally()]
    for tally, group in zip(tallies, ("b", "a"), strict=True):
        (beat,) = parse([_heartbeat(10, "CONSUMER_GROUP_HEARTBEAT", group)])
        tally.count_skipped(beat)
    ends = [tally.end(file=0, piece=0, line=1).to_pylist()[0] for tally in tallies]
    assert Tally.of((end["counts"], end["body"]) for end in ends).modern_groups == {"a", "b"}
    assert Carried.resumed(Carried(modern_groups=["a"]).snapshot()).modern_groups == ["a"]


def _admin(api: str, forwarded: bool) -> Request:
    (request,) = parse([log_line(5, {**message(api, {}, {}), "isForwarded": forwarded})])
    return request


@pytest.mark.parametrize("api", ["CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"])
def test_topic_admin_requests_have_own_cause(api: str) -> None:
    """With ZooKeeper, `ZkAdminManager` and `ReplicaManager.electLeaders` park them in purgatories."""
    counts = translate([_admin(api, False), _admin(api, True)]).report.counts
    assert (counts["topic_admin"], counts["controller"], counts["no_purgatory"]) == (1, 1, 0)
