"""The survey of a trace: the limits of its fetches, and rows that lack a value."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from purgatory_udf.backend import backend
from purgatory_udf.backend.backend import LocalBackend, SparkBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming import replay_run
from purgatory_udf.streaming.event_source import EventTable
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.rules.reference.timeline import Timeline
from tests.support import share_traces

_BROKER_LIMIT = 50_000


@pytest.mark.parametrize(
    ("limits", "request_limit", "least"),
    [
        pytest.param([700], 900, 700, id="of one partition"),
        pytest.param([700], 300, 300, id="of a request of one partition"),
        pytest.param([700, 800], 3_200, 700, id="the request's is large enough"),
        pytest.param([700, 800], 3_000, 0, id="the request's may leave any number"),
        pytest.param([700, 26_000], None, 0, id="the broker's may leave any number"),
        pytest.param([], 900, 0, id="of no partition"),
    ],
)
def test_survey_finds_smallest_limit(tmp_path: Path, limits: list[int], request_limit: int | None, least: int) -> None:
    parts = {f"a-{number}": {"fetch_offset": 0, "max_bytes": limit} for number, limit in enumerate(limits)}
    timeline = Timeline().fetch(1, "f", 0, 1, parts, max_bytes=request_limit)
    write_deltalake(str(tmp_path), event_table(timeline.events))
    found = EventTable(LocalBackend(), str(tmp_path), _BROKER_LIMIT).survey
    assert (found.most_bytes, found.least_bytes) == (max(limits, default=0), least)
    assert found.watches == len(limits)


def test_survey_ignores_limits_of_other_requests(tmp_path: Path) -> None:
    timeline = Timeline().fetch(1, "f", 0, 1, {"a-0": {"fetch_offset": 0, "max_bytes": 700}}, max_bytes=900)
    timeline.fetch(2, "g", 0, 1, {"a-0": {"fetch_offset": 0, "max_bytes": 800}}, max_bytes=600)
    timeline.delete_records(3, "d", 5, **{"a-0": 1, "a-1": 1})
    write_deltalake(str(tmp_path), event_table(timeline.events))
    found = EventTable(LocalBackend(), str(tmp_path), _BROKER_LIMIT).survey
    assert (found.most_bytes, found.least_bytes, found.watches) == (800, 600, 4)


@pytest.mark.spark
def test_session_surveys_local_tables_of_any_size_by_duckdb(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If DuckDB cannot read the table, Spark does."""
    limits = {f"a-{number}": {"fetch_offset": 0, "max_bytes": 700 + number} for number in range(3)}
    write_deltalake(str(tmp_path), event_table(Timeline().fetch(1, "f", 0, 1, limits, max_bytes=5_000).events))
    expected = EventTable(LocalBackend(), str(tmp_path)).survey
    assert (expected.events, expected.operations, expected.most_bytes, expected.least_bytes) == (1, 1, 702, 700)
    session = SparkBackend(spark)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_DUCKDB_BYTES", 0)
        patch.setattr(SparkBackend, "database", None)
        patch.setattr(backend, "SparkDatabase", None)
        assert EventTable(session, str(tmp_path)).survey == expected

    def refuse(*_: object) -> None:
        raise NeedsSparkError("refused")

    monkeypatch.setattr(LocalBackend, "select", refuse)
    assert EventTable(session, str(tmp_path)).survey == expected


def test_other_inputs_are_no_table_of_events(tmp_path: Path) -> None:
    file, other = tmp_path / "trace.jsonl", tmp_path / "rejected_events"
    file.touch()
    write_deltalake(str(other), pa.table({"raw": ["{}"]}))
    for path, error in (
        (file, "is a file, not a table of events; import it with ingest"),
        (other, "not a table of events: it has no column seq"),
        (tmp_path, "not a Delta table of events; create one with ingest"),
    ):
        with pytest.raises(UserError, match=f"^{path}: {error}$"):
            EventTable(LocalBackend(), str(path)).require()


# A type or change, the field that its row lacks, and how errors call it.
_LACKING = [
    ("share_fetch", "partitions", "share_fetch"),
    ("share_acknowledge", "acknowledgements", "share_acknowledge"),
    ("share_fetch", "max_records", "share_fetch"),
    ("log_end", "offset", "partition"),
    ("log_end", "change", "partition"),
    ("share_fetch", "time_us", "share_fetch"),
]


def _without_value(place: Path, kind: str, name: str) -> int | None:
    """Write a table of events in which the first event of a kind lacks a value; return its number."""
    events = [{**event, "seq": seq} for seq, event in enumerate(share_traces.load("tiny-1").events)]
    lacking = next(event for event in events if kind in (event["type"], event.get("change")))
    lacking[name] = None
    write_deltalake(str(place), share_traces.as_table(events))
    seq: int | None = lacking["seq"]
    return seq


@pytest.mark.parametrize(("kind", "name", "title"), _LACKING)
def test_failed_replay_names_row_without_value(tmp_path: Path, kind: str, name: str, title: str) -> None:
    """A program other than `ingest` has written the table."""
    seq = _without_value(tmp_path / "events", kind, name)
    error = f"^{tmp_path}/events: the {title} with seq {seq} has no {name}; import the trace with ingest"
    with pytest.raises(UserError, match=error):
        run_replay(LocalBackend(), ReplayOptions(str(tmp_path / "events"), str(tmp_path), Config()))


@pytest.mark.parametrize("interrupted", [False, True])
def test_other_failure_is_reported_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interrupted: bool
) -> None:
    _without_value(tmp_path / "events", "share_fetch", "group")

    def fail(*_: object) -> None:
        if not interrupted:
            raise OSError("the disk failed")
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            # The interrupt has stopped the JVM.
            raise OSError("the disk failed")  # noqa: B904

    def refuse(_: EventTable) -> None:
        raise OSError("cannot be read")

    monkeypatch.setattr(replay_run, "start_or_resume", fail)
    monkeypatch.setattr(EventTable, "require_complete_rows", refuse)
    with caplog.at_level("INFO"), pytest.raises(OSError, match="the disk failed"):
        run_replay(LocalBackend(), ReplayOptions(str(tmp_path / "events"), str(tmp_path), Config()))
    assert ("checking whether events lack values" in caplog.text) != interrupted


@pytest.mark.spark
def test_spark_finds_row_without_value(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seq = _without_value(tmp_path, "share_fetch", "group")

    def refuse(*_: object) -> None:
        raise NeedsSparkError("refused")

    monkeypatch.setattr(LocalBackend, "query", refuse)
    with pytest.raises(UserError, match=f"the share_fetch with seq {seq} has no group"):
        EventTable(SparkBackend(spark), str(tmp_path)).require_complete_rows()


def test_imported_rows_are_complete(tmp_path: Path) -> None:
    for number, name in enumerate(share_traces.names()):
        table = str(tmp_path / str(number))
        events = [{**event, "seq": seq} for seq, event in enumerate(share_traces.load(name).events)]
        write_deltalake(table, share_traces.as_table(events))
        EventTable(LocalBackend(), table).require_complete_rows()
