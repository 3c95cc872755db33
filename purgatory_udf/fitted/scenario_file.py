"""A fitted scenario as a file that people read and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from purgatory_udf.simulate.scenario import Scenario
from purgatory_udf.whole_file import write_whole

_HEAD = """\
# A scenario fitted to a recording. Everything down to `fitted` is a setting, and may be edited: what is played then is
# this cluster under that setting. `fitted` is what the recording told: distributions as their evenly spaced quantiles,
# producers' records one by one (the time since the one before, the partition, the bytes).
"""


def as_yaml(scenario: Scenario) -> str:
    """What was found; lists of numbers in lines."""
    values = scenario.model_dump(exclude_unset=True)
    fitted = values.pop("fitted")
    unknown = "".join(f"#   {each}\n" for each in fitted.get("unknown", []))
    head = f"{_HEAD}# What no request log tells, and what was taken:\n{unknown}" if unknown else _HEAD
    return f"{head}{_dumped(values)}{_dumped({'fitted': fitted})}"


def write(scenario: Scenario, file: Path) -> None:
    write_whole(file, as_yaml(scenario))


def _dumped(values: dict[str, Any]) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(values, Dumper=dumper, default_flow_style=None, sort_keys=False, width=118))
