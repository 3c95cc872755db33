"""Diagnoses of recordings, imported and replayed in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis, diagnose
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.support import recorded


def diagnosed_recording(name: str, out: Path) -> Diagnosis:
    """Import, replay and diagnose a recording of `tests/data/traces`."""
    recorded.import_recording(name, out)
    run_replay(LocalBackend(), ReplayOptions(str(out / "events"), str(out), Config()))
    return diagnose(LocalBackend(), str(out))


@pytest.fixture(scope="session")
def faults_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of `faults`."""
    return tmp_path_factory.mktemp("faults") / "out"


@pytest.fixture(scope="session")
def faults(faults_folder: Path) -> Diagnosis:
    """The diagnosis of a recording with twelve faults."""
    return diagnosed_recording("W11-faults", faults_folder)
