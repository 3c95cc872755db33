"""Incidents of simulated clusters are found, with their culprits; `benchmarks.diagnosis` measures all kinds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.combined_incidents import SHAPES
from benchmarks.diagnosis import added, score
from purgatory_udf.answers.diagnosis.diagnosis_run import (
    REPLICA_WAITS,
    diagnose,
    find_incidents,
    waits_of_operations,
)
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.contract import read_row
from tests.support.outcome_folder import SAMPLE, sample_with_group, write_folder

SEED = 101
# The bounds of all shapes together: the share of incidents that are found, and false findings per trace.
LEAST_RECALL, MOST_FALSE = 0.95, 0.05


@pytest.mark.long
def test_calm_cluster_yields_no_finding() -> None:
    result = score("calm", SEED)
    assert result.false_findings == 0, result.errors


@pytest.mark.nightly
@pytest.mark.timeout(1800)
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


@pytest.mark.parametrize("has_in_sync_sets", [True, False])
def test_incidents_are_found_without_blame(tmp_path: Path, has_in_sync_sets: bool) -> None:
    """Without in-sync sets, waits for replicas are not computed either."""
    out = tmp_path / "out"
    write_folder(out, [event if has_in_sync_sets else event | {"isr": None} for event in sample_with_group()])
    tables = RunTables(LocalBackend(), str(out))
    with waits_of_operations(tables):
        found = find_incidents(tables)
        waits = tables.database.query("SELECT * FROM replica_waits")
    assert {field.name: field.type for field in waits.schema} == {field.name: field.type for field in REPLICA_WAITS}
    assert (waits.num_rows > 0) is has_in_sync_sets
    kinds = {finding.kind for finding in found.findings}
    assert "leader_moved" in kinds and ("follower_stalled" in kinds) is has_in_sync_sets
    assert not (out / "blame").exists()
    diagnosed = diagnose(LocalBackend(), str(out))
    assert found == replace(diagnosed, usual_waits=())
    assert diagnosed.usual_waits
