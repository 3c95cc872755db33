"""Imports of random logs, read whole and followed: events, counts and settings as in `tests/data/imported/random`.

If an intended change of the import changes lines, read the difference before you run
`python -m tests.sources.request_log.test_random_logs`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs import ingest
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.sources.request_log.importing import log_reader
from purgatory_udf.sources.request_log.importing.carried_state import CARRIED_ROWS, CarriedState, StepState
from purgatory_udf.sources.request_log.importing.follow_step import FollowStep
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS, facts_in
from purgatory_udf.sources.request_log.importing.import_tables import NAMES
from purgatory_udf.sources.request_log.importing.log_import import WholeLog, overview_of
from purgatory_udf.sources.request_log.log_files import find_logs
from purgatory_udf.sources.trace_files.text_lines import byte_pieces
from purgatory_udf.storage.run_records import RecordedSetting
from tests.sources.request_log.random_cluster import BROKERS
from tests.sources.request_log.random_log import RandomLog
from tests.sources.request_log.translate import event_of, facts_by_moment, keep_rows, number_rows
from tests.support import recorded

LOGS = range(30)
# Logs that are also followed, in several steps.
FOLLOWED = range(0, 30, 2)
STEPS = 3
# The other logs are read as a whole in each run, and these only by night.
_WHOLE = [pytest.param(number, marks=[pytest.mark.nightly] * (number in FOLLOWED)) for number in LOGS]
# Logs that the job `ingest` writes to tables.
WRITTEN = range(6)
MESSAGES = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=msgspec.to_builtins)


def _events(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield each event with its recorded outcome, and each row that the contract rejects."""
    for row in rows:
        yield _json(
            [event_of(row), row["recorded"]] if row["rule"] is None else ["rejected", row["rule"], row["reason"]]
        )


def _others(rejected: Any, settings: list[RecordedSetting], counts: dict[str, int]) -> Iterator[str]:
    rows = rejected.collect().to_pylist()
    yield from sorted(_json(["bad", row["source"], row["line"], row["reason"][:200]]) for row in rows)
    yield from (_json(["setting", setting]) for setting in settings)
    yield _json(dict(sorted(counts.items())))


def whole(number: int) -> Iterator[str]:
    """Yield the result of the import of a whole log, which reads one file per broker, in small pieces."""
    log = RandomLog(number)
    with tempfile.TemporaryDirectory() as folder:
        for broker in BROKERS:
            text = "".join(f"{line}\n" for line in log.of_broker(broker))
            Path(folder, f"request-{broker}.log").write_text(text, encoding="utf-8")
        files = find_logs([folder])
        pieces = byte_pieces(files, 20_000)
        read = pa.Table.from_batches(batch for piece in pieces for batch in log_reader.read_piece(piece, UTC))
    overview = overview_of(LocalDataset.of(read))
    names = [Path(file.name).name for file in files]
    phases: list[str] = []
    log_import = WholeLog(LocalBackend(), log.given(), "run", names.__getitem__, keep_rows, None, phases.append)
    converted = log_import.convert(LocalDataset.of(read), overview)
    yield from phases
    yield from _events(number_rows(converted.finished.events))
    yield from (_json(["pause", *pause]) for pause in converted.pauses)
    yield from _others(converted.finished.rejected, converted.settings, converted.report.counts)


def followed(number: int) -> Iterator[str]:
    """Yield the events of each step of a followed log, and the state that the last step carries to the next."""
    log = RandomLog(number)
    given, hold_us = log.given(), log.of(0, 20_000, 500_000, 3_000_000)
    lines = [line for _, _, line in sorted(log.lines, key=lambda each: each[0])]
    state = StepState(
        CarriedState(), LocalDataset.of(REQUESTS.empty_table()), LocalDataset.of(CARRIED_ROWS.empty_table())
    )
    each = len(lines) // STEPS + 1
    for first in range(0, len(lines), each):
        portion = lines[first : first + each]
        columns = [[0] * len(portion), list(range(first, first + len(portion))), portion]
        messages = pa.RecordBatch.from_arrays(
            [pa.array(column, of.type) for column, of in zip(columns, MESSAGES, strict=True)], schema=MESSAGES
        )
        read = pa.Table.from_batches(log_reader.read_messages(UTC, state.carried.until_us)(iter([messages])))
        step = FollowStep(LocalBackend(), given, hold_us, "run", str, keep_rows).run(state, LocalDataset.of(read))
        yield from _events(number_rows(step.finished.events))
        carried = CarriedState.resumed(json.loads(json.dumps(step.state.carried.snapshot())))
        rows = LocalDataset.of(step.state.rows.collect())
        state = replace(step.state, carried=carried, requests=LocalDataset.of(step.state.requests.collect()), rows=rows)
        yield from _others(step.finished.rejected, carried.settings.settings(), carried.counts)
    snapshot = {name: value for name, value in carried.snapshot().items() if name != "format"}
    yield _json({**snapshot, "counts": dict(sorted(carried.counts.items()))})
    yield from sorted(map(_carried_row, rows.collect().to_pylist()))


def written(number: int) -> Iterator[str]:
    """Yield the output of the job `ingest`, and the rows of its tables; one log is compressed, and options differ."""
    log = RandomLog(number)
    options = ["--max-rejected", "100", *(["--anonymise"] if number % 3 == 1 else [])]
    options += ["--kafka-version", log.of("3.9", "4.0")] if number % 3 == 2 else []
    with tempfile.TemporaryDirectory() as folder:
        for broker in BROKERS:
            lines = "".join(f"{line}\n" for line in log.of_broker(broker)).encode()
            file = Path(folder, f"request-{broker}.log{'.gz' if broker == 1 else ''}")
            file.write_bytes(gzip.compress(lines) if broker == 1 else lines)
        for option, text in log.files().items():
            if log.of(True, True, False):
                file = Path(folder, f"file{option}")
                file.write_text(f"{text}\n", encoding="utf-8")
                options += [option, str(file)]
        out = f"{folder}/out"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert ingest.main.status(["--from", "request-log", folder, *options, "--out", out], open_local) == 0
        yield from printed.getvalue().replace(folder, "").splitlines()
        for table in NAMES:
            rows = DeltaTable(f"{out}/{table}").to_pyarrow_table().drop_columns(["run_id"]).to_pylist()
            filled = ({name: value for name, value in row.items() if value is not None} for row in rows)
            yield from sorted(json.dumps([table, row], default=str).replace(folder, "") for row in filled)


def _carried_row(row: dict[str, Any]) -> str:
    fields = {name: value for name, value in row.items() if value is not None}
    if "fetch" in fields:
        fetch = {name: value for name, value in fields["fetch"].items() if name != "client_id" or value is not None}
        start, client = {"time_us": fetch.pop("time_us"), "type": "fetch"}, fetch.pop("client_id", None)
        event = {**start, **fetch, "broker": row["broker"]} | ({} if client is None else {"client_id": client})
        fields = {("event" if name == "fetch" else name): value for name, value in fields.items()} | {
            "event": _json(event)
        }
    if "recorded" in fields:
        fields["recorded"] = _json(fields["recorded"])
    if fields.get("packed"):
        facts = facts_by_moment(facts_in(row["packed"]))
        fields["packed"] = sorted(_json([type(fact).__name__, *msgspec.structs.astuple(fact)]) for fact in facts)
    return _json(fields)


@cache
def _expected() -> dict[str, list[str]]:
    return recorded.sections(recorded.data_file("imported", "random.txt"))


@pytest.mark.parametrize("number", _WHOLE)
def test_random_log_has_same_events(number: int) -> None:
    assert list(whole(number)) == _expected()[f"whole {number}"]


@pytest.mark.parametrize("number", WRITTEN)
def test_tables_of_random_log_are_same(number: int) -> None:
    assert list(written(number)) == _expected()[f"written {number}"]


@pytest.mark.parametrize("number", FOLLOWED)
def test_followed_random_log_has_same_events(number: int) -> None:
    assert list(followed(number)) == _expected()[f"followed {number}"]


def _all() -> Iterator[str]:
    for number in LOGS:
        yield f"# whole {number}"
        yield from whole(number)
        if number in FOLLOWED:
            yield f"# followed {number}"
            yield from followed(number)
        if number in WRITTEN:
            yield f"# written {number}"
            yield from written(number)


if __name__ == "__main__":
    file = recorded.data_file("imported") / "random.txt.xz"
    file.write_bytes(lzma.compress("".join(f"{line}\n" for line in _all()).encode(), preset=9))
