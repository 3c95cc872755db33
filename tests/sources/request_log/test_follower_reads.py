"""Consumers that read from followers (KIP-392): a follower's own high watermark is derived from its leader's log.

Kafka: `ReplicaFetcherThread.processPartitionData` sets it, and `.completeDelayedFetchRequests` checks the waiting
fetches (KAFKA-14334); `FetchParams.fetchOnlyLeader` decides which fetches a follower serves. Times are milliseconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.internal_topics import StoredBatch
from purgatory_udf.sources.request_log.logged_request import Request
from tests.sources.request_log import recordings
from tests.sources.request_log.followed_log import FollowedLog
from tests.sources.request_log.log_lines import START_US, T, fetch_line, parse, us
from tests.sources.request_log.translate import Translation, translate

pytestmark = pytest.mark.long

LEADER = PartitionChange(us(-5_000), T, 0, GIVEN, 1, 0, (1, 2), (1, 2))
FIRST, SECOND = StoredBatch(10, 12, 60, us(1), False, False, -1), StoredBatch(13, 13, 40, us(1), False, False, -1)
GIVEN_ALL = GivenMetadata({T: "t"}, ClusterMetadata(names={T: "t"}, changes=[LEADER]), {("t", 0): [FIRST, SECOND]})

# Broker 2 follows broker 1 and has all records below 10. One response has two batches, up to 14, but still the high
# watermark 10; the next response has the high watermark 14. A consumer waits at broker 2 for both batches.
FOLLOWER = [
    fetch_line(6, {0: 10}, {}, epoch=0, granted=7, remote=4, replica=2, client="f"),
    fetch_line(20, {0: 10}, {0: 100}, session=7, epoch=1, remote=8, replica=2, client="f", high_watermark=10),
    fetch_line(30, {0: 14}, {0: 0}, session=7, epoch=2, remote=1, replica=2, client="f", high_watermark=14),
    fetch_line(60, {}, session=7, epoch=3, remote=20, replica=2, client="f"),
]
CONSUMER = fetch_line(
    60, {0: 10}, {0: 100}, rack="b", client="reader", broker=2, remote=38, min_bytes=100, high_watermark=14
)


def _waits(translation: Translation) -> list[tuple[str, int, str]]:
    """Return (client, broker, completion cause and time) of the operations that wait."""
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    return [
        (outcome.client_id or "", outcome.broker, f"{outcome.completed_by} {(outcome.ended_us - START_US) / 1000:g}")
        for outcome in ended.values()
        if outcome.watched
    ]


def test_follower_learns_high_watermark_from_leader() -> None:
    translation = translate(parse([*FOLLOWER, CONSUMER]), GIVEN_ALL)
    events = [
        ((event["time_us"] - START_US) / 1000, event["change"], event.get("offset"), event.get("bytes"))
        for event in translation.events
        if event["type"] == "partition" and event["broker"] == 2
    ]
    # Responses were sent at 20 and 30, and the next fetches arrived at 28 and 39: 3/4 of the way are
    # 26 and 36.75.
    assert [event[1:] for event in events[:2]] == [("online", None, None), ("log_end", 10, 0)]
    assert events[2:] == [
        (26.0, "log_end", 13, 60),
        (26.0, "log_end", 14, 40),
        (26.0, "high_watermark", 10, None),
        (36.75, "high_watermark", 14, None),
    ]


def test_fetch_waits_for_followers_high_watermark() -> None:
    assert ("reader", 2, "min_bytes 36.75") in _waits(translate(parse([*FOLLOWER, CONSUMER]), GIVEN_ALL))


def test_response_bounds_followers_high_watermark() -> None:
    response = fetch_line(
        33, {0: 10}, {0: 100}, rack="b", client="reader", broker=2, remote=11, min_bytes=100, high_watermark=14
    )
    assert ("reader", 2, "min_bytes 32.9") in _waits(translate(parse([*FOLLOWER, response]), GIVEN_ALL))


def test_follower_without_readers_has_no_events() -> None:
    translation = translate(parse(FOLLOWER), GIVEN_ALL)
    assert [event for event in translation.events if event["broker"] == 2] == []


MIN_AGREEMENT = 99.8


@pytest.fixture(scope="module")
def recording() -> tuple[tuple[Request, ...], GivenMetadata]:
    """Three consumers that read from the nearest replica, and two that do not."""
    return recordings.log("W6-follower-reads"), recordings.given("W6-follower-reads")


@pytest.mark.nightly
def test_recorded_follower_reads_end_as_recorded(
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
    agreement = 100 * sum(n for (logged, replayed), n in counts.items() if logged == replayed) / counts.total()
    assert counts.total() > 6_000 and agreement >= MIN_AGREEMENT, counts
    assert {pair for pair in counts if "expired" in pair} == {("expired", "expired")}
    assert counts["expired", "expired"] == 57, "the brokers' own counters have this value"
    sent = [
        event["seq"]
        for event in translation.events
        if any("preferred_replica" in part for part in _redirected_partitions(event))
    ]
    assert [(translation.recorded[seq].outcome, ended[seq].completed_by) for seq in sent] == [
        ("at_once", "preferred_replica")
    ] * 8


def _redirected_partitions(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the partitions for which the consumer was redirected to another replica."""
    parts = event["partitions"] if event["type"] == "fetch" else []
    return [part for part in parts if "preferred_replica" in part]


@pytest.mark.nightly
def test_followed_log_has_same_high_watermarks(recording: tuple[tuple[Request, ...], GivenMetadata]) -> None:
    requests, given = recording
    log = sorted(requests, key=lambda request: request.answered_us)[:6_000]
    stepwise = FollowedLog(hold_us=5_000_000, given=given)
    events = [event for place in range(0, len(log), 1_500) for event in stepwise.step(log[place : place + 1_500])]
    whole = translate(sorted(log, key=lambda request: request.start_us), given).events
    until_us = stepwise.carried.until_us - 1_000_000

    def high_watermarks(events: list[dict[str, object]]) -> list[tuple[object, ...]]:
        names = ("time_us", "broker", "topic", "partition", "offset")
        marks = [
            event
            for event in events
            if event.get("change") == "high_watermark" and str(event["topic"]).startswith("w6")
        ]
        return sorted(tuple(mark[name] for name in names) for mark in marks if int(str(mark["time_us"])) < until_us)

    assert len(high_watermarks(events)) > 100
    assert high_watermarks(events) == high_watermarks(whole)
