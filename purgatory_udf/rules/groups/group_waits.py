"""Changes of the coordinators' watcher lists that a call reports: started and ended waits, and checks.

Each operation is on one list: its group's list of joins or syncs, or its member's list of sessions. The check that
completes an operation removes it; an expired one stays until the next check of the list, or a purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from purgatory_udf.rules.engine.loop.codes import Code
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_rows import KINDS, split_group_key
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot, RebalanceSnapshot
from purgatory_udf.rules.groups.group_step import StableGroups, StepResult
from purgatory_udf.rules.groups.operation_timeline import WatcherList

_SESSIONS = int(WatcherList.SESSIONS)
_LIST_BY_KIND = {"heartbeat": WatcherList.SESSIONS, "sync": WatcherList.SYNCS}
_LIST_BY_KIND_CODE = np.array([_LIST_BY_KIND.get(kind, WatcherList.JOINS) for kind in KINDS], dtype=np.int64)

# `list` is an index into the lists of the call, `op` the id of the operation. An end repeats the start.
STARTED = FrameLayout(("list", "op", "t", "seq", "sub", "deadline"))
ENDED = FrameLayout((*STARTED.names, "end_t", "end_seq", "end_sub", "triggered"))
WALKED = FrameLayout(("list", "t", "seq", "sub"))
# All lists of a group are dropped. `list` is the common prefix of their names.
STOPPED = WALKED
_LAYOUTS = {"started": STARTED, "ended": ENDED, "walked": WALKED, "stopped": STOPPED}
_LISTS = FrameLayout(("broker", "code"), ("name",))


def _list_name_prefix(group: str) -> str:
    """Return the prefix that the names of the group's lists have in common. No other group's lists have it."""
    return f"{len(group)}/{group}/"


def open_operation_ids(snapshot: GroupSnapshot) -> frozenset[int]:
    """Return the ids of a group's open operations: sessions, joins and syncs."""
    return frozenset([*snapshot.sessions.op.tolist(), *(each.operation_id for each in snapshot.rebalances)])


@dataclass
class GroupWaits:
    """The watcher list changes of one call. `lists` maps broker, purgatory and list name to the list's index."""

    lists: dict[tuple[int, int, str], int] = field(default_factory=dict)
    frames: dict[str, list[Frame]] = field(default_factory=lambda: {name: [] for name in _LAYOUTS})

    def record(self, key: str, open_before: Set[int], snapshot: GroupSnapshot, result: StepResult) -> None:
        """Add the changes of one group.

        Args:
            key: The group's key.
            open_before: The ids of the operations that were open before the call.
            snapshot: The group after the call.
            result: The result of the call.
        """
        if snapshot.is_new:
            # The new coordinator has no purgatories.
            return
        broker, group = split_group_key(key)
        lists = _GroupLists(self.lists, broker, _list_name_prefix(group))
        new = [row for row, op in enumerate(snapshot.sessions.op.tolist()) if op not in open_before]
        if new:
            sessions = snapshot.sessions.take(np.array(new))
            self._add("started", sessions.with_columns(list=lists.of_sessions(sessions.member_id)))
        rebalances = [operation for operation in snapshot.rebalances if operation.operation_id not in open_before]
        if rebalances:
            self._add("started", STARTED.from_rows([_started(lists, each) for each in rebalances]))
        for ended in result.ended:
            watched = ended.take(ended.watched > 0)
            if len(watched):
                list_numbers = lists.of_rows(_LIST_BY_KIND_CODE[watched.kind], watched.member_id)
                self._add("ended", watched.with_columns(list=list_numbers))
        for walks in result.walks:
            self._add("walked", walks.with_columns(list=lists.of_rows(walks.list, walks.member_id)))
        for code in (Code.HEARTBEAT, Code.REBALANCE) if result.stopped else ():
            all_lists = lists.number(code, "")
            self._add("stopped", STOPPED.from_rows([(all_lists, t, seq, 0) for t, seq in result.stopped]))

    def record_stable(self, stable: StableGroups) -> None:
        """Add the changes of the groups in which only sessions ended and started."""
        lists = []
        for key in stable.snapshots:
            broker, group = split_group_key(key)
            lists.append(_GroupLists(self.lists, broker, _list_name_prefix(group)))
        has_lists = np.array([not snapshot.is_new for snapshot in stable.snapshots.values()], dtype=bool)
        for name, sessions in (("started", stable.started), ("ended", stable.ended)):
            sessions = sessions.take(has_lists[sessions.group])
            members = zip(sessions.group.tolist(), sessions.member_id.tolist(), strict=True)
            numbers = [lists[group][_SESSIONS, member_id] for group, member_id in members]
            if numbers:
                self._add(name, sessions.with_columns(list=np.array(numbers, dtype=np.int64)))

    def to_bytes(self) -> bytes | None:
        """Serialize the changes. Returns None if no list changed."""
        if not any(self.frames.values()):
            return None
        joined = {name: Frame.concat([_LAYOUTS[name].empty(), *frames]) for name, frames in self.frames.items()}
        return pack({"lists": _LISTS.from_rows(list(self.lists)), **joined})

    def _add(self, name: str, frame: Frame) -> None:
        self.frames[name].append(frame.select(_LAYOUTS[name].names))


class _GroupLists(dict[tuple[int, str], int]):
    """The indices of a group's lists by kind and member. Reading adds a missing list to the lists of the call."""

    def __init__(self, lists: dict[tuple[int, int, str], int], broker: int, prefix: str) -> None:
        super().__init__()
        self._lists, self._broker, self._prefix = lists, broker, prefix

    def __missing__(self, key: tuple[int, str]) -> int:
        kind, member_id = key
        code = Code.HEARTBEAT if kind == WatcherList.SESSIONS else Code.REBALANCE
        number = self[key] = self.number(code, f"{kind}/{member_id}")
        return number

    def number(self, code: Code, name: str) -> int:
        """Return the index of the list with this name, which is relative to the group's prefix."""
        return self._lists.setdefault((self._broker, int(code), self._prefix + name), len(self._lists))

    def of_rows(self, kinds: Array, members: Array) -> Array:
        pairs = zip(kinds.tolist(), members.tolist(), strict=True)
        return np.array([self[pair] for pair in pairs], dtype=np.int64)

    def of_sessions(self, members: Array) -> Array:
        return np.array([self[_SESSIONS, member_id] for member_id in members.tolist()], dtype=np.int64)


def _started(lists: _GroupLists, operation: RebalanceSnapshot) -> tuple[int, int, int, int, int, int]:
    list_ = lists[int(_LIST_BY_KIND.get(operation.kind, WatcherList.JOINS)), ""]
    return list_, operation.operation_id, operation.started_us, operation.seq, operation.sub, operation.deadline_ms


@dataclass(frozen=True)
class PurgatoryWaits:
    """The changes of one broker's purgatory, from several calls. `list` is an index into `names`."""

    names: list[str]
    started: Frame
    ended: Frame
    walked: Frame
    stopped: Frame


def by_purgatory(values: Iterable[bytes]) -> dict[tuple[int, Code], PurgatoryWaits]:
    """Deserialize the changes of several calls, and return them by (broker, code of the purgatory)."""
    names: dict[tuple[int, int], dict[str, int]] = {}
    parts: dict[tuple[int, int], dict[str, list[Frame]]] = {}
    for value in values:
        frames = unpack(value)
        lists = frames["lists"]
        owners = list(zip(lists.broker.tolist(), lists.code.tolist(), strict=True))
        distinct = dict.fromkeys(owners)
        known = {owner: names.setdefault(owner, {}) for owner in distinct}
        named = zip(map(known.__getitem__, owners), lists.name.tolist(), strict=True)
        numbers = np.array([of_owner.setdefault(name, len(of_owner)) for of_owner, name in named], dtype=np.int64)
        for owner in distinct:
            mine = (lists.broker == owner[0]) & (lists.code == owner[1])
            for what in _LAYOUTS:
                rows = frames[what].take(mine[frames[what].list]) if len(frames[what]) else frames[what]
                if len(rows):
                    of_owner = parts.setdefault(owner, {}).setdefault(what, [])
                    of_owner.append(rows.with_columns(list=numbers[rows.list]))
    return {
        (broker, Code(code)): PurgatoryWaits(
            list(names[broker, code]), *(_joined(mine.get(what, []), what) for what in _LAYOUTS)
        )
        for (broker, code), mine in parts.items()
    }


def _joined(frames: Sequence[Frame], what: str) -> Frame:
    layout = _LAYOUTS[what]
    return Frame.concat([layout.empty(), *frames]).select(layout.names)
