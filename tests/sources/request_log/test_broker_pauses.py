"""Pauses of brokers, recognized from operations that were answered too late. Times are milliseconds.

0 ────────── 300             800 ───────────────── 5000   5001.5 ──────── 5003
requests     last request    deadlines of c, d, f  first  f is completed  c and d expire
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.purgatory.clock import PAUSE_EVENTS
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.importing.broker_pauses import (
    BrokerPause,
    OverdueOperation,
    Silence,
    overdue_in_columns,
    pauses_in,
)
from purgatory_udf.sources.request_log.logged_request import ConvertedColumns
from tests.sources.request_log.followed_log import FollowedLog
from tests.sources.request_log.log_lines import T, fetch_line, parse, produce_line, us
from tests.sources.request_log.translate import Event, Translation, translate

FIRST_ANSWER = 5_001.5


def reader(at: float, broker: int = 1) -> str:
    return fetch_line(at, {0: 0}, {0: 50}, client="reader", high_watermark=10, broker=broker)


def waiting(client: str, since: float, until: float, got: dict[int, int] | None = None, **fields: Any) -> str:
    """Return the line of a fetch at offset 10, which may wait 500 ms unless `fields` have another time."""
    return fetch_line(until, {0: 10}, got, client=client, remote=until - since, high_watermark=10, **fields)


C, D = waiting("c", 250, 5_003.2), waiting("d", 299, 5_003)
F = waiting("f", 290, FIRST_ANSWER, {0: 100}, replica=2)


def log(*late: str, broker: int = 1) -> list[str]:
    """Return the lines of a broker that answers a reader every 20 ms up to 300 ms, then from 5 s on."""
    return [
        *(reader(at, broker) for at in range(10, 310, 20)),
        *late,
        *(reader(at, broker) for at in range(5_005, 5_600, 20)),
    ]


@pytest.fixture(scope="module")
def translation() -> Translation:
    return translate(parse(log(F, produce_line(5_001.7, 10), D, C)), GivenMetadata({T: "t"}))


def pause_events(events: list[Event]) -> list[tuple[str, float, int]]:
    return [
        (event["type"], event["time_us"] - us(0), event["broker"]) for event in events if event["type"] in PAUSE_EVENTS
    ]


PAUSE = [("paused", 299_000, 1), ("resumed", 5_003_000, 1)]


def test_overdue_operations_show_pause(translation: Translation) -> None:
    assert pause_events(translation.events) == PAUSE
    assert translation.report.counts["broker_pauses"] == 1


def test_operations_end_as_recorded_after_pause(translation: Translation) -> None:
    ends = {
        outcome.client_id: (outcome.expired, round((outcome.ended_us - us(0)) / 1000))
        for outcome in replay(translation.events, Config()).outcomes
        if outcome.client_id in ("c", "d", "f")
    }
    assert ends == {"c": (True, 5_003), "d": (True, 5_003), "f": (False, 5_002)}


def test_no_pause_without_evidence() -> None:
    """Each broker lacks one of the signs of a pause; without an expiration, broker 7 resumes after the last answer."""
    lines = [
        *log(waiting("c", 250, 5_003, broker=1)),
        *log(waiting("c", 250, 5_003, broker=2), waiting("d", 299, 5_003, broker=2), reader(2_000, 2), broker=2),
        *log(waiting("c", 250, 5_003, broker=3), waiting("d", 299, 5_550, broker=3), broker=3),
        *log(waiting("c", 250, 5_003, broker=4), waiting("d", 299, 5_003, wait=4_600, broker=4), broker=4),
        *log(waiting("c", 250, 5_003, broker=5), waiting("d", 2_000, 5_003, broker=5), broker=5),
        *log(broker=6),
        *log(*(waiting(client, 290, FIRST_ANSWER, {0: 100}, broker=7) for client in "cd"), broker=7),
    ]
    translation = translate(parse(lines), GivenMetadata({T: "t"}))
    assert pause_events(translation.events) == [("paused", 290_000, 7), ("resumed", 5_002_000, 7)]
    assert translation.report.counts["broker_pauses"] == 1


def test_operations_are_overdue_after_tolerance() -> None:
    waited = [699_999, 700_000, 700_001, 200_001, 200_000]
    rows = {name: pa.array(range(0, 50, 10)) for name in ("file", "line", "time_us")} | {"broker": pa.array([1] * 5)}
    expired = np.array([False, False, True, False, False])
    limits = np.array([500, 500, 500, -1, 0])
    late = overdue_in_columns(ConvertedColumns("fetch", rows, limits, np.array(waited), expired, {}))
    assert list(late) == [
        OverdueOperation(1, 20, 20, 20, 500_020, 700_021, 1),
        OverdueOperation(1, 30, 30, 30, 30, 200_031, 0),
    ]


def test_pause_begins_before_first_missed_deadline() -> None:
    """The timers of three operations were late when the broker stopped, by less than 2 ms."""
    silence = Silence(1, 7_301_500, 7_900_000)
    late = [
        OverdueOperation(1, 0, line, 0, deadline, 7_900_000 + line, 1)
        for line, deadline in enumerate((7_450_000, 7_300_400, 7_299_600, 7_299_500))
    ]
    assert pauses_in([silence], late) == [BrokerPause(1, 7_298_999, 7_900_000)]
    assert pauses_in([silence], late[:1] * 2) == [], "one request"
    assert pauses_in([silence], late[:2]) == [BrokerPause(1, 7_299_999, 7_900_000)]
    later = [late[0], late[0]._replace(line=1, answered_us=7_950_000)]
    assert pauses_in([silence], later) == [BrokerPause(1, 7_301_500, 7_900_000)]


@pytest.mark.parametrize("cut", [(4_000, 5_001.6, 10_270), (5_003.1, 10_295, 12_000)])
def test_followed_log_shows_same_pause(cut: tuple[float, ...], translation: Translation) -> None:
    """The steps read lines up to these times; the log is held back for 10 s, so the pause is settled from 10.3 s on."""
    lines = [*log(F, produce_line(5_001.7, 10), D, C), *map(reader, range(5_700, 20_000, 90))]
    requests = parse(lines)
    followed, events, done = FollowedLog(10_000_000, GivenMetadata({T: "t"})), [], 0
    for until in (*cut, 20_000):
        portion = [request for request in requests[done:] if request.written_us < us(until)]
        events += followed.step(portion)
        done += len(portion)
    assert pause_events(events) == PAUSE
    assert followed.carried.counts["broker_pauses"] == 1
