"""What is kept of a group between two calls: the group itself, its open sessions in columns, its open round or sync."""

from __future__ import annotations

from dataclasses import dataclass, field

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.member import Member
from purgatory_udf.coordinator.state import GroupState
from purgatory_udf.frames.frame import Frame, FrameLayout
from purgatory_udf.groups.words import FOREVER

# Open sessions in the order in which they were armed: `t`, `seq` and `sub` say when. `owner` is a place among
# `KeptGroup.owners`, or `PENDING`.
SESSIONS = FrameLayout(
    numbers=("owner", "op", "t", "seq", "sub", "deadline"),
    texts=("member_id", "request_id", "client_id"),
)
PENDING = -1


@dataclass(frozen=True, slots=True)
class KeptRound:
    """An open join of a round, or sync of a generation. `remaining_ms` is an initial round's, after this window."""

    kind: str
    operation_id: int
    started_us: int
    seq: int
    sub: int
    deadline_ms: int
    request_id: str | None
    client_id: str | None
    remaining_ms: int = 0
    # Of a group that was unloaded, and is here anew.
    dead: bool = False


@dataclass(slots=True)
class KeptGroup:
    """`group` is None until a request makes it. `former` are members that are out, but whose sessions still run:
    nobody told those, so that they end at their deadlines.

    `text` is everything but the sessions as it was read, or None where it may have changed since.
    """

    group: Group | None = None
    sessions: Frame = field(default_factory=SESSIONS.empty)
    rounds: list[KeptRound] = field(default_factory=list)
    former: list[Member] = field(default_factory=list)
    text: str | None = None

    @property
    def owners(self) -> list[Member]:
        return [*(self.group.members.values() if self.group is not None else ()), *self.former]

    @property
    def state(self) -> str:
        return (self.group.state if self.group is not None else GroupState.EMPTY).value

    @property
    def is_stable(self) -> bool:
        return self.group is not None and self.group.state is GroupState.STABLE

    @property
    def open(self) -> int:
        """How many operations have not ended."""
        return len(self.sessions) + len(self.rounds)

    def next_deadline_ms(self) -> int:
        deadlines = [round_.deadline_ms for round_ in self.rounds]
        if len(self.sessions):
            deadlines.append(int(self.sessions.deadline.min()))
        return min(deadlines, default=FOREVER)
