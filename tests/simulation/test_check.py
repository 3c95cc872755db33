"""`simulate --check`: the trace is written, replayed, and compared with the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from purgatory_udf.answers.audit import audit
from purgatory_udf.backend.backend import LocalBackend, backend_of
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.contract import read_line
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.simulation import output, simulation_run
from purgatory_udf.simulation.output import Output
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.simulation_run import ScenarioRun, compare, simulate, simulate_and_write
from purgatory_udf.storage import run_records
from purgatory_udf.storage.run_records import Run

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

SCENARIO = Scenario.model_validate(
    {
        "shows": "Creations, a stalled follower and a broker crash.",
        "duration_s": 8,
        "topics": [{"name": "orders", "partitions": 2}],
        "producers": [{"name": "writer", "topics": ["orders"], "rate": 15, "request_timeout_ms": 800}],
        "consumers": [{"name": "reader", "count": 2, "topics": ["orders"]}],
        "topic_creations": [{"timeout_ms": 30}],
        "incidents": [
            {"what": "stall-follower", "broker": 3, "at_s": 2, "for_s": 2},
            {"what": "crash-broker", "broker": 2, "at_s": 5, "for_s": 1},
        ],
    }
)


def test_check_reports_differences_from_truth(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario_run = ScenarioRun(SCENARIO, None, None, 1)
    out, reported = str(tmp_path / "out"), list[str]()
    simulate(
        session, scenario_run, Output(out, scenario_run.run_id), reported.append, tmp_path / "trace.jsonl", check=True
    )
    shown = capsys.readouterr().out
    truth = {name: DeltaTable(f"{out}/truth_{name}") for name in ENDS}
    operations = sum(table.to_pyarrow_table().num_rows for table in truth.values())
    assert truth["cancellations"].to_pyarrow_table().num_rows > 0, "a broker crashed"
    assert [finding for finding in audit(LocalBackend(), out) if finding.broken] == []
    assert f"check     the replay agrees on all {operations:,} operations" in shown
    assert any(line.startswith("simulate: 100%") for line in reported)
    assert reported[-1] == "replaying the trace to check it"

    events = [read_line(line) for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    assert len(events) == DeltaTable(f"{out}/events").to_pyarrow_table().num_rows

    first = min(truth["completions"].to_pyarrow_table().to_pylist(), key=lambda row: int(row["operation_id"]))
    number, wait_ms = first["operation_id"], first["wait_ms"]
    truth["completions"].update({"wait_ms": "wait_ms + 7"}, predicate=f"operation_id = {number}")
    verdict = compare(session, out)
    assert verdict.lines() == [
        f"check     1 of {operations:,} operations differ, for example",
        f"          completions: operation {number}: wait_ms is {wait_ms} in the replay, "
        f"{wait_ms + 7} in the simulation",
    ]
    with pytest.raises(CheckFailedError, match="the replay differs from the simulated brokers in 1 of"):
        verdict.require_agreement()

    with pytest.raises(UserError, match="events: exists; choose another --out, or replace it with --overwrite"):
        simulate(session, scenario_run, Output(out, scenario_run.run_id), reported.append)
    assert json.loads((tmp_path / "trace.jsonl").read_text().splitlines()[0])["seq"] == 1


@pytest.mark.parametrize(
    ("written", "stopped_at"), [("truth_requests", (output, "write_dataset")), ("events", (Run, "finished"))]
)
def test_interrupted_simulation_is_repeated(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, stopped_at: tuple[Any, str]
) -> None:
    """The record of an earlier simulation in the folder does not hide that the tables are incomplete."""
    short, long = (ScenarioRun(SCENARIO, duration_s=seconds) for seconds in (0.5, 1))
    out, backend, runs = str(tmp_path), backend_of(session), f"{tmp_path}/runs"
    simulate_and_write(session, short, Output(out, short.run_id), _ignore)
    with monkeypatch.context() as patch:
        patch.setattr(*stopped_at, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            simulate_and_write(session, long, Output(out, long.run_id, overwrite=True), _ignore)
    interrupted = run_records.load(session, runs, "simulate")
    assert interrupted is not None
    assert (interrupted.run_id, interrupted.status) == (long.run_id, "running")
    assert backend.files.exists(f"{out}/{written}")
    with pytest.raises(UserError, match="exists; choose another --out"):
        simulate_and_write(session, short, Output(out, short.run_id), _ignore)
    simulated = simulate_and_write(session, long, Output(out, long.run_id), _ignore)
    assert DeltaTable(f"{out}/events").to_pyarrow_table().num_rows == len(simulated.events)
    finished = run_records.load(session, runs, "simulate")
    assert finished is not None
    assert finished.status == "finished"


@pytest.mark.parametrize("stopped_at", ["run_replay", "compare"])
def test_interrupted_check_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stopped_at: str
) -> None:
    """The trace is not simulated again, unless a file for it is missing. Without a check, it is in the way."""
    short, backend, jsonl = ScenarioRun(SCENARIO, duration_s=1), LocalBackend(), tmp_path / "trace.jsonl"
    output, reported = Output(f"{tmp_path}/out", short.run_id), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(simulation_run, stopped_at, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            simulate(backend, short, output, reported.append, jsonl, check=True)
    for check, file in ((False, jsonl), (True, tmp_path / "other.jsonl")):
        with pytest.raises(UserError, match="events: exists; choose another --out"):
            simulate(backend, short, output, reported.append, file, check)
    monkeypatch.setattr(simulation_run, "ClosedLoop", _interrupt)
    reported.clear()
    simulate(backend, short, output, reported.append, jsonl, check=True)
    assert reported == [
        f"run {short.run_id} has been simulated already; to repeat it, use --overwrite",
        "replaying the trace to check it",
    ]
    assert "check     the replay agrees on all" in capsys.readouterr().out
    other = ScenarioRun(SCENARIO, duration_s=2)
    with pytest.raises(UserError, match="events: exists; choose another --out"):
        simulate(backend, other, Output(output.out, other.run_id), reported.append, check=True)


def _ignore(_: str) -> None:
    """Ignore the text of a phase."""


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
