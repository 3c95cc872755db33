"""A followed log gives the events of the whole log once they are settled, and never changes written ones.

Times are milliseconds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.fact_kinds import Append
from purgatory_udf.sources.request_log.importing.carried_state import TIMELINES
from purgatory_udf.sources.request_log.importing.import_rows import Facts, facts_in
from purgatory_udf.sources.request_log.importing.import_tasks import batches_of
from purgatory_udf.sources.request_log.logged_request import Request
from tests.sources.request_log import recordings
from tests.sources.request_log.followed_log import FollowedLog
from tests.sources.request_log.log_lines import START_US, T, fetch_line, log_line, message, parse, produce_line, us
from tests.sources.request_log.translate import Event, context_of_log, translate

pytestmark = pytest.mark.long

RECORDING, LINES = "W3-groups-k39", 1_400
NAMES = GivenMetadata({T: "t"})

# A follower waits at the log end; a produce completes its fetch, and its next fetch, which proves that it has the
# records, completes the produce.
LOG = [
    fetch_line(9, {0: 10}, epoch=0, granted=7, local=1, remote=2.5, wait=2, replica=2, client="f"),
    fetch_line(20.4, {0: 10}, {0: 100}, session=7, epoch=1, local=1, remote=9.4, replica=2, client="f"),
    produce_line(24, 10, local=1, remote=3),
    fetch_line(60, {0: 13}, session=7, epoch=2, local=1, remote=36, replica=2, client="f"),
]


@cache
def _recorded() -> list[Request]:
    """The first 25 s of three brokers, in the order in which they wrote the lines."""
    return sorted(recordings.log(RECORDING, LINES), key=lambda request: request.answered_us)


def _portions(log: Sequence[Request], span_us: int) -> Iterable[list[Request]]:
    at = log[0].answered_us
    while at <= log[-1].answered_us:
        yield [request for request in log if at <= request.answered_us < at + span_us]
        at += span_us


def _without_origin(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Count the events without the fields of their origin."""
    origin = ("seq", "request_id")
    fields = ({name: value for name, value in event.items() if name not in origin} for event in events)
    return Counter(json.dumps(event, sort_keys=True) for event in fields)


def _summary(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    summary = []
    for event in events:
        change = event["change"] if event["type"] == "partition" else event["type"]
        summary.append(((event["time_us"] - START_US) / 1000, change, event.get("offset")))
    return summary


def test_followed_events_equal_whole_import() -> None:
    log = _recorded()
    whole = translate(log, recordings.names(RECORDING)).events
    # The hold time is longer than the wait of joins, which is 6 s.
    following = FollowedLog(8_000_000, recordings.names(RECORDING))
    events = [event for portion in _portions(log, 5_000_000) for event in following.step(portion)]
    until = following.carried.until_us
    assert (log[-1].answered_us - until, following.late) == (8_000_000, 0)
    assert _without_origin(events) == _without_origin(event for event in whole if event["time_us"] < until)
    assert len(events) > 2_000
    assert [event["time_us"] for event in events] == sorted(event["time_us"] for event in events)


def test_events_wait_for_hold_time() -> None:
    following = FollowedLog(30_000, NAMES)
    log = parse(LOG)
    # Up to 24 ms: no line is older than the hold time of 30 ms.
    assert following.step(log[:3]) == []
    # Up to 60 ms: events before 30 ms. The end of the produce is the follower's next offset, unknown before.
    events = following.step(log[3:])
    assert [event["partitions"][0]["last_offset"] for event in events if event["type"] == "produce"] == [12]
    assert _summary(events) == _summary(
        event for event in translate(parse(LOG), NAMES).events if event["time_us"] < us(30)
    )


def test_carried_facts_stay_with_their_partition() -> None:
    appends = [Append(start_us=at, at_us=at, check_us=at, until_us=at) for at in range(3)]
    given = [Facts(1, "t", 0, None, appends[:1]), Facts(1, "t", 1, None, appends[1:2]), Facts(1, "t", 0, None, [])]
    (batch,) = batches_of([*given, Facts(1, "t", 0, None, appends[2:])], TIMELINES)
    rows = [Facts(1, row["topic"], row["partition"], None, facts_in(row["packed"])) for row in batch.to_pylist()]
    assert rows == [
        Facts(1, "t", 0, None, [appends[0], appends[2]]),
        Facts(1, "t", 1, None, [appends[1]]),
    ]


def test_line_before_written_events_is_late() -> None:
    following = FollowedLog(30_000, NAMES)
    following.step(parse(LOG))
    assert following.carried.until_us == us(30)
    late = fetch_line(30.5, {0: 10}, local=1, client="c")
    assert following.step(parse([late])) == []
    assert following.late == 1


def test_session_continues_in_next_step() -> None:
    following = FollowedLog(30_000, NAMES)
    following.step(parse(LOG))
    # The fetches list no partition: they have that of the session.
    lines = [fetch_line(200, {}, session=7, epoch=3, local=1, replica=2, client="f")]
    lines.append(fetch_line(300, {}, session=7, epoch=4, local=1, replica=2, client="f"))
    events = following.step(parse(lines))
    fetches = [event for event in events if event["type"] == "fetch"]
    assert [(event["time_us"], event["partitions"][0]["fetch_offset"]) for event in fetches] == [(us(200), 13)]


def test_fetches_are_counted_once() -> None:
    """The second step converts the unsettled fetches of the first step again; the session is incomplete."""
    following = FollowedLog(30_000, NAMES)
    unknown = [fetch_line(at, {0: 13}, session=8, epoch=9, local=1, client="c") for at in (20, 50, 70, 200)]
    following.step(parse([*LOG, *unknown[:3]]))
    counts = [following.carried.counts.get("session_partial", 0)]
    following.step(parse(unknown[3:]))
    counts.append(following.carried.counts.get("session_partial", 0))
    assert counts == [1, 3]


def test_late_leader_report_is_written_once() -> None:
    def metadata(at: float) -> str:
        partition = {"partitionIndex": 0, "leaderId": 1, "leaderEpoch": 4, "replicaNodes": [1, 2], "isrNodes": [1, 2]}
        topics = [{"name": "t", "topicId": T, "errorCode": 0, "partitions": [{**partition, "errorCode": 0}]}]
        return log_line(at, message("METADATA", {}, {"topics": topics}))

    following = FollowedLog(30_000, NAMES)
    events = following.step(parse(LOG))
    for at in (100, 200, 300):
        events += following.step(parse([metadata(at)]))
    leaders = [event for event in events if event.get("change") == "leader"]
    # At first, all replicas that have fetched are assumed to be in sync.
    assert [(event["time_us"] < us(30), event.get("leader_epoch"), event["isr"]) for event in leaders] == [
        (True, None, [1, 2]),
        (False, 4, [1, 2]),
    ]


def test_topic_named_too_late_keeps_id() -> None:
    def metadata(at: float) -> str:
        return log_line(at, message("METADATA", {}, {"topics": [{"name": "t", "topicId": T, "partitions": []}]}))

    following = FollowedLog(30_000)
    events = following.step(parse(LOG))
    events += following.step(parse([metadata(100), fetch_line(200, {0: 13}, local=1, client="c")]))
    events += following.step(parse([fetch_line(300, {0: 13}, local=1, client="c")]))
    topics = [event["topic"] if "topic" in event else event["partitions"][0]["topic"] for event in events]
    assert set(topics) == {T}
    assert following.carried.unnamed == [T]


def test_offsets_topic_partitions_come_from_followers() -> None:
    log = _recorded()
    given = recordings.names(RECORDING)
    counts = {context_of_log(log, given).partition_counts["__consumer_offsets"]}
    following = FollowedLog(8_000_000, given)
    following.step(log)
    fetched = {given.names.get(topic, topic): count for topic, count in following.carried.fetched_counts.items()}
    assert counts == {fetched["__consumer_offsets"]} == {6}
