"""The settings of a job that is soon over, as the product has them for such jobs: for the tests' own session, and for
commands that tests start in processes of their own."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.launch.command_line import read_properties

SETTINGS = read_properties(Path(__file__).resolve().parents[1] / "conf" / "spark-local-brief.conf")
# The same, to stand before a job's name.
WORDS = tuple(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))
