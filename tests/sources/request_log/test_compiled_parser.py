"""Fetches and answered produces are scanned, and only long imports load the code (values: `test_fast_parser`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.rules.engine.jit.line_layout import Lines
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.fast_parser import parse_fetches, parse_produces
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log
from tests.sources.request_log.log_lines import T, fetch_line, produce_line
from tests.sources.request_log.test_without_spark import IMPORTED_TABLES, rows
from tests.support import recorded

LOGS = {
    f"{name}/{path.name}": path
    for name, folder in recorded.find_all("traces").items()
    for path in sorted(folder.glob("request-*.log*"))
}


Scan = Callable[[Lines, tzinfo], compiled_parser.ScannedFetches | compiled_parser.ScannedProduces]


@pytest.fixture(autouse=True)
def not_loaded() -> Iterator[None]:
    compiled_parser.unload()
    yield
    compiled_parser.unload()


def _scanned(lines: Sequence[bytes], scan: Scan = compiled_parser.scan_fetches) -> list[int]:
    """Return the places of the lines that the scanner reads."""
    compiled_parser.load()
    requests, _ = scan(Lines.of(lines), UTC).with_bodies()
    return [int(number) for number in requests.numbers]


def _line(**options: Any) -> bytes:
    """Return a fetch as Kafka writes it, without white space."""
    return _compact(fetch_line(9, {0: 3, 2: 8}, {0: 80}, epoch=3, session=7, forgotten=[1, 4], **options))


def _compact(line: str) -> bytes:
    return line.replace('": ', '":').replace(", ", ",").encode()


@pytest.mark.parametrize("name", LOGS)
def test_every_fetch_of_recording_is_scanned(name: str) -> None:
    lines = [line.rstrip("\n").encode() for line in islice(recorded.lines(LOGS[name]), 3_000)]
    fetches, _ = parse_fetches(lines, UTC).with_bodies()
    assert _scanned(lines) == fetches.numbers.tolist()


@pytest.mark.parametrize("name", LOGS)
def test_every_produce_of_recording_is_scanned(name: str) -> None:
    """Kafka writes an empty string as the response of a produce with acks 0."""
    lines = [line.rstrip("\n").encode() for line in islice(recorded.lines(LOGS[name]), 3_000)]
    produces, _ = parse_produces(lines, UTC).with_bodies()
    assert _scanned(lines, compiled_parser.scan_produces) == produces.numbers.tolist()


def test_layouts_of_produces_that_are_scanned() -> None:
    """Topics have either an id or a name. Lists of errors of records and a new leader may be in the response."""
    line = _compact(produce_line(9, 3, transaction="x"))
    topic_id = f'"topicId":"{T}"'.encode()
    base = b'"baseOffset":3'
    usual = b',"logAppendTimeMs":-1,"logStartOffset":0,"recordErrors":[],"errorMessage":null'
    errors = b',"recordErrors":[{"batchIndex":1,"batchIndexErrorMessage":null}],"errorMessage":"m"'
    leader = b',"currentLeader":{"leaderId":2,"leaderEpoch":5}'
    partitions = b'[{"index":0,"recordsSizeInBytes":100}]'
    unanswered = _compact(produce_line(9, 3, acks=0))
    lines = {
        line: True,
        line.replace(topic_id, b'"name":"t"'): True,
        line.replace(topic_id, b'"name":"t"', 1): True,
        line.replace(topic_id, b'"topic":"t"'): False,
        line.replace(topic_id, topic_id + b',"name":"t"'): False,
        line.replace(topic_id, b""): False,
        line.replace(topic_id, b'"name":""'): False,
        line.replace(b'"x"', b"null"): True,
        line.replace(base, base + usual): True,
        line.replace(base, base + errors): True,
        line.replace(base, base + usual + leader): True,
        line.replace(base, base + b',"other":1'): False,
        line.replace(partitions, b"[]"): True,
        line.replace(b'"acks":-1', b'"acks":1.0'): False,
        unanswered: False,
        unanswered.replace(b'"response":null', b'"response":""'): True,
        line.replace(b'"response":{', b'"response":""{'): False,
        unanswered.replace(b'"response":null', b'"response":'): False,
        line[:-1]: False,
    }
    assert len(lines) == 19
    assert _scanned([*lines], compiled_parser.scan_produces) == [
        number for number, is_read in enumerate(lines.values()) if is_read
    ]


def test_optional_fields_may_be_missing() -> None:
    diverging = b',"divergingEpoch":{"epoch":0,"endOffset":5}'
    line = _line(rack="r").replace(b',"recordsSize', diverging + b',"recordsSize')
    without = [
        b',"maxBytes":1000000',
        b',"isolationLevel":0',
        b',"currentLeaderEpoch":0',
        diverging,
        b',"rackId":"r"',
        b'"errorCode":0,"sessionId":7,',
        b',"recordsSizeInBytes":80',
    ]
    lines = [line, *(line.replace(field, b"") for field in without)]
    assert len(set(lines)) == len(lines)
    assert _scanned(lines) == list(range(len(lines)))


def test_other_layouts_are_left_to_other_parser() -> None:
    line = _line()
    named = line.replace(b'"topicId":', b'"topic":')
    topic_id = T.encode()
    lines = {
        line: True,
        named: True,
        line.replace(b'":', b'": '): False,
        line.replace(topic_id, b"\\u0041"): False,
        line.replace(topic_id, "é".encode()): False,
        line.replace(topic_id, b""): False,
        named.replace(topic_id, b"__cluster_metadata"): False,
        line.replace(b'"maxWaitMs":500', b'"maxWaitMs":5e2'): False,
        line.replace(b'"maxWaitMs":500', b'"maxWaitMs":0500'): False,
        line.replace(b'"maxWaitMs":500', b'"maxWaitMs":-500'): True,
        line.replace(b'"fetchOffset":3', b'"fetchOffset":999999999999999999'): True,
        line.replace(b'"fetchOffset":3', b'"fetchOffset":1000000000000000000'): False,
        line.replace(b'"requestApiVersion":13', b'"requestApiVersion":2147483648'): False,
        line.replace(b'"localTimeMs":1.0', b'"localTimeMs":1.0001'): False,
        line.replace(b'"partitions":[1,4]', b'"partitions":[]'): True,
        line.replace(b"T02:", b"T24:"): False,
        line + b" ": False,
        line[:-1]: False,
        b"": False,
    }
    assert len(lines) == 19
    assert _scanned([*lines]) == [number for number, is_read in enumerate(lines.values()) if is_read]


def test_wide_fetch_is_scanned() -> None:
    """A fetch of 1,000 partitions has too many brackets for the decoder."""
    line = fetch_line(9, dict.fromkeys(range(1_000), 3)).replace('": ', '":').replace(", ", ",").encode()
    assert len(parse_fetches([line], UTC)) == 0
    assert _scanned([line]) == [0]


def test_short_logs_do_not_load_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_parser, "modules", {})
    assert [compiled_parser.is_worthwhile(size << 20) for size in (0, 11, 12)] == [False, False, True]
    monkeypatch.setattr(compiled_parser, "modules", {"llvmlite": None})
    assert compiled_parser.is_worthwhile(0)


def _without_stored_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "FOLDER", None)


def test_import_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_stored_code(monkeypatch)
    compiled_parser.use()
    assert not compiled_parser.is_loaded()


_USE_STORED_CODE = """
import sys
from datetime import UTC
from purgatory_udf.rules.engine.jit.line_layout import Lines
from purgatory_udf.sources.request_log import compiled_parser
compiled_parser.use()
compiled_parser.scan_fetches(Lines.of([b"no fetch"]), UTC)
print(compiled_parser.is_loaded(), "llvmlite" in sys.modules, "numba" in sys.modules)
"""


def test_stored_code_needs_no_numba() -> None:
    warm_up.main()
    done = subprocess.run([sys.executable, "-c", _USE_STORED_CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "True True False\n"


def test_import_is_same_with_and_without_scanner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = []
    for is_compiled in (False, True):
        if is_compiled:
            compiled_parser.load()
        else:
            _without_stored_code(monkeypatch)
        out = tmp_path / str(is_compiled)
        logs = [str(LOGS[f"W3-groups-k39/request-{broker}.log.xz"]) for broker in (1, 2, 3)]
        ingest_request_log(LocalBackend(), RequestLogOptions(logs, str(out)), print)
        assert compiled_parser.is_loaded() is is_compiled
        tables.append([rows(out, name) for name in IMPORTED_TABLES])
    assert tables[0] == tables[1]
    assert len(tables[0][0]) > 1_000
