"""Consumers that read from followers (KIP-392): a follower's own high watermark comes from its leader's log.

Kafka: `ReplicaFetcherThread.processPartitionData` sets it and `.completeDelayedFetchRequests` tries who waits for it
(KAFKA-14334); `FetchParams.fetchOnlyLeader` says who may be served. Times are milliseconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.cluster.record_batches import StoredBatch
from purgatory_udf.sources.request_log.lines.logged_request import Request
from tests.sources.request_log import recordings
from tests.sources.request_log.lines import START_US, T, fetched, requests, us
from tests.sources.request_log.stepwise import Stepwise
from tests.sources.request_log.translate import Translation, translate

pytestmark = pytest.mark.long

LEADER = PartitionChange(us(-5_000), T, 0, GIVEN, 1, 0, (1, 2), (1, 2))
FIRST, SECOND = StoredBatch(10, 12, 60, us(1), False, False, -1), StoredBatch(13, 13, 40, us(1), False, False, -1)
GIVEN_ALL = GivenMetadata({T: "t"}, ClusterMetadata(names={T: "t"}, changes=[LEADER]), {("t", 0): [FIRST, SECOND]})

# Broker 2 follows broker 1, from which it has all below 10. One answer brings two batches (to 14), of which the leader
# does not yet know that broker 2 has them; the next answer says so. A consumer waits at broker 2 for both.
FOLLOWER = [
    fetched(6, {0: 10}, {}, epoch=0, granted=7, remote=4, replica=2, client="f"),
    fetched(20, {0: 10}, {0: 100}, session=7, epoch=1, remote=8, replica=2, client="f", high_watermark=10),
    fetched(30, {0: 14}, {0: 0}, session=7, epoch=2, remote=1, replica=2, client="f", high_watermark=14),
    fetched(60, {}, session=7, epoch=3, remote=20, replica=2, client="f"),
]
CONSUMER = fetched(
    60, {0: 10}, {0: 100}, rack="b", client="reader", broker=2, remote=38, min_bytes=100, high_watermark=14
)


def _ended(translation: Translation) -> list[tuple[str, int, str]]:
    """(client, broker, how the replay ends it, if at another time than it came)."""
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    return [
        (outcome.client_id or "", outcome.broker, f"{outcome.completed_by} {(outcome.ended_us - START_US) / 1000:g}")
        for outcome in ended.values()
        if outcome.watched
    ]


def test_a_followers_high_watermark_is_what_its_leader_answered_once_it_has_taken_that_in() -> None:
    translation = translate(requests([*FOLLOWER, CONSUMER]), GIVEN_ALL)
    said = [
        ((event["time_us"] - START_US) / 1000, event["change"], event.get("offset"), event.get("bytes"))
        for event in translation.events
        if event["type"] == "partition" and event["broker"] == 2
    ]
    # Answers were sent at 20 and 30, the fetches after them came at 28 and 39: three quarters of the way.
    assert [event[1:] for event in said[:2]] == [("online", None, None), ("log_end", 10, 0)]
    assert said[2:] == [
        (26.0, "log_end", 13, 60),
        (26.0, "log_end", 14, 40),
        (26.0, "high_watermark", 10, None),
        (36.75, "high_watermark", 14, None),
    ]


def test_a_fetch_waits_at_a_follower_until_that_followers_high_watermark_lets_it_read() -> None:
    assert ("reader", 2, "min_bytes 36.75") in _ended(translate(requests([*FOLLOWER, CONSUMER]), GIVEN_ALL))


def test_an_answer_at_the_follower_shows_what_it_had_learnt_by_then() -> None:
    answered = fetched(
        33, {0: 10}, {0: 100}, rack="b", client="reader", broker=2, remote=11, min_bytes=100, high_watermark=14
    )
    assert ("reader", 2, "min_bytes 32.9") in _ended(translate(requests([*FOLLOWER, answered]), GIVEN_ALL))


def test_where_no_consumer_is_served_a_follower_turns_fetches_away_as_before() -> None:
    translation = translate(requests(FOLLOWER), GIVEN_ALL)
    assert [event for event in translation.events if event["broker"] == 2] == []


LEAST_ALIKE = 99.8


@pytest.fixture(scope="module")
def recording() -> tuple[tuple[Request, ...], GivenMetadata]:
    """Three consumers that read from the nearest replica, one that cannot, and one that asks in vain."""
    return recordings.log("W6-follower-reads"), recordings.given("W6-follower-reads")


def test_a_recordings_consumers_at_followers_end_as_they_did(
    recording: tuple[tuple[Request, ...], GivenMetadata],
) -> None:
    translation = translate(*recording)
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    counts: Counter[tuple[str, str]] = Counter()
    for seq, record in translation.recorded.items():
        if record.kind == "consumer fetch":
            end = ended[seq]
            replayed = "expired" if end.expired else "completed" if end.watched else "at_once"
            counts[record.outcome, replayed] += 1
    alike = 100 * sum(n for (logged, replayed), n in counts.items() if logged == replayed) / counts.total()
    assert counts.total() > 6_000 and alike >= LEAST_ALIKE, counts
    assert {pair for pair in counts if "expired" in pair} == {("expired", "expired")}
    assert counts["expired", "expired"] == 57, "as the brokers' own counters have it"
    sent = [
        event["seq"] for event in translation.events if any("preferred_replica" in part for part in _parts_sent(event))
    ]
    assert [(translation.recorded[seq].outcome, ended[seq].completed_by) for seq in sent] == [
        ("at_once", "preferred_replica")
    ] * 8


def _parts_sent(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The partitions of which a consumer was told that another replica is nearer."""
    parts = event["partitions"] if event["type"] == "fetch" else []
    return [part for part in parts if "preferred_replica" in part]


def test_followed_step_by_step_it_says_the_same(recording: tuple[tuple[Request, ...], GivenMetadata]) -> None:
    requests, given = recording
    log = sorted(requests, key=lambda request: request.answered_us)[:6_000]
    stepwise = Stepwise(hold_us=5_000_000, given=given)
    said = [event for place in range(0, len(log), 1_500) for event in stepwise.step(log[place : place + 1_500])]
    whole = translate(sorted(log, key=lambda request: request.start_us), given).events
    until_us = stepwise.carried.until_us - 1_000_000

    def learnt(events: list[dict[str, object]]) -> list[tuple[object, ...]]:
        names = ("time_us", "broker", "topic", "partition", "offset")
        marks = [
            event
            for event in events
            if event.get("change") == "high_watermark" and str(event["topic"]).startswith("w6")
        ]
        return sorted(tuple(mark[name] for name in names) for mark in marks if int(str(mark["time_us"])) < until_us)

    assert len(learnt(said)) > 100
    assert learnt(said) == learnt(whole)
