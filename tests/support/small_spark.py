"""The settings of a job that is soon over, as the product has them for such jobs: for the tests' own session, and for
commands that tests start in processes of their own."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.backend.input_size import TINY
from purgatory_udf.common.secrets import read_properties

_CONF = Path(__file__).resolve().parents[2] / "conf"
SETTINGS = {key: value for name in TINY for key, value in read_properties(_CONF / name).items()}
# The same, to stand before a job's name.
ARGUMENTS = tuple(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))
