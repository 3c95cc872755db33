"""A log that is read step by step says what it says when it is read whole, as soon as it can be known; what is written
stays. Times are milliseconds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.lines.logged_request import Request
from tests.sources.request_log import recordings
from tests.sources.request_log.lines import START_US, T, body, fetched, produced, requests, us, written
from tests.sources.request_log.stepwise import Stepwise
from tests.sources.request_log.translate import Event, context_of, translate

pytestmark = pytest.mark.long

RECORDING, LINES = "W3-groups-k39", 1_400
NAMED = GivenMetadata({T: "t"})

# A follower waits at the end of the log; a produce wakes it, and its next fetch, which says that it has the records,
# answers the produce.
LOG = [
    fetched(9, {0: 10}, epoch=0, granted=7, local=1, remote=2.5, wait=2, replica=2, client="f"),
    fetched(20.4, {0: 10}, {0: 100}, session=7, epoch=1, local=1, remote=9.4, replica=2, client="f"),
    produced(24, 10, local=1, remote=3),
    fetched(60, {0: 13}, session=7, epoch=2, local=1, remote=36, replica=2, client="f"),
]


@cache
def _recorded() -> list[Request]:
    """Some 25 s of three brokers, in the order in which they wrote."""
    return sorted(recordings.log(RECORDING, LINES), key=lambda request: request.answered_us)


def _portions(log: Sequence[Request], span_us: int) -> Iterable[list[Request]]:
    at = log[0].answered_us
    while at <= log[-1].answered_us:
        yield [request for request in log if at <= request.answered_us < at + span_us]
        at += span_us


def _plain(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Without what tells where an event comes from."""
    whence = ("seq", "request_id")
    fields = ({name: value for name, value in event.items() if name not in whence} for event in events)
    return Counter(json.dumps(event, sort_keys=True) for event in fields)


def _said(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    said = []
    for event in events:
        what = event["change"] if event["type"] == "partition" else event["type"]
        said.append(((event["time_us"] - START_US) / 1000, what, event.get("offset")))
    return said


def test_step_by_step_a_recording_says_what_it_says_as_a_whole() -> None:
    log = _recorded()
    whole = translate(log, recordings.names(RECORDING)).events
    # Members' joins wait for 6 s.
    following = Stepwise(8_000_000, recordings.names(RECORDING))
    events = [event for portion in _portions(log, 5_000_000) for event in following.step(portion)]
    until = following.carried.until_us
    assert (log[-1].answered_us - until, following.late) == (8_000_000, 0)
    assert _plain(events) == _plain(event for event in whole if event["time_us"] < until)
    assert len(events) > 2_000
    assert [event["time_us"] for event in events] == sorted(event["time_us"] for event in events)


def test_nothing_is_said_before_later_lines_can_have_told_of_it() -> None:
    following = Stepwise(30_000, NAMED)
    log = requests(LOG)
    # Up to 24 ms: nothing is older than 30 ms.
    assert following.step(log[:3]) == []
    # Up to 60 ms: all before 30 ms. The produce's end, unknown before, is where the follower went on.
    events = following.step(log[3:])
    assert [event["partitions"][0]["last_offset"] for event in events if event["type"] == "produce"] == [12]
    assert _said(events) == _said(
        event for event in translate(requests(LOG), NAMED).events if event["time_us"] < us(30)
    )


def test_what_comes_when_its_time_is_written_is_late() -> None:
    following = Stepwise(30_000, NAMED)
    following.step(requests(LOG))
    assert following.carried.until_us == us(30)
    late = fetched(30.5, {0: 10}, local=1, client="c")
    assert following.step(requests([late])) == []
    assert following.late == 1


def test_a_session_goes_on_where_the_step_before_has_left_it() -> None:
    following = Stepwise(30_000, NAMED)
    following.step(requests(LOG))
    # The fetch lists nothing: its partition is the session's.
    lines = [fetched(200, {}, session=7, epoch=3, local=1, replica=2, client="f")]
    lines.append(fetched(300, {}, session=7, epoch=4, local=1, replica=2, client="f"))
    events = following.step(requests(lines))
    fetches = [event for event in events if event["type"] == "fetch"]
    assert [(event["time_us"], event["partitions"][0]["fetch_offset"]) for event in fetches] == [(us(200), 13)]


def test_a_leader_that_is_reported_late_is_said_then_and_not_again() -> None:
    def metadata(at: float) -> str:
        partition = {"partitionIndex": 0, "leaderId": 1, "leaderEpoch": 4, "replicaNodes": [1, 2], "isrNodes": [1, 2]}
        topics = [{"name": "t", "topicId": T, "errorCode": 0, "partitions": [{**partition, "errorCode": 0}]}]
        return written(at, body("METADATA", {}, {"topics": topics}))

    following = Stepwise(30_000, NAMED)
    events = following.step(requests(LOG))
    for at in (100, 200, 300):
        events += following.step(requests([metadata(at)]))
    leaders = [event for event in events if event.get("change") == "leader"]
    # At first all that have fetched are supposed to be in sync.
    assert [(event["time_us"] < us(30), event.get("leader_epoch"), event["isr"]) for event in leaders] == [
        (True, None, [1, 2]),
        (False, 4, [1, 2]),
    ]


def test_a_topic_whose_name_comes_too_late_keeps_its_id() -> None:
    def metadata(at: float) -> str:
        return written(at, body("METADATA", {}, {"topics": [{"name": "t", "topicId": T, "partitions": []}]}))

    following = Stepwise(30_000)
    events = following.step(requests(LOG))
    events += following.step(requests([metadata(100), fetched(200, {0: 13}, local=1, client="c")]))
    events += following.step(requests([fetched(300, {0: 13}, local=1, client="c")]))
    topics = [event["topic"] if "topic" in event else event["partitions"][0]["topic"] for event in events]
    assert set(topics) == {T}
    assert following.carried.nameless == [T]


def test_a_coordinators_topic_has_the_partitions_that_followers_ask_for() -> None:
    log = _recorded()
    given = recordings.names(RECORDING)
    counts = {context_of(log, given).partition_counts["__consumer_offsets"]}
    following = Stepwise(8_000_000, given)
    following.step(log)
    asked = {given.names.get(topic, topic): count for topic, count in following.carried.asked.items()}
    assert counts == {asked["__consumer_offsets"]} == {6}
