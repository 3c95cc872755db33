"""Reads and lookups of remote storage, derived from which requests waited. Times are milliseconds."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.assumptions import COMPLETION_SPREAD_US, READ_TO_RESPONSE_US, Report
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata, RemoteWaits
from purgatory_udf.sources.request_log.cluster_facts import tiered_topics_in_file
from purgatory_udf.sources.request_log.cluster_metadata import read_metadata_dump
from purgatory_udf.sources.request_log.fact_kinds import ConsumerRead, Fact, HighWatermarkReading
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.tiered_reads import tiered_reads
from tests.sources.request_log import recordings
from tests.sources.request_log.followed_log import FollowedLog
from tests.sources.request_log.log_lines import T, fetch_line, log_line, message, parse, produce_line, us
from tests.sources.request_log.translate import Translation, translate
from tests.support import recorded

TIERED = GivenMetadata({T: "t"}, tiered=frozenset({"t"}))
KAFKA = Config.model_validate({"remote_fetch": {"max_wait_ms": 700}, "list_offsets": {"request_timeout_ms": 1_200}})

# A follower has all records below 40, of 100 bytes each.
LOG = [
    *(produce_line(index, index, acks=1) for index in range(1, 40)),
    fetch_line(60, {0: 40}, {}, replica=2, client="f", high_watermark=40, remote=5),
    fetch_line(62, {0: 40}, {0: 0}, replica=2, client="f", high_watermark=40, remote=0),
]


def _read(at: float, offsets: dict[int, int], sizes: dict[int, int], remote: float, **fields: Any) -> str:
    """Return a consumer's fetch without a session; partitions of `sizes` with 0 bytes are listed, too."""
    return fetch_line(at, offsets, sizes, remote=remote, high_watermark=40, **fields)


def _lookup(at: float, remote: float, error: int = 0, timestamp: int = 7, offset: int = 3) -> str:
    partition = {"partitionIndex": 0, "timestamp": timestamp}
    answer = {"partitionIndex": 0, "errorCode": error, "timestamp": timestamp, "offset": offset}
    request = {"replicaId": -1, "isolationLevel": 0, "topics": [{"name": "t", "partitions": [partition]}]}
    return log_line(
        at, message("LIST_OFFSETS", request, {"topics": [{"name": "t", "partitions": [answer]}]}, remote=remote)
    )


def _with_error(line: str, code: int) -> str:
    """Return the line of a fetch with an error of partition 0."""
    return line.replace('"partitionIndex": 0, "errorCode": 0', f'"partitionIndex": 0, "errorCode": {code}')


def _translated(*lines: str, given: GivenMetadata = TIERED) -> Translation:
    return translate(parse([*LOG, *lines]), given)


def _local_starts(translation: Translation) -> list[tuple[float, int]]:
    """Return (time, offset) of the changes of the local log start, except for the first, which is 0."""
    starts = [event for event in translation.events if event.get("change") == "local_log_start"]
    assert starts[0]["offset"] == 0
    return [((event["time_us"] - us(0)) / 1000, event["offset"]) for event in starts[1:]]


def _ends(translation: Translation) -> list[Outcome]:
    """Return the outcomes of consumers' fetches and of list-offsets requests."""
    ended = sorted(replay(translation.events, KAFKA).outcomes, key=lambda outcome: outcome.operation_id)
    return [outcome for outcome in ended if outcome.client_id == "c"]


def _facts(translation: Translation) -> list[tuple[str, str, str]]:
    """Return (kind, recorded outcome, replayed end) of the consumers' requests."""
    records = translation.recorded
    return [
        (records[end.operation_id].kind, records[end.operation_id].outcome, f"{end.kind} {end.completed_by}")
        for end in _ends(translation)
    ]


def test_wait_with_records_is_remote_read() -> None:
    translation = _translated(_read(500, {0: 5}, {0: 900}, 300))
    assert _facts(translation) == [("remote fetch", "completed", "remote_fetch remote_reads")]
    (read,) = [event for event in translation.events if event["type"] == "remote_read"]
    assert (read["time_us"], read["bytes"], read["request_id"]) == (us(500), 900, "0:42")
    assert [(end.ended_us, end.bytes) for end in _ends(translation)] == [(us(500), 900)]


def test_fetches_show_high_watermark_when_they_read() -> None:
    """Fetches that wait for remote storage read the log on arrival, at 0.1 s; other fetches when they are answered."""
    start, read, answered = 90_000, 100_000, 400_000
    facts: list[Fact] = [
        HighWatermarkReading(70_000, 80_000, 430),
        ConsumerRead(read, start, answered, 300_000, 20, 1, 1_000, 90, 0, 431, -1, False, 0, 1, 0),
        ConsumerRead(read + 1, start, answered + 1, 300_000, 430, 1, 1_000, 90, 0, 440, -1, False, 0, 2, 0),
        ConsumerRead(read + 2, start, answered + 2, 300_000, 430, 1, 1_000, 90, 0, -1, -1, False, 0, 3, 0),
    ]
    found = tiered_reads(PartitionFacts.of(1, ("t", 0), facts), 0, Report())
    assert [each.line for each in found.remote] == [1]
    assert (found.starts, found.local_start) == ([(read, 430)], 430)
    assert found.high_watermarks == [
        HighWatermarkReading(read - READ_TO_RESPONSE_US, read, 431),
        HighWatermarkReading(answered + 1 - READ_TO_RESPONSE_US, answered + 1 + COMPLETION_SPREAD_US, 440),
    ]


def test_local_log_starts_where_other_fetches_allow() -> None:
    local = _read(400, {0: 30}, {0: 100}, 0)
    translation = _translated(_read(300, {0: 5}, {0: 900}, 100), local, _read(900, {0: 6}, {0: 0}, 702))
    assert _local_starts(translation) == [(198.0, 30)]
    assert [fact[1:] for fact in _facts(translation)] == [
        ("expired", "remote_fetch timeout"),
        ("completed", "remote_fetch remote_reads"),
        ("at_once", "fetch min_bytes"),
    ]
    assert translation.report.counts["remote_reads_unended"] == 1


def test_local_log_start_rises_no_further_than_needed() -> None:
    """A later fetch reads offset 5 at once, so the wait of the first one must have another reason."""
    both = _read(300, {0: 5, 1: 5}, {0: 900, 1: 900}, 100)
    translation = _translated(both, _read(400, {0: 5}, {0: 900}, 0))
    starts = [event for event in translation.events if event.get("change") == "local_log_start"]
    assert {event["partition"] for event in starts if event["offset"]} == set()


@pytest.mark.parametrize(("min_bytes", "kind"), [(3_500, "remote fetch"), (3_600, "consumer fetch")])
def test_wait_for_more_bytes_is_ordinary(min_bytes: int, kind: str) -> None:
    """From offset 5 on there are 3,500 bytes when the fetch arrives."""
    translation = _translated(_read(500, {0: 5}, {0: 3_500}, 300, min_bytes=min_bytes))
    assert [record.kind for record in translation.recorded.values() if "fetch" in record.kind][-1] == kind


def test_wait_at_high_watermark_is_ordinary() -> None:
    translation = _translated(_read(500, {0: 5}, {0: 900}, 300), _read(800, {0: 40}, {0: 0}, 200))
    assert [record.kind for record in translation.recorded.values()][-2:] == ["remote fetch", "consumer fetch"]
    assert _local_starts(translation) == [(200.0, 40)]


def test_expired_fetch_has_reads_that_ended() -> None:
    """Partition 1 is read, partition 0 is not: the read of partition 1 is assumed to end halfway."""
    other = fetch_line(61, {1: 40}, {1: 0}, replica=2, client="f", high_watermark=40, remote=0)
    expired = _read(1_000, {0: 5, 1: 5}, {0: 0, 1: 70}, 702)
    translation = _translated(other, expired, _read(2_000, {0: 5}, {0: 0}, 702))
    (read,) = [event for event in translation.events if event["type"] == "remote_read"]
    assert (read["partition"], read["time_us"]) == (1, us(1_000 - 351))
    assert [(end.completed_by, end.bytes) for end in _ends(translation)] == [("timeout", 70), ("timeout", 0)]


def test_short_wait_has_ended_all_reads() -> None:
    """Kafka up to 4.1 reads only the first remote partition: a fetch may return nothing of the second."""
    other = fetch_line(61, {1: 40}, {1: 0}, replica=2, client="f", high_watermark=40, remote=0)
    first = _read(1_000, {1: 5, 0: 5}, {0: 0, 1: 70}, 300)
    translation = _translated(other, first, _read(2_000, {0: 5}, {0: 0}, 702))
    assert [fact[1:] for fact in _facts(translation)] == [
        ("completed", "remote_fetch remote_reads"),
        ("expired", "remote_fetch timeout"),
    ]


def test_full_queue_fails_read_at_once() -> None:
    translation = _translated(_with_error(_read(500, {0: 5}, {0: 0}, 0), -1))
    assert _facts(translation) == [("remote fetch", "at_once", "remote_fetch remote_reads")]
    (end,) = _ends(translation)
    assert (end.wait_ms, [part.error for part in end.partitions]) == (0, ["UNKNOWN_SERVER_ERROR"])


def test_followers_and_list_offsets_show_local_log_start() -> None:
    refused = fetch_line(100, {0: 3}, {0: 0}, replica=3, client="f", remote=0)
    translation = _translated(_with_error(refused, 109), _lookup(200, 0, timestamp=-4, offset=20))
    assert _local_starts(translation) == [(100.0, 4), (200.0, 20)]


def test_lookup_ends_with_response_or_never() -> None:
    translation = _translated(_lookup(500, 300), _lookup(2_000, 1_203, error=7))
    assert _facts(translation) == [
        ("list_offsets", "completed", "list_offsets remote_lookup"),
        ("list_offsets", "expired", "list_offsets timeout"),
    ]


def test_lookup_in_other_topic_stays_local() -> None:
    other = '"topics": [{"name": "u", "partitions": [{"partitionIndex": 0, "timestamp": 7, "offset": 3}]}, {"name": "t"'
    line = _lookup(500, 300).replace('"topics": [{"name": "t"', other)
    lookups = [event for event in _translated(line).events if event["type"] == "remote_lookup"]
    assert [event["topic"] for event in lookups] == ["t"]


def test_lookups_that_never_wait_are_left_out() -> None:
    """Kafka 3.9 looks up in the handling thread."""
    translation = _translated(_lookup(500, 0))
    assert (_ends(translation), translation.report.counts["no_purgatory"]) == ([], 1)


def test_tiered_topics_follow_from_waits() -> None:
    """A fetch returned nothing although there are records; a lookup waited."""
    nothing = _read(900, {0: 6}, {0: 0}, 702)
    for line in (nothing, _lookup(500, 300)):
        translation = _translated(line, given=GivenMetadata({T: "t"}))
        assert translation.report.counts["tiered_shown"] == 1
        assert _facts(translation)[0][1] in ("expired", "completed")
    waits = RemoteWaits(frozenset({"a"}), frozenset({("a", "b"), ("c", "d")}))
    assert waits.tiered_topics(frozenset({"c"}), str) == {"a", "c"}


def test_tiered_topics_follow_from_configuration() -> None:
    described = recorded.data_file("traces", "W8-tiered", "topics-describe.txt")
    assert tiered_topics_in_file(described) == {"w8r", "w8t"}
    assert read_metadata_dump(recorded.data_file("traces", "W8-tiered", "cluster-metadata.txt")).tiered == {
        "w8r",
        "w8t",
    }
    configs = [{"name": "remote.storage.enable", "value": "true"}]
    body = {"topics": [{"name": "t", "numPartitions": 1, "replicationFactor": 1, "configs": configs}]}
    answer = {"topics": [{"name": "t", "topicId": T, "errorCode": 0, "numPartitions": 1, "configs": []}]}
    translation = translate(parse([log_line(5, message("CREATE_TOPICS", body, answer, version=7))]))
    assert translation.report.counts["tiered_configured"] == 1


@pytest.mark.nightly
@pytest.mark.long
def test_followed_log_has_same_remote_reads() -> None:
    given = recordings.names("W8-tiered")
    log = sorted(recordings.log("W8-tiered"), key=lambda request: request.answered_us)[-1_800:]
    stepwise = FollowedLog(hold_us=5_000_000, given=given)
    events = [event for place in range(0, len(log), 600) for event in stepwise.step(log[place : place + 600])]
    whole = translate(sorted(log, key=lambda request: request.start_us), given).events
    until_us = stepwise.carried.until_us

    def reads(events: list[dict[str, object]]) -> list[tuple[object, ...]]:
        names = ("time_us", "broker", "topic", "partition", "bytes", "offset")
        ends = [event for event in events if event["type"] in ("remote_read", "remote_lookup")]
        return sorted(tuple(end.get(name, -1) for name in names) for end in ends if int(str(end["time_us"])) < until_us)

    assert len(reads(whole)) > 15
    assert reads(events) == reads(whole)


def test_lookup_that_could_not_begin_ends_after_request() -> None:
    """It was answered at once, but follows its request by 1 µs, so that it is later in the replay."""
    events = _translated(_lookup(50, remote=20), _lookup(90, remote=0, error=-1)).events
    ends = [event["time_us"] for event in events if event["type"] == "remote_lookup"]
    assert ends == [us(50), us(90) + 1]
