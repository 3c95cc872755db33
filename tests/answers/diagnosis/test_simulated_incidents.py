"""Incidents of simulated clusters are found, with their culprits; `benchmarks.diagnosis` measures all kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.combined_incidents import SHAPES
from benchmarks.diagnosis import added, score
from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.contract import read_row
from tests.support.outcome_folder import SAMPLE, write_folder

SEED = 101
# The bounds of all shapes together: the share of incidents that are found, and false findings per trace.
LEAST_RECALL, MOST_FALSE = 0.95, 0.05


@pytest.mark.long
def test_calm_cluster_yields_no_finding() -> None:
    result = score("calm", SEED)
    assert result.false_findings == 0, result.errors


@pytest.mark.nightly
def test_incidents_of_all_shapes_are_found() -> None:
    result = added("all", [score(shape, seed) for shape in SHAPES for seed in (SEED, SEED + 1)])
    assert result.recall >= LEAST_RECALL, result.errors
    assert result.false_per_trace <= MOST_FALSE, result.errors


def test_stall_in_the_sample_comes_first(tmp_path: Path) -> None:
    """In the bundled trace broker 3 fetches nothing from 2.2 s to 4.4 s."""
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    events = [read_row(json.loads(line)) | {"seq": number} for number, line in enumerate(lines)]
    write_folder(tmp_path / "out", events)
    first = diagnose(LocalBackend(), str(tmp_path / "out")).findings[0]
    begin_us = events[0]["time_us"]
    assert (first.kind, first.broker) == ("follower_stalled", 3)
    assert (first.start_us - begin_us) / 1e6 == pytest.approx(2.2, abs=0.1)
    assert (first.end_us - begin_us) / 1e6 == pytest.approx(4.4, abs=0.1)
