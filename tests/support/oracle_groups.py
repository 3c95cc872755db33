"""Kafka's own answers to consumer groups: recorded traces, hand-made cases, and the comparison with a replay.

A `Row` is a line of the oracle: R for an answer, S a state change, X a removed member, N a request without an answer.
`data/README.md` describes the cells.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, GroupJournal, Removal, StateChange
from tests.support import recorded

Event = dict[str, Any]
Row = tuple[str, ...]

_EVENTS = ".events.jsonl"


@dataclass(frozen=True)
class GroupTrace:
    title: str
    config: Config
    events: list[Event]
    rows: list[Row]


def names() -> list[str]:
    """Return the names of the recorded traces."""
    return list(_trace_paths())


def lines(name: str) -> Iterator[str]:
    """Return the lines of a trace's events file; the first is a header."""
    return recorded.lines(_trace_paths()[name])


def load(name: str) -> GroupTrace:
    events = _trace_paths()[name]
    answers = events.with_name(events.name.removesuffix(_EVENTS) + ".answers")
    return _trace(name, recorded.lines(events), recorded.lines(answers))


def cases() -> list[GroupTrace]:
    """Return the hand-made cases."""
    texts = (
        "".join(recorded.lines(path)) for path in recorded.find_all("oracle", "groups", ending="cases.txt").values()
    )
    return [_case(block) for text in texts for block in text.split("## ")[1:]]


def rows(events: Iterable[Event], journal: GroupJournal) -> list[Row]:
    """Convert the journal of a replay of these events into the oracle's rows."""
    answered = {answer.seq for answer in journal.answers}
    return [
        *map(_answer_row, journal.answers),
        *map(_change_row, journal.changes),
        *map(_removal_row, removals(journal)),
        *(("N", "-", event["request_id"], event["type"]) for event in events if event["seq"] not in answered),
    ]


def removals(journal: GroupJournal) -> list[Removal]:
    return [entry for entry in journal.entries if isinstance(entry, Removal)]


def differences(expected: Iterable[Row], actual: Iterable[Row]) -> list[str]:
    """Return the rows that only one side has, by time: `- ` for missing rows, `+ ` for surplus ones.

    Where Kafka uses the hash order of random ids, and only there, these differences are ignored:

    - the order of rows within one millisecond;
    - the leader in a state change into PreparingRebalance that follows the removal of a member: if the leader was
      removed, any other member may replace it until the rebalance elects one;
    - if several sessions of a group expire in one millisecond, which of these members are still in the group at the
      state changes of that millisecond.
    """
    expected, actual = _normalized(expected), _normalized(actual)
    missing, surplus = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
    marked = [("- ", row) for row in missing.elements()] + [("+ ", row) for row in surplus.elements()]
    return [
        mark + "\t".join(row)
        for mark, row in sorted(marked, key=lambda marked_row: (marked_row[1][1].zfill(12), marked_row[1]))
    ]


def _normalized(table: Iterable[Row]) -> list[Row]:
    table = list(table)
    gone: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for kind, *cells in table:
        if kind == "X":
            t, group, member, reason = cells
            gone.setdefault((t, group), []).append((member, reason))
    return [_normalized_state(row, gone.get((row[1], row[2]), [])) if row[0] == "S" else row for row in table]


def _normalized_state(row: Row, gone: list[tuple[str, str]]) -> Row:
    """Normalize a state change. `gone`: members removed from the group in that millisecond, with reasons."""
    kind, t, group, before, after, generation, members, leader = row
    together = {member for member, reason in gone if reason == "session"}
    if len(together) > 1:
        members = ",".join(member for member in members.split(",") if member not in together) or "-"
    if gone and after == "PreparingRebalance":
        leader = "*"
    return (kind, t, group, before, after, generation, members, leader)


def _answer_row(answer: Answer) -> Row:
    generation = "-" if answer.generation is None else str(answer.generation)
    at, member = str(answer.at_us // 1000), answer.member_id or "-"
    return ("R", at, str(answer.request_id), answer.api, answer.error, generation, member, answer.leader or "-")


def _change_row(change: StateChange) -> Row:
    at = change.transition
    members = ",".join(at.members) or "-"
    states = (at.from_state, at.to_state)
    return ("S", str(at.at_us // 1000), at.group, *states, str(at.generation), members, change.leader or "-")


def _removal_row(removal: Removal) -> Row:
    return ("X", str(removal.at_us // 1000), removal.group, removal.member_id, removal.reason)


def _trace_paths() -> dict[str, Path]:
    return recorded.find_all("oracle", "groups", ending=_EVENTS)


def _case(block: str) -> GroupTrace:
    title, _, body = block.partition("\n")
    given, _, expected = body.partition("\n=>\n")
    return _trace(title, (line for line in given.splitlines() if line[:1] == "{"), expected.splitlines())


def _trace(title: str, events: Iterable[str], answers: Iterable[str]) -> GroupTrace:
    first, *rest = map(json.loads, events)
    table = [tuple(line.rstrip("\n").split("\t")) for line in answers if line.strip()]
    return GroupTrace(title, _config(first["config"]), rest, table)


def _config(broker: dict[str, Any]) -> Config:
    """Return the configuration of a broker. The oracle's sessions may be as short as 10 ms."""
    group = {
        "initial_rebalance_delay_ms": broker.get("group.initial.rebalance.delay.ms", 3000),
        "max_size": broker.get("group.max.size", 2**31 - 1),
        "min_session_timeout_ms": 10,
    }
    return Config.model_validate({"group": group})
