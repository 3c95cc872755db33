"""docs/events.schema.json is current, and says of a line what the contract says of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from purgatory_udf.contract import Rejection, json_schema, read_row
from tests.contract.examples import NEEDS, WHOLE
from tests.docs import pages

SCHEMA = json.loads(pages.text("docs/events.schema.json"))
VALIDATOR = Draft202012Validator(SCHEMA)

# One of each kind, and those on either side of every border.
VALUES: list[Any] = [
    *(None, True, False, -2, -1, 0, 1, 2, 2**31 - 1, 2**31, 2**63 - 2, 2**63 - 1, 2**63, -(2**63), 1.5),
    *("", "x", "NONE", "OFFSET_OUT_OF_RANGE", "read_committed", "leader", "fetch"),
    *([], [1], [1, 1], [-1], ["x"], {}, [{}], [None], 9_000_000_000_000_001),
]
# What a schema cannot say (its description says so).
BEYOND_A_SCHEMA = ("duplicate", "base_offset - 1")

Path = tuple[str | int, ...]


def test_it_is_current() -> None:
    assert pages.text("docs/events.schema.json") == json_schema.event_schema_text()
    Draft202012Validator.check_schema(SCHEMA)


def test_every_line_of_the_sample_is_valid() -> None:
    lines = pages.text("conf/sample/trace.jsonl").splitlines()
    assert len(lines) > 1000
    assert [line for line in lines if not VALIDATOR.is_valid(json.loads(line))] == []


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_event_is_valid_and_one_that_lacks_what_it_needs_is_not(kind: str) -> None:
    assert list(VALIDATOR.iter_errors(WHOLE[kind])) == []
    lacking = [_without(WHOLE[kind], _path(need)) for need in NEEDS[kind]]
    assert lacking != []
    assert [event for event in lacking if VALIDATOR.is_valid(event)] == []


@pytest.mark.parametrize("kind", WHOLE)
def test_whatever_stands_in_a_field_both_say_the_same(kind: str) -> None:
    said = {True: 0, False: 0}
    for path in _paths(WHOLE[kind]):
        for value in VALUES:
            event = _with(WHOLE[kind], path, value)
            reason = _refused(event)
            if not any(words in reason for words in BEYOND_A_SCHEMA):
                assert VALIDATOR.is_valid(event) == (reason == ""), (path, value, reason)
                said[reason == ""] += 1
    assert min(said.values()) > 10


@pytest.mark.parametrize("line", [5, None, [], "clock", {"time_us": 1}, {"type": "clock"}, {"time_us": 1, "type": "x"}])
def test_what_is_no_event_is_not_valid(line: Any) -> None:
    assert not VALIDATOR.is_valid(line)


def _refused(event: Any) -> str:
    try:
        read_row(event)
    except Rejection as rejection:
        return rejection.reason
    return ""


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Every field and item, however deep."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*above, name)
        yield from _paths(part, (*above, name))


def _path(need: str) -> Path:
    return tuple(int(part) if part.isdigit() else part for part in need.replace("[", ".").replace("]", "").split("."))


def _with(event: Any, path: Path, value: Any) -> Any:
    changed = copy.deepcopy(event)
    _holder(changed, path)[path[-1]] = value
    return changed


def _without(event: Any, path: Path) -> Any:
    changed = copy.deepcopy(event)
    del _holder(changed, path)[path[-1]]
    return changed


def _holder(event: Any, path: Path) -> Any:
    for part in path[:-1]:
        event = event[part]
    return event
