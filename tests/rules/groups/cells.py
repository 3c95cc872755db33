"""Every cell of the coordinator's table in one trace: each request in each state, each cell in its own group.

Each group is in its state by 9 s. The request follows at 10 s, then its effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.group_timeline import WITH_MEMBER_ID_REQUIRED, WITH_SKIP_ASSIGNMENT, GroupTimeline

Event = dict[str, Any]

STATIC: dict[str, Any] = {"group_instance_id": "i", "api_version": WITH_SKIP_ASSIGNMENT}


def absent() -> GroupTimeline:
    return GroupTimeline()


def empty() -> GroupTimeline:
    group = GroupTimeline()
    group.join(1000, "a")
    group.leave(4500, "a")
    return group


def completing() -> GroupTimeline:
    """Return a group with generation 1 since 7000, of a, b and the static member i."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1500, "b")
    group.join(3900, "i", **STATIC)
    return group


def stable() -> GroupTimeline:
    group = completing()
    for member in ("a", "b"):
        group.sync(7100, member)
    group.sync(7200, "i", group_instance_id="i")
    return group


def preparing() -> GroupTimeline:
    """Return a group in which only the leader has rejoined."""
    group = stable()
    group.rejoin(9000, "a")
    return group


STATES: dict[str, Callable[[], GroupTimeline]] = {
    "absent": absent,
    "Empty": empty,
    "PreparingRebalance": preparing,
    "CompletingRebalance": completing,
    "Stable": stable,
}


def _join_with_pending_id(group: GroupTimeline) -> None:
    group.join(10_000, "c", api_version=WITH_MEMBER_ID_REQUIRED)
    group.rejoin(10_100, "c", api_version=WITH_MEMBER_ID_REQUIRED)


def _leave_with_pending_id(group: GroupTimeline) -> None:
    group.join(10_000, "c", api_version=WITH_MEMBER_ID_REQUIRED)
    group.leave(10_100, "c")


REQUESTS: dict[str, Callable[[GroupTimeline], None]] = {
    "join, no id": lambda group: group.join(10_000, "c", api_version=WITH_MEMBER_ID_REQUIRED),
    "join, new": lambda group: group.join(10_000, "c"),
    "join, pending id": _join_with_pending_id,
    "join, known id": lambda group: group.rejoin(10_000, "b"),
    "join, changed": lambda group: group.rejoin(10_000, "b", protocols=["sticky", "range"]),
    "join, leader": lambda group: group.rejoin(10_000, "a"),
    "join, no protocol": lambda group: group.join(10_000, "c", protocols=["other"]),
    "join, instance": lambda group: group.join(10_000, "i2", **STATIC),
    "sync, leader": lambda group: group.sync(10_000, "a"),
    "sync, member": lambda group: group.sync(10_000, "b"),
    "heartbeat": lambda group: group.heartbeat(10_000, "b"),
    "heartbeat, stale": lambda group: group.heartbeat(10_000, "b", generation=0),
    "commit": lambda group: group.commit(10_000, "b"),
    "commit, alone": lambda group: group.commit(10_000, "", generation=-1),
    "leave": lambda group: group.leave(10_000, "b"),
    "leave, leader": lambda group: group.leave(10_000, "a"),
    "leave, pending id": _leave_with_pending_id,
    "leave, instance": lambda group: group.leave(10_000, "", group_instance_id="i"),
    "stopped": lambda group: group.stopped(10_000),
    "session expiry": lambda group: group.until(30_000),
}


def every_cell() -> list[Event]:
    """Return the groups' events in order of time. Each group is named after its cell."""
    events: list[Event] = []
    for state, in_state in STATES.items():
        for name, request in REQUESTS.items():
            group = in_state()
            request(group)
            events += [event | {"group": f"{state}: {name}"} for event in group.events if event["type"] != "clock"]
    events.sort(key=lambda event: event["time_us"])
    return [event | {"seq": seq, "request_id": f"r{seq}"} for seq, event in enumerate(events, 1)]
