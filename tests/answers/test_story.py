"""Stories of hand-written evidence; every rule has its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from purgatory_udf.answers.evidence import Evidence, PartitionEvents
from purgatory_udf.answers.operation_story import meaning, story
from purgatory_udf.common.console import request_label
from purgatory_udf.rules.engine.loop.codes import Rule
from purgatory_udf.rules.groups.group_rows import RULES

DAY_US = 1_772_442_000_000_000


def _part(**fields: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "error": "NONE", "bytes": 0} | fields


def _end(**fields: Any) -> dict[str, Any]:
    times = {"started_us": DAY_US, "ended_us": DAY_US + 500_000, "deadline_us": DAY_US + 500_000, "wait_ms": 500}
    named = {"operation_id": 7, "kind": "fetch", "broker": 1, "request_id": "f-1", "client_id": "c", "key": "t-0"}
    how = {"expired": False, "watched": True, "after_end": False, "completed_by": "min_bytes", "trigger": "t-0"}
    return times | named | how | {"bytes": 12, "partitions": [_part()]} | fields


def test_expired_fetch_names_missing_bytes() -> None:
    request = {"type": "fetch", "replica_id": -1, "min_bytes": 100, "max_wait_ms": 500}
    request |= {"partitions": [_part(fetch_offset=3)]}
    end = _end(expired=True, completed_by="timeout", trigger=None, after_end=True)
    watch = {"topic": "t", "partition": 0}
    appends = {("t", 0): [PartitionEvents("produce", None, 2, DAY_US, 9), PartitionEvents("fetch", 2, 0, DAY_US, 4)]}
    appends["t", 0].append(PartitionEvents("log_end", None, 1, DAY_US, 10))
    recorded = {"recorded_outcome": "expired", "recorded_remote_ms": 19_400.4}
    assert story(Evidence(7, end, request, [watch], appends, recorded=recorded)) == [
        "fetch f-1 of c at broker 1 (operation 7): expired after 500 ms",
        "  09:00:00.000000  arrived from a consumer: at least 100 bytes within 500 ms, of t-0 from offset 3",
        "                   had to wait, at most until 09:00:00.500000: watched on t-0",
        "                   during the wait on t-0: 3 × an append",
        "  09:00:00.500000  expired at its deadline, after the last event of the trace",
        "                   because only 12 bytes of the requested 100 had become readable",
        "                   recorded by the broker: expired after 19,400 ms, 18,900 ms after its deadline: "
        "the broker was late",
    ]
    on_time = Evidence(7, _end(), recorded={"recorded_outcome": "at_once", "recorded_remote_ms": 0.0})
    assert story(on_time)[-1] == "                   recorded by the broker: answered at once"


def test_request_log_line_is_named_by_file() -> None:
    end = _end(request_id="/srv/logs/broker 2/request-2.log.gz:1869", broker=2)
    assert story(Evidence(7, end))[0] == (
        "fetch of c at broker 2, line 1869 of request-2.log.gz (operation 7): completed after 500 ms"
    )
    assert [*map(request_label, ("request.log.1:7", "log-0:7", "app.v2:7", "app-7", ""))] == [
        *("line 7 of request.log.1", "line 7 of log-0", "app.v2:7", "app-7", "")
    ]


def test_request_of_group_is_named() -> None:
    request = {"type": "offset_commit", "member_id": "m", "group": "g", "partitions": None}
    assert story(Evidence(7, _end(kind="heartbeat"), request))[1] == (
        "  09:00:00.000000  started by an offset commit request of m of group g"
    )


def _list_offsets(timeout_ms: int) -> Mapping[str, Any]:
    partitions = [{"topic": "t", "partition": 0, "timestamp": 5}]
    return {"type": "list_offsets", "timeout_ms": timeout_ms, "partitions": partitions}


def test_expired_remote_fetch_names_slow_read() -> None:
    end = _end(kind="remote_fetch", expired=True, completed_by="timeout", trigger=None)
    watches: list[Mapping[str, Any]] = [{"topic": "t", "partition": number} for number in range(3)]
    reads = {("t", 0): DAY_US + 1_240_000, ("t", 1): DAY_US + 300_000}
    assert story(Evidence(7, end, watches=watches, reads_ended=reads))[4:] == [
        "                   waited for the remote read of t-0, which took 1,240 ms; remote.fetch.max.wait.ms is 500",
        "                   waited for the remote read of t-2, which has no recorded end; "
        "remote.fetch.max.wait.ms is 500",
    ]


@pytest.mark.parametrize(
    ("kind", "details", "setting"),
    [
        ("remote_fetch", {"waits_as_requested": True}, "fetch.max.wait.ms of the consumer"),
        ("list_offsets", {}, "remote.list.offsets.request.timeout.ms"),
        ("list_offsets", {"request": _list_offsets(0)}, "remote.list.offsets.request.timeout.ms"),
        ("list_offsets", {"request": _list_offsets(500)}, "the request's timeout"),
    ],
)
def test_expired_remote_wait_names_its_setting(kind: str, details: dict[str, Any], setting: str) -> None:
    part = {"topic": "t", "partition": 0, "error": "REQUEST_TIMED_OUT", "bytes": None}
    end = _end(kind=kind, expired=True, completed_by="timeout", trigger=None, partitions=[part])
    lines = story(Evidence(7, end, watches=[{"topic": "t", "partition": 0}], **details))
    assert lines[-1].endswith(f", which has no recorded end; {setting} is 500")


def test_completed_lookup_shows_duration() -> None:
    end = _end(kind="list_offsets", completed_by="remote_lookup", ended_us=DAY_US + 80_000, wait_ms=80)
    watch = {"topic": "t", "partition": 0}
    assert story(Evidence(7, end, watches=[watch], reads_ended={("t", 0): DAY_US + 80_000}))[3:] == [
        "                   the remote lookup of t-0 took 80 ms",
        "  09:00:00.080000  remote_lookup: its lookups in remote storage had ended",
        "                   decided on t-0",
    ]


def test_completion_on_arrival_has_no_wait() -> None:
    end = _end(watched=False, wait_ms=0, ended_us=DAY_US, trigger=None, completed_by="offset_out_of_range")
    end |= {"partitions": [_part(error="OFFSET_OUT_OF_RANGE"), _part(partition=1)]}
    assert story(Evidence(7, end)) == [
        "fetch f-1 of c at broker 1 (operation 7): completed on arrival",
        "  09:00:00.000000  started",
        "  09:00:00.000000  offset_out_of_range: its offset was outside the log",
        "                   answered with errors: t-0 OFFSET_OUT_OF_RANGE",
    ]


def test_expired_produce_lists_replicas_without_progress() -> None:
    parts = [_part(partition=number, error="REQUEST_TIMED_OUT") for number in range(7)]
    end = _end(kind="produce", expired=True, completed_by="timeout", trigger=None, partitions=parts)
    lines = story(Evidence(7, end, in_sync={("t", 0): [1, 2]}))
    assert lines[4:6] == [
        "                   because t-0 had to be at every in-sync replica:",
        "                     replica 2 has no recorded progress",
    ]
    assert lines[7].strip() == "the in-sync replicas are unknown; the high watermark did not reach the offset"
    assert lines[-1] == "                   and 2 more partitions"


def test_stopped_broker_cancels_waiting_operation() -> None:
    end = _end(completed_by="broker_stopped", bytes=None, partitions=[_part(error=None), _part(partition=1)])
    change = {"what": "stopped", "replica": None, "request_id": None}
    assert story(Evidence(7, end, watches=[{"topic": "t", "partition": 0}], deciding=change)) == [
        "fetch f-1 of c at broker 1 (operation 7): cancelled after 500 ms",
        "  09:00:00.000000  started",
        "                   had to wait, at most until 09:00:00.500000: watched on t-0",
        "  09:00:00.500000  broker_stopped: the broker stopped before it responded",
        "                   decided on t-0 by the broker's stop",
    ]


def test_change_of_in_sync_set_shows_new_set() -> None:
    change = {"what": "isr", "replica": None, "request_id": None, "in_sync": [1, 2]}
    lines = story(Evidence(7, _end(), watches=[{"topic": "t", "partition": 0}], deciding=change))
    assert lines[-1].strip() == "decided on t-0 by a change of the in-sync set to 1, 2"


def test_open_operation_has_request_only() -> None:
    topic = {"topic": "new", "partitions": 3}
    request = {"type": "create_topics", "seq": 9, "broker": None, "time_us": DAY_US, "timeout_ms": 5000}
    named = {"request_id": None, "client_id": None, "partitions": None, "topics": [topic]}
    assert story(Evidence(9, None, {**request, **named})) == [
        "create_topics without a request id at broker 0 (operation 9)",
        "  09:00:00.000000  arrived: may wait 5,000 ms, to create new (3 partitions)",
        "                   still open: not completed, expired or cancelled",
    ]


def test_request_without_operation_is_not_open() -> None:
    request = {"type": "leave_group", "seq": 9, "broker": 1, "time_us": DAY_US, "group": "g", "member_id": "m"}
    named = {"request_id": "l", "client_id": "c", "partitions": None, "topics": None}
    assert story(Evidence(9, None, {**request, **named})) == [
        "leave_group l of c at broker 1 (operation 9)",
        "  09:00:00.000000  started by a leave group request of m of group g",
        "                   no operation of this request has ended: it was answered at once, or still waits",
    ]


@pytest.mark.parametrize("rule", [rule.name.lower() for rule in Rule if rule is not Rule.TIMEOUT])
def test_every_partition_rule_has_meaning(rule: str) -> None:
    kinds = ("produce", "fetch", "remote_fetch", "delete_records", "create_topics", "list_offsets")
    assert any(meaning(kind, rule) != rule.replace("_", " ") for kind in kinds)


@pytest.mark.parametrize("rule", sorted({*RULES} - {"timeout"}))
def test_every_group_rule_has_meaning(rule: str) -> None:
    kinds = ("heartbeat", "join", "initial_join", "sync", "session", "reconciliation")
    assert any(meaning(kind, rule) != rule.replace("_", " ") for kind in kinds)
