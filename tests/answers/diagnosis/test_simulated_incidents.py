"""Incidents of simulated clusters are found, with their culprits; `benchmarks.diagnosis` measures all kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.diagnosis import score
from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.contract import read_row
from tests.support.outcome_folder import SAMPLE, write_folder

SEED = 101
# Kinds without a recorded fault in `tests/data/traces`, and a trace without any.
CHOSEN = (
    pytest.param("broker_crashed", marks=pytest.mark.nightly),
    pytest.param("broker_restarted", marks=pytest.mark.nightly),
    pytest.param("member_restarted", marks=pytest.mark.nightly),
    pytest.param("rebalance_storm", marks=pytest.mark.nightly),
    pytest.param("purge_backlog", marks=pytest.mark.nightly),
    pytest.param("replication_throttled", marks=pytest.mark.nightly),
    pytest.param("remote_read_slow", marks=pytest.mark.nightly),
    pytest.param("share_worker_slow", marks=pytest.mark.nightly),
    pytest.param("several", marks=pytest.mark.nightly),
    "calm",
)
LEAST_RECALL, MOST_FALSE = 0.9, 0.1


@pytest.mark.long
@pytest.mark.parametrize("shape", CHOSEN)
def test_incidents_are_found(shape: str) -> None:
    result = score(shape, SEED)
    assert result.recall >= LEAST_RECALL, result.errors
    assert result.false_per_trace <= (0 if shape == "calm" else MOST_FALSE), result.errors


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
