"""The fast parser and the complete parser agree on all input, and no input aborts an import."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from purgatory_udf.sources.request_log.fast_parser import parse_fetch, parse_line
from purgatory_udf.sources.request_log.importing import log_reader
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS, RequestRow
from purgatory_udf.sources.request_log.kafka_protocol import decode_fetch_request, decode_fetch_response
from purgatory_udf.sources.request_log.log_files import zone_of
from purgatory_udf.sources.request_log.logged_request import Place
from purgatory_udf.sources.request_log.request_conversion import is_controller_request
from tests.chaos import hostile_inputs
from tests.sources.request_log.log_lines import T, fetch_line, log_line, message
from tests.support import recorded


def test_request_row_matches_schema() -> None:
    assert list(RequestRow._fields) == REQUESTS.names


def _row(line: bytes, zone: tzinfo, tally: log_reader.Tally) -> dict[str, Any]:
    """Return the row of a line as a dictionary, empty for a line that is only counted."""
    row = log_reader._row(line, Place(0, 1), zone, 1, tally)
    return row._asdict() if isinstance(row, RequestRow) else row or {}


def test_invalid_bytes_before_fetch_are_left_out() -> None:
    line = fetch_line(5, {0: 3}).encode().replace(b'": ', b'":').replace(b', "', b',"')
    assert [parse_fetch(start + line, Place(0, 1), UTC) is None for start in (b"", "é ".encode(), b"\xe9 ")] == [
        False,
        False,
        True,
    ]


def test_rejected_lines_are_counted() -> None:
    line = log_line(5, message("HEARTBEAT", {"groupId": "g"}, {}))
    text = "[2019-03-01 10:00:00,123] DEBUG Completed request:RequestHeader(apiKey=FETCH)"
    lines = [line, line[:-9], "hello", line.replace("thread-1-", ""), text]
    tally = log_reader.Tally()
    read = [log_reader._row(each.encode(), Place(0, 1), UTC, None, tally) for each in lines]
    assert [isinstance(row, RequestRow) for row in read] == [True, False, False, False, False]
    assert tally.counts == {"requests": 2, "bad_lines": 3, "text_lines": 1, "other_lines": 1, "no_broker": 1}


def test_totals_of_pieces_are_added() -> None:
    pieces = [log_reader.Tally(), log_reader.Tally()]
    for piece, partitions, heartbeats in zip(pieces, ({"t": 5}, {"t": 3, "u": 1}), ((1, 2), (2, 2)), strict=True):
        piece.partitions, piece.heartbeats = partitions, {1: heartbeats}
    (first, second) = (piece.end(file=0, piece=0, line=0).to_pylist()[0] for piece in pieces)
    total = log_reader.Tally.of((row["counts"], row["body"]) for row in (first, second))
    assert (total.partitions, total.heartbeats) == ({"t": 5, "u": 1}, {1: (3, 4)})


def _use(parsers: Sequence[Callable[..., object]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, parser in zip(("parse_fetch", "parse_line"), parsers, strict=True):
        monkeypatch.setattr(log_reader, name, parser)


def _rows(line: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return row and counts of a line, first with the fast parser, then with the complete parser only."""
    readings = []
    for parsers in ((parse_fetch, parse_line), (lambda *_: None,) * 2):
        _use(parsers, monkeypatch)
        tally = log_reader.Tally(Counter())
        row = _row(line, UTC, tally)
        # The JSON texts differ in white space.
        row = {name: json.loads(row[name]) if name in ("body", "answer") and row[name] else row[name] for name in row}
        readings.append((row, tally.counts, tally.partitions, tally.span_us, tally.heartbeats))
    return readings


def test_parsers_agree_on_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    for line in islice(recorded.lines(recorded.data_file("traces", "W3-groups-k39", "request-1.log")), 1_500):
        fast, plain = _rows(line.rstrip("\n").encode(), monkeypatch)
        assert fast == plain
        parsed += parse_line(line.rstrip("\n").encode(), Place(0, 1), UTC) is not None
    assert parsed > 1_450


@pytest.mark.parametrize("seed", range(4))
def test_parsers_agree_on_random_lines(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = Random(seed)
    parsed = 0
    for _ in range(500):
        line = hostile_inputs.random_log_line(random).replace(b"\n", b" ")
        fast, plain = _rows(line, monkeypatch)
        # NaN does not equal itself, but its representation does.
        assert repr(fast) == repr(plain), line
        parsed += parse_line(line, Place(0, 1), UTC) is not None
    assert parsed > 150


def test_fetch_decoders_agree() -> None:
    random = Random(5)
    parsed = 0
    header = {"requestApiKey": 1, "requestApiVersion": 13, "requestApiKeyName": "FETCH"}
    times = dict.fromkeys(
        ("totalTimeMs", "requestQueueTimeMs", "localTimeMs", "remoteTimeMs", "responseQueueTimeMs", "sendTimeMs"), 1
    )
    for _ in range(3_000):
        request, response = copy.deepcopy(hostile_inputs.BODIES["FETCH"])
        assert response is not None
        for body in (request, response):
            if random.random() < 0.4:
                hostile_inputs._mutate(body, random)
        message = json.dumps(
            {"requestHeader": header, "request": request, "response": response, **times}, separators=(",", ":")
        )
        fetch = parse_fetch(f"2026-11-21 02:54:27.702 Completed request:{message}".encode(), Place(0, 1), UTC)
        if fetch is not None:
            parsed += 1
            assert fetch.fetch == (decode_fetch_request(request), decode_fetch_response(response))
    assert parsed > 1_500


def test_fetch_of_metadata_log_is_to_controller() -> None:
    line = fetch_line(9, {0: 3}).replace('": ', '":').replace(', "', ',"')
    for topic, is_to_controller in ((T, False), ("AAAAAAAAAAAAAAAAAAAAAQ", True)):
        fetch = parse_fetch(line.replace(T, topic).encode(), Place(0, 1), UTC)
        assert fetch is not None and is_controller_request(fetch) is is_to_controller


def test_message_without_api_needs_complete_parser() -> None:
    body = message("HEARTBEAT", {"groupId": "g"}, {})
    headers = ({"requestApiVersion": 4, "requestApiKey": 12}, {"requestApiVersion": 4})
    lines = [log_line(5, {**body, "requestHeader": header}) for header in headers]
    assert [parse_line(line.encode(), Place(0, 1), UTC) is None for line in lines] == [False, True]


def test_lines_that_need_no_complete_parser() -> None:
    """The fast parser reads all hours and valid brokers, and fetches with the name or number of the API."""
    line = fetch_line(9, {0: 3}).replace('": ', '":').replace(', "', ',"')
    name, key = '"requestApiKeyName":"FETCH"', '"requestApiKey":1,'
    assert name in line and key in line
    lines = {
        line: True,
        line.replace("T02:", "T23:"): True,
        line.replace("T02:", "T24:"): False,
        line.replace("thread-1-", f"thread-{2**31 - 1}-"): True,
        line.replace("thread-1-", f"thread-{2**31}-"): False,
        line.replace(key, ""): True,
        line.replace(f",{name}", ""): True,
        line.replace(key, "").replace(f",{name}", ""): False,
    }
    assert len(lines) == 8
    assert [parse_fetch(each.encode(), Place(0, 1), UTC) is not None for each in lines] == [*lines.values()]


@pytest.mark.parametrize(
    "stamp",
    [
        "[2026-11-21 02:54:27,702]",
        "2026-11-21T02:54:27.702834Z [x]",
        "2026-11-21T02:54:27.702 Z",
        "2026-11-21T02:54:27.702+01:00",
        "2026-11-21T02:54:27.702 -0100",
        "2026-02-31 02:54:27.702",
        "2026-11-21 24:54:27.702",
        "2026-11-21 02:54:60.702",
        "21 Nov 2026 02:54:27,702",
        "1795229667702",
        "at 2026-11-21 02:54:27.702",
        "2026-11-21 02:54:27",
        "2026-11-21 02:54:27.7",
        "2026-11-21 02:54:27.702834123",
    ],
)
def test_parsers_agree_on_timestamps(monkeypatch: pytest.MonkeyPatch, stamp: str) -> None:
    line = hostile_inputs.random_log_line(Random(1)).partition(b"DEBUG")[2]
    assert b"Completed request:" in line
    for zone in (UTC, zone_of("+05:30")):
        whole = f"{stamp} DEBUG".encode() + line
        _use((parse_fetch, parse_line), monkeypatch)
        fast = _row(whole, zone, log_reader.Tally())
        _use((lambda *_: None,) * 2, monkeypatch)
        plain = _row(whole, zone, log_reader.Tally())
        times = ("row", "reason", "arrival_us", "start_us", "answered_us", "written_us")
        assert [fast.get(name) for name in times] == [plain.get(name) for name in times]


def test_no_input_aborts_import(tmp_path: Path) -> None:
    trials = [hostile_inputs.try_input(f"suite/{number}", tmp_path) for number in range(150)]
    assert sum(trial.accepted for trial in trials) > 1_000 and sum(trial.rejected for trial in trials) > 1_000
