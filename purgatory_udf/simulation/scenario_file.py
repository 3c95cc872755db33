"""Scenarios by name or by file; a mistake is one line that names the file and the key."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from purgatory_udf.common.configuration import read_mapping
from purgatory_udf.common.errors import UserError
from purgatory_udf.simulation.scenario import Scenario


def scenarios_folder() -> Path:
    """Where the bundled scenarios are: the tree, for they are no part of the package."""
    root = Path(os.environ.get("PURGATORY_HOME") or Path(__file__).resolve().parents[2])
    return root / "conf" / "scenarios"


def scenario_names() -> list[str]:
    return sorted(file.stem for file in scenarios_folder().glob("*.yaml"))


def load_scenario(name_or_file: str) -> Scenario:
    """The scenario of that name, or in that file."""
    path = Path(name_or_file)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        path = scenarios_folder() / f"{name_or_file}.yaml"
        if not path.exists():
            raise UserError(f"--scenario {name_or_file}: neither a file nor one of {', '.join(scenario_names())}")
    return read_scenario(path)


def read_scenario(path: Path) -> Scenario:
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
