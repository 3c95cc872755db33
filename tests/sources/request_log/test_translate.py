"""A whole log in memory: what it says about each partition, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.cluster.record_batches import StoredBatch
from tests.sources.request_log.lines import START_US, T, body, fetched, produced, requests, us, written
from tests.sources.request_log.translate import Translation, translate

LEADER = PartitionChange(us(-5_000), T, 0, GIVEN, 1, 0, (1, 2), (1, 2))
FIRST, SECOND = StoredBatch(10, 12, 100, us(20), False, False, -1), StoredBatch(13, 13, 60, us(40), False, False, -1)
CLUSTER = ClusterMetadata(names={T: "t"}, changes=[LEADER])
GIVEN_ALL = GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST]})

# A follower and a consumer wait at the end of the log; a produce of three records wakes the follower, whose next fetch
# moves the high watermark, which wakes the consumer and answers the produce.
LOG = [
    fetched(9, {0: 10}, epoch=0, granted=7, local=1, remote=2.5, wait=2, replica=2, client="f"),
    fetched(20.4, {0: 10}, {0: 100}, session=7, epoch=1, local=1, remote=9.4, replica=2, client="f"),
    produced(24, 10, local=1, remote=3),
    fetched(24.2, {0: 10}, {0: 100}, local=1, remote=12.2),
    fetched(60, {0: 13}, session=7, epoch=2, local=1, remote=36, replica=2, client="f"),
]


def _said(translation: Translation) -> list[tuple[Any, ...]]:
    """(ms after the start, what, its offsets)."""
    said = []
    for event in translation.events:
        at = (event["time_us"] - START_US) / 1000
        if event["type"] == "partition":
            said.append((at, event["change"], event.get("replica_id"), event.get("offset")))
        else:
            (partition,) = event["partitions"]
            offsets = [partition[name] for name in ("fetch_offset", "base_offset", "last_offset") if name in partition]
            said.append((at, event["type"], event.get("replica_id"), *offsets))
    return said


def test_a_log_says_what_its_partitions_did_and_the_replay_ends_all_as_the_broker_did() -> None:
    translation = translate(requests(LOG), GIVEN_ALL, {0: "request-1.log"})
    assert [event["seq"] for event in translation.events] == list(range(len(translation.events)))
    said = _said(translation)
    assert [event for event in said if event[1] in ("fetch", "produce")] == [
        (6.5, "fetch", 2, 10),
        (11.0, "fetch", 2, 10),
        (12.0, "fetch", -1, 10),
        (21.0, "produce", None, 10, 12),
        (24.0, "fetch", 2, 13),
    ]
    assert [event[1:] for event in said if event[1] not in ("fetch", "produce")] == [
        ("leader", None, None),
        ("log_end", None, 10),
        ("replica_end", 2, 10),
        # The follower had the records before the produce was tried.
        ("log_end", None, 13),
        ("replica_end", 2, 13),
    ]
    recorded = {seq: (record.kind, record.outcome, record.remote_ms) for seq, record in translation.recorded.items()}
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    replayed = {
        seq: "expired" if ended[seq].expired else "completed" if ended[seq].watched else "at_once" for seq in recorded
    }
    assert [(kind, outcome, replayed[seq]) for seq, (kind, outcome, _) in recorded.items()] == [
        ("follower fetch", "expired", "expired"),
        ("follower fetch", "completed", "completed"),
        ("consumer fetch", "completed", "completed"),
        ("produce acks=-1", "completed", "completed"),
        ("follower fetch", "expired", "expired"),
    ]


def test_events_name_the_line_they_come_from() -> None:
    translation = translate(requests(LOG), GIVEN_ALL, {0: "request-1.log"})
    lines = [event["request_id"] for event in translation.events if "request_id" in event]
    assert lines == [f"request-1.log:{line}" for line in (1, 2, 4, 3, 5)]


def test_without_batches_the_end_of_an_append_is_the_offset_that_a_follower_asks_for_next() -> None:
    translation = translate(requests(LOG), GivenMetadata({T: "t"}, CLUSTER))
    assert (21.0, "produce", None, 10, 12) in _said(translation)
    counts = translation.report.counts
    assert (counts["end_from_offsets"], counts["end_from_batches"], counts["end_supposed"]) == (1, 0, 0)


def test_without_names_the_id_is_the_name_and_the_report_says_so() -> None:
    translation = translate(requests(LOG))
    assert {event["topic"] for event in translation.events if event["type"] == "partition"} == {T}
    assert translation.report.counts["unnamed_topic"] == 1
    assert translation.report.counts["isr_supposed"] == 1


def test_a_repeated_base_offset_is_a_retry_that_appends_nothing() -> None:
    translation = translate(requests([*LOG, produced(55, 10, local=1)]), GIVEN_ALL)
    assert translation.report.counts["retried_batch"] == 1
    ends = [event["offset"] for event in translation.events if event.get("change") == "log_end"]
    assert ends == sorted(set(ends))


def _joined(at: float, code: int) -> str:
    asked = {"transactionalId": "x", "producerId": 7, "verifyOnly": False}
    asked["topics"] = [{"name": "t", "partitions": [0]}]
    results = [{"name": "t", "resultsByPartition": [{"partitionIndex": 0, "partitionErrorCode": code}]}]
    answer = {"resultsByTransaction": [{"transactionalId": "x", "topicResults": results}]}
    return written(at, body("ADD_PARTITIONS_TO_TXN", {"transactions": [asked]}, answer, version=5))


def test_a_transactions_produce_is_appended_when_its_partition_has_joined_and_tried_when_all_have() -> None:
    lines = [*LOG, _joined(70, 51), _joined(80, 0), produced(99, 13, size=60, transaction="x", local=1, remote=38)]
    translation = translate(requests(lines), GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, SECOND]}))
    assert _said(translation)[-1] == (80.3, "produce", None, 13, 13)
    (waited,) = [
        record.remote_ms
        for seq, record in translation.recorded.items()
        if translation.events[seq]["time_us"] == us(80.3)
    ]
    assert waited == pytest.approx(18.7)


def test_it_is_appended_later_where_a_follower_that_came_later_still_found_nothing() -> None:
    """The coordinator's answer waits for a thread of the broker (`KafkaRequestHandler.wrapAsyncCallback`)."""
    waits = fetched(90, {0: 13}, {0: 60}, session=7, epoch=3, local=1, remote=6, replica=2, client="f")
    lines = [*LOG, _joined(80, 0), waits, produced(99, 13, size=60, transaction="x", local=1, remote=38)]
    translation = translate(requests(lines), GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, SECOND]}))
    (produce,) = [event for event in translation.events if event["type"] == "produce" and event["time_us"] > us(60)]
    assert us(84) < produce["time_us"] < us(90), "its first try was at 84, and it was answered at 90"


def test_a_produce_that_was_refused_waited_in_no_purgatory() -> None:
    translation = translate(requests([*LOG, produced(99, -1, error=51, local=1, remote=30)]), GIVEN_ALL)
    (refused,) = [record for record in translation.recorded.values() if record.error == "CONCURRENT_TRANSACTIONS"]
    assert (refused.outcome, refused.remote_ms) == ("at_once", 0)
    assert translation.events[-1]["time_us"] == us(99)


def test_a_follower_whose_log_parts_from_the_leaders_has_what_lies_below() -> None:
    lines = [
        *LOG,
        fetched(70, {0: 20}, {0: 0}, session=7, epoch=3, local=1, replica=2, client="f", diverging_end_offset=13),
    ]
    translation = translate(requests(lines), GIVEN_ALL)
    assert _said(translation)[-1] == (70.0, "fetch", 2, 13)
    assert max(event["offset"] for event in translation.events if event.get("change") == "replica_end") == 13


def test_a_produce_without_an_answer_has_the_batch_that_no_other_names() -> None:
    lines = [*LOG, produced(41, -1, size=60, acks=0, local=1)]
    translation = translate(requests(lines), GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, SECOND]}))
    assert [event[3:] for event in _said(translation) if event[1] == "produce"] == [(10, 12), (13, 13)]
    assert translation.report.counts["unanswered_offsets"] == 1
    assert translation.report.counts["acks_zero_errors"] == 1


def test_the_controllers_own_traffic_is_left_out_and_counted() -> None:
    raft = written(5, body("FETCH", {"topics": []}, {}, listener="CONTROLLER"))
    vote = written(6, body("VOTE", {}, {}))
    api = written(7, body("API_VERSIONS", {}, {}))
    translation = translate(requests([raft, vote, api]))
    assert (translation.events, translation.report.counts["controller"], translation.report.counts["no_purgatory"]) == (
        [],
        2,
        1,
    )


def test_a_body_that_cannot_be_read_is_rejected_with_its_place() -> None:
    broken = written(5, body("PRODUCE", {"acks": 1}, None))
    (bad,) = translate(requests([LOG[0], broken])).bad
    assert bad.place == (0, 2)
    assert bad.reason.startswith("malformed: PRODUCE 13: KeyError")


def test_group_requests_that_a_broker_turned_away_are_no_events() -> None:
    def heartbeat(at: float, code: int) -> str:
        asked = {"groupId": "g", "memberId": "m", "generationId": 3}
        return written(at, body("HEARTBEAT", asked, {"errorCode": code}, version=4, local=0.5))

    translation = translate(requests([heartbeat(5, 16), heartbeat(9, 27)]))
    assert [(event["type"], event["group"], event["generation"]) for event in translation.events] == [
        ("heartbeat", "g", 3)
    ]
    assert translation.report.counts["not_coordinator"] == 1
    assert [record.error for record in translation.recorded.values()] == ["REBALANCE_IN_PROGRESS"]


def test_what_is_said_of_each_member_or_partition_is_what_was_recorded() -> None:
    """A LEAVE_GROUP and an OFFSET_COMMIT went well as a whole, whatever became of their parts."""
    left = {"members": [{"memberId": "m", "errorCode": 0}, {"memberId": "n", "errorCode": 25}], "errorCode": 0}
    leave = {"groupId": "g", "members": [{"memberId": "m"}, {"memberId": "n"}]}
    commit = {
        "groupId": "g",
        "memberId": "m",
        "generationIdOrMemberEpoch": 3,
        "topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 5}]}],
    }

    def committed(code: int) -> dict[str, Any]:
        return {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": code}]}]}

    log = [
        written(5, body("LEAVE_GROUP", leave, left, version=5)),
        written(9, body("OFFSET_COMMIT", commit, committed(16), version=9)),
        written(12, body("OFFSET_COMMIT", commit, committed(22), version=9)),
    ]
    translation = translate(requests(log))
    assert [
        (translation.recorded[event["seq"]].kind, translation.recorded[event["seq"]].error)
        for event in translation.events
    ] == [
        ("leave_group", "NONE"),
        ("leave_group", "UNKNOWN_MEMBER_ID"),
        ("offset_commit", "ILLEGAL_GENERATION"),
    ]
    assert translation.report.counts["not_coordinator"] == 1
