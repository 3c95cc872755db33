"""What a call says of a coordinator's watcher lists: operations that began to wait, that waited no longer, and walks.

Each operation is on one list: that of its group (rounds and syncs) or of its member's sessions. The check that
completes it takes it off; if its timer ends it, it stays until the list's next walk, or a purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from purgatory_udf.rules.engine.loop.codes import Code
from purgatory_udf.rules.groups.frames import Array, Frame, FrameLayout, pack, unpack
from purgatory_udf.rules.groups.group_codes import KINDS
from purgatory_udf.rules.groups.group_rows import split_group_key
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot, RebalanceSnapshot
from purgatory_udf.rules.groups.group_step import StepResult
from purgatory_udf.rules.groups.operation_timeline import WatcherList

_LIST_BY_KIND = {"heartbeat": WatcherList.SESSIONS, "sync": WatcherList.SYNCS}
_LIST_BY_KIND_CODE = np.array([_LIST_BY_KIND.get(kind, WatcherList.JOINS) for kind in KINDS], dtype=np.int64)

# `list` is a place among the call's lists. `op` is the operation's id; an end says its beginning, too.
BEGUN = FrameLayout(("list", "op", "t", "seq", "sub", "deadline"))
ENDED = FrameLayout((*BEGUN.names, "end_t", "end_seq", "end_sub", "triggered"))
WALKED = FrameLayout(("list", "t", "seq", "sub"))
# Of the group's lists nothing is left: `list` is a name that all of theirs begin with.
STOPPED = WALKED
_LAYOUTS = {"begun": BEGUN, "ended": ENDED, "walked": WALKED, "stopped": STOPPED}
_LISTS = FrameLayout(("broker", "code"), ("name",))


def _list_name_prefix(group: str) -> str:
    """What the names of the group's lists begin with, and no other group's: whatever names have in them."""
    return f"{len(group)}/{group}/"


def open_operation_ids(kept: GroupSnapshot) -> Array:
    """The ids of the operations that wait."""
    return np.concatenate([kept.sessions.op, np.array([round_.operation_id for round_ in kept.rounds], dtype=np.int64)])


@dataclass
class GroupWaits:
    """Of the groups of one call, group by group; `lists` are numbered as they come."""

    lists: dict[tuple[int, int, str], int] = field(default_factory=dict)
    frames: dict[str, list[Frame]] = field(default_factory=lambda: {name: [] for name in _LAYOUTS})

    def note(self, key: str, before: Array, kept: GroupSnapshot, findings: StepResult) -> None:
        """`before`: what waited before the call; `kept` and `findings`: what it has left and told."""
        broker, group = split_group_key(key)
        sessions = kept.sessions
        new = sessions.take(~np.isin(sessions.op, before)) if len(before) else sessions
        if len(new):
            self._add("begun", new.with_columns(list=self._sessions(broker, group, new.member_id)))
        rounds = [round_ for round_ in kept.rounds if round_.operation_id not in before]
        if rounds:
            self._add("begun", BEGUN.of([self._begun(broker, group, round_) for round_ in rounds]))
        for ended in findings.ended:
            waited = ended.take(ended.watched > 0)
            if len(waited):
                lists_ = self._lists(broker, group, _LIST_BY_KIND_CODE[waited.kind], waited.member_id)
                self._add("ended", waited.with_columns(list=lists_))
        for walked in findings.walked:
            if len(walked):
                self._add("walked", walked.with_columns(list=self._lists(broker, group, walked.list, walked.member_id)))
        for code in (Code.HEARTBEAT, Code.REBALANCE) if findings.stopped else ():
            all_lists = self._number(broker, code, _list_name_prefix(group))
            self._add("stopped", STOPPED.of([(all_lists, t, seq, 0) for t, seq in findings.stopped]))

    def to_bytes(self) -> bytes | None:
        """Nothing, if there is nothing to tell."""
        if not any(self.frames.values()):
            return None
        joined = {name: Frame.concat([_LAYOUTS[name].empty(), *frames]) for name, frames in self.frames.items()}
        return pack({"lists": _LISTS.of(list(self.lists)), **joined})

    def _begun(self, broker: int, group: str, of: RebalanceSnapshot) -> tuple[int, int, int, int, int, int]:
        place = self._list(broker, group, _LIST_BY_KIND.get(of.kind, WatcherList.JOINS), "")
        return place, of.operation_id, of.started_us, of.seq, of.sub, of.deadline_ms

    def _add(self, name: str, frame: Frame) -> None:
        self.frames[name].append(frame.only(_LAYOUTS[name].names))

    def _list(self, broker: int, group: str, of: int, member_id: str) -> int:
        code = Code.HEARTBEAT if of == WatcherList.SESSIONS else Code.REBALANCE
        return self._number(broker, code, f"{_list_name_prefix(group)}{int(of)}/{member_id}")

    def _number(self, broker: int, code: Code, name: str) -> int:
        return self.lists.setdefault((broker, int(code), name), len(self.lists))

    def _sessions(self, broker: int, group: str, members: Array) -> Array:
        return self._lists(broker, group, np.full(len(members), int(WatcherList.SESSIONS)), members)

    def _lists(self, broker: int, group: str, of: Array, members: Array) -> Array:
        known: dict[tuple[int, str], int] = {}
        places = []
        for pair in zip(of.tolist(), members.tolist(), strict=True):
            place = known.get(pair)
            if place is None:
                place = known[pair] = self._list(broker, group, *pair)
            places.append(place)
        return np.array(places, dtype=np.int64)


@dataclass(frozen=True)
class PurgatoryWaits:
    """What some calls say of one broker's purgatory; `list` is a place among `names`."""

    names: list[str]
    begun: Frame
    ended: Frame
    walked: Frame
    stopped: Frame


def by_purgatory(values: Iterable[bytes]) -> dict[tuple[int, Code], PurgatoryWaits]:
    """Calls taken apart, and put together again by purgatory."""
    names: dict[tuple[int, int], dict[str, int]] = {}
    parts: dict[tuple[int, int], dict[str, list[Frame]]] = {}
    for value in values:
        frames = unpack(value)
        lists = frames["lists"]
        owners = list(zip(lists.broker.tolist(), lists.code.tolist(), strict=True))
        places = np.array(
            [
                names.setdefault(owner, {}).setdefault(name, len(names[owner]))
                for owner, name in zip(owners, lists.name.tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        for owner in dict.fromkeys(owners):
            mine = (lists.broker == owner[0]) & (lists.code == owner[1])
            for what in _LAYOUTS:
                rows = frames[what].take(mine[frames[what].list]) if len(frames[what]) else frames[what]
                if len(rows):
                    kept = parts.setdefault(owner, {}).setdefault(what, [])
                    kept.append(rows.with_columns(list=places[rows.list]))
    return {
        (broker, Code(code)): PurgatoryWaits(
            list(names[broker, code]), *(_joined(mine.get(what, []), what) for what in _LAYOUTS)
        )
        for (broker, code), mine in parts.items()
    }


def _joined(frames: Sequence[Frame], what: str) -> Frame:
    layout = _LAYOUTS[what]
    return Frame.concat([layout.empty(), *frames]).only(layout.names)
