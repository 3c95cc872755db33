"""Each event type is read with all its fields, gets its defaults, and is rejected without a required field."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from purgatory_udf.contract import Rejection, read_line, read_row
from purgatory_udf.contract.event_checks import CHANGES, TYPES
from purgatory_udf.contract.tables import EVENTS
from tests.contract.examples import DEFAULTS, NEEDS, PARTITION_DEFAULTS, WHOLE, Event
from tests.support import oracle_groups


def without(event: Event, path: str) -> Event:
    """Return a copy of the event without the field at a path such as `partitions[0].topic`."""
    event = copy.deepcopy(event)
    *above, last = re.findall(r"\w+", path)
    holder: Any = event
    for step in above:
        holder = holder[int(step) if step.isdigit() else step]
    del holder[last]
    return event


def rejection_of(event: Any) -> str:
    with pytest.raises(Rejection) as caught:
        read_row(event)
    return caught.value.reason


def test_every_event_type_has_an_example() -> None:
    assert {*TYPES, *CHANGES} == {*WHOLE, "partition"}
    assert set(NEEDS) == set(WHOLE)


@pytest.mark.parametrize("kind", WHOLE)
def test_complete_event_is_read_unchanged(kind: str) -> None:
    assert read_line(json.dumps(WHOLE[kind]).encode()) == WHOLE[kind]


@pytest.mark.parametrize("kind", WHOLE)
def test_every_field_has_a_column(kind: str) -> None:
    event = read_row(WHOLE[kind])
    assert event.keys() <= set(EVENTS.names)
    for name in ("partitions", "topics"):
        columns = {field.name for field in EVENTS.field(name).type.value_type}
        assert all(item.keys() <= columns for item in event.get(name, []))


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in NEEDS.items() for field in fields])
def test_missing_required_field_is_named(kind: str, field: str) -> None:
    assert rejection_of(without(WHOLE[kind], field)).startswith(f"{field}: missing, expected ")


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in NEEDS.items() for field in fields])
def test_null_in_required_field_is_rejected(kind: str, field: str) -> None:
    event = without(WHOLE[kind], field)
    *above, last = re.findall(r"\w+", field)
    holder: Any = event
    for step in above:
        holder = holder[int(step) if step.isdigit() else step]
    holder[last] = None
    assert rejection_of(event).startswith(f"{field}: expected ")
    assert rejection_of(event).endswith(", got null")


@pytest.mark.parametrize("given", ["missing", "null"])
@pytest.mark.parametrize("kind", WHOLE)
def test_optional_field_has_its_default(kind: str, given: str) -> None:
    event, expected = copy.deepcopy(WHOLE[kind]), copy.deepcopy(WHOLE[kind])
    for name, default in {**DEFAULTS[""], **DEFAULTS.get(kind, {})}.items():
        if name in event:
            event[name], expected[name] = None, default
    for name, default in PARTITION_DEFAULTS.get(kind, {}).items():
        event["partitions"][0][name], expected["partitions"][0][name] = None, default
    if given == "missing":
        event = {name: value for name, value in event.items() if value is not None}
        for item in event.get("partitions", []):
            for name in [name for name, value in item.items() if value is None]:
                del item[name]
    assert event != WHOLE[kind]
    assert read_row(event) == expected


def test_every_field_is_required_or_has_default() -> None:
    for kind, event in WHOLE.items():
        needed = {need for need in NEEDS[kind] if "." not in need}
        optional = {*DEFAULTS[""], *DEFAULTS.get(kind, {})} & event.keys()
        assert event.keys() == needed | optional, kind


def test_unknown_fields_are_dropped() -> None:
    event = {**WHOLE["fetch"], "color": "red", "topic": 5}
    event["partitions"] = [{**event["partitions"][0], "rack": None}]
    assert read_row(event) == WHOLE["fetch"]


@pytest.mark.parametrize("name", oracle_groups.names())
def test_recorded_group_events_are_valid(name: str) -> None:
    heading, *events = map(json.loads, oracle_groups.lines(name))
    assert events
    for event in events:
        result = read_row(event)
        assert {**result, **event} == result
    assert rejection_of(heading).startswith("type: missing, expected one of produce, fetch, ")
