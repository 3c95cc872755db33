"""A log followed step by step without Spark gives the same tables as the import of the whole log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.sources.follow_topic import LogSteps
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from tests.support import recorded

RECORDING, LINES, BROKERS = "W3-groups-k39", 1_400, (1, 2, 3)
# Longer than the wait of joins, which is 6 s.
HOLD_MS = 8_000
MESSAGES = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
# Columns for the origin of a row, and numbers that depend on it.
ORIGIN_FIELDS = ("run_id", "seq", "source", "line", "request_id", "operation_id")

Message = tuple[int, int, str]


@pytest.fixture(scope="module")
def topics() -> str:
    return str(recorded.data_file("traces", RECORDING, "topics.json"))


@pytest.fixture(scope="module")
def whole(topics: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for broker in BROKERS:
        lines = "".join(f"{line}\n" for line in _lines(broker))
        (folder / f"request-{broker}.log").write_text(lines, encoding="utf-8")
    options = RequestLogOptions([str(folder)], str(folder / "out"), topics=topics)
    ingest_request_log(LocalBackend(), options)
    return folder / "out"


def _lines(broker: int) -> Iterator[str]:
    log = recorded.lines(recorded.data_file("traces", RECORDING, f"request-{broker}.log"))
    return (line.rstrip("\n") for line in islice(log, LINES))


def _steps(out: Path, topics: str) -> LogSteps:
    layout = Layout(str(out))
    for name in ("events", "recorded", "rejected_events"):
        LocalBackend().delta(layout.table(name)).create(layout.table(name), TABLES[name])
    options = RequestLogOptions(["lines"], str(out), topics=topics, hold_ms=HOLD_MS, events_per_file=1_000)
    topic = KafkaTopic("localhost:1", "lines", Messages.REQUEST_LOG)
    return LogSteps(LocalBackend(), layout, Run("followed", "ingest", {}, {}), topic, options, f"{out}/_kafka/held")


def _take_step(steps: LogSteps, portion: Sequence[Message], step: int) -> None:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*portion, strict=True), MESSAGES, strict=True)]
    steps.run(LocalBackend(), LocalDataset.of(pa.Table.from_arrays(columns, schema=MESSAGES)), step)


def _rows(out: Path, name: str, until_us: int) -> list[str]:
    """Return the rows of a table before a time, without the columns of their origin."""
    when = {"events": "event_time", "recorded": "started_at"}[name]
    rows = DeltaTable(str(out / name)).to_pyarrow_table().to_pylist()
    kept = (row for row in rows if row[when].timestamp() * 1e6 < until_us)
    return sorted(repr({key: value for key, value in row.items() if key not in ORIGIN_FIELDS}) for row in kept)


@pytest.mark.nightly
def test_followed_tables_equal_whole_import(whole: Path, topics: str, tmp_path: Path) -> None:
    """There are four steps; one is taken twice, as after a kill."""
    messages = sorted(
        ((number, offset, line) for number, broker in enumerate(BROKERS) for offset, line in enumerate(_lines(broker))),
        key=lambda message: message[2],
    )
    each = len(messages) // 4
    steps = _steps(tmp_path, topics)
    for step in (0, 1, 2, 2, 3):
        _take_step(steps, messages[step * each : (step + 1) * each if step < 3 else None], step)
    numbers = DeltaTable(str(tmp_path / "events")).to_pyarrow_table().column("seq").to_pylist()
    assert sorted(numbers) == list(range(len(numbers)))
    moments = DeltaTable(str(tmp_path / "events")).to_pyarrow_table().column("time_us").to_pylist()
    until_us = max(moments) + 1
    for name in ("events", "recorded"):
        assert _rows(tmp_path, name, until_us) == _rows(whole, name, until_us)
    assert len(moments) > 2_000
    assert DeltaTable(str(tmp_path / "rejected_events")).to_pyarrow_table().num_rows == 0
    held = sorted(folder.name for folder in (tmp_path / "_kafka" / "held").iterdir())
    assert held == ["step-2", "step-3"]
