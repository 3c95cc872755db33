"""Conversion of a whole log in memory, its events and their replay. Times are milliseconds."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context, GivenMetadata, build_context
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.fact_kinds import Append, PartitionError
from purgatory_udf.sources.request_log.fetch_conversion import FetchConverter
from purgatory_udf.sources.request_log.importing.import_rows import fetches_in
from purgatory_udf.sources.request_log.internal_topics import StoredBatch, TransactionFacts
from purgatory_udf.sources.request_log.produce_conversion import convert_produce
from tests.sources.request_log.log_lines import START_US, T, fetch_line, log_line, message, parse, produce_line, us
from tests.sources.request_log.translate import Translation, read_rows, translate

LEADER = PartitionChange(us(-5_000), T, 0, GIVEN, 1, 0, (1, 2), (1, 2))
FIRST, SECOND = StoredBatch(10, 12, 100, us(20), False, False, -1), StoredBatch(13, 13, 60, us(40), False, False, -1)
CLUSTER = ClusterMetadata(names={T: "t"}, changes=[LEADER])
GIVEN_ALL = GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST]})

# A follower and a consumer wait at the log end. A produce of three records completes the follower's fetch; the
# follower's next fetch raises the high watermark, which completes the consumer's fetch and the produce.
LOG = [
    fetch_line(9, {0: 10}, epoch=0, granted=7, local=1, remote=2.5, wait=2, replica=2, client="f"),
    fetch_line(20.4, {0: 10}, {0: 100}, session=7, epoch=1, local=1, remote=9.4, replica=2, client="f"),
    produce_line(24, 10, local=1, remote=3),
    fetch_line(24.2, {0: 10}, {0: 100}, local=1, remote=12.2),
    fetch_line(60, {0: 13}, session=7, epoch=2, local=1, remote=36, replica=2, client="f"),
]


def _summary(translation: Translation) -> list[tuple[Any, ...]]:
    """Return (time, type or change, replica, offsets) of each event."""
    summary = []
    for event in translation.events:
        at = (event["time_us"] - START_US) / 1000
        if event["type"] == "partition":
            summary.append((at, event["change"], event.get("replica_id"), event.get("offset")))
        else:
            (partition,) = event["partitions"]
            offsets = [partition[name] for name in ("fetch_offset", "base_offset", "last_offset") if name in partition]
            summary.append((at, event["type"], event.get("replica_id"), *offsets))
    return summary


def test_log_converts_and_replays_as_recorded() -> None:
    translation = translate(parse(LOG), GIVEN_ALL, {0: "request-1.log"})
    assert [event["seq"] for event in translation.events] == list(range(len(translation.events)))
    summary = _summary(translation)
    assert [event for event in summary if event[1] in ("fetch", "produce")] == [
        (6.5, "fetch", 2, 10),
        (11.0, "fetch", 2, 10),
        (12.0, "fetch", -1, 10),
        (21.0, "produce", None, 10, 12),
        (24.0, "fetch", 2, 13),
    ]
    assert [event[1:] for event in summary if event[1] not in ("fetch", "produce")] == [
        ("leader", None, None),
        ("log_end", None, 10),
        ("replica_end", 2, 10),
        # The follower had the records before the produce was checked.
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


def test_request_id_has_file_and_line() -> None:
    translation = translate(parse(LOG), GIVEN_ALL, {0: "request-1.log"})
    lines = [event["request_id"] for event in translation.events if "request_id" in event]
    assert lines == [f"request-1.log:{line}" for line in (1, 2, 4, 3, 5)]


def test_append_ends_at_followers_next_offset() -> None:
    translation = translate(parse(LOG), GivenMetadata({T: "t"}, CLUSTER))
    assert (21.0, "produce", None, 10, 12) in _summary(translation)
    counts = translation.report.counts
    assert (counts["end_from_offsets"], counts["end_from_batches"], counts["end_supposed"]) == (1, 0, 0)


def test_topic_without_name_is_called_by_id() -> None:
    translation = translate(parse(LOG))
    assert {event["topic"] for event in translation.events if event["type"] == "partition"} == {T}
    assert translation.report.counts["unnamed_topic"] == 1
    assert translation.report.counts["isr_supposed"] == 1


def test_repeated_base_offset_appends_nothing() -> None:
    translation = translate(parse([*LOG, produce_line(55, 10, local=1)]), GIVEN_ALL)
    assert translation.report.counts["retried_batch"] == 1
    ends = [event["offset"] for event in translation.events if event.get("change") == "log_end"]
    assert ends == sorted(set(ends))


def _joined(at: float, code: int) -> str:
    transaction = {"transactionalId": "x", "producerId": 7, "verifyOnly": False}
    transaction["topics"] = [{"name": "t", "partitions": [0]}]
    results = [{"name": "t", "resultsByPartition": [{"partitionIndex": 0, "partitionErrorCode": code}]}]
    answer = {"resultsByTransaction": [{"transactionalId": "x", "topicResults": results}]}
    return log_line(at, message("ADD_PARTITIONS_TO_TXN", {"transactions": [transaction]}, answer, version=5))


def test_transactional_append_follows_partition_join() -> None:
    lines = [*LOG, _joined(70, 51), _joined(80, 0), produce_line(99, 13, size=60, transaction="x", local=1, remote=38)]
    translation = translate(parse(lines), GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, SECOND]}))
    assert _summary(translation)[-1] == (80.3, "produce", None, 13, 13)
    (waited,) = [
        record.remote_ms
        for seq, record in translation.recorded.items()
        if translation.events[seq]["time_us"] == us(80.3)
    ]
    assert waited == pytest.approx(18.7)


def test_partitions_of_transactions_are_named() -> None:
    line = _joined(70, 0).replace('"name": "t"', f'"topicId": "{T}"')
    context = build_context(parse([line]), GivenMetadata({T: "t"}), (us(0), us(100)), ())
    assert context.transactions.added == {("x", "t", 0): [us(70)]}


def test_produce_may_have_several_batches() -> None:
    more = StoredBatch(13, 15, 60, us(21), False, False, -1)
    given = GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, more]})
    translation = translate(parse([produce_line(24, 10, size=160, local=1, remote=3)]), given)
    assert [event[3:] for event in _summary(translation) if event[1] == "produce"] == [(10, 15)]


def test_events_name_clients_that_have_a_name() -> None:
    unnamed = produce_line(50, 13, local=1).replace('"clientId": "p"', '"clientId": null')
    translation = translate(parse([*LOG, unnamed]), GIVEN_ALL)
    assert [event.get("client_id") for event in translation.events if event["type"] == "produce"] == ["p", None]


def test_redirected_fetch_names_broker_zero() -> None:
    line = fetch_line(60, {0: 10}, {0: 0}, rack="b", client="reader")
    line = line.replace('"highWatermark": 0', '"highWatermark": 0, "preferredReadReplica": 0')
    (fetch,) = (event for event in translate(parse([line])).events if event["type"] == "fetch")
    assert fetch["partitions"][0]["preferred_replica"] == 0


def test_first_broker_follows() -> None:
    translation = translate(parse([fetch_line(60, {0: 10}, replica=0)]))
    assert [record.kind for record in translation.recorded.values()] == ["follower fetch"]


@pytest.mark.parametrize(
    ("wait_ms", "error", "answered"), [(0.001, 0, 24), (0, 0, None), (2, errors.REQUEST_TIMED_OUT, None)]
)
def test_answer_shows_when_append_was_replicated(wait_ms: float, error: int, answered: float | None) -> None:
    (request,) = parse([produce_line(24, 10, error=error, remote=wait_ms)])
    _, ((_, append), *_) = convert_produce(request, Context(), Report())
    assert isinstance(append, Append)
    assert append.answered_us == (-1 if answered is None else us(answered))


def test_negative_limits_of_fetch_are_zero() -> None:
    line = fetch_line(60, {0: 10}, min_bytes=-3).replace('"partitionMaxBytes": 50000', '"partitionMaxBytes": -5')
    line = line.replace('"maxBytes": 1000000', '"maxBytes": -4')
    (fetch,) = (event for event in translate(parse([line])).events if event["type"] == "fetch")
    assert (fetch["min_bytes"], fetch["max_bytes"], fetch["partitions"][0]["max_bytes"]) == (0, 0, 0)


def test_follower_postpones_transactional_append() -> None:
    """The coordinator's response waits for a request handler thread (`KafkaRequestHandler.wrapAsyncCallback`)."""
    waits = fetch_line(90, {0: 13}, {0: 60}, session=7, epoch=3, local=1, remote=6, replica=2, client="f")
    lines = [*LOG, _joined(80, 0), waits, produce_line(99, 13, size=60, transaction="x", local=1, remote=38)]
    translation = translate(parse(lines), GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, SECOND]}))
    (produce,) = [event for event in translation.events if event["type"] == "produce" and event["time_us"] > us(60)]
    assert us(84) < produce["time_us"] < us(90), "the follower's fetch was first checked at 84, and answered at 90"


def test_partition_joins_transaction_until_append() -> None:
    facts = TransactionFacts(added={("x", "t", 0): [5, 9]})
    assert [facts.joined_us("x", ("t", 0), *span) for span in ((5, 5), (6, 8), (6, 9))] == [5, None, 9]


def test_refused_produce_waited_in_no_purgatory() -> None:
    translation = translate(parse([*LOG, produce_line(99, -1, error=51, local=1, remote=30)]), GIVEN_ALL)
    (refused,) = [record for record in translation.recorded.values() if record.error == "CONCURRENT_TRANSACTIONS"]
    assert (refused.outcome, refused.remote_ms) == ("at_once", 0)
    assert translation.events[-1]["time_us"] == us(99)


def test_fetch_with_diverging_epoch_completes_at_once() -> None:
    """The follower is at the leader's end below the divergence, so that nothing else would complete its fetch."""
    more: dict[str, Any] = {
        "session": 7,
        "epoch": 3,
        "local": 1,
        "replica": 2,
        "client": "f",
        "diverging_end_offset": 13,
    }
    for waited_ms, min_bytes in ((0, 0), (500, 1)):
        lines = [*LOG, fetch_line(70 + waited_ms, {0: 20}, {0: 0}, remote=waited_ms, **more)]
        translation = translate(parse(lines), GIVEN_ALL)
        assert translation.events[-1]["min_bytes"] == min_bytes
        assert translation.report.counts["diverging"] == (waited_ms == 0)


@pytest.mark.parametrize(
    ("waited_ms", "shown"),
    [
        (0, errors.FENCED_LEADER_EPOCH),
        (0.001, errors.NOT_LEADER_OR_FOLLOWER),
        (50, errors.NOT_LEADER_OR_FOLLOWER),
        (500, errors.FENCED_LEADER_EPOCH),
        (500.2, errors.FENCED_LEADER_EPOCH),
    ],
)
def test_fenced_after_wait_shows_lost_leadership(waited_ms: float, shown: int) -> None:
    """On arrival the epoch was current. A fetch that is fenced at once may only have an old epoch."""
    line = fetch_line(620, {0: 20}, {0: 0}, local=1, remote=waited_ms, partition_error=errors.FENCED_LEADER_EPOCH)
    fetches = fetches_in(read_rows(parse([line])).to_batches()[0])
    ((_, facts),) = FetchConverter(Context()).convert(fetches, Report()).facts.items()
    assert [fact.error for fact in facts if isinstance(fact, PartitionError)] == [shown]


def test_diverging_follower_has_records_below() -> None:
    lines = [
        *LOG,
        fetch_line(70, {0: 20}, {0: 0}, session=7, epoch=3, local=1, replica=2, client="f", diverging_end_offset=13),
    ]
    translation = translate(parse(lines), GIVEN_ALL)
    assert _summary(translation)[-1] == (70.0, "fetch", 2, 13)
    assert max(event["offset"] for event in translation.events if event.get("change") == "replica_end") == 13


def test_unanswered_produce_gets_unclaimed_batch() -> None:
    lines = [*LOG, produce_line(41, -1, size=60, acks=0, local=1)]
    translation = translate(parse(lines), GivenMetadata({T: "t"}, CLUSTER, {("t", 0): [FIRST, SECOND]}))
    assert [event[3:] for event in _summary(translation) if event[1] == "produce"] == [(10, 12), (13, 13)]
    assert translation.report.counts["unanswered_offsets"] == 1
    assert translation.report.counts["acks_zero_errors"] == 1


def test_controller_requests_are_left_out() -> None:
    raft = log_line(5, message("FETCH", {"topics": []}, {}, listener="CONTROLLER"))
    vote = log_line(6, message("VOTE", {}, {}))
    api = log_line(7, message("API_VERSIONS", {}, {}))
    # Kafka 2.8 may have no listener of its own for these: the client or the topic shows them.
    client = log_line(8, message("API_VERSIONS", {}, {}, client="raft-client-1"))
    metadata_log = fetch_line(9, {0: 3}, replica=2).replace(T, "AAAAAAAAAAAAAAAAAAAAAQ")
    translation = translate(parse([raft, vote, api, client, metadata_log]))
    counts = translation.report.counts
    assert (translation.events, counts["controller"], counts["no_purgatory"]) == ([], 4, 1)


def test_malformed_body_is_rejected() -> None:
    broken = log_line(5, message("PRODUCE", {"acks": 1}, None))
    (bad,) = translate(parse([LOG[0], broken])).bad
    assert bad.place == (0, 2)
    assert bad.reason.startswith("malformed: body of PRODUCE version 13: KeyError")


def test_join_with_impossible_generation_is_rejected() -> None:
    member = {"groupId": "g", "memberId": "m", "sessionTimeoutMs": 6000, "rebalanceTimeoutMs": 9000, "protocols": []}

    def joined(at: float, generation: int) -> str:
        response = {"errorCode": 0, "generationId": generation, "memberId": "m", "leader": "m"}
        return log_line(at, message("JOIN_GROUP", member, response, version=5))

    translation = translate(parse([joined(5, 2**31 - 1), joined(9, 2**31)]))
    assert [bad.reason for bad in translation.bad] == [
        "malformed: body of JOIN_GROUP version 5: ValueError: generationId is 2147483648, expected a 32-bit integer"
    ]
    assert [record.generation for record in translation.recorded.values()] == [2**31 - 1]


def test_refused_group_request_becomes_no_event() -> None:
    def heartbeat(at: float, code: int) -> str:
        request = {"groupId": "g", "memberId": "m", "generationId": 3}
        return log_line(at, message("HEARTBEAT", request, {"errorCode": code}, version=4, local=0.5))

    translation = translate(parse([heartbeat(5, 16), heartbeat(9, 27)]))
    assert [(event["type"], event["group"], event["generation"]) for event in translation.events] == [
        ("heartbeat", "g", 3)
    ]
    assert translation.report.counts["not_coordinator"] == 1
    assert [record.error for record in translation.recorded.values()] == ["REBALANCE_IN_PROGRESS"]


def test_errors_of_members_and_partitions_are_recorded() -> None:
    """The response as a whole has no error, but some of its members or partitions have."""
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
        log_line(5, message("LEAVE_GROUP", leave, left, version=5)),
        log_line(9, message("OFFSET_COMMIT", commit, committed(16), version=9)),
        log_line(12, message("OFFSET_COMMIT", commit, committed(22), version=9)),
    ]
    translation = translate(parse(log))
    assert [
        (translation.recorded[event["seq"]].kind, translation.recorded[event["seq"]].error)
        for event in translation.events
    ] == [
        ("leave_group", "NONE"),
        ("leave_group", "UNKNOWN_MEMBER_ID"),
        ("offset_commit", "ILLEGAL_GENERATION"),
    ]
    assert translation.report.counts["not_coordinator"] == 1
