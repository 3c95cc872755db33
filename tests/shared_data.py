"""Where the recorded traces and oracles are: a folder `shared` beside the repository, or `PURGATORY_SHARED`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    """The path of one shared file or folder; a test that needs it fails, with its name, where it is missing."""
    root = Path(os.environ.get("PURGATORY_SHARED", _BESIDE_THE_REPOSITORY))
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.fail(f"{path} is missing: put the shared data beside the repository or name it in PURGATORY_SHARED")
    return path
