"""The engine without the pinned numba: helpers are compiled numba's default way, with the same results."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numba
import pytest

from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.rules.engine.jit.numba_compiler import PINNED_NUMBA, helper_pipeline
from purgatory_udf.rules.engine.jit.numba_pipeline import HelperCompiler

ROOT = Path(__file__).resolve().parents[4]

_OTHER_VERSION = """
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "0.0.1" if name == "numba" else version(name)
# The package sets numba's target CPU before numba is imported.
import purgatory_udf.rules.engine.jit
import numba
numba.__version__ = "0.0.1"
"""
_PRINT = """
from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.rules.engine.jit.numba_compiler import helper_pipeline
print(helper_pipeline(), code_cache.fingerprint(), code_cache.FOLDER.name)
"""
_COMPARE = """
from tests.rules.engine.loop.test_against_reference import test_one_call_equals_the_reference
test_one_call_equals_the_reference()
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_pinned_numba_has_the_helper_pipeline() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert f"numba=={PINNED_NUMBA}" in dependencies
    assert numba.__version__ == PINNED_NUMBA
    assert helper_pipeline() is HelperCompiler


def test_fallback_has_own_cache_and_warns(tmp_path: Path) -> None:
    done = run(_OTHER_VERSION + _PRINT, tmp_path)
    pipeline, fingerprint, folder = done.stdout.split()
    assert pipeline == "None"
    assert fingerprint != code_cache.fingerprint()
    assert folder == f"loop-{fingerprint}"
    assert done.stderr == f"numba 0.0.1 is not the tested version {PINNED_NUMBA}: the engine takes longer to compile\n"


@pytest.mark.nightly
@pytest.mark.long
def test_fallback_equals_the_reference(tmp_path: Path) -> None:
    """Random traces, through an engine that is compiled from scratch."""
    done = run(_OTHER_VERSION + _COMPARE + _PRINT, tmp_path)
    assert done.stdout.startswith("None ")
    assert list(tmp_path.glob("loop-*/event_loop.run-*.o"))
