"""The tables that a fit reads: those of an import, or otherwise those of a replay."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.prediction_commands import run_fit
from purgatory_udf.prediction.recording import Recording, build_recording, read_recording
from purgatory_udf.simulation.scenario import read_scenario
from tests.prediction.simulated import recorded, replayed

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

pytestmark = pytest.mark.long


def _folder(out: Path, **tables: pa.Table) -> str:
    for name, rows in tables.items():
        write_deltalake(str(out / name), rows)
    return str(out)


def _require_same(actual: Recording, expected: Recording) -> None:
    assert len(actual.fetches) > 500
    assert len(actual.produces) > 100
    for name in ("fetches", "produces", "batches", "others"):
        pd.testing.assert_frame_equal(getattr(actual, name), getattr(expected, name))
    assert (actual.keys, actual.leaders, actual.groups) == (expected.keys, expected.leaders, expected.groups)
    assert actual.key_sets == expected.key_sets


def test_tables_of_import_are_read(session: Session, tmp_path: Path) -> None:
    events = replayed()["events"]
    out = _folder(tmp_path, events=events, recorded=recorded())
    _require_same(read_recording(session, out), build_recording(events, recorded()))


def test_tables_of_replay_are_read(session: Session, tmp_path: Path) -> None:
    """Expirations after the end of the trace are ignored."""
    assert pc.sum(replayed()["expirations"]["after_end"]).as_py() > 0
    out = _folder(tmp_path, **replayed())
    _require_same(read_recording(session, out), build_recording(replayed()["events"], recorded()))


def test_request_log_precedes_replay(session: Session, tmp_path: Path) -> None:
    longer = pc.add(recorded()["recorded_remote_ms"], 7.0)
    place = recorded().schema.get_field_index("recorded_remote_ms")
    logged = recorded().set_column(place, "recorded_remote_ms", longer)
    out = _folder(tmp_path, **replayed(), recorded=logged)
    _require_same(read_recording(session, out), build_recording(replayed()["events"], logged))


def test_fit_of_replay_writes_scenario_and_page(session: Session, tmp_path: Path) -> None:
    """The table of events is not in the folder of the replay."""
    tables = replayed()
    elsewhere = f"{_folder(tmp_path / 'trace', events=tables['events'])}/events"
    out = _folder(tmp_path / "out", completions=tables["completions"], expirations=tables["expirations"])
    file, page = tmp_path / "cluster.yaml", tmp_path / "fit.html"
    output = run_fit(session, out, elsewhere, file, 1, page)
    assert "35 of 35 figures are reproduced" in output
    assert output[-2:] == [f"Scenario: {file}", f"Page: {page}"]
    assert {producer.name for producer in read_scenario(file).producers} == {
        *(f"checkout-{n}" for n in (1, 2, 3, 4)),
        "till-1",
        "till-2",
    }
    assert "<table>" in page.read_text(encoding="utf-8")


def test_missing_tables_are_reported(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/events: not a Delta table of events; create one with ingest"):
        read_recording(session, str(tmp_path))
    out = _folder(tmp_path, events=replayed()["events"], completions=replayed()["completions"])
    with pytest.raises(UserError, match="/completions: not a table of events: it has no column seq"):
        read_recording(session, out, f"{out}/completions")
    shutil.rmtree(tmp_path / "completions")
    with pytest.raises(UserError, match="/recorded: no such table, and no replay in the same folder"):
        read_recording(session, out)
