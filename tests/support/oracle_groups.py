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
from purgatory_udf.rules.coordinator.coordinator_journal import (
    REMOVED,
    Answer,
    Conversion,
    GroupJournal,
    MemberChange,
    Removal,
    StateChange,
    answers_after_commits,
)
from purgatory_udf.rules.coordinator.group_requests import partitions_text
from tests.support import recorded

Event = dict[str, Any]
Row = tuple[str, ...]

_EVENTS = ".events.jsonl"
# Reasons of a removal that the oracle calls otherwise.
_REASONS = {"size": "max_size"}


@dataclass(frozen=True)
class GroupTrace:
    title: str
    config: Config
    events: list[Event]
    rows: list[Row]


OLD, NEW = "groups", "groups4"


def names(folder: str = OLD) -> list[str]:
    """Return the names of the recorded traces of a coordinator."""
    return list(_trace_paths(folder))


def lines(name: str) -> Iterator[str]:
    """Return the lines of a trace's events file; the first is a header."""
    return recorded.lines(_trace_paths(OLD)[name])


def load(name: str, folder: str = OLD) -> GroupTrace:
    events = _trace_paths(folder)[name]
    answers = events.with_name(events.name.removesuffix(_EVENTS) + ".answers")
    return _trace(name, folder, recorded.lines(events), recorded.lines(answers))


def cases(folder: str = OLD, ending: str = "cases.txt") -> list[GroupTrace]:
    """Return the hand-made cases."""
    texts = ("".join(recorded.lines(path)) for path in recorded.find_all("oracle", folder, ending=ending).values())
    return [_case(block, folder) for text in texts for block in text.split("## ")[1:]]


def rows(trace: GroupTrace, journal: GroupJournal) -> list[Row]:
    """Convert the journal of a replay of the trace into the oracle's rows."""
    answers = answers_after_commits(journal.entries, trace.config.group.commit_delay_ms)
    answered = {answer.seq for answer in answers}
    return [
        *map(_answer_row, answers),
        *map(_change_row, journal.changes),
        *map(_removal_row, removals(journal)),
        *(
            _member_row(entry)
            for entry in journal.entries
            if isinstance(entry, MemberChange) and entry.to_state != REMOVED
        ),
        *(
            ("K", str(entry.at_us // 1000), entry.group, entry.protocol)
            for entry in journal.entries
            if isinstance(entry, Conversion)
        ),
        *(
            ("N", "-", event["request_id"], event["type"])
            for event in trace.events
            if event["seq"] not in answered and event["type"] != "topic"
        ),
    ]


def removals(journal: GroupJournal) -> list[Removal]:
    return [entry for entry in journal.entries if isinstance(entry, Removal)]


def differences(expected: Iterable[Row], actual: Iterable[Row]) -> list[str]:
    """Return the rows that only one side has, by time: `- ` for missing rows, `+ ` for surplus ones.

    Where Kafka uses the hash order of random ids, and only there, these differences are ignored:

    - the order of rows within one millisecond;
    - the leader in a state change into PreparingRebalance that follows the removal of a member: if the leader was
      removed, any other member may replace it until the rebalance elects one;
    - the leader of a classic group that was a consumer group before, until its first round elects one;
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
    converted = {(row[1], row[2]) for row in table if row[0] == "K"}
    for kind, *cells in table:
        if kind == "X":
            t, group, member, reason = cells
            gone.setdefault((t, group), []).append((member, reason))
    return [
        _normalized_state(row, gone.get((row[1], row[2]), []), (row[1], row[2]) in converted) if row[0] == "S" else row
        for row in table
    ]


def _normalized_state(row: Row, gone: list[tuple[str, str]], is_converted: bool) -> Row:
    """Normalize a state change.

    Args:
        row: The row.
        gone: Members removed from the group in that millisecond, with reasons.
        is_converted: Whether the group was converted in that millisecond.
    """
    kind, t, group, before, after, generation, members, leader = row
    together = {member for member, reason in gone if reason == "session"}
    if len(together) > 1:
        members = ",".join(member for member in members.split(",") if member not in together) or "-"
    if (gone or is_converted) and after == "PreparingRebalance":
        leader = "*"
    return (kind, t, group, before, after, generation, members, leader)


def _answer_row(answer: Answer) -> Row:
    generation = "-" if answer.generation is None else str(answer.generation)
    at, member = str(answer.at_us // 1000), answer.member_id or "-"
    if answer.api == "consumer_group_heartbeat":
        assignment = "-" if answer.assignment is None else answer.assignment or "none"
        return ("R", at, str(answer.request_id), answer.api, answer.error, generation, member, assignment)
    return ("R", at, str(answer.request_id), answer.api, answer.error, generation, member, answer.leader or "-")


def _change_row(change: StateChange) -> Row:
    at = change.transition
    members = ",".join(at.members) or "-"
    if change.target_epoch is not None:
        epochs = (str(at.generation), str(change.target_epoch))
        return ("G", str(at.at_us // 1000), at.group, at.to_state, *epochs, members)
    states = (at.from_state, at.to_state)
    return ("S", str(at.at_us // 1000), at.group, *states, str(at.generation), members, change.leader or "-")


def _member_row(change: MemberChange) -> Row:
    partitions = (partitions_text(each) or "-" for each in (change.assigned, change.revoking))
    cells = (change.to_state, str(change.epoch), *partitions)
    row = ("M", str(change.at_us // 1000), change.group, change.member_id, *cells)
    return (*row, "classic") if change.is_classic else row


def _removal_row(removal: Removal) -> Row:
    return (
        "X",
        str(removal.at_us // 1000),
        removal.group,
        removal.member_id,
        _REASONS.get(removal.reason, removal.reason),
    )


def _trace_paths(folder: str) -> dict[str, Path]:
    return recorded.find_all("oracle", folder, ending=_EVENTS)


def _case(block: str, folder: str) -> GroupTrace:
    title, _, body = block.partition("\n")
    given, _, expected = body.partition("\n=>\n")
    return _trace(title, folder, (line for line in given.splitlines() if line[:1] == "{"), expected.splitlines())


def _trace(title: str, folder: str, events: Iterable[str], answers: Iterable[str]) -> GroupTrace:
    first, *rest = map(json.loads, events)
    table = [tuple(line.rstrip("\n").split("\t")) for line in answers if line.strip() and line[0] != "T"]
    events_ = _with_contract_fields(first["config"], rest, table)
    return GroupTrace(title, _config(first["config"], folder), events_, table)


# The oracle's topics, with ids of which that of `u` comes first.
_TOPICS = {
    "t": {"topic": "t", "topic_id": "AAAAAAAAAAAAAAAAAAAAAg"},
    "u": {"topic": "u", "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"},
}


def _in_turn(at: int, ids: list[str], count: int) -> Event:
    """Return the assignment of one member if the partitions of `t` are assigned in turn."""
    return {"member_id": ids[at], "assigned": [{"topic": "t", "partitions": list(range(at, count, len(ids)))}]}


def _with_contract_fields(broker: dict[str, Any], events: list[Event], table: list[Row]) -> list[Event]:
    """Return the events as the contract has them: with the topics of the header, and what classic members sent.

    The oracle's classic members subscribe to `t`. Its leaders assign the partitions in turn to the sorted member ids.
    """
    counts = {topic["topic"]: topic["partitions"] for topic in broker.get("topics", ())}
    topics = [
        {"time_us": 1, "seq": -at, "type": "topic", "partition_count": count} | _TOPICS[topic]
        for at, (topic, count) in enumerate(counts.items(), start=1)
    ]
    members = {(row[2], row[5]): row[6].split(",") for row in table if row[0] == "S"}
    renamed = []
    for event in events:
        match event["type"]:
            case "topic":
                counts[event["topic"]] = event["partitions"]
                event = {**event, "partitions": None, "partition_count": event["partitions"]} | _TOPICS[event["topic"]]
            case "join_group":
                event = event | {"subscribed_topics": ["t"]}
            case "sync_group" if event.get("leader"):
                ids = members.get((event["group"], str(event["generation"])), [])
                event = event | {"assignments": [_in_turn(at, ids, counts.get("t", 0)) for at in range(len(ids))]}
        renamed.append(event)
    return [*topics, *renamed] if any("consumer" in event["type"] for event in events) else renamed


def _config(broker: dict[str, Any], folder: str) -> Config:
    """Return the configuration of a broker. The oracle's sessions may be as short as 10 ms."""
    group = {
        "initial_rebalance_delay_ms": broker.get("group.initial.rebalance.delay.ms", 3000),
        "max_size": broker.get("group.max.size", 2**31 - 1),
        "min_session_timeout_ms": 10,
        "coordinator": "new" if folder == NEW else "old",
        "commit_delay_ms": broker.get("commit_delay_ms", 0),
        "consumer": {
            "session_timeout_ms": broker.get("group.consumer.session.timeout.ms"),
            "assignment_interval_ms": broker.get("group.consumer.assignment.interval.ms", 1000),
            "max_size": broker.get("group.consumer.max.size", 2**31 - 1),
        },
    }
    return Config.model_validate({"group": group})
