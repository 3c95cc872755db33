"""Parsing of one line: its broker, and when its request arrived, was handled and answered."""

from __future__ import annotations

import json

import pytest

from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.log_files import broker_of, zone_of
from purgatory_udf.sources.request_log.logged_request import Place, Request
from tests.sources.request_log.log_lines import fetch_line, message, parse, parse_bad, produce_line, us

HEARTBEAT = message("HEARTBEAT", {"groupId": "g"}, {"errorCode": 0}, version=4, queue=0.25, local=0.5, remote=0.125)
MESSAGE = f"Completed request:{json.dumps(HEARTBEAT)}"
VERSION = '"requestApiVersion": 4'
WRAPPED = json.dumps({"time": "2026-11-21T02:54:27.702Z", "level": "DEBUG", "message": MESSAGE})


@pytest.mark.parametrize(
    "line",
    [
        f"[2026-11-21 02:54:27,702] DEBUG {MESSAGE} (kafka.request.logger)",
        f"[2026-11-21 02:54:27,702] TRACE [data-plane-kafka-network-thread-3-x] {MESSAGE} (kafka.request.logger)\n",
        f"2026-11-21T02:54:27.702000Z [t] {MESSAGE}",
        f"2026-11-21T03:54:27.702+01:00 {MESSAGE}",
        f"21 Nov 2026 02:54:27,702 DEBUG RequestChannel$:62 - {MESSAGE}",
        f"1795229667702 DEBUG {MESSAGE}",
        f"{MESSAGE} at 2026-11-21 02:54:27.702",
        WRAPPED,
        f"2026-11-21T02:54:27.702Z {MESSAGE.replace(':', ': ', 1)}",
    ],
    ids=["default", "thread", "microseconds", "zone", "DATE", "epoch", "behind", "JSON layout", "blank"],
)
def test_all_log4j_layouts_are_parsed(line: str) -> None:
    request = read_line(line, Place(0, 7))
    assert isinstance(request, Request)
    written = us(7_702)
    assert (request.api, request.version, request.client_id, request.place) == ("HEARTBEAT", 4, "c", Place(0, 7))
    assert request.arrival_us == written - 875
    assert request.start_us == written - 625
    assert request.local_us == written - 125
    assert request.answered_us == written


def test_wide_message_is_accepted() -> None:
    """It has more brackets than the deepest message that is accepted."""
    (request,) = parse([fetch_line(5, dict.fromkeys(range(500), 3))])
    assert [partition["partition"] for partition in request.body["topics"][0]["partitions"]] == [*range(500)]


def test_thread_name_has_broker_id() -> None:
    (with_thread,) = parse([f"2026-11-21T02:54:27.702Z [data-plane-kafka-network-thread-3-L-0] {MESSAGE}"])
    (without,) = parse([f"[2026-11-21 02:54:27,702] DEBUG {MESSAGE} (kafka.request.logger)"])
    assert (with_thread.broker, without.broker) == (3, -1)


@pytest.mark.parametrize(
    ("name", "broker"),
    [
        ("request-3.log.gz", 3),
        ("broker-3/kafka-request.log.2026-11-21-02", 3),
        ("logs/kafka02/kafka-request.log.1.gz", 2),
        ("/var/log/2026-11-21/b7/request.log", 7),
        ("kafka-request.log", None),
    ],
)
def test_broker_id_is_read_from_path(name: str, broker: int | None) -> None:
    assert broker_of(name) == broker


@pytest.mark.parametrize(("zone", "time"), [("+01:00", "03:54:27,702"), ("-0130", "01:24:27,702")])
def test_timestamp_without_zone_uses_given_zone(zone: str, time: str) -> None:
    line = f"[2026-11-21 {time}] DEBUG {MESSAGE}"
    request = read_line(line, Place(0, 1), zone_of(zone))
    assert isinstance(request, Request)
    assert request.answered_us == us(7_702)


def test_response_is_not_after_its_line() -> None:
    """Handling may continue after the response was made, beyond the time of the line."""
    late = message("HEARTBEAT", {"groupId": "g"}, {}, local=4.0)
    late |= {"totalTimeMs": 3.0}
    (request,) = parse([f"2026-11-21T02:54:27.702Z [x-network-thread-1-] Completed request:{json.dumps(late)}"])
    assert (request.start_us, request.local_us, request.answered_us) == (us(7_699), us(7_703), us(7_702))


def test_acks_0_has_no_response() -> None:
    (request,) = parse([produce_line(5, -1, acks=0)])
    assert request.answer is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"DEBUG {MESSAGE}", "no time: the log's layout must write a date and a time"),
        ("2026-11-21T02:54:27.702Z Completed request:[1]", "not an object: expected an object, got '[1]'"),
        ('2026-11-21T02:54:27.702Z Completed request:{"a":', "not JSON: Expecting value: line 1 column 6 (char 5)"),
        (
            "[2019-03-01 10:00:00,123] DEBUG Completed request:RequestHeader(apiKey=FETCH, apiVersion=10) -- {},",
            "text format: written by Kafka before 2.8; only the JSON of Kafka 2.8 and newer can be imported",
        ),
        ("2026-11-21T02:54:27.702Z Completed request:{}", "missing field: requestHeader"),
        (
            f"2026-11-21T02:54:27.702Z {MESSAGE.replace('0.125', 'true')}",
            "invalid value: remoteTimeMs is True, expected a number of milliseconds",
        ),
        (
            f"2026-11-21T02:54:27.702Z {MESSAGE.replace(VERSION, VERSION[:-1] + str(2**31))}",
            "invalid value: requestApiVersion is 2147483648, expected a 32-bit integer",
        ),
    ],
)
def test_bad_line_has_reason(line: str, reason: str) -> None:
    bad_line = parse_bad(line)
    assert (bad_line.reason, bad_line.raw) == (reason, line)


def test_line_of_other_logger_is_ignored() -> None:
    assert read_line("[2026-11-21 02:54:27,702] INFO Rolled new log segment", Place(0, 1)) is None


def test_api_is_identified_by_number() -> None:
    line = fetch_line(5, {0: 3}).replace('"requestApiKeyName": "FETCH"', '"x": 0')
    (request,) = parse([line])
    assert request.api == "FETCH"
