"""The settings and the scenarios as JSON Schemas, for editors; they are next to the YAML files that name them.

python -m tests.generate.configuration_schema
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.overrides import INT32_MAX
from purgatory_udf.contract.value_types import Schema
from purgatory_udf.simulation.scenario import Scenario
from tests.generate.event_schema import schema_text

CONF = Path(__file__).resolve().parents[2] / "conf"
SETTINGS, SCENARIOS = CONF / "settings.schema.json", CONF / "scenarios" / "scenario.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

# A what-if value: a whole number, also as text, or a factor.
OVERRIDE: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
        {"type": "string", "pattern": r"^\s*([0-9]+|x[0-9]*\.?[0-9]+)\s*$"},
        {"type": "null"},
    ]
}
_PLAIN_OVERRIDE = [{"type": "integer"}, {"type": "string"}, {"type": "null"}]


def settings_schema() -> Schema:
    """Return the schema of a settings file; keys may be nested or dotted."""
    schema = _tidy(Config.model_json_schema())
    sections = schema["$defs"]
    # A rule accepts the same two forms.
    sections["ScopeRule"]["properties"]["settings"] = {"type": "object", "minProperties": 1}
    _add_dotted_keys(schema, sections)
    _describe(schema, sections, _comments(CONF / "local.yaml"))
    return {"$schema": _DIALECT, **schema, "title": "Settings of Purgatory Replay"}


def scenario_schema() -> Schema:
    """Return the schema of a scenario file."""
    return {"$schema": _DIALECT, **_tidy(Scenario.model_json_schema()), "title": "Scenario of Purgatory Replay"}


def _tidy(value: Any) -> Any:
    """Return a schema without generated titles, and with the exact form of what-if values."""
    if isinstance(value, list):
        return [_tidy(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("anyOf") == _PLAIN_OVERRIDE:
        value = {**value, **OVERRIDE}
    return {
        key: {name: _tidy(each) for name, each in inner.items()} if key in ("properties", "$defs") else _tidy(inner)
        for key, inner in value.items()
        if not (key == "title" and isinstance(inner, str))
    }


def _section(schema: Schema, sections: dict[str, Schema]) -> Schema | None:
    """Return the section that a property refers to, or None."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return sections.get(name)


def _add_dotted_keys(schema: Schema, sections: dict[str, Schema]) -> None:
    """Add a key `a.b` for each key `b` of the section `a`."""
    for name, inner in list(schema["properties"].items()):
        section = _section(inner, sections)
        if section is not None:
            _add_dotted_keys(section, sections)
            schema["properties"] |= {f"{name}.{key}": dict(each) for key, each in section["properties"].items()}


def _describe(schema: Schema, sections: dict[str, Schema], comments: dict[str, str], at: str = "") -> None:
    """Add the comments of a settings file as descriptions of its keys."""
    for name, inner in schema["properties"].items():
        section = _section(inner, sections)
        if section is not None and "." not in name:
            _describe(section, sections, comments, f"{at}{name}.")
        elif comments.get(at + name):
            inner["description"] = comments[at + name]


def _comments(file: Path) -> dict[str, str]:
    """Return the comment above each key of a settings file, by the dotted key."""
    found: dict[str, str] = {}
    path: list[str] = []
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        key = re.match(r"( *)([a-z_]+):", line)
        if text.startswith("#"):
            lines.append(text.lstrip("# "))
        elif key:
            path[len(key[1]) // 2 :] = [key[2]]
            found[".".join(path)] = " ".join(lines)
            lines = []
        else:
            lines = []
    return found


if __name__ == "__main__":
    SETTINGS.write_text(schema_text(settings_schema()), encoding="utf-8")
    SCENARIOS.write_text(schema_text(scenario_schema()), encoding="utf-8")
