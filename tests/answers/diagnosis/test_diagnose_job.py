"""The job `diagnose`: its output, its JSON, its options, and the places that show its findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import diagnose, metrics
from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis, comparison, heavier_findings, longer_waits
from purgatory_udf.launch.backend_choice import open_local
from tests.answers.diagnosis.conftest import diagnosed_recording

pytestmark = pytest.mark.long


def _output(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert diagnose.main.status([*options], open_local) == 0
    return capsys.readouterr().out


def test_findings_are_printed_by_weight(
    faults: Diagnosis, faults_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _output(capsys, "--out", str(faults_folder), "--top", "2").splitlines()
    assert lines[2].startswith("1. below_min_isr: broker 1, 06:31:50.5 to 06:32:10.7")
    assert lines[-1] == f"… and {len(faults.findings) - 2} more; --top shows more"


def test_time_limits_select_incidents(faults_folder: Path, faults: Diagnosis, tmp_path: Path) -> None:
    file = tmp_path / "findings.json"
    limits = ["--from", "2026-11-25T06:30:12Z", "--to", "2026-11-25T06:30:21Z"]
    assert diagnose.main.status(["--out", str(faults_folder), *limits, "--json", str(file)], open_local) == 0
    found = json.loads(file.read_text())["findings"]
    assert [(each["kind"], each["broker"]) for each in found] == [("broker_frozen", 3)]


def test_json_goes_to_standard_output(
    faults: Diagnosis, faults_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(_output(capsys, "--out", str(faults_folder), "--json", "-")) == faults.as_json()


def test_unreadable_time_is_an_error(faults_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.main.status(["--out", str(faults_folder), "--from", "noon"], open_local) == 2
    assert "--from noon: expected a time in ISO 8601" in capsys.readouterr().err


@pytest.mark.nightly
def test_baseline_shows_what_is_worse(faults: Diagnosis, tmp_path: Path) -> None:
    calm = diagnosed_recording("W5-base", tmp_path / "out")
    assert len(heavier_findings(faults, calm)) == len(faults.findings)
    assert not heavier_findings(faults, faults)
    assert not longer_waits(faults, faults)
    assert ("follower_behind", 1) in {(now.cause, now.replica) for now, _ in longer_waits(faults, calm)}
    assert any("new: below_min_isr by broker 1" in line for line in comparison(faults, calm))
    assert list(comparison(calm, calm))[1:] == ["  nothing is worse than in the baseline"]


def test_prometheus_has_a_series_for_each_finding(faults: Diagnosis, faults_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    assert metrics.main.status(["--out", str(faults_folder), "--prometheus", str(file)], open_local) == 0
    series = [line for line in file.read_text().splitlines() if line.startswith("purgatory_replay_finding{")]
    assert len(series) == len(faults.findings)
    assert any('kind="timeout_too_short"' in line and 'client="hasty-1"' in line for line in series)
