"""The event contract as a JSON Schema, for programs that write traces.

python -m tests.generate.event_schema > docs/events.schema.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

from purgatory_udf.contract.event_checks import COMMON, TYPES, Field, object_reader
from purgatory_udf.contract.value_types import Schema, if_field, one_of, schema_of

_DESCRIPTION = (
    "One line of a trace; docs/events.md describes each field. The contract rejects some lines that this schema "
    "accepts: 1.0 for an integer, a duplicate partition, topic or broker in a list, a last_offset below base_offset - "
    "1 or first_offset, a number of types other than 1 and that of the offsets, and a duplicate seq."
)

_WIDTH = 120

_any_event = object_reader(*(field if field.name != "type" else Field("type", one_of(*TYPES)) for field in COMMON))


def event_schema() -> Schema:
    """Return the schema of one event of any type."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Event",
        "description": _DESCRIPTION,
        **schema_of(_any_event),
        "allOf": [if_field("type", {"const": kind}, {"$ref": f"#/$defs/{kind}"}) for kind in TYPES],
        "$defs": {kind: schema_of(read) for kind, read in TYPES.items()},
    }


def event_schema_text() -> str:
    """Return the schema as text."""
    return schema_text(event_schema())


def schema_text(schema: Schema) -> str:
    """Return a schema as indented JSON, with values of up to 120 characters on one line."""
    return "\n".join(_lines(schema, "")) + "\n"


def _lines(value: Any, margin: str) -> list[str]:
    whole = json.dumps(value)
    if len(margin) + len(whole) <= _WIDTH or not isinstance(value, dict | list):
        return [margin + whole]
    if isinstance(value, list):
        return [margin + "[", *_joined([_lines(part, margin + " ") for part in value]), margin + "]"]
    parts = [_named(name, _lines(part, margin + " "), margin) for name, part in value.items()]
    return [margin + "{", *_joined(parts), margin + "}"]


def _named(name: str, lines: list[str], margin: str) -> list[str]:
    return [f"{margin} {json.dumps(name)}: {lines[0].lstrip()}", *lines[1:]]


def _joined(parts: list[list[str]]) -> list[str]:
    """Join the lines of the parts, with a comma after each part except the last."""
    return [
        line + ("," if at == len(part) - 1 and part is not parts[-1] else "")
        for part in parts
        for at, line in enumerate(part)
    ]


if __name__ == "__main__":
    sys.stdout.write(event_schema_text())
