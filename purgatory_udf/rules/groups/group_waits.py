"""Changes of the coordinators' watcher lists that a call reports: started and ended waits, and checks.

Each operation is on one list: its group's list of joins or syncs, or its member's list of sessions. The check that
completes an operation removes it; an expired one stays until the next check of the list, or a purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.rules.engine.loop.codes import Code
from purgatory_udf.rules.groups.column_frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_rows import KINDS, split_group_key
from purgatory_udf.rules.groups.group_state_store import SESSIONS, GroupSnapshot, RebalanceSnapshot
from purgatory_udf.rules.groups.group_step import StableGroups, StepResults
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
    # The lists of each group that took a step and has purgatories: the new coordinator has none.
    _of_group: dict[str, _GroupLists] = field(default_factory=dict)
    _open_before: set[int] = field(default_factory=set)
    _open_after: list[GroupSnapshot] = field(default_factory=list)

    def record_open(self, key: str, open_before: Set[int], snapshot: GroupSnapshot) -> None:
        """Note the open operations of a group that took a step.

        Args:
            key: The group's key.
            open_before: The ids of the operations that were open before the call.
            snapshot: The group after the call.
        """
        if not snapshot.is_new:
            self._of_group[key] = _GroupLists(self.lists, key)
            self._open_before |= open_before
            self._open_after.append(snapshot)

    def record_steps(self, results: StepResults) -> None:
        """Add the changes of the groups that took a step, after `record_open` for each of them."""
        self._record_started()
        lists = [self._of_group.get(key) for key in results.by_key]
        has_lists = np.array([each is not None for each in lists], dtype=bool)
        ended, walks = results.ended, results.walks
        ended = ended.take((ended.watched > 0) & has_lists[ended.group])
        walks = walks.take(has_lists[walks.group])
        for name, rows, kinds in (("ended", ended, _LIST_BY_KIND_CODE[ended.kind]), ("walked", walks, walks.list)):
            self._add(name, rows.with_columns(list=_list_numbers(lists, rows.group, kinds, rows.member_id)))
        for of_group, result in zip(lists, results.by_key.values(), strict=True):
            if of_group is not None and result.stopped:
                for code in (Code.HEARTBEAT, Code.REBALANCE):
                    all_lists = of_group.number(code, "")
                    self._add("stopped", STOPPED.from_rows([(all_lists, t, seq, 0) for t, seq in result.stopped]))

    def _record_started(self) -> None:
        lists, after = list(self._of_group.values()), self._open_after
        sessions = Frame.concat([SESSIONS.empty(), *(snapshot.sessions for snapshot in after)])
        group = np.repeat(np.arange(len(after)), [len(snapshot.sessions) for snapshot in after])
        sessions = sessions.with_columns(group=group)
        sessions = sessions.take(np.array([op not in self._open_before for op in sessions.op.tolist()], dtype=bool))
        kinds = np.full(len(sessions), _SESSIONS)
        numbers = _list_numbers(lists, sessions.group, kinds, sessions.member_id)
        self._add("started", sessions.with_columns(list=numbers))
        rebalances = [
            _started(of_group, operation)
            for of_group, snapshot in zip(lists, after, strict=True)
            for operation in snapshot.rebalances
            if operation.operation_id not in self._open_before
        ]
        self._add("started", STARTED.from_rows(rebalances))

    def record_stable(self, stable: StableGroups) -> None:
        """Add the changes of the groups in which only sessions ended and started."""
        lists = [_GroupLists(self.lists, key) for key in stable.snapshots]
        has_lists = np.array([not snapshot.is_new for snapshot in stable.snapshots.values()], dtype=bool)
        for name, sessions in (("started", stable.started), ("ended", stable.ended)):
            sessions = sessions.take(has_lists[sessions.group])
            kinds = np.full(len(sessions), _SESSIONS)
            numbers = _list_numbers(lists, sessions.group, kinds, sessions.member_id)
            self._add(name, sessions.with_columns(list=numbers))

    def to_bytes(self) -> bytes | None:
        """Serialize the changes. Returns None if no list changed."""
        if not any(self.frames.values()):
            return None
        joined = {name: Frame.concat([_LAYOUTS[name].empty(), *frames]) for name, frames in self.frames.items()}
        return pack({"lists": _LISTS.from_rows(list(self.lists)), **joined})

    def _add(self, name: str, frame: Frame) -> None:
        if len(frame):
            self.frames[name].append(frame.select(_LAYOUTS[name].names))


class _GroupLists(dict[tuple[int, str], int]):
    """The indices of a group's lists by kind and member. Reading adds a missing list to the lists of the call."""

    def __init__(self, lists: dict[tuple[int, int, str], int], key: str) -> None:
        super().__init__()
        self._lists = lists
        self._broker, group = split_group_key(key)
        self._prefix = _list_name_prefix(group)

    def __missing__(self, key: tuple[int, str]) -> int:
        kind, member_id = key
        code = Code.HEARTBEAT if kind == WatcherList.SESSIONS else Code.REBALANCE
        number = self[key] = self.number(code, f"{kind}/{member_id}")
        return number

    def number(self, code: Code, name: str) -> int:
        """Return the index of the list with this name, which is relative to the group's prefix."""
        return self._lists.setdefault((self._broker, int(code), self._prefix + name), len(self._lists))


def _list_numbers(lists: Sequence[_GroupLists | None], groups: Array, kinds: Array, members: Array) -> Array:
    """Return the index of each row's list, given its group's index, its `WatcherList` and its member."""
    rows = zip(groups.tolist(), kinds.tolist(), members.tolist(), strict=True)
    return np.array([lists[group][kind, member] for group, kind, member in rows], dtype=np.int64)


def _started(lists: _GroupLists, operation: RebalanceSnapshot) -> tuple[int, int, int, int, int, int]:
    list_ = lists[int(_LIST_BY_KIND.get(operation.kind, WatcherList.JOINS)), ""]
    return list_, operation.operation_id, operation.started_us, operation.seq, operation.sub, operation.deadline_ms


@dataclass(frozen=True)
class PurgatoryWaits:
    """The changes of one broker's purgatory, from several calls. `list` is an index into `names`."""

    names: Array
    started: Frame
    ended: Frame
    walked: Frame
    stopped: Frame


def by_purgatory(values: Iterable[bytes]) -> dict[tuple[int, Code], PurgatoryWaits]:
    """Deserialize the changes of several calls, and return them by (broker, code of the purgatory)."""
    parts = [unpack(value) for value in values]
    first = np.cumsum([0, *(len(part["lists"]) for part in parts)])
    lists = Frame.concat([_LISTS.empty(), *(part["lists"] for part in parts)])
    rows = {what: _with_list_offsets(parts, what, first) for what in _LAYOUTS}
    owners = list(zip(lists.broker.tolist(), lists.code.tolist(), strict=True))
    changes = {}
    for broker, code in dict.fromkeys(owners):
        mine = (lists.broker == broker) & (lists.code == code)
        names = pa.array(lists.name[mine], pa.string()).dictionary_encode()
        numbers = np.full(len(lists), -1)
        numbers[mine] = names.indices.to_numpy()
        of_owner = {what: frame.take(mine[frame.list]) for what, frame in rows.items()}
        if any(map(len, of_owner.values())):
            frames = (frame.with_columns(list=numbers[frame.list]) for frame in of_owner.values())
            changes[broker, Code(code)] = PurgatoryWaits(
                names.dictionary.to_numpy(zero_copy_only=False),
                *(frame.select(layout.names) for frame, layout in zip(frames, _LAYOUTS.values(), strict=True)),
            )
    return changes


def _with_list_offsets(calls: Sequence[dict[str, Frame]], what: str, first: Array) -> Frame:
    """Append the changes of one kind from several calls. `first` has the index of each call's first list."""
    frames = (call[what] for call in calls)
    moved = [rows.with_columns(list=rows.list + at) for rows, at in zip(frames, first.tolist(), strict=False)]
    return Frame.concat([_LAYOUTS[what].empty(), *moved])


def positions(values: Array, known: Array) -> Array:
    """Return the index of each value in an array of distinct ones, or -1. By hashes, because the numbers are random."""
    kind = pa.string() if values.dtype == object else pa.int64()
    found = pc.index_in(pa.array(values, kind), pa.array(known, kind))
    indices: Array = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return indices
