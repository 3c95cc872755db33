"""Share groups, from the lines of fetches, acknowledgements and states. Times are milliseconds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import ShareReplay
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import read_metadata_dump
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions, anonymised, pseudonyms
from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log
from tests.sources.request_log import recordings
from tests.sources.request_log.followed_log import FollowedLog
from tests.sources.request_log.log_lines import T, log_line, message, parse, us
from tests.sources.request_log.translate import Translation, translate
from tests.support import recorded

NAMED = GivenMetadata(names={T: "t"})
FETCH, ACKNOWLEDGE = "SHARE_FETCH", "SHARE_ACKNOWLEDGE"
# Offsets: first, last, and the type of their acknowledgement or their delivery count.
Range = tuple[int, int, int]
# Offsets with the number of their state and their delivery count.
StateRange = tuple[int, int, int, int]


def _topics(partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"topicId": T, "partitions": partitions}] if partitions else []


def _share(
    at: float,
    epoch: int,
    *,
    api: str = FETCH,
    member: str = "m",
    partitions: Iterable[int] = (),
    acknowledged: Iterable[Range] = (),
    acquired: Iterable[Range] = (),
    forgotten: Iterable[int] = (),
    lock_ms: int = 30_000,
    error: int = 0,
    refused: int = 0,
    failed: int = 0,
    renews: bool = False,
    **times: Any,
) -> str:
    """Return the line of a request, which was handled for 1 ms and answered at a time; ranges are of partition 0."""
    batches = [
        {"firstOffset": first, "lastOffset": last, "acknowledgeTypes": [kind]} for first, last, kind in acknowledged
    ]
    listed = {number: {"partitionIndex": number, "acknowledgementBatches": []} for number in partitions}
    if batches:
        listed[0] = {"partitionIndex": 0, "acknowledgementBatches": batches}
    body: dict[str, Any] = {
        "groupId": "g",
        "memberId": member,
        "shareSessionEpoch": epoch,
        "topics": _topics([*listed.values()]),
    }
    answer: dict[str, Any] = {"partitionIndex": 0, "errorCode": refused if api == ACKNOWLEDGE else failed}
    if api == FETCH:
        body |= {"maxWaitMs": 500, "minBytes": 1, "maxBytes": 1000, "maxRecords": 20, "batchSize": 10}
        body |= {"isRenewAck": True} if renews else {}
        body |= {"forgottenTopicsData": [{"topicId": T, "partitions": [*forgotten]}] if forgotten else []}
        counts = [{"firstOffset": first, "lastOffset": last, "deliveryCount": count} for first, last, count in acquired]
        answer |= {"acknowledgeErrorCode": refused, "acquiredRecords": counts}
    response = {"errorCode": error, "acquisitionLockTimeoutMs": lock_ms, "responses": _topics([answer])}
    return log_line(at, message(api, body, response, client=f"c-{member}", **times))


def _state(at: float, api: str, start: int, ranges: Iterable[StateRange] = (), **times: Any) -> str:
    """Return the line of a write or a read of the state of partition 0, by broker 1 at broker 2."""
    batches = [
        {"firstOffset": first, "lastOffset": last, "deliveryState": state, "deliveryCount": count}
        for first, last, state, count in ranges
    ]
    state = {"partition": 0, "errorCode": 0, "startOffset": start, "stateBatches": batches}
    body = {"groupId": "g", "topics": _topics([state if api.startswith("WRITE") else {"partition": 0}])}
    answer = {"results": _topics([{"partition": 0, "errorCode": 0} if api.startswith("WRITE") else state])}
    return log_line(at, message(api, body, answer, client="Persister-client-1", **times), broker=2)


def _write(at: float, start: int, *ranges: StateRange, **times: Any) -> str:
    return _state(at, "WRITE_SHARE_GROUP_STATE", start, ranges, **times)


def _read(at: float, start: int, *ranges: StateRange, **times: Any) -> str:
    return _state(at, "READ_SHARE_GROUP_STATE", start, ranges, **times)


def _configured(at: float, **settings: str) -> str:
    configs = [{"name": name, "configOperation": 0, "value": value} for name, value in settings.items()]
    body = {"resources": [{"resourceType": 32, "resourceName": "g", "configs": configs}], "validateOnly": False}
    return log_line(at, message("INCREMENTAL_ALTER_CONFIGS", body, {"responses": []}))


def _events(*lines: str) -> list[dict[str, Any]]:
    """Return the events with times in milliseconds, without fields that all of them have or that are zero."""
    return [_shown(event) for event in translate(parse(lines), NAMED).events if event["type"].startswith("share")]


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    others = ("seq", "time_us", "request_id", "client_id", "group", "broker", "type", "max_wait_ms", "min_bytes")
    named = {name: value for name, value in event.items() if name not in (*others, "max_bytes", "batch_size")}
    return {"at": (event["time_us"] - us(0)) / 1000, "type": event["type"], **named}


def test_states_have_labels_of_requests(tmp_path: Path) -> None:
    """Events are labelled in the same way with and without pseudonyms, for which they are read one by one."""
    log = tmp_path / "request-2.log"
    lines = [_share(10, 0, partitions=[0], acquired=[(0, 9, 1)]), _write(21, 0, (0, 4, 0, 1)), _read(30, 3)]
    log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for anonymise, source in ((False, str(log)), (True, "log-0")):
        out = str(tmp_path / str(anonymise))
        ingest_request_log(LocalBackend(), RequestLogOptions([str(log)], out, anonymise=anonymise))
        rows = DeltaTable(f"{out}/events").to_pyarrow_table().to_pylist()
        assert [row["request_id"] for row in rows if row["type"] == "share_state"] == [f"{source}:1"]


def test_writes_show_the_dead_letter_queue() -> None:
    """Records that are first ARCHIVING, then ARCHIVED, are in the queue when the second state is written."""
    events = _events(
        _share(10, 0, partitions=[0], acquired=[(0, 9, 1)]),
        _share(20, 1, api=ACKNOWLEDGE, acknowledged=[(0, 4, 3)]),
        _write(21, 0, (0, 4, 3, 1)),
        _write(24, 0, (6, 7, 4, 1)),
        _write(30, 0, (0, 4, 4, 1)),
    )
    assert events[0] == {"at": 9, "type": "share_group", "dead_letter_queue": True}
    end = {"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 4}
    assert [event for event in events if event["type"] == "share_dead_letter"] == [
        {"at": 29, "type": "share_dead_letter", **end}
    ]


def test_queue_of_a_group_may_be_configured() -> None:
    name = "errors.deadletterqueue.topic.name"
    events = _events(_configured(5, **{name: "dlq.t"}), _share(10, 0, partitions=[0]), _share(20, 1))
    assert [event.get("dead_letter_queue") for event in events] == [True, None, None]


@pytest.mark.parametrize("read_again", [True, False])
def test_second_read_shows_that_the_broker_dropped_the_state(read_again: bool) -> None:
    """After the last session of the group at the broker, at 30 ms, the next one may have the state read again."""
    lines = [
        _read(8, 0),
        _share(10, 0, partitions=[0]),
        _share(15, 0, member="other", partitions=[0]),
        _share(20, -1, member="other"),
        _share(30, -1),
        *([_read(38, 7)] if read_again else []),
        _share(40, 0, partitions=[0]),
    ]
    events = _events(*lines)
    closed = [event.get("connection_closed", False) for event in events if event["type"] == "share_release"]
    assert closed == [False, read_again]
    starts = [event["start_offset"] for event in events if event["type"] == "share_state"]
    assert starts == ([0, 7] if read_again else [0])


def test_ended_session_may_be_the_last_but_one() -> None:
    """The write shows that the session of m has ended; the state is dropped after that of the other member."""
    events = _events(
        _read(8, 0),
        _share(10, 0, partitions=[0], acquired=[(0, 2, 1)]),
        _share(15, 0, member="other", partitions=[0]),
        _write(900, 0, (0, 2, 0, 1)),
        _share(950, -1, member="other"),
        _read(998, 7),
        _share(1_000, 0, member="n", partitions=[0]),
    )
    closed = [(each["member_id"], each["connection_closed"]) for each in events if each["type"] == "share_release"]
    assert closed == [("m", True), ("other", True)]


def test_state_that_was_read_has_records_for_the_dead_letter_queue() -> None:
    events = _events(
        _read(8, 0, (0, 4, 3, 1), (6, 7, 4, 1)),
        _share(10, 0, partitions=[0]),
        _write(30, 0, (0, 4, 4, 1), (6, 7, 4, 1)),
    )
    ends = [event for event in events if event["type"] == "share_dead_letter"]
    assert [(end["at"], end["first_offset"], end["last_offset"]) for end in ends] == [(29, 0, 4)]


def test_state_is_read_for_one_fetch() -> None:
    fetches = [_share(at, 0, partitions=[0], member=member, remote=at - 20) for at, member in ((90, "m"), (91, "n"))]
    events = _events(*fetches, _read(60, 7, local=1, remote=30))
    assert [event["type"] for event in events] == ["share_state", "share_fetch", "share_fetch"]


def test_failed_read_of_the_state_is_that_of_the_fetch() -> None:
    body = {"groupId": "g", "topics": _topics([{"partition": 0}])}
    answer = {"results": _topics([{"partition": 0, "errorCode": 14}])}
    failed = log_line(18, message("READ_SHARE_GROUP_STATE", body, answer, client="Persister-client-1"), broker=2)
    (event,) = _events(failed, _share(20, 0, partitions=[0], failed=15))
    (place,) = event["partitions"]
    assert (place["error"], place["state_read_ms"]) == ("COORDINATOR_LOAD_IN_PROGRESS", 0)


def test_session_has_the_partitions_that_a_line_omits() -> None:
    events = _events(
        _share(10, 0, partitions=[0, 2]),
        _share(20, 1),
        _share(30, 2, partitions=[1], forgotten=[2]),
        _share(40, 3, acknowledged=[(0, 0, 1)], refused=121),
        _share(50, -1),
        _share(60, 7, member="older"),
    )
    fetched = [
        [each["partition"] for each in event["partitions"]] for event in events if event["type"] == "share_fetch"
    ]
    assert fetched == [[0, 2], [0, 2], [0, 1], [0, 1], [0]]
    assert [event["type"] for event in events[4:]] == ["share_release", "share_fetch"]
    (refused,) = events[3]["acknowledgements"]
    assert not refused["accepted"]


def test_fetch_that_acknowledges_shows_when_states_were_written() -> None:
    given = _share(10, 0, partitions=[0], acquired=[(5, 9, 1)])
    fetch = _share(200, 1, acknowledged=[(5, 7, 1), (8, 9, 2)], remote=150)
    written = _write(74, 8, (5, 7, 2, 1), (8, 9, 0, 1), local=1, remote=20)
    *_, event = _events(given, fetch, written)
    assert (event["at"], event["state_write_ms"]) == (50, 24)
    assert [each["types"] for each in event["acknowledgements"]] == [[1], [2]]


def test_acknowledgement_is_answered_when_states_are_written() -> None:
    given = _share(10, 0, partitions=[0], acquired=[(5, 9, 1)])
    *_, event = _events(given, _share(50, 1, api=ACKNOWLEDGE, acknowledged=[(5, 9, 1)], remote=30.4))
    assert (event["type"], event["at"], event["state_write_ms"]) == ("share_acknowledge", 19, 31)


@pytest.mark.parametrize(("number", "state"), [(3, "ARCHIVING"), (4, "ARCHIVED")])
def test_first_fetch_waits_for_the_state(number: int, state: str) -> None:
    events = _events(
        _share(100, 0, partitions=[0], remote=80),
        _read(60, 7, (9, 9, number, 5), local=1, remote=30),
        _share(110, 0, partitions=[0], member="n", remote=70),
        _share(200, 0, partitions=[0], member="o"),
    )
    states = {"topic": "t", "partition": 0, "start_offset": 7}
    done = [{"first_offset": 9, "last_offset": 9, "state": state, "delivery_count": 5}]
    assert events[int(state == "ARCHIVING")] == {"at": 19, "type": "share_state", **states, "states": done}
    fetches = [event for event in events if event["type"] == "share_fetch"]
    assert [event["partitions"][0].get("state_read_ms") for event in fetches] == [40, 20, None]


def test_group_from_before_the_log_starts_at_its_first_records() -> None:
    events = _events(_share(100, 7, acquired=[(40, 44, 2)]), _write(130, 40, (40, 44, 2, 2)))
    assert [event["type"] for event in events] == ["share_state", "share_fetch"]
    assert (events[0]["start_offset"], events[0]["states"]) == (40, [])


def test_settings_are_those_of_requests_and_responses() -> None:
    limit = {"share.delivery.count.limit": "3", "share.auto.offset.reset": "by_duration:PT1H"}
    events = _events(
        _configured(5, **limit),
        _share(10, 0, partitions=[0], lock_ms=5000),
        _share(20, 1, lock_ms=5000),
        _share(30, 2, lock_ms=30_000),
    )
    assert [event for event in events if event["type"] == "share_group"] == [
        {"at": 9, "type": "share_group", "delivery_count_limit": 3, "record_lock_duration_ms": 5000},
        {"at": 29, "type": "share_group", "delivery_count_limit": 3},
    ]


@pytest.mark.parametrize(
    ("written", "later", "released"),
    [
        pytest.param(900, [], [899], id="before the locks end"),
        pytest.param(5_010, [], [], id="when the locks end"),
        pytest.param(900, [_share(950, 2, lock_ms=5_000)], [], id="but the member goes on"),
        pytest.param(900, [_share(950, 0, partitions=[0], lock_ms=5_000)], [899], id="and the member connects again"),
        pytest.param(900, [_share(950, 2, error=42)], [899], id="and a later request is refused"),
    ],
)
def test_records_that_nobody_acknowledged(written: float, later: list[str], released: list[float]) -> None:
    """Five records of two fetches become available: the session of the member has ended, or their locks."""
    fetches = (
        _share(10, 0, partitions=[0], acquired=[(0, 2, 1)], lock_ms=5_000),
        _share(20, 1, acquired=[(3, 4, 1)], lock_ms=5_000),
    )
    writes = _write(written, 0, (0, 2, 0, 1)), _write(written + 2, 0, (3, 4, 0, 1))
    translation = translate(parse([*fetches, *writes, *later]), NAMED)
    assert translation.report.counts["share_session_ended"] == len(released)
    ends = [_shown(event) for event in translation.events if event["type"] == "share_release"]
    assert [(event["at"], event["member_id"]) for event in ends] == [(at, "m") for at in released]


@pytest.mark.parametrize(("written", "released"), [(5_010, [5_009]), (8_010, [])])
def test_fetch_that_renews_locks_acknowledges_only(written: float, released: list[float]) -> None:
    """The locks of 5 s would end at 5,009, and end at 7,999 instead. An earlier write shows the end of the session."""
    given = _share(10, 0, partitions=[0], acquired=[(0, 2, 1)], lock_ms=5_000)
    renewal = _share(3_000, 1, acknowledged=[(0, 2, 4)], lock_ms=5_000, renews=True)
    events = _events(given, renewal, _write(written, 0, (0, 2, 0, 1)))
    shown = [(event["type"], event["at"]) for event in events if event["type"] not in ("share_group", "share_state")]
    assert shown == [
        ("share_fetch", 10),
        ("share_acknowledge", 2_999.4),
        *(("share_release", at) for at in released),
    ]
    (acknowledged,) = (event["acknowledgements"] for event in events if event["type"] == "share_acknowledge")
    assert [(each["first_offset"], each["last_offset"], each["types"]) for each in acknowledged] == [(0, 2, [4])]


@pytest.mark.parametrize(("first", "last", "released"), [(0, 2, 1), (3, 5, 0), (6, 9, 1)])
def test_unacknowledged_records_show_ended_session(first: int, last: int, released: int) -> None:
    """The member has acknowledged only the records 3 to 5."""
    given = _share(10, 0, partitions=[0], acquired=[(0, 9, 1)])
    events = _events(given, _share(20, 1, acknowledged=[(3, 5, 1)]), _write(900, 0, (first, last, 0, 1)))
    assert [event["at"] for event in events if event["type"] == "share_release"] == [899] * released


def test_error_is_counted_and_left_out() -> None:
    translation = translate(parse([_share(10, 4, error=42), _share(20, 4, api=ACKNOWLEDGE, error=123)]), NAMED)
    assert (translation.events, translation.report.counts["share_error"]) == ([], 2)


def test_session_errors_are_events() -> None:
    """A fetch that got no session waited for its maximum wait, and did not expire."""
    refused = _share(20, 4, acknowledged=[(0, 0, 1)], error=123)
    limited = _share(600, 0, partitions=[1], member="n", error=133, remote=500)
    translation = translate(parse([_share(10, 0, partitions=[0]), refused, limited]), NAMED)
    _, *fetches = (_shown(event) for event in translation.events if event["type"] == "share_fetch")
    assert [(event["at"], event["error"], event.get("acknowledgements")) for event in fetches] == [
        (20, "INVALID_SHARE_SESSION_EPOCH", None),
        (100, "SHARE_SESSION_LIMIT_REACHED", None),
    ]
    assert translation.report.counts["share_session_error"] == 2
    assert [each.outcome for each in translation.recorded.values()] == ["at_once", "at_once", "completed"]


@pytest.mark.parametrize(("code", "accepted", "failed"), [(15, True, ["COORDINATOR_NOT_AVAILABLE"]), (121, False, [])])
def test_failed_state_writes(code: int, accepted: bool, failed: list[str]) -> None:
    """The member still holds the records, so that the end of its session releases them."""
    given = _share(10, 0, partitions=[0], acquired=[(5, 9, 1)])
    refused = _share(50, 1, api=ACKNOWLEDGE, acknowledged=[(5, 9, 1)], refused=code, remote=30)
    events = _events(given, refused, _write(900, 5, (5, 9, 0, 1)))
    (event,) = (event for event in events if event["type"] == "share_acknowledge")
    assert event["acknowledgements"][0]["accepted"] == accepted
    assert [each["error"] for each in event.get("state_write_errors", ())] == failed
    assert [event["type"] for event in events][-1] == ("share_release" if failed else "share_acknowledge")


def test_acknowledged_topics_have_pseudonyms() -> None:
    log = parse([_share(10, 0, partitions=[0]), _share(20, 1, acknowledged=[(0, 0, 1)])])
    named = json.dumps([anonymised(event, pseudonyms()) for event in translate(log, NAMED).events])
    assert '"t"' not in named


# The first 10 seconds of the groups, in which the brokers are still slow.
def _given() -> GivenMetadata:
    cluster = read_metadata_dump(recorded.data_file("traces", "W10-share", "cluster-metadata.txt"))
    return replace(recordings.names("W10-share"), cluster=cluster)


@cache
def _recording() -> Translation:
    return translate(recordings.log("W10-share"), _given())


def test_recorded_fetches_end_as_recorded() -> None:
    """Kafka 4.3.1, four groups: releases, rejects, stalls beyond the lock, implicit acknowledgements.

    Left out are fetches from before the brokers had read the states of all share partitions. In these 2.7 s they load
    classes: a read of a state takes up to 0.2 s, a write up to 0.7 s, and the handling of a fetch up to 0.6 s. One of
    the others differs, because a deadline and a rise of the high watermark are in the same millisecond.
    """
    translation = _recording()
    replay = ShareReplay(Config(), translation.events[0]["time_us"] // 1000)
    outcomes = replay.step(translation.events, None).outcomes
    written = {event["seq"] for event in translation.events if event.get("state_write_ms")}
    ends = {
        end.operation_id: "expired"
        if end.expired
        else "completed"
        if end.watched or end.operation_id in written
        else "at_once"
        for end in outcomes
    }
    started = max(event["seq"] for event in translation.events if event["type"] == "share_state")
    logged = {
        seq: record.outcome
        for seq, record in translation.recorded.items()
        if record.kind == "share fetch" and seq > started
    }
    assert len(logged) > 230
    assert sum(ends[seq] == outcome for seq, outcome in logged.items()) >= 0.99 * len(logged)


def test_expired_locks_are_as_many_as_the_brokers_counted() -> None:
    """The meter `AcquisitionLockTimeoutPerSec` counted 5 records at broker 2, and 8 at broker 3.

    The missing record is offset 32. Two fetches wait for it, and the replay completes the one of a member that does not
    stall.
    """
    events = translate(recordings.log("W10-locks", brokers=(2, 3)), _given()).events
    deliveries = ShareReplay(Config(), events[0]["time_us"] // 1000).step(events, None).deliveries
    expired = Counter[int]()
    for broker, each in deliveries:
        expired[broker] += (each.last_offset + 1 - each.first_offset) * (each.ended_by == "lock_expired")
    assert expired == {2: 5, 3: 7}


def test_steps_of_a_followed_log_give_the_same_events() -> None:
    log = [request for request in recordings.log("W10-share") if request.api not in ("FETCH", "PRODUCE")]
    whole = [_shown(event) for event in translate(log, _given()).events if event["type"].startswith("share")]
    log.sort(key=lambda request: request.written_us)
    followed = FollowedLog(10_000_000, _given())
    events = [*followed.step(log[:300]), *followed.step(log[300:500]), *followed.step(log[500:])]
    followed.hold_us = -60_000_000
    events += followed.step([])
    shares = [_shown(event) for event in events if event["type"].startswith("share")]
    assert shares == whole
