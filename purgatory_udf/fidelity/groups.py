"""What a replayed group would have answered its members, held against what they were answered.

The replay tells a group's states and generations; from them follows each answer:

    heartbeat   REBALANCE_IN_PROGRESS while joins are awaited, else NONE
    join        MEMBER_ID_REQUIRED without an id (version 4+), else the generation that begins when the round is over
    sync        NONE when the leader's assignment has come, REBALANCE_IN_PROGRESS if another round comes before it
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"
NO_ERROR = "NONE"


@dataclass(frozen=True, slots=True)
class GroupChange:
    at_us: int
    to_state: str
    generation: int
    members: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """`recorded` is the error it was answered with; `generation` what it names, `granted` what a join was given, and
    `assigned` the member id that it was given."""

    operation_id: int
    at_us: int
    type: str
    member_id: str
    generation: int
    leader: bool
    recorded: str
    recorded_ms: float
    granted: int | None = None
    api_version: int = 5
    instance: str | None = None
    assigned: str | None = None


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """`replayed_ms` is None where the replay was told when the answer came (a leader's sync)."""

    operation_id: int
    recorded: str
    replayed: str
    recorded_ms: float
    replayed_ms: float | None


def answers(changes: Sequence[GroupChange], requests: Iterable[ComparedRequest]) -> Iterator[ComparedAnswer]:
    """Of one group at one broker; both in the order of time. Leaves and commits are not compared."""
    group = _Group(changes)
    for request in requests:
        answer = {"heartbeat": group.heartbeat, "join_group": group.join, "sync_group": group.sync}.get(request.type)
        if answer is None:
            continue
        replayed, wait_us = answer(request)
        recorded = request.recorded
        if request.type == "join_group" and recorded == NO_ERROR:
            recorded = _granted(request.granted)
        wait_ms = None if wait_us is None else wait_us / 1000
        yield ComparedAnswer(request.operation_id, recorded, replayed, request.recorded_ms, wait_ms)


def _granted(generation: int | None) -> str:
    return f"generation {generation}"


class _Group:
    """The group's state at any time."""

    def __init__(self, changes: Sequence[GroupChange]) -> None:
        self._changes = changes
        self._moments = [change.at_us for change in changes]
        self._joined: dict[str, int] = {}

    def _knows(self, request: ComparedRequest, now: GroupChange) -> bool:
        """Whether the member was there at the last change, or has joined since."""
        return request.member_id in now.members or self._joined.get(request.member_id, -1) >= now.at_us

    def _before(self, at_us: int) -> GroupChange:
        place = bisect_left(self._moments, at_us)
        return self._changes[place - 1] if place else GroupChange(0, EMPTY, 0)

    def _after(self, at_us: int) -> tuple[int, GroupChange]:
        """The state that a request of this moment has led to, and where it stands among the changes."""
        place = bisect_right(self._moments, at_us)
        return place, self._changes[place - 1] if place else GroupChange(0, EMPTY, 0)

    def heartbeat(self, request: ComparedRequest) -> tuple[str, int | None]:
        now = self._before(request.at_us)
        if now.to_state in (EMPTY, DEAD) or not self._knows(request, now):
            return "UNKNOWN_MEMBER_ID", 0
        if request.generation != now.generation:
            return "ILLEGAL_GENERATION", 0
        return ("REBALANCE_IN_PROGRESS" if now.to_state == PREPARING else NO_ERROR), 0

    def join(self, request: ComparedRequest) -> tuple[str, int | None]:
        if not request.member_id and not request.instance and request.api_version >= 4:
            return "MEMBER_ID_REQUIRED", 0
        self._joined[request.assigned or request.member_id] = request.at_us
        place, now = self._after(request.at_us)
        if now.to_state != PREPARING:
            return _granted(now.generation), 0
        for change in self._changes[place:]:
            if change.to_state == COMPLETING:
                return _granted(change.generation), change.at_us - request.at_us
            if change.to_state in (EMPTY, DEAD):
                break
        return "UNKNOWN_MEMBER_ID", 0

    def sync(self, request: ComparedRequest) -> tuple[str, int | None]:
        now = self._before(request.at_us)
        if now.to_state in (EMPTY, DEAD) or not self._knows(request, now):
            return "UNKNOWN_MEMBER_ID", 0
        if request.generation != now.generation:
            return "ILLEGAL_GENERATION", 0
        if now.to_state == PREPARING:
            return "REBALANCE_IN_PROGRESS", 0
        if now.to_state == STABLE:
            return NO_ERROR, 0
        if request.leader:
            return NO_ERROR, None
        place, _ = self._after(request.at_us)
        following = self._changes[place] if place < len(self._changes) else now
        wait = following.at_us - request.at_us if following is not now else None
        return (NO_ERROR if following.to_state == STABLE else "REBALANCE_IN_PROGRESS"), wait
