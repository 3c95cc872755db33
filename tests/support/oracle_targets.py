"""Target assignments of consumer groups that have members of the classic protocol.

Kafka's assignors visit members in the order of their ids' hashes, and the oracle's ids of classic members are only
labels for random ones. So the targets are taken from the oracle's rows, as far as these show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.oracle_groups import GroupTrace, Row

Event = dict[str, Any]
Partitions = set[tuple[str, int]]
# Group, target epoch and member.
Key = tuple[str, int, str]


@dataclass
class _Shown:
    """What rows show of targets: all of one, a part of one, and partitions that are not in one."""

    whole: dict[Key, Partitions] = field(default_factory=dict)
    part: dict[Key, Partitions] = field(default_factory=dict)
    without: dict[Key, Partitions] = field(default_factory=dict)
    # Epoch and members of the group when it was last recorded in a millisecond, by group and time.
    groups: dict[tuple[str, int], tuple[int, list[str]]] = field(default_factory=dict)


def with_recorded_targets(trace: GroupTrace) -> GroupTrace:
    """Return the trace with `assignments` in the requests with which a target was computed."""
    shown = _shown(trace.rows)
    counts: dict[str, int] = {}
    topics: dict[tuple[str, str], list[str]] = {}
    events = []
    for event in trace.events:
        if event["type"] == "topic":
            counts[event["topic"]] = event["partition_count"]
        if event.get("subscribed_topics") is not None:
            topics[event["group"], event["member_id"] or event.get("assigned_member_id", "")] = event[
                "subscribed_topics"
            ]
        found = shown.groups.get((event.get("group", ""), event["time_us"] // 1000))
        if found is not None and event["type"] in ("consumer_group_heartbeat", "join_group"):
            epoch, members = found
            subscribed = {member: topics.get((event["group"], member), []) for member in members}
            target = _target(shown, event["group"], epoch, subscribed, counts)
            event = event | {"assignments": [_assignment(member, target[member]) for member in members]}
        events.append(event)
    return replace(trace, events=events)


def _shown(rows: list[Row]) -> _Shown:
    shown, epochs = _Shown(), dict[str, int]()
    owned: dict[tuple[str, str], Partitions] = {}
    seen: dict[str, Partitions] = {}
    for row in rows:
        if row[0] == "G":
            epochs[row[2]] = int(row[5])
            shown.groups[row[2], int(row[1])] = (int(row[5]), row[6].split(","))
        elif row[0] == "X":
            owned.pop((row[2], row[3]), None)
        elif row[0] == "M":
            group, member, state, epoch = row[2], row[3], row[4], int(row[5])
            assigned, revoking = _partitions(row[6]), _partitions(row[7])
            seen.setdefault(group, set()).update(assigned, revoking)
            before, owned[group, member] = owned.get((group, member), set()), assigned | revoking
            if state == "STABLE":
                shown.whole.setdefault((group, epoch, member), assigned)
            elif state == "UNRELEASED_PARTITIONS":
                shown.part[group, epoch, member] = assigned
                # The member would have got a partition of its target that no other member owns.
                others = [held for (of, each), held in owned.items() if of == group and each != member]
                free = seen[group].difference(*others) - assigned
                shown.without.setdefault((group, epoch, member), set()).update(before - assigned, free)
            else:
                shown.part.setdefault((group, epochs[group], member), assigned)
                shown.without.setdefault((group, epochs[group], member), set()).update(revoking)
    return shown


def _target(
    shown: _Shown, group: str, epoch: int, subscribed: dict[str, list[str]], counts: dict[str, int]
) -> dict[str, Partitions]:
    """Return the target of every member. Partitions without a row go to the members in turn, up to an equal share."""
    target = {member: set(shown.whole.get((group, epoch, member), ())) for member in subscribed}
    unknown = [member for member in subscribed if (group, epoch, member) not in shown.whole]
    for member in unknown:
        target[member] = set(shown.part.get((group, epoch, member), ()))
    names = {topic for listed in subscribed.values() for topic in listed}
    everything = {(topic, number) for topic in names for number in range(counts.get(topic, 0))}
    share = -(-len(everything) // len(subscribed))
    for partition in sorted(everything.difference(*target.values())):
        allowed = [
            member
            for member in unknown
            if partition[0] in subscribed[member] and partition not in shown.without.get((group, epoch, member), ())
        ]
        below = [member for member in allowed if len(target[member]) < share]
        for member in (below or allowed)[:1]:
            target[member].add(partition)
    return target


def _assignment(member: str, partitions: Partitions) -> Event:
    listed = [{"topic": topic, "partitions": [number]} for topic, number in sorted(partitions)]
    return {"member_id": member, "assigned": listed}


def _partitions(text: str) -> Partitions:
    by_topic = (part.split(":") for part in text.split(";") if ":" in part)
    return {(topic, int(number)) for topic, numbers in by_topic for number in numbers.split(",")}
