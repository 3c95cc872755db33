"""Spark settings for short jobs: for the tests' session, and for commands that tests start as processes."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.common.secrets import read_properties
from purgatory_udf.launch.backend_choice import TINY

_CONF = Path(__file__).resolve().parents[2] / "conf"
SETTINGS = {key: value for name in TINY for key, value in read_properties(_CONF / name).items()}
# The same as arguments in front of a job's name.
ARGUMENTS = tuple(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))
