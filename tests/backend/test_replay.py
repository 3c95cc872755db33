"""A replay of one batch without Spark: its run is finished, killed, resumed, overwritten, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs import replay
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.launch import backend_choice
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming.checkpoints import inspect
from tests.support import oracle_traces
from tests.support.outcome_folder import sample_with_group, write_folder
from tests.support.outcome_rows import outcomes_of

pytestmark = pytest.mark.long

TABLES = (
    *("completions", "expirations", "cancellations", "watches", "purgatory_gauges"),
    *("group_transitions", "member_transitions", "group_disagreements", "_replay/group_answers"),
)


def rows_of(out: Path, name: str) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(out / name)).to_pyarrow_table().to_pylist(), key=repr)


def run_of(out: Path) -> dict[str, Any]:
    """Return the run's record without times, stream id and versions."""
    runs = DeltaTable(str(out / "runs")).to_pyarrow_table().to_pylist()
    (run,) = (row for row in runs if row["job"] == "replay")
    configuration = {name: value for name, value in json.loads(run["configuration"]).items() if name != "stream"}
    timeless = {name: run[name] for name in ("run_id", "status")}
    return {**timeless, "configuration": configuration, "counts": json.loads(run["counts"])}


def run_replay_job(events: Path, out: Path, *words: str) -> int:
    return replay.main.status(["--events", str(events), "--out", str(out), *words], open_local)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events of the sample with a consumer group."""
    out = tmp_path_factory.mktemp("events")
    write_folder(out, sample_with_group())
    return out / "events"


@pytest.fixture(scope="module")
def whole(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a replay of these events. A test that changes it makes a copy."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run_replay_job(events, out) == 0
    return out


def copy_of(out: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(out, place))


def test_inspect_explains_missing_state(whole: Path, tmp_path: Path) -> None:
    out = copy_of(whole, tmp_path / "out")
    session: Any = LocalBackend()
    with pytest.raises(UserError, match="replayed in one process, which leaves no state"):
        inspect(session, str(out), 10)
    (versions,) = DeltaTable(str(out / "runs")).to_pyarrow_table().column("versions").to_pylist()
    assert list(json.loads(versions)) == ["deltalake", "duckdb", "purgatory_replay", "python"]
    # Versions that a run in Spark records.
    write_deltalake(str(out / "runs"), _runs_of_spark(out), mode="overwrite")
    with pytest.raises(UserError, match="its stream has not started yet, or the trace has no operations"):
        inspect(session, str(out), 10)
    with pytest.raises(UserError, match="no checkpoint of a replay there"):
        inspect(session, str(tmp_path), 10)


def test_too_many_watches_need_spark(events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = DeltaTable(str(events)).to_pyarrow_table().column("partitions").to_pylist()
    needed = len(partitions) + sum(len(some or ()) for some in partitions)
    monkeypatch.setattr(backend_choice, "most_rows_in_memory", lambda: needed - 1)
    with pytest.raises(NeedsSparkError, match="watches, which may not fit in memory"):
        run_replay_job(events, tmp_path / "more")
    assert not (tmp_path / "more" / "runs").exists()
    monkeypatch.setattr(backend_choice, "most_rows_in_memory", lambda: needed)
    assert run_replay_job(events, tmp_path / "as-many") == 0


def _runs_of_spark(out: Path) -> pa.Table:
    runs = DeltaTable(str(out / "runs")).to_pyarrow_table()
    versions = pa.array([json.dumps({"spark": "4.2.0", "delta": "4.4.0"})] * len(runs))
    return runs.set_column(runs.schema.get_field_index("versions"), "versions", versions)


def test_killed_run_writes_missing_tables(events: Path, whole: Path, tmp_path: Path) -> None:
    """Any of several tables may be missing."""
    expected = {name: rows_of(whole, name) for name in TABLES}
    running = _unfinished(whole, tmp_path)
    for missing in ("completions", "purgatory_gauges", "_replay/group_answers"):
        out = copy_of(running, tmp_path / "killed")
        shutil.rmtree(out / missing)
        assert run_replay_job(events, out) == 0
        assert {name: rows_of(out, name) for name in TABLES} == expected, missing
        assert run_of(out) == run_of(whole)


def _unfinished(whole: Path, tmp_path: Path) -> Path:
    """Return a copy with all tables but no record of the run's end."""
    out = copy_of(whole, tmp_path / "running")
    logs = sorted((out / "runs" / "_delta_log").glob("*.json"))
    logs[-1].unlink()
    assert DeltaTable(str(out / "runs")).to_pyarrow_table().column("status").to_pylist() == ["running"]
    return out


def test_other_settings_need_overwrite(
    events: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repeated command with the same settings leaves a finished run unchanged."""
    out = copy_of(whole, tmp_path / "out")
    before = rows_of(out, "runs")
    assert run_replay_job(events, out) == 0
    assert rows_of(out, "runs") == before
    halved = ("--set", "produce.timeout_ms=100")
    assert run_replay_job(events, out, *halved) == 2
    assert "of another trace or with other settings" in capsys.readouterr().err
    assert run_replay_job(events, out, *halved, "--overwrite") == 0
    assert rows_of(out, "runs") != before
    assert {row["run_id"] for row in rows_of(out, "watches")} == {run_of(out)["run_id"]}


@pytest.mark.parametrize(
    "words", [["--follow"], ["--set", "grouping=partition"], ["--batch-events", "100"]], ids=lambda words: words[-1]
)
def test_streams_need_spark(events: Path, tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(NeedsSparkError):
        run_replay_job(events, tmp_path / "out", *words)
    assert not (tmp_path / "out" / "runs").exists()


def test_run_of_stream_needs_spark(events: Path, whole: Path, tmp_path: Path) -> None:
    running = _unfinished(whole, tmp_path)
    (running / "_replay" / "checkpoints" / "partitions").mkdir(parents=True)
    with pytest.raises(NeedsSparkError):
        run_replay_job(events, running)


@pytest.mark.parametrize("name", ["tiny-2", "purge20-1", pytest.param("special-1", marks=pytest.mark.nightly)])
def test_outcomes_equal_kafka(name: str, tmp_path: Path) -> None:
    trace = oracle_traces.load(name)
    write_deltalake(str(tmp_path / "events"), event_table(trace.events))
    purges = [f"{kind}.purge_interval={trace.purge_interval}" for kind in ("produce", "fetch")]
    assert run_replay_job(tmp_path / "events", tmp_path, *(word for purge in purges for word in ("--set", purge))) == 0
    ended = (DeltaTable(str(tmp_path / name)).to_pyarrow_table() for name in ("completions", "expirations"))
    assert trace.rows(outcomes_of(*ended)) == trace.outcomes
