"""Produces that are read and converted as columns become the same events as those converted one by one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.fast_parser import parse_produces
from purgatory_udf.sources.request_log.importing import log_reader
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.import_passes import UNORDERED, _with_offsets
from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log
from tests.sources.request_log.log_lines import T, fetch_line, log_line, message
from tests.sources.request_log.test_without_spark import IMPORTED_TABLES, rows
from tests.support import recorded

OTHER = "x2bx2bx2bx2bx2bx2bx2bx"
# Partitions, sizes and offsets that the contract rejects are among these.
NUMBERS = [*range(6)] * 8 + [-1, 2**31, 2**40]


def _random_produce(random: Random) -> dict[str, Any]:
    """Return the message of a produce; some have errors, transactions, no response, or a response in another order."""
    topics = random.choice([[{"topicId": T}], [{"name": "t"}], [{"topicId": OTHER}, {"topicId": T}], [{"name": ""}]])
    acks = random.choice([-1, -1, 1, 0, 7])
    written, answered = [], []
    for topic in topics:
        partitions = [random.choice(NUMBERS) for _ in range(random.choice([1, 1, 1, 2, 3, 0]))]
        sizes = [{"index": each, "recordsSizeInBytes": random.choice(NUMBERS)} for each in partitions]
        written.append({**topic, "partitionData": sizes})
        of_answer = [
            {
                "index": each,
                "errorCode": random.choice([0] * 8 + [7, 19, 20, 3]),
                "baseOffset": random.choice([*NUMBERS, 2**61]),
            }
            for each in random.sample(partitions, random.choice([len(partitions)] * 5 + [0]))
        ]
        answered.append({**topic, "partitionResponses": of_answer})
    random.shuffle(answered)
    transaction = random.choice([None] * 5 + ["x"])
    timeout_ms = random.choice([3_000, 30_000, 5, -1, 2**40])
    request = {"transactionalId": transaction, "acks": acks, "timeoutMs": timeout_ms, "topicData": written}
    response: Any = {"responses": answered, "throttleTimeMs": 0} if acks else random.choice(["", None])
    client = random.choice(["p", "p", "q", ""])
    waits = random.choice([0.0, 0.001, 8.0, 900.0])
    return message("PRODUCE", request, response, client=client, local=random.choice([0.0, 0.3, 7.0]), remote=waits)


def _write_random_log(path: Path, broker: int) -> None:
    random, lines = Random(broker), list[str]()
    for number in range(600):
        lines.append(log_line(2_000 + number * random.choice([1, 5]), _random_produce(random), broker))
        if number % 5 == 0:
            lines.append(fetch_line(2_000 + number, {0: number // 50}, {0: 10}, replica=3 - broker, broker=broker))
    compact = (line.replace('": ', '":').replace(', "', ',"') for line in lines)
    path.write_text("".join(f"{line}\n" for line in compact), encoding="utf-8")


def _tables(logs: list[str], out: Path, **options: Any) -> tuple[list[Any], dict[str, int]]:
    done = ingest_request_log(LocalBackend(), RequestLogOptions(logs, str(out), **options), lambda _: None)
    return [rows(out, name) for name in IMPORTED_TABLES], dict(done.report.counts)


def _leave_produces_to_complete_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "parse_produces", lambda _, zone: parse_produces([], zone))
    monkeypatch.setattr(compiled_parser, "scan_produces", lambda _, zone: parse_produces([], zone))


@pytest.fixture(params=["decoded", "scanned"])
def reading(request: pytest.FixtureRequest) -> Any:
    """Read lines with decoders, and with compiled code."""
    compiled_parser.unload()
    if request.param == "scanned":
        compiled_parser.load()
    yield request.param
    compiled_parser.unload()


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("anonymise", [False, True])
def test_random_produces_become_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anonymise: bool) -> None:
    logs = [str(tmp_path / f"request-{broker}.log") for broker in (1, 2)]
    for broker, log in enumerate(logs, start=1):
        _write_random_log(Path(log), broker)
    options: dict[str, Any] = {"anonymise": True, "anonymise_key": "k"} if anonymise else {}
    as_columns = _tables(logs, tmp_path / "columns", **options)
    _leave_produces_to_complete_parser(monkeypatch)
    assert as_columns == _tables(logs, tmp_path / "texts", **options)
    events, rejected = as_columns[0][0], as_columns[0][1]
    assert sum('"produce"' in json.dumps(row, default=str) for row in events) > 500
    assert len(rejected) > 100


def test_recorded_produces_become_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [str(recorded.data_file("traces", "W11-faults", f"request-{broker}.log")) for broker in (1, 2, 3)]
    as_columns = _tables(logs, tmp_path / "columns")
    _leave_produces_to_complete_parser(monkeypatch)
    assert as_columns == _tables(logs, tmp_path / "texts")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_of_request_may_be_in_several_batches(size: int) -> None:
    """Line 2 has two operations, which get all its offsets; line 3 has no offsets, and line 4 is a remote fetch."""
    at = {"time_us": 100, "part": "operation"}
    rows: list[dict[str, Any]] = [
        {**at, "line": 1, "sub": 0},
        {"line": 1, "part": "produced", "time_us": 90, "slot": 0, "base": 5, "end": 6},
        {**at, "line": 2, "sub": 0},
        {**at, "line": 2, "sub": 1},
        *(
            {"line": 2, "part": "produced", "time_us": 120 - slot, "slot": slot, "base": slot, "end": 9}
            for slot in range(3)
        ),
        {**at, "line": 3, "sub": 0, "time_us": 20},
        {**at, "line": 4, "sub": 0},
        {"line": 4, "expired": 0},
        {"line": 4, "expired": 1},
    ]
    fields = [("line", pa.int64()), ("part", pa.string()), ("time_us", pa.int64()), ("sub", pa.int32())]
    of_produces = [("slot", pa.int32()), ("base", pa.int64()), ("end", pa.int64())]
    given = pa.schema([("file", pa.int32()), *fields, *of_produces, ("expired", pa.int32())])
    lists = [UNORDERED.field(name) for name in ("slots", "bases", "ends", "remote")]
    schema = pa.schema([("file", pa.int32()), *fields, ("at_us", pa.int64()), *lists])
    table = pa.Table.from_pylist([{"file": 0, **row} for row in rows], schema=given)
    made = _with_offsets(schema, 50, iter(table.to_batches(max_chunksize=size)))
    found = pa.Table.from_batches(made, schema).select(["line", "sub", "at_us", "slots", "bases", "ends", "remote"])
    all_of_2 = ([0, 1, 2], [0, 1, 2], [9, 9, 9], None)
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (1, 0, 100, [0], [5], [6], None),
        (2, 0, 120, *all_of_2),
        (2, 1, 120, *all_of_2),
        (3, 0, 50, None, None, None, None),
        (4, 0, 100, None, None, None, 1),
    ]
