"""docs/events.md has every field, default and change of the contract, and shows the outcomes of its traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract import read_line
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory_udf.rules.reference.broker import Cluster
from purgatory_udf.rules.reference.event_handlers import CHANGES, apply_change
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from tests.contract.examples import WHOLE
from tests.docs import pages
from tests.generate import event_schema

TABLES = list(pages.tables(pages.text("docs/events.md")))
DEFINITIONS: dict[str, Any] = event_schema.event_schema()["$defs"]
FIELDS = ("field", "type", "default", "meaning")
Documented = dict[str, tuple[str, str]]

WORDS = {
    (row["JSON"], row["least"], row["greatest"]): row["type"]
    for table in TABLES
    if table.columns[0] == "type"
    for row in table.rows
}


def _under(heading: str, columns: tuple[str, ...] = FIELDS) -> list[dict[str, str]]:
    return [row for table in TABLES if table.headings[-1] == heading and table.columns == columns for row in table.rows]


def _code(cell: str) -> str:
    return cell.strip("`")


def _documented(*headings: str) -> Documented:
    return {_code(row["field"]): (row["type"], row["default"]) for heading in headings for row in _under(heading)}


def _word(value: dict[str, Any]) -> str:
    """Return the page's description of a type."""
    kinds = [kind for kind in ([value["type"]] if isinstance(value["type"], str) else value["type"]) if kind != "null"]
    words = [word for word in value.get("enum", ()) if word is not None]
    if words:
        return "one of " + ", ".join(f"`{word}`" for word in words) if len(words) < 5 else "one of the changes below"
    if kinds == ["array"]:
        items = _plain(value["items"])
        once = ", distinct" if value.get("uniqueItems") else ""
        return "list of objects" if items.get("properties") else f"list of {_word(items)}{once}"
    if kinds == ["integer"]:
        return WORDS["integer", str(value["minimum"]), str(value["maximum"])]
    name = {
        "string": "string, not empty" if value.get("minLength") else "string",
        "stringinteger": "string, or an integer, kept as its digits",
        "boolean": "boolean",
    }["".join(kinds)]
    return WORDS[name, "", ""]


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the case without an error."""
    while "else" in value:
        value = value["else"]
    return value


def _contract(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    value = _plain(value)
    for name, field in value["properties"].items():
        default = field.get("default")
        shown = str(default).lower() if isinstance(default, bool) else default
        shown_default = "required" if name in value["required"] else "null" if default is None else f"`{shown}`"
        yield prefix + name, (_word(field), shown_default)
        items = _plain(field.get("items", {}))
        if items.get("properties"):
            yield from _contract(items, f"{prefix}{name}[].")


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_page_has_fields_types_and_defaults(kind: str) -> None:
    contract = dict(_contract(DEFINITIONS[kind]))
    headings = ["Every event"]
    if {"request_id", "client_id"} <= contract.keys() and contract["request_id"][1] == "required":
        headings.append("Every request")
    if {"request_id", "group_instance_id"} <= contract.keys():
        headings.append("Every request of a group's member")
    assert _documented(*headings, f"`{kind}`") == contract


def test_page_has_no_unknown_type() -> None:
    types = {table.headings[-1] for table in TABLES if table.headings[-1].startswith("`")}
    assert {_code(heading) for heading in types} == set(DEFINITIONS) - {"clock", "paused", "resumed"}


def test_page_has_fields_of_changes() -> None:
    rows = _under("`partition`", ("change", *FIELDS))
    documented = {(_code(row["change"]), _code(row["field"])): (row["type"], row["default"]) for row in rows}
    assert documented == {
        (case["if"]["properties"]["change"]["const"], name): each
        for case in DEFINITIONS["partition"]["allOf"]
        for name, each in _contract(case["then"])
    }


@cache
def _documented_checks() -> dict[str, str]:
    rows = _under("`partition`", ("change", "what happened", "purgatories checked"))
    return {_code(row["change"]): row["purgatories checked"] for row in rows}


def test_page_has_every_change() -> None:
    assert set(_documented_checks()) == set(CHANGES)


@pytest.mark.parametrize("change", CHANGES)
def test_change_checks_documented_purgatories(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(
        DelayedOperationPurgatory, "check_and_complete", lambda purgatory, key, now_us: checked.append(purgatory.name)
    )
    event = {**WHOLE[change], "wake": True}
    always = _checked_by(event, checked, isr=[2, 1])
    # The high watermark rises if the event reports the last missing follower. Broker 2 is the event's own.
    if_risen = _checked_by({**event, "isr": [2, 3], "min_isr": 1}, checked, isr=[2, 3], reached={3: 40})
    expected = f"{always}; if the high watermark rose: {if_risen}" if if_risen != always else always
    assert _documented_checks()[change].replace("; then topic, at every broker", "") == expected.removesuffix(", topic")
    assert ("topic" in if_risen) == (change == "leader")


def _checked_by(
    event: dict[str, Any], checked: list[str], isr: list[int], reached: dict[int, int] | None = None
) -> str:
    """Return the purgatories that an event checks at a leader with high watermark 0 and log end 40.

    Before a `log_end` event the log is empty.
    """
    cluster = Cluster(Config(), 0)
    place = {key: event[key] for key in ("time_us", "broker", "topic", "partition")}
    apply_change(cluster, {**place, "change": "high_watermark", "offset": 0})
    if event["change"] != "log_end":
        apply_change(cluster, {**place, "change": "log_end", "offset": 40})
    # An in-sync follower without a known log end holds the watermark back, until the event changes that.
    before = [*isr, 9] if event["change"] == "isr" else isr
    apply_change(cluster, {**place, "change": "isr", "isr": before})
    for replica, offset in (reached or {}).items():
        if replica != event.get("replica_id"):
            apply_change(cluster, {**place, "change": "replica_end", "replica_id": replica, "offset": offset})
    checked.clear()
    apply_change(cluster, event)
    return ", ".join(dict.fromkeys(checked)) or "none"


TRACES = sorted({_code(row["trace"]) for table in TABLES if table.columns[0] == "trace" for row in table.rows})


@cache
def _replayed(trace: str) -> tuple[int, Replay]:
    events = [read_line(line) or {} for line in (pages.ROOT / trace).read_bytes().splitlines()]
    return events[0]["time_us"], replay([{**event, "seq": seq} for seq, event in enumerate(events)], Config())


def _documented_rows(trace: str) -> list[dict[str, str]]:
    return [
        {name: cell for name, cell in row.items() if name != "trace"}
        for table in TABLES
        if table.columns[0] == "trace"
        for row in table.rows
        if _code(row["trace"]) == trace
    ]


def _milliseconds(at_us: int, begin_us: int) -> str:
    return f"{(at_us - begin_us) / 1000:g}"


def test_page_describes_every_trace() -> None:
    assert sorted(str(path.relative_to(pages.ROOT)) for path in (pages.ROOT / "docs/traces").iterdir()) == TRACES


@pytest.mark.parametrize("trace", ["docs/traces/fetch.jsonl", "docs/traces/produce.jsonl"])
def test_requests_end_as_documented(trace: str) -> None:
    begin_us, replayed = _replayed(trace)

    def row(outcome: Outcome) -> dict[str, str]:
        return {
            "operation": outcome.request_id or "",
            "kind": outcome.kind,
            "ended": "expired" if outcome.expired else "completed",
            "at": _milliseconds(outcome.ended_us, begin_us),
            "wait": str(outcome.wait_ms),
            "completed by": outcome.completed_by,
            "trigger": outcome.trigger or "",
            "bytes": "" if outcome.bytes is None else str(outcome.bytes),
        }

    assert [row(outcome) for outcome in replayed.outcomes] == _documented_rows(trace)


def test_group_transitions_are_as_documented() -> None:
    begin_us, replayed = _replayed("docs/traces/group.jsonl")
    assert [
        {
            "at": _milliseconds(change.at_us, begin_us),
            "from": change.from_state,
            "to": change.to_state,
            "reason": change.reason,
            "members": ", ".join(change.members),
        }
        for change in replayed.transitions
    ] == _documented_rows("docs/traces/group.jsonl")


def test_examples_are_valid_events() -> None:
    lines = "".join(pages.blocks(pages.text("docs/events.md"), "json")).splitlines()
    assert [read_line(line.encode())["type"] for line in lines] == ["partition", "produce", "fetch"]  # type: ignore[index]


def test_every_table_is_checked() -> None:
    checked = {"type", "field", "change", "trace"}
    assert [table.headings for table in TABLES if table.columns[0] not in checked] == []
    assert all(re.fullmatch(r"docs/traces/\w+\.jsonl", trace) for trace in TRACES)
