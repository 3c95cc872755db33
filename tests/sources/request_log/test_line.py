"""One line of a log: whose it is, when its request came, was handled and was answered."""

from __future__ import annotations

import json

import pytest

from purgatory_udf.sources.request_log.lines.log_files import broker_of, zone_of
from purgatory_udf.sources.request_log.lines.log_line import read_line
from purgatory_udf.sources.request_log.lines.logged_request import Place, Request
from tests.sources.request_log.lines import bad, body, fetched, produced, requests, us

HEARTBEAT = body("HEARTBEAT", {"groupId": "g"}, {"errorCode": 0}, version=4, queue=0.25, local=0.5, remote=0.125)
MESSAGE = f"Completed request:{json.dumps(HEARTBEAT)}"
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
    ],
    ids=["default", "thread", "microseconds", "zone", "DATE", "epoch", "behind", "JSON layout"],
)
def test_any_log4j_layout_with_a_time_is_read(line: str) -> None:
    request = read_line(line, Place(0, 7))
    assert isinstance(request, Request)
    written = us(7_702)
    assert (request.api, request.version, request.client_id, request.place) == ("HEARTBEAT", 4, "c", Place(0, 7))
    assert request.arrival_us == written - 875
    assert request.start_us == written - 625
    assert request.local_us == written - 125
    assert request.answered_us == written


def test_the_thread_says_whose_line_it_is_and_a_file_s_name_where_no_thread_does() -> None:
    (with_thread,) = requests([f"2026-11-21T02:54:27.702Z [data-plane-kafka-network-thread-3-L-0] {MESSAGE}"])
    (without,) = requests([f"[2026-11-21 02:54:27,702] DEBUG {MESSAGE} (kafka.request.logger)"])
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
def test_the_broker_is_the_last_number_in_a_path_that_is_neither_date_nor_rotation(
    name: str, broker: int | None
) -> None:
    assert broker_of(name) == broker


def test_a_time_without_a_zone_is_of_the_zone_that_is_told() -> None:
    line = f"[2026-11-21 03:54:27,702] DEBUG {MESSAGE}"
    request = read_line(line, Place(0, 1), zone_of("+01:00"))
    assert isinstance(request, Request)
    assert request.answered_us == us(7_702)


def test_an_answer_that_waited_for_nothing_is_dated_before_its_line_at_most() -> None:
    """Handling may go on after the answer was made."""
    late = body("HEARTBEAT", {"groupId": "g"}, {}, local=4.0)
    late |= {"totalTimeMs": 3.0}
    (request,) = requests([f"2026-11-21T02:54:27.702Z [x-network-thread-1-] Completed request:{json.dumps(late)}"])
    assert (request.start_us, request.local_us, request.answered_us) == (us(7_699), us(7_703), us(7_702))


def test_where_no_answer_was_owed_there_is_none() -> None:
    (request,) = requests([produced(5, -1, acks=0)])
    assert request.answer is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"DEBUG {MESSAGE}", "no time: the log's layout must write a date and a time"),
        ("2026-11-21T02:54:27.702Z Completed request:[1]", "not an object: expected an object, got '[1]'"),
        ('2026-11-21T02:54:27.702Z Completed request:{"a":', "not JSON: Expecting value: line 1 column 6 (char 5)"),
        ("2026-11-21T02:54:27.702Z Completed request:{}", "missing field: requestHeader"),
        (
            f"2026-11-21T02:54:27.702Z {MESSAGE.replace('0.125', 'true')}",
            "invalid value: remoteTimeMs is True, expected a number of milliseconds",
        ),
    ],
)
def test_a_line_that_cannot_be_used_says_why(line: str, reason: str) -> None:
    bad_line = bad(line)
    assert (bad_line.reason, bad_line.raw) == (reason, line)


def test_a_line_of_another_logger_is_none() -> None:
    assert read_line("[2026-11-21 02:54:27,702] INFO Rolled new log segment", Place(0, 1)) is None


def test_a_number_stands_for_an_api_that_the_log_does_not_name() -> None:
    line = fetched(5, {0: 3}).replace('"requestApiKeyName": "FETCH"', '"x": 0')
    (request,) = requests([line])
    assert request.api == "FETCH"
