"""Loads scenarios by name or file, and reports the first mistake with its file and key."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from purgatory_udf.common.configuration import read_mapping
from purgatory_udf.common.errors import UserError
from purgatory_udf.simulation.scenario import Scenario


def scenarios_folder() -> Path:
    """Return the folder of the bundled scenarios, which is in the source tree and not in the package."""
    root = Path(os.environ.get("PURGATORY_HOME") or Path(__file__).resolve().parents[2])
    return root / "conf" / "scenarios"


def scenario_names() -> list[str]:
    """Return the names of the bundled scenarios."""
    return sorted(file.stem for file in scenarios_folder().glob("*.yaml"))


def load_scenario(name_or_file: str) -> Scenario:
    """Load a bundled scenario by name, or a file."""
    path = Path(name_or_file)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        path = scenarios_folder() / f"{name_or_file}.yaml"
        if not path.exists():
            raise UserError(f"--scenario {name_or_file}: not a file and not one of {', '.join(scenario_names())}")
    return read_scenario(path)


def read_scenario(path: Path) -> Scenario:
    """Read and validate a scenario file."""
    values = read_mapping(path)
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise UserError(_first_mistake(path, error)) from None


def _first_mistake(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    origin = f"{path}: {place}" if place else str(path)
    if first["type"] == "extra_forbidden":
        return f"{origin}: unknown key"
    if first["type"] == "missing":
        return f"{origin}: missing"
    message = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    return f"{origin}: {message}" + ("" if isinstance(given, dict | list) else f" (got {given!r})")
