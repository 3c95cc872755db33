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
from purgatory_udf.rules.groups.group_step import DecidedGroups, StepResults
from purgatory_udf.rules.groups.operation_timeline import WatcherList

_SESSIONS = int(WatcherList.SESSIONS)
_LIST_BY_KIND = {"heartbeat": WatcherList.SESSIONS, "sync": WatcherList.SYNCS}
_LIST_BY_KIND_CODE = np.array([_LIST_BY_KIND.get(kind, WatcherList.JOINS) for kind in KINDS], dtype=np.int64)
# The purgatory of each `WatcherList`, and how the list's name continues after the group's prefix, before the member.
_LISTS_OF_GROUP = ((Code.HEARTBEAT, "0/"), (Code.REBALANCE, "1/"), (Code.REBALANCE, "2/"))
# All lists of a group in one of its purgatories.
_ALL_LISTS = {Code.HEARTBEAT: len(_LISTS_OF_GROUP), Code.REBALANCE: len(_LISTS_OF_GROUP) + 1}
_LIST_NAMES = (*_LISTS_OF_GROUP, *((code, "") for code in _ALL_LISTS))

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
    """The watcher list changes of one call.

    Attributes:
        groups: The keys of the groups with changes.
        frames: The changes by their kind. Their lists are named by three columns: `owner`, an index into `groups`;
            `which`, an index into `_LIST_NAMES`; and `member_id`.
    """

    groups: list[str] = field(default_factory=list)
    frames: dict[str, list[Frame]] = field(default_factory=lambda: {name: [] for name in _LAYOUTS})
    # The groups that took a step and have purgatories: the new coordinator has none. Their places in `groups`.
    _of_group: dict[str, int] = field(default_factory=dict)
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
            self._of_group[key] = len(self.groups)
            self.groups.append(key)
            self._open_before |= open_before
            self._open_after.append(snapshot)

    def record_steps(self, results: StepResults) -> None:
        """Add the changes of the groups that took a step, after `record_open` for each of them."""
        self._record_started()
        owner = np.array([self._of_group.get(key, -1) for key in results.by_key], dtype=np.int64)
        ended, walks = results.ended, results.walks
        self._add_listed(
            "ended", ended.take(ended.watched > 0), _LIST_BY_KIND_CODE[ended.kind[ended.watched > 0]], owner
        )
        self._add_listed("walked", walks, walks.list, owner)
        for of_group, result in zip(owner.tolist(), results.by_key.values(), strict=True):
            if of_group >= 0 and result.stopped:
                for which in _ALL_LISTS.values():
                    stops = STOPPED.from_rows([(0, t, seq, 0) for t, seq in result.stopped])
                    self._add("stopped", stops, np.full(len(stops), of_group), np.full(len(stops), which))

    def _record_started(self) -> None:
        owners, after = list(self._of_group.values()), self._open_after
        sessions = Frame.concat([SESSIONS.empty(), *(snapshot.sessions for snapshot in after)])
        owner = np.repeat(np.array(owners, dtype=np.int64), [len(snapshot.sessions) for snapshot in after])
        is_new = np.array([op not in self._open_before for op in sessions.op.tolist()], dtype=bool)
        started = sessions.take(is_new)
        self._add("started", started, owner[is_new], np.full(len(started), _SESSIONS))
        rebalances = [
            (of_group, operation)
            for of_group, snapshot in zip(owners, after, strict=True)
            for operation in snapshot.rebalances
            if operation.operation_id not in self._open_before
        ]
        self._add(
            "started",
            STARTED.from_rows([_started(operation) for _, operation in rebalances]),
            np.array([of_group for of_group, _ in rebalances], dtype=np.int64),
            np.array([_LIST_BY_KIND.get(each.kind, WatcherList.JOINS) for _, each in rebalances], dtype=np.int64),
        )

    def record_together(self, decided: DecidedGroups) -> None:
        """Add the changes of groups that were decided together."""
        first, count = len(self.groups), len(decided.snapshots)
        self.groups += decided.snapshots
        is_new = [bool(snapshot.is_new) for snapshot in decided.snapshots.values()]
        owner = np.where(np.array(is_new, dtype=bool), -1, first + np.arange(count))
        ended = decided.ended.take(decided.ended.watched > 0)
        self._add_listed("started", decided.started, _LIST_BY_KIND_CODE[decided.started.kind], owner)
        self._add_listed("ended", ended, _LIST_BY_KIND_CODE[ended.kind], owner)
        self._add_listed("walked", decided.walks, decided.walks.list, owner)

    def _add_listed(self, name: str, rows: Frame, which: Array, owners: Array) -> None:
        """Add the rows of groups with purgatories: `owners` has the place of each group in `groups`, or -1."""
        owner = owners[rows.group]
        is_listed = owner >= 0
        self._add(name, rows.take(is_listed), owner[is_listed], which[is_listed])

    def _add(self, name: str, rows: Frame, owner: Array, which: Array) -> None:
        if len(rows):
            names = np.full(len(rows), "", dtype=object) if "member_id" not in rows else rows.member_id
            changes = rows.with_columns(list=owner, owner=owner, which=which, member_id=names)
            self.frames[name].append(changes.select((*_LAYOUTS[name].names, "owner", "which", "member_id")))

    def to_bytes(self) -> bytes | None:
        """Serialize the changes. Returns None if no list changed."""
        if not any(self.frames.values()):
            return None
        joined = {name: Frame.concat(frames) for name, frames in self.frames.items() if frames}
        lists, numbers = self._numbered_lists(list(joined.values()))
        changes = {
            name: frame.with_columns(list=number).select(_LAYOUTS[name].names)
            for (name, frame), number in zip(joined.items(), numbers, strict=True)
        }
        return pack({"lists": lists, **{name: changes.get(name, layout.empty()) for name, layout in _LAYOUTS.items()}})

    def _numbered_lists(self, frames: Sequence[Frame]) -> tuple[Frame, list[Array]]:
        """Return all lists, and the index of each row's list."""
        owner, which, member = (
            np.concatenate([frame.columns[name] for frame in frames]) for name in ("owner", "which", "member_id")
        )
        members = pa.array(member, pa.string()).dictionary_encode()
        key = (owner * len(_LIST_NAMES) + which) * len(members.dictionary) + members.indices.to_numpy()
        numbers = pa.array(key).dictionary_encode().indices.to_numpy()
        row = np.zeros(int(numbers.max()) + 1, dtype=np.int64)
        row[numbers] = np.arange(len(numbers))
        owners = [split_group_key(key) for key in self.groups]
        prefixes = [_list_name_prefix(group) for _, group in owners]
        of_lists = zip(owner[row].tolist(), which[row].tolist(), member[row].tolist(), strict=True)
        lists = _LISTS.from_rows(
            [
                (owners[of][0], int(_LIST_NAMES[list_][0]), prefixes[of] + _LIST_NAMES[list_][1] + name)
                for of, list_, name in of_lists
            ]
        )
        bounds = np.cumsum([len(frame) for frame in frames])[:-1]
        return lists, np.split(numbers, bounds)


def _started(operation: RebalanceSnapshot) -> tuple[int, int, int, int, int, int]:
    return 0, operation.operation_id, operation.started_us, operation.seq, operation.sub, operation.deadline_ms


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
