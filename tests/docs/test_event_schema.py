"""docs/events.schema.json is current and accepts the same events as the contract."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from purgatory_udf.contract import Rejection, read_row
from tests.contract.examples import NEEDS, WHOLE
from tests.docs import pages
from tests.generate import event_schema

SCHEMA = json.loads(pages.text("docs/events.schema.json"))
VALIDATOR = Draft202012Validator(SCHEMA)

# Values of each JSON type, and values on both sides of every bound.
VALUES: list[Any] = [
    *(None, True, False, -2, -1, 0, 1, 2, 2**31 - 1, 2**31, 2**63 - 2, 2**63 - 1, 2**63, -(2**63), 1.5),
    *("", "x", "NONE", "OFFSET_OUT_OF_RANGE", "read_committed", "leader", "fetch"),
    *([], [1], [1, 1], [-1], ["x"], {}, [{}], [None], 9_000_000_000_000_001),
]
# Words in the reasons of checks that a JSON schema cannot express, as its description notes.
NOT_IN_SCHEMA = ("duplicate", "base_offset - 1", ">= first_offset", "one per offset")

Path = tuple[str | int, ...]


def test_schema_file_is_current() -> None:
    assert pages.text("docs/events.schema.json") == event_schema.event_schema_text()
    Draft202012Validator.check_schema(SCHEMA)


def test_sample_lines_are_valid() -> None:
    lines = pages.text("conf/sample/trace.jsonl").splitlines()
    assert len(lines) > 1000
    assert [line for line in lines if not VALIDATOR.is_valid(json.loads(line))] == []


@pytest.mark.parametrize("kind", WHOLE)
def test_required_fields_are_required(kind: str) -> None:
    assert list(VALIDATOR.iter_errors(WHOLE[kind])) == []
    incomplete = [_without(WHOLE[kind], _path(need)) for need in NEEDS[kind]]
    assert incomplete != []
    assert [event for event in incomplete if VALIDATOR.is_valid(event)] == []


@pytest.mark.parametrize("kind", WHOLE)
def test_schema_and_contract_accept_same_values(kind: str) -> None:
    compared = {True: 0, False: 0}
    of_type = _validator_of(WHOLE[kind]["type"])
    for path in _paths(WHOLE[kind]):
        validator = VALIDATOR if path == ("type",) else of_type
        event = copy.deepcopy(WHOLE[kind])
        holder = _holder(event, path)
        for value in VALUES:
            holder[path[-1]] = value
            reason = _rejection_reason(event)
            if not any(words in reason for words in NOT_IN_SCHEMA):
                assert validator.is_valid(event) == (reason == ""), (path, value, reason)
                compared[reason == ""] += 1
    assert min(compared.values()) > 10


@pytest.mark.parametrize("line", [5, None, [], "clock", {"time_us": 1}, {"type": "clock"}, {"time_us": 1, "type": "x"}])
def test_other_json_is_invalid(line: Any) -> None:
    assert not VALIDATOR.is_valid(line)


def _validator_of(type_: str) -> Draft202012Validator:
    """Return a validator with the rules of one type of events, which takes a small part of the time of all rules."""
    rules = [rule for rule in SCHEMA["allOf"] if rule["if"]["properties"]["type"]["const"] == type_]
    return Draft202012Validator({**SCHEMA, "allOf": rules})


def _rejection_reason(event: Any) -> str:
    try:
        read_row(event)
    except Rejection as rejection:
        return rejection.reason
    return ""


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the path of every field and item, at any depth."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*above, name)
        yield from _paths(part, (*above, name))


def _path(need: str) -> Path:
    return tuple(int(part) if part.isdigit() else part for part in need.replace("[", ".").replace("]", "").split("."))


def _without(event: Any, path: Path) -> Any:
    changed = copy.deepcopy(event)
    del _holder(changed, path)[path[-1]]
    return changed


def _holder(event: Any, path: Path) -> Any:
    for part in path[:-1]:
        event = event[part]
    return event
