"""A trace that is one batch, replayed without Spark: its run is begun, killed, gone on with, overwritten, left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs import replay
from purgatory_udf.backend import input_size
from purgatory_udf.backend.dialect import locally
from purgatory_udf.backend.local.session import LocalSession
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming.state_inspection import inspect
from tests.support import oracle_traces
from tests.support.outcome_folder import sample_with_group, write_folder
from tests.support.outcome_rows import outcomes_of

pytestmark = pytest.mark.long

TABLES = (
    *("completions", "expirations", "cancellations", "watches", "purgatory_gauges"),
    *("group_transitions", "group_disagreements", "_replay/told"),
)


def rows_of(out: Path, name: str) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(out / name)).to_pyarrow_table().to_pylist(), key=repr)


def run_of(out: Path) -> dict[str, Any]:
    """The run's record, but for when it was, which stream it is, and what it ran on."""
    runs = DeltaTable(str(out / "runs")).to_pyarrow_table().to_pylist()
    (run,) = (row for row in runs if row["job"] == "replay")
    configuration = {name: value for name, value in json.loads(run["configuration"]).items() if name != "stream"}
    timeless = {name: run[name] for name in ("run_id", "status")}
    return {**timeless, "configuration": configuration, "counts": json.loads(run["counts"])}


def replays(events: Path, out: Path, *words: str) -> int:
    return replay.main.status(["--events", str(events), "--out", str(out), *words])


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story's, by themselves."""
    out = tmp_path_factory.mktemp("events")
    write_folder(out, sample_with_group())
    return out / "events"


@pytest.fixture(scope="module")
def whole(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their replay, to its end; a test that changes it takes a copy."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with locally():
        assert replays(events, out) == 0
    return out


def copy_of(out: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(out, place))


def test_whoever_asks_for_its_state_is_told_who_leaves_one(whole: Path, tmp_path: Path) -> None:
    out = copy_of(whole, tmp_path / "out")
    with locally():
        here: Any = LocalSession()
        with pytest.raises(UserError, match="replayed in one process, which leaves no state"):
            inspect(here, str(out), 10)
        (versions,) = DeltaTable(str(out / "runs")).to_pyarrow_table().column("versions").to_pylist()
        assert list(json.loads(versions)) == ["deltalake", "duckdb", "purgatory_replay", "python"]
        # As Spark records it.
        write_deltalake(str(out / "runs"), _by_spark(out), mode="overwrite")
        with pytest.raises(UserError, match="its stream has not begun yet, or the trace has no operations"):
            inspect(here, str(out), 10)
        with pytest.raises(UserError, match="no checkpoint of a replay there"):
            inspect(here, str(tmp_path), 10)


def test_more_watches_than_memory_should_hold_are_sparks(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = DeltaTable(str(events)).to_pyarrow_table().column("partitions").to_pylist()
    watches = sum(len(some or ()) for some in partitions)
    with locally():
        monkeypatch.setattr(input_size, "REPLAYED_WATCHES", watches - 1)
        with pytest.raises(NeedsSparkError, match="more watches than memory should hold"):
            replays(events, tmp_path / "more")
        assert not (tmp_path / "more" / "runs").exists()
        monkeypatch.setattr(input_size, "REPLAYED_WATCHES", watches)
        assert replays(events, tmp_path / "as-many") == 0


def _by_spark(out: Path) -> pa.Table:
    runs = DeltaTable(str(out / "runs")).to_pyarrow_table()
    versions = pa.array([json.dumps({"spark": "4.2.0", "delta": "4.4.0"})] * len(runs))
    return runs.set_column(runs.schema.get_field_index("versions"), "versions", versions)


def test_a_run_that_was_killed_goes_on_with_the_tables_that_it_has(events: Path, whole: Path, tmp_path: Path) -> None:
    """Whichever of its writes was the last."""
    with locally():
        expected = {name: rows_of(whole, name) for name in TABLES}
        running = _unfinished(whole, tmp_path)
        for missing in ("completions", "purgatory_gauges", "_replay/told"):
            out = copy_of(running, tmp_path / "killed")
            shutil.rmtree(out / missing)
            assert replays(events, out) == 0
            assert {name: rows_of(out, name) for name in TABLES} == expected, missing
            assert run_of(out) == run_of(whole)


def _unfinished(whole: Path, tmp_path: Path) -> Path:
    """All tables are there, but the run's end is not on record."""
    out = copy_of(whole, tmp_path / "running")
    logs = sorted((out / "runs" / "_delta_log").glob("*.json"))
    logs[-1].unlink()
    assert DeltaTable(str(out / "runs")).to_pyarrow_table().column("status").to_pylist() == ["running"]
    return out


def test_a_finished_run_is_left_and_another_is_refused_unless_it_is_overwritten(
    events: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_of(whole, tmp_path / "out")
    with locally():
        before = rows_of(out, "runs")
        assert replays(events, out) == 0
        assert rows_of(out, "runs") == before
        halved = ("--set", "produce.timeout_ms=100")
        assert replays(events, out, *halved) == 2
        assert "of another trace or with other settings" in capsys.readouterr().err
        assert replays(events, out, *halved, "--overwrite") == 0
    assert rows_of(out, "runs") != before
    assert {row["run_id"] for row in rows_of(out, "watches")} == {run_of(out)["run_id"]}


@pytest.mark.parametrize(
    "words", [["--follow"], ["--set", "grouping=partition"], ["--batch-events", "100"]], ids=lambda words: words[-1]
)
def test_a_stream_is_left_to_spark(events: Path, tmp_path: Path, words: list[str]) -> None:
    with locally(), pytest.raises(NeedsSparkError):
        replays(events, tmp_path / "out", *words)
    assert not (tmp_path / "out" / "runs").exists()


def test_what_a_stream_has_begun_is_left_to_spark(events: Path, whole: Path, tmp_path: Path) -> None:
    with locally():
        running = _unfinished(whole, tmp_path)
        (running / "_replay" / "checkpoints" / "partitions").mkdir(parents=True)
        with pytest.raises(NeedsSparkError):
            replays(events, running)


@pytest.mark.parametrize("name", ["tiny-2", "purge20-1", "special-1"])
def test_operations_end_as_kafka_ended_them(name: str, tmp_path: Path) -> None:
    trace = oracle_traces.load(name)
    write_deltalake(str(tmp_path / "events"), event_table(trace.events))
    with locally():
        purges = [f"{kind}.purge_interval={trace.purge_interval}" for kind in ("produce", "fetch")]
        assert replays(tmp_path / "events", tmp_path, *(word for purge in purges for word in ("--set", purge))) == 0
    ended = (DeltaTable(str(tmp_path / name)).to_pyarrow_table() for name in ("completions", "expirations"))
    assert trace.rows(outcomes_of(*ended)) == trace.outcomes
