"""When, in the order of the whole trace, a machine's operations began and ended, and its lists were walked in vain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from purgatory_udf.coordinator.journal import GroupJournal
from purgatory_udf.coordinator.operation import GroupOperation, JoinKey, MemberKey, SyncKey
from purgatory_udf.frames.frame import FrameLayout
from purgatory_udf.groups.clock import KeptPurgatory, Moment

# Walks of lists that completed nothing.
WALKS = FrameLayout(numbers=("list", "t", "seq", "sub"), texts=("member_id",))


class Watching(IntEnum):
    """A group's lists: one per member of its sessions, one of its rounds, one of its generations' syncs."""

    SESSIONS = 0
    JOINS = 1
    SYNCS = 2


@dataclass(eq=False)
class Chronicle:
    """`began` and `ended` by operation, those that are taken back included; `walks` as rows of `WALKS`."""

    journal: GroupJournal
    began: dict[GroupOperation, Moment] = field(default_factory=dict)
    ended: dict[GroupOperation, Moment] = field(default_factory=dict)
    walks: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    purgatories: Sequence[KeptPurgatory] = ()
    _open: dict[GroupOperation, None] = field(default_factory=dict)
    _noted: int = 0

    def take_back(self, operation: GroupOperation, began: Moment) -> None:
        """An operation that began in an earlier call."""
        self.journal.operations.append(operation)
        self._noted += 1
        self.began[operation] = began
        self._open[operation] = None

    def note(self, moment: Moment) -> None:
        """Whatever has happened since the last note happened at this moment."""
        for operation in self.journal.operations[self._noted :]:
            self.began[operation] = moment
            self._open[operation] = None
        self._noted = len(self.journal.operations)
        for operation in [operation for operation in self._open if operation.completed]:
            self.ended[operation] = moment
            del self._open[operation]
        for purgatory in self.purgatories:
            self.walks += [_walk(key, moment) for key in purgatory.walked]
            purgatory.walked.clear()

    @property
    def still_open(self) -> Iterator[GroupOperation]:
        """In the order in which they began."""
        return iter(self._open)


def _walk(key: MemberKey | JoinKey | SyncKey, moment: Moment) -> tuple[int, int, int, int, str]:
    if isinstance(key, MemberKey):
        return (Watching.SESSIONS, *moment, key.member_id)
    return (Watching.JOINS if isinstance(key, JoinKey) else Watching.SYNCS, *moment, "")
