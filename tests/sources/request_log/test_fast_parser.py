"""The fast parser and the complete parser agree on all input, and no input aborts an import."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.fast_parser import parse_fetches, parse_line, parse_produces
from purgatory_udf.sources.request_log.importing import log_reader
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    RequestRow,
    fetches_in,
    from_json,
    produces_in,
)
from purgatory_udf.sources.request_log.kafka_protocol import FetchColumns, decode_produce
from purgatory_udf.sources.request_log.log_files import find_logs, zone_of
from purgatory_udf.sources.request_log.logged_request import MALFORMED, Place
from purgatory_udf.sources.trace_files.text_lines import FileLimits, byte_pieces
from tests.chaos import hostile_inputs
from tests.sources.request_log.log_lines import T, fetch_line, log_line, message, produce_line, us
from tests.support import recorded


@pytest.fixture(autouse=True, params=["decoded", "scanned"])
def fetches_are(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run each test with decoders, and with compiled code."""
    if request.param == "scanned":
        compiled_parser.load()
    yield request.param
    compiled_parser.unload()


def test_request_row_matches_schema() -> None:
    assert [*RequestRow._fields, "limits", "listed", "forgotten", "fetched"] == REQUESTS.names


def _compact(line: str) -> str:
    """Return a line with JSON as Kafka writes it, without white space."""
    return line.replace('": ', '":').replace(', "', ',"')


def _rows_of(lines: Sequence[bytes], zone: tzinfo, by_path: int | None, tally: log_reader.Tally) -> list[Any]:
    """Return the rows of lines 0, 1, … as dictionaries, in their order; those of fetches and produces have bodies."""
    rows = log_reader.Rows(tally)
    numbers = np.arange(len(lines))
    is_read = rows.add_lines(lines, np.zeros(len(lines), np.int32), numbers, zone, by_path)
    for number in np.flatnonzero(~is_read).tolist():
        rows.add(log_reader._row(lines[number], Place(0, number), zone, by_path, tally))
    found: list[Any] = []
    for batch in rows.batches():
        if not batch.column("limits")[0].is_valid:
            found += map(_with_produce, batch.to_pylist())
        elif batch.column("api")[0].as_py() == "FETCH":
            bodies = _bodies(fetches_in(batch).bodies)
            found += [{**row, **dict.fromkeys(PACKED), "fetch": body} for row, body in _pairs(batch, bodies)]
        else:
            produces = produces_in(batch).bodies
            decoded = [produces.produce(number) for number in range(batch.num_rows)]
            found += [{**row, **dict.fromkeys(TEXTS), "produce": body} for row, body in _pairs(batch, decoded)]
    return sorted(found, key=lambda row: row["line"])


PACKED = ("body", "limits", "listed", "forgotten", "fetched")
TEXTS = ("body", "answer", "limits", "listed")


def _pairs(batch: pa.RecordBatch, bodies: list[Any]) -> Iterable[tuple[dict[str, Any], Any]]:
    return zip(batch.to_pylist(), bodies, strict=True)


def _with_produce(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a produce with its decoded body instead of the text, unless it is malformed."""
    if row["api"] != "PRODUCE":
        return row
    with suppress(*MALFORMED):
        texts = from_json(row["body"]), from_json(row["answer"]) if row["answer"] else None
        return {**row, **dict.fromkeys(TEXTS), "produce": decode_produce(*texts)}
    return row


def _bodies(fetches: FetchColumns) -> list[Any]:
    """Return for each fetch its limits, and its partitions with the names of their topics."""
    named = [
        [(fetches.topics[topic], *numbers) for topic, *numbers in table.tolist()]
        for table in (fetches.listed, fetches.forgotten, fetches.fetched)
    ]
    bounds = [each.tolist() for each in (fetches.listed_bounds, fetches.forgotten_bounds, fetches.fetched_bounds)]
    return [
        [limits, *(rows[places[number] : places[number + 1]] for rows, places in zip(named, bounds, strict=True))]
        for number, limits in enumerate(fetches.limits.tolist())
    ]


def _row(line: bytes, zone: tzinfo, tally: log_reader.Tally) -> dict[str, Any]:
    """Return the row of a line as a dictionary, empty for a line that is only counted."""
    rows = _rows_of([line], zone, 1, tally)
    return {name: value for name, value in rows[0].items() if value is not None} if rows else {}


def _fast(lines: Sequence[str | bytes]) -> list[int]:
    """Return the numbers of the lines that are read as columns."""
    encoded = [line.encode() if isinstance(line, str) else line for line in lines]
    tally = log_reader.Tally()
    is_read = log_reader.Rows(tally).add_lines(encoded, np.zeros(len(lines)), np.arange(len(lines)), UTC, 1)
    assert tally.counts["requests"] == np.sum(is_read)
    return [int(number) for number in np.flatnonzero(is_read)]


_FETCH_APIS = [{"apiKey": 1, "minVersion": 4, "maxVersion": 18}]


@pytest.mark.parametrize(
    ("api", "body", "answer"),
    [
        ("BROKER_HEARTBEAT", {"brokerId": 1}, {"errorCode": 0, "shouldShutDown": True}),
        ("BROKER_HEARTBEAT", {"brokerId": 1}, {"errorCode": 0, "shouldShutDown": False}),
        ("BROKER_HEARTBEAT", {"brokerId": 1}, None),
        ("API_VERSIONS", {}, {"apiKeys": _FETCH_APIS}),
        ("API_VERSIONS", {}, {"apiKeys": [{**_FETCH_APIS[0], "minVersion": 0}]}),
        ("API_VERSIONS", {}, {"apiKeys": [{"apiKey": 1}]}),
        ("API_VERSIONS", {}, None),
        ("CONSUMER_GROUP_HEARTBEAT", {"groupId": "g"}, {"errorCode": 0}),
        ("CONSUMER_GROUP_HEARTBEAT", {"groupId": "g"}, {"errorCode": 35}),
        ("CONSUMER_GROUP_HEARTBEAT", {"groupId": 7}, {"errorCode": 0}),
        ("STREAMS_GROUP_HEARTBEAT", {"groupId": "g"}, {"errorCode": 0}),
    ],
)
def test_responses_that_show_something_about_broker(api: str, body: Any, answer: Any) -> None:
    line = log_line(5, message(api, body, answer))
    for text in (line, line.replace("thread-1-", "")):
        place, tally, expected = Place(0, 1), log_reader.Tally(), log_reader.Tally()
        row = log_reader._row(text.encode(), place, UTC, 3, tally)
        assert row == log_reader._complete_row(text, place, UTC, 3, expected)
        assert tally == expected


def test_invalid_bytes_before_fetch_are_left_out() -> None:
    line = _compact(fetch_line(5, {0: 3})).encode()
    assert _fast([line, b"[x " + line, "[é ".encode() + line, b"\xe9 " + line]) == [0, 1, 2]


def test_rejected_lines_are_counted() -> None:
    line = log_line(5, message("HEARTBEAT", {"groupId": "g"}, {}))
    text = "[2019-03-01 10:00:00,123] DEBUG Completed request:RequestHeader(apiKey=FETCH)"
    lines = [line, line[:-9], "hello", line.replace("thread-1-", ""), text]
    tally = log_reader.Tally()
    read = _rows_of([each.encode() for each in lines], UTC, None, tally)
    assert [(row["line"], row["row"]) for row in read] == [(0, "request"), (1, "bad"), (3, "bad"), (4, "bad")]
    assert tally.counts == {"requests": 2, "bad_lines": 3, "text_lines": 1, "other_lines": 1, "no_broker": 1}


def test_totals_of_pieces_are_added() -> None:
    pieces = [log_reader.Tally(), log_reader.Tally()]
    for piece, partitions, heartbeats in zip(pieces, ({"t": 5}, {"t": 3, "u": 1}), ((1, 2), (2, 2)), strict=True):
        piece.partitions, piece.heartbeats = partitions, {1: heartbeats}
    (first, second) = (piece.end(file=0, piece=0, line=0).to_pylist()[0] for piece in pieces)
    total = log_reader.Tally.of((row["counts"], row["body"]) for row in (first, second))
    assert (total.partitions, total.heartbeats) == ({"t": 5, "u": 1}, {1: (3, 4)})


def _use_complete_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_parser, "is_loaded", lambda: False)
    monkeypatch.setattr(log_reader, "parse_fetches", lambda _, zone: parse_fetches([], zone))
    monkeypatch.setattr(log_reader, "parse_produces", lambda _, zone: parse_produces([], zone))
    monkeypatch.setattr(log_reader, "parse_line", lambda *_: None)


def _reading(lines: Sequence[bytes], zone: tzinfo) -> tuple[list[Any], log_reader.Tally]:
    """Return rows and tally of lines."""
    tally = log_reader.Tally()
    rows = _rows_of(lines, zone, 1, tally)
    for row in rows:
        if row["row"] == "request":
            # The JSON texts differ in white space.
            row |= {name: json.loads(row[name]) for name in ("body", "answer") if row[name]}
    return rows, tally


@cache
def _complete_reading(lines: tuple[bytes, ...], zone: tzinfo) -> tuple[list[Any], log_reader.Tally]:
    """Return what the complete parser reads, for the test with decoders and again for that with compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        _use_complete_parser(patch)
        return _reading(lines, zone)


def _readings(lines: Sequence[bytes], zone: tzinfo = UTC) -> list[Any]:
    """Return rows and tally of lines, first with the fast parser, then with the complete parser only."""
    return [_reading(lines, zone), _complete_reading(tuple(lines), zone)]


def test_parsers_agree_on_recording() -> None:
    read = islice(recorded.lines(recorded.data_file("traces", "W3-groups-k39", "request-1.log")), 1_500)
    lines = [line.rstrip("\n").encode() for line in read]
    fast, complete = _readings(lines)
    assert fast == complete
    assert len(_fast(lines)) + sum(parse_line(line, Place(0, 1), UTC) is not None for line in lines) > 2_000


def test_parsers_agree_on_damaged_lines() -> None:
    """Bytes are replaced, removed, inserted and moved at random places of fetches and produces."""
    random = Random(11)
    lines = [
        _longest_of_recording("FETCH"),
        _compact(fetch_line(9, {0: 3}, {0: 80}, epoch=3, session=7, forgotten=[1])).encode(),
        _longest_of_recording("PRODUCE"),
        _compact(produce_line(9, 3, acks=0)).encode(),
    ]
    damaged = [_damaged(random.choice(lines), random) for _ in range(4_000)]
    fast, complete = _readings(damaged)
    assert fast == complete
    assert 1_000 < len(_fast(damaged)) < 3_000


def _longest_of_recording(api: str) -> bytes:
    """Return a long request of a recording."""
    lines = recorded.lines(recorded.data_file("traces", "W3-groups-k39", "request-1.log"))
    requests = (line.rstrip("\n").encode() for line in islice(lines, 1_500) if f'"{api}"' in line)
    return max((line for line in requests if len(line) < 2_000), key=len)


def _damaged(line: bytes, random: Random) -> bytes:
    place = random.randrange(len(line))
    other = random.choice([b"0", b"9", b"-", b".", b'"', b"\\", b"{", b"}", b"]", b",", b" ", b"e", b"\xff", b"null"])
    match random.randrange(5):
        case 0:
            return line[:place] + other + line[place + 1 :]
        case 1:
            return line[:place] + other + line[place:]
        case 2:
            return line[:place] + line[place + random.randint(1, 30) :]
        case 3:
            return line[:place]
        case _:
            digits = [at for at, byte in enumerate(line) if 48 <= byte <= 57]
            at = random.choice(digits)
            return line[:at] + str(10 ** random.randint(0, 20) - 1).encode() + line[at + 1 :]


@pytest.mark.parametrize("seed", range(2))
def test_parsers_agree_on_random_lines(seed: int) -> None:
    random = Random(seed)
    lines = [hostile_inputs.random_log_line(random).replace(b"\n", b" ") for _ in range(500)]
    for line in lines:
        fast, complete = _readings([line])
        # NaN does not equal itself, but its representation does.
        assert repr(fast) == repr(complete), line
    (fast_rows, _), (complete_rows, _) = _readings(lines)
    assert repr(fast_rows) == repr(complete_rows)
    assert sum(parse_line(line, Place(0, 1), UTC) is not None for line in lines) > 150


@pytest.mark.parametrize(("api", "key"), [("FETCH", 1), ("PRODUCE", 0)])
def test_decoders_of_bodies_agree(api: str, key: int) -> None:
    random = Random(5)
    header = {"requestApiKey": key, "requestApiVersion": 13, "requestApiKeyName": api}
    times = dict.fromkeys(
        ("totalTimeMs", "requestQueueTimeMs", "localTimeMs", "remoteTimeMs", "responseQueueTimeMs", "sendTimeMs"), 1
    )
    lines = []
    for _ in range(3_000):
        request, response = copy.deepcopy(hostile_inputs.BODIES[api])
        assert response is not None
        for body in (request, response):
            if random.random() < 0.4:
                hostile_inputs._mutate(body, random)
        message = json.dumps(
            {"requestHeader": header, "request": request, "response": response, **times}, separators=(",", ":")
        )
        lines.append(f"2026-11-21 02:54:27.702 Completed request:{message}".encode())
    (fast, fast_tally), (complete, complete_tally) = _readings(lines)
    assert fast == complete
    assert fast_tally == complete_tally
    assert 1_500 < len(_fast(lines)) < 2_900


def test_fetches_of_metadata_log_are_counted_only() -> None:
    line = _compact(fetch_line(9, {0: 3}))
    named = line.replace(f'"topicId":"{T}"', '"topic":"__cluster_metadata"')
    lines = [line, line.replace(T, "AAAAAAAAAAAAAAAAAAAAAQ"), named, line]
    assert len(set(lines)) == 3
    readings = _readings([each.encode() for each in lines])
    assert [[row["line"] for row in rows] for rows, _ in readings] == [[0, 3]] * 2
    assert [tally.counts for _, tally in readings] == [{"requests": 4, "controller": 2}] * 2
    assert _fast(lines) == [0, 3]


def test_message_without_api_needs_complete_parser() -> None:
    body = message("HEARTBEAT", {"groupId": "g"}, {})
    headers = ({"requestApiVersion": 4, "requestApiKey": 12}, {"requestApiVersion": 4})
    lines = [log_line(5, {**body, "requestHeader": header}) for header in headers]
    assert [parse_line(line.encode(), Place(0, 1), UTC) is None for line in lines] == [False, True]


def test_lines_that_need_no_complete_parser() -> None:
    """The fast parser reads all hours and valid brokers, and fetches with the name or number of the API."""
    line = _compact(fetch_line(9, {0: 3}))
    name, key = '"requestApiKeyName":"FETCH"', '"requestApiKey":1,'
    assert name in line and key in line
    lines = {
        line: True,
        line.replace("T02:", "T23:"): True,
        line.replace("T02:", "T24:"): False,
        line.replace("thread-1-", f"thread-{2**31 - 1}-"): True,
        line.replace("thread-1-", f"thread-{2**31}-"): False,
        line.replace("thread-1-", f"thread-{2**70}-"): False,
        line.replace(key, ""): True,
        line.replace(f",{name}", ""): True,
        line.replace(name, '"requestApiKeyName":"PRODUCE"'): False,
        line.replace(key, "").replace(f",{name}", ""): False,
    }
    assert len(lines) == 10
    assert _fast([*lines]) == [number for number, is_read in enumerate(lines.values()) if is_read]
    assert [bool(_fast([each])) for each in lines] == [*lines.values()]


def test_unusual_topics_need_complete_parser() -> None:
    """Topics have an id or a name; in a request not both, and at least one partition."""
    line = _compact(fetch_line(9, {0: 3}, {0: 80}, epoch=3, session=7, forgotten=[1]))
    topic = f'"topicId":"{T}"'
    no_id = '"topicId":"AAAAAAAAAAAAAAAAAAAAAA","topic":"t"'
    request, forgotten, response = (line.rsplit(topic, 3 - number)[0] for number in range(3))

    def replaced(start: str, other: str) -> str:
        return start + line[len(start) :].replace(topic, other, 1)

    lines = {
        line: True,
        line.replace(topic, '"topic":"t"'): True,
        replaced(response, f'{topic},"topic":"t"'): True,
        replaced(forgotten, f'{topic},"topic":"t"'): True,
        replaced(request, f'{topic},"topic":"t"'): False,
        replaced(request, no_id): False,
        replaced(response, no_id): False,
        replaced(request, '"topicId":null'): False,
        replaced(forgotten, '"topicId":""'): False,
        replaced(response, '"other":1'): False,
        line.replace(
            f'{{{topic},"partitions":[', f'{{"topic":"u","partitions":[]}},{{{topic},"partitions":[', 1
        ): False,
        line.replace('"topics":[', '"topics":null,"other":['): True,
        line.replace('"responses":[', '"responses":null,"other":['): True,
        line.replace('"forgottenTopicsData":[', '"forgottenTopicsData":null,"other":['): True,
    }
    assert len(lines) == 14
    assert _fast([*lines]) == [number for number, is_fast in enumerate(lines.values()) if is_fast]
    assert [bool(_fast([each])) for each in lines] == [*lines.values()]
    fast, complete = _readings([each.encode() for each in lines])
    assert fast == complete


def test_deep_and_huge_values_need_complete_parser() -> None:
    """Fields that are not needed may nest as deeply as other fields, and have numbers of 4,000 digits."""
    line = _compact(fetch_line(9, {0: 3}))
    text = line.partition("request:")[2]
    free = 400 - text.count("{") - text.count("[")

    def with_field(value: str) -> str:
        return line.replace('"throttleTimeMs":0', f'"throttleTimeMs":{value}')

    lines = {
        with_field("[" * free + "]" * free): True,
        with_field("[" * (free + 1) + "]" * (free + 1)): False,
        with_field('{"a":' * 401 + "1" + "}" * 401): False,
        with_field("1" * 3_999): True,
        with_field("1" * 4_000): False,
    }
    assert [bool(_fast([each])) for each in lines] == [*lines.values()]
    (rows, tally), complete = _readings([each.encode() for each in lines])
    assert (rows, tally) == complete
    assert [row["line"] for row in rows if row["row"] == "bad"] == [2]


def test_requests_to_controller_are_counted_only() -> None:
    line = _compact(fetch_line(9, {0: 3}, client="raft"))
    lines = [
        line,
        line.replace('"listener":"PLAINTEXT"', '"listener":"CONTROLLER"'),
        line.replace('"isForwarded":false', '"isForwarded":true'),
        line.replace('"clientId":"raft"', '"clientId":"raft-client-1"'),
        line.replace('"clientId":"raft"', '"clientId":null'),
        line.replace("thread-1-", "x-").replace('"isForwarded":false', '"isForwarded":true'),
    ]
    readings = _readings([each.encode() for each in lines])
    assert [[(row["line"], row["client_id"]) for row in rows] for rows, _ in readings] == [[(0, "raft"), (4, None)]] * 2
    assert [tally.counts for _, tally in readings] == [{"requests": 6, "controller": 4, "no_broker": 1}] * 2
    assert _fast(lines) == [0, 1, 2, 3, 4, 5]


def test_broker_may_be_after_message_or_in_path() -> None:
    line = _compact(fetch_line(9, {0: 3}, broker=7))
    bare = line.replace("thread-7-", "x-")
    lines = [each.encode() for each in (line, f"{bare} [network-thread-8-x]", bare)]
    for by_path, brokers in ((5, [7, 8, 5]), (0, [7, 8, 0])):
        tally = log_reader.Tally()
        assert [row["broker"] for row in _rows_of(lines, UTC, by_path, tally)] == brokers
        assert tally.counts == {"requests": 3, "no_broker": 1}
    rows = _rows_of(lines, UTC, None, log_reader.Tally())
    assert [(row["row"], row["broker"], row["rule"]) for row in rows[:2]] == [
        ("request", 7, None),
        ("request", 8, None),
    ]
    assert (rows[2]["row"], rows[2]["rule"]) == ("bad", "no broker")


def test_fetches_are_tallied() -> None:
    lines = [
        fetch_line(10, {0: 3, 4: 0}, replica=2, wait=500, min_bytes=1, local=1),
        fetch_line(12, {2: 3}, replica=3, wait=500, min_bytes=1, local=1),
        fetch_line(14, {9: 3}, replica=-1, rack="r", local=2),
        fetch_line(16, {1: 3}, replica=0, wait=400, min_bytes=2, local=1),
        fetch_line(18, {-5: 3}, replica=0, wait=400, min_bytes=2, local=1).replace(T, T[::-1]),
    ]
    encoded = [_compact(line).encode() for line in lines]
    for _, tally in _readings(encoded):
        assert tally.partitions == {T: 5, T[::-1]: 0}
        assert tally.follower_fetches == {(500, 1): 2, (400, 2): 2}
        assert tally.counts == {"requests": 5, "racked": 1}
        assert tally.span_us == (us(9), us(18))
    assert _fast(encoded) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("line", "shows_wait"),
    [
        (fetch_line(900, {0: 3}, {0: 0}, high_watermark=4, remote=500), True),
        (fetch_line(900, {0: 3}, {0: 0}, high_watermark=3, remote=500), False),
        (fetch_line(900, {0: 3}, {1: 0}, high_watermark=4, remote=500), False),
        (fetch_line(900, {0: 3}, {0: 0}, high_watermark=4, remote=0), False),
        (fetch_line(900, {0: 3}, {0: 1}, high_watermark=4, remote=500), False),
        (fetch_line(900, {0: 3}, {0: 0}, high_watermark=4, remote=500, partition_error=3), False),
        (fetch_line(900, {0: 3}, {0: 0}, high_watermark=4, remote=500, replica=0), False),
        (fetch_line(900, {0: 3}, {0: 0}, high_watermark=4, remote=500).replace('Level": 0', 'Level": 1'), False),
        (fetch_line(900, {0: 3}, {}, remote=500), False),
        (fetch_line(900, {}, {0: 0}, high_watermark=4, remote=500), False),
    ],
)
def test_empty_response_shows_remote_wait(line: str, shows_wait: bool) -> None:
    """The fetches before and after it change nothing: their partitions are others."""
    others = [fetch_line(800, {5: 3}, {5: 7}, high_watermark=9), fetch_line(950, {6: 3}, {6: 0}, high_watermark=9)]
    lines = [_compact(each).encode() for each in (others[0], line, others[1])]
    for _, tally in _readings(lines):
        assert tally.remote_waits.fetches == (frozenset({T}) if shows_wait else frozenset())


def test_session_of_fetch_is_id_or_connection() -> None:
    lines = [
        fetch_line(1, {0: 5}, epoch=0, granted=9),
        fetch_line(2, {}, session=8, epoch=1),
        fetch_line(3, {0: 5}, epoch=0, granted=0),
        fetch_line(4, {0: 5}, session=8, epoch=-1, granted=9),
    ]
    keys = ["9", "8", "127.0.0.1:9092-c", "127.0.0.1:9092-c"]
    for rows, _ in _readings([_compact(line).encode() for line in lines]):
        assert [row["session"] for row in rows] == keys


def test_late_messages_are_rejected() -> None:
    lines = [fetch_line(at, {0: 3}, local=1) for at in (9.999, 10, 11, 12)]
    lines = [_compact(lines[0]), _compact(lines[1]), lines[2], lines[0]]
    columns = [pa.array([3] * 4, pa.int32()), pa.array([7, 8, 9, 10], pa.int64()), pa.array(lines)]
    messages = pa.RecordBatch.from_arrays(columns, ["partition", "offset", "value"])
    read = pa.Table.from_batches(log_reader.read_messages(UTC, us(9))(iter([messages])))
    rows = read.select(["row", "file", "line", "rule"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("request", 3, 8, None),
        ("request", 3, 9, None),
        ("bad", 3, 7, "late"),
        ("bad", 3, 10, "late"),
        ("end", None, None, None),
    ]
    tally = log_reader.Tally.of((row["counts"], row["body"]) for row in read.slice(4).to_pylist())
    assert tally.counts == {"lines": 4, "requests": 4, "late_lines": 2}


def test_many_messages_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_LINES", 1_000)
    lines = [_compact(fetch_line(at, {0: at})) for at in range(2_001)]
    columns = [pa.array([3] * 2_001, pa.int32()), pa.array(range(2_001), pa.int64()), pa.array(lines)]
    messages = pa.RecordBatch.from_arrays(columns, ["partition", "offset", "value"])
    read = list(log_reader.read_messages(UTC, 0)(iter([messages])))
    assert [batch.num_rows for batch in read if batch.num_rows] == [2_001, 1]
    assert [line for batch in read for line in batch.column("line").to_pylist()] == [*range(2_001), None]


def test_piece_is_read_in_few_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are decoded in blocks; batches of rows of one kind end after `_BATCH_BYTES`."""
    monkeypatch.setattr(log_reader, "BLOCK_BYTES", 1 << 20)
    log = tmp_path / "request-1.log"
    log.write_text("".join(_compact(fetch_line(at, {0: at})) + "\n" for at in range(6_000)))
    (piece,) = byte_pieces(find_logs([str(log)]))
    fetches, end = log_reader.read_piece(piece, UTC)
    monkeypatch.setattr(log_reader, "_BATCH_BYTES", 1)
    parts = list(log_reader.read_piece(piece, UTC))
    assert len(parts) > 4 and pa.Table.from_batches(parts[:-1]).combine_chunks().to_batches() == [fetches]
    assert parts[-1] == end and end.column("line").to_pylist() == [6_000]
    assert fetches.column("line").to_pylist() == [*range(1, 6_001)]


def test_cut_fetch_is_rejected(tmp_path: Path) -> None:
    """Lines that are too long are not decoded, although their beginning is a fetch."""
    lines = [_compact(fetch_line(at, {0: at})) for at in range(3)]
    lines[1] += " " * 5_000
    log = tmp_path / "request-1.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    (piece,) = byte_pieces(find_logs([str(log)]), limits=FileLimits(line_bytes=4_900))
    rows = pa.Table.from_batches(log_reader.read_piece(piece, UTC)).select(["row", "line", "rule"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("request", 1, None),
        ("request", 3, None),
        ("bad", 2, "too long"),
        ("end", 3, None),
    ]


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
        "",
    ],
)
def test_parsers_agree_on_timestamps(stamp: str) -> None:
    """All layouts give the same times, alone and after or before lines in other layouts."""
    line = hostile_inputs.random_log_line(Random(1)).partition(b"DEBUG")[2]
    fetch = _compact(fetch_line(9, {0: 3})).partition("Completed")[2].encode()
    assert b"Completed request:" in line
    others = ["2026-11-21 02:54:27.702 [x]", "[2026-11-22T02:54:27,702833Z]", "2026-12-21 02:54:28.703 [x]"]
    for zone in (UTC, zone_of("+05:30")):
        for stamps in ([stamp], [stamp, *others], [*others, stamp, others[0]]):
            lines = [f"{each} DEBUG Completed".encode() + fetch for each in stamps]
            lines += [f"{each} DEBUG".encode() + line for each in stamps]
            fast, complete = _readings(lines, zone)
            assert fast == complete


def test_time_may_be_shorter_than_first() -> None:
    """The first time would end within a character of the second line."""
    fetch = _compact(fetch_line(9, {0: 3})).partition("Completed")[2]
    heads = ["2026-11-21 02:54:27.702834 [x] ", "2026-11-21 02:54:27.702 xé[x] ", "2026-11-21 02:54:27.702\u00a0Z "]
    lines = [f"{head}Completed{fetch}".encode() for head in heads]
    fast, complete = _readings(lines)
    assert [row["written_us"] % 1_000_000 for row in fast[0]] == [702_834, 702_000, 702_000]
    assert fast == complete


def test_start_of_epoch_is_time() -> None:
    """A later time in the line does not replace it."""
    lines = [line.replace("2026-11-21T02:54:20.009000Z", "1970-01-01 00:00:00.000") + " 2026-11-21 02:54:27.702"
             for line in (fetch_line(9, {0: 3}), log_line(9, message("HEARTBEAT", {"groupId": "g"}, {})))]  # fmt: skip
    (fast, _), (complete, _) = _readings([_compact(line).encode() for line in lines])
    assert [row["written_us"] for row in fast] == [0, 0]
    assert fast == complete


@pytest.mark.parametrize("blank", [" ", "\t", " \r "])
def test_white_space_before_message_is_skipped(blank: str) -> None:
    lines = [fetch_line(9, {0: 3}), produce_line(9, 3), log_line(9, message("HEARTBEAT", {"groupId": "g"}, {}))]
    texts = [_compact(line).replace("request:", f"request:{blank}", 1).encode() for line in lines]
    fast, complete = _readings(texts)
    assert [row["row"] for row in fast[0]] == ["request"] * 3
    assert fast == complete


def test_malformed_versions_are_counted_only() -> None:
    """They are, whether the version of the broker is known already or not."""
    known: dict[str, Any] = {"apiKeys": [{"apiKey": 1, "minVersion": 4}]}
    answers: list[dict[str, Any]] = [{"apiKeys": [1]}, {"apiKeys": [{"apiKey": 1}]}, {"apiKeys": 5}]
    lines = [
        _compact(log_line(number, message("API_VERSIONS", {}, answer))).encode()
        for number, answer in enumerate([*answers, known, *answers])
    ]
    for rows, tally in _readings(lines):
        assert rows == []
        assert (tally.counts["requests"], tally.counts["bad_lines"], tally.new_brokers) == (7, 0, {1})


def test_no_input_aborts_import(tmp_path: Path) -> None:
    trials = [hostile_inputs.try_input(f"suite/{number}", tmp_path) for number in range(75)]
    assert sum(trial.accepted for trial in trials) > 500 and sum(trial.rejected for trial in trials) > 500
