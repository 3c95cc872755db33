"""The fast path: runs of heartbeats and offset commits of a stable group, decided on columns.

While a group is stable, a heartbeat or commit of a member only completes that member's session and starts the next one.
The sessions of a run therefore follow from the consecutive times of each member. With a session timeout of 10 s:

    member a    ●────4s────●─────6s─────●──────────12s──────────●       each heartbeat completes the session before
                                        └──────10s───────┤              it, but the last one is too late
    member b    ●──────7s──────●───────9s───────●────────┊──10s──
                                                         limit: a's session expires

A run stops before the first moment at which anything else happens: a session that no heartbeat completes in time, or
another timer of the group. Rows at that millisecond or later are not part of it. A heartbeat from a client outside of
this generation changes nothing and is only answered.

The runs of many groups are decided together, because a numpy call costs about as much for one group as for a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from purgatory_udf.rules.coordinator.group_metadata import Group
from purgatory_udf.rules.groups.column_frames import Array, Frame
from purgatory_udf.rules.groups.group_rows import ERROR_OF, KIND_OF, NONE
from purgatory_udf.rules.groups.group_state_store import SESSIONS, GroupSnapshot
from purgatory_udf.rules.purgatory.clock import Pauses


@dataclass(frozen=True)
class HeartbeatRuns:
    """Decided runs of several groups.

    Attributes:
        lengths: The length of each group's run, in rows.
        decided: For each row, whether it belongs to its group's run.
        answers: The answer to each row, as an index into `ERRORS`.
        ended: The sessions that the runs completed, as rows of `ENDED` with `group`: by group, member and time.
        started: The open sessions that the runs started, as rows of `SESSIONS` with `group`.
    """

    lengths: Array
    decided: Array
    answers: Array
    ended: Frame
    started: Frame


def apply_heartbeats(
    snapshots: Sequence[GroupSnapshot], rows: Frame, group: Array, pauses: Pauses, horizon_ms: int | None = None
) -> HeartbeatRuns:
    """Apply the rows of each group up to the next of its timers that fires. Updates the sessions of the snapshots.

    Args:
        snapshots: Stable groups.
        rows: Heartbeats and offset commits only, by group, and within a group in order.
        group: The index of each row's group.
        pauses: The times at which brokers stood still.
        horizon_ms: If given, groups with a timer that fires by then, in epoch milliseconds, or before their last row
            are left out: the lengths of their runs are 0.
    """
    members = _Members(snapshots)
    member, answers = _senders(snapshots, members, rows, group)

    # Heartbeats by member, in order of time, with the deadline of the session that each completes. The `first` of each
    # member completes a session from before the run.
    valid = np.flatnonzero((answers == 0) & members.have_sessions[group])
    order = valid[np.argsort(member[valid], kind="stable")]
    sender, ms = member[order], rows.t[order] // 1000
    first = np.concatenate([[True], sender[1:] != sender[:-1]])[: len(sender)]
    deadline = np.concatenate([[0], (ms + members.timeout[sender])[:-1]])[: len(sender)]
    deadline = np.where(first, members.sessions.deadline[members.session[sender]], deadline)

    brokers = np.array([_group(snapshot).broker for snapshot in snapshots], dtype=np.int64)
    late = ms >= _fires_ms(deadline, brokers[group[order]], pauses)
    next_ms = members.next_deadlines(snapshots, sender, ms)
    limit = next_ms.copy()
    np.minimum.at(limit, group[order[late]], deadline[late])
    if pauses.exist:
        limit = np.array([pauses.fires_ms(*each) for each in zip(brokers.tolist(), limit.tolist(), strict=True)])
    decided = (rows.t // 1000 < limit[group]) & members.have_sessions[group]
    lengths = np.bincount(group[decided], minlength=len(snapshots))
    if horizon_ms is not None:
        whole = (lengths == np.bincount(group, minlength=len(snapshots))) & (next_ms > horizon_ms)
        decided, lengths = decided & whole[group], np.where(whole, lengths, 0)
    inside = decided[order]
    order, sender, first, deadline = order[inside], sender[inside], first[inside], deadline[inside]
    ended = _ended(members, rows, order, sender, first, deadline).with_columns(group=group[order])
    started = _started(members, rows, order, sender)
    members.replace_sessions(snapshots, started)
    return HeartbeatRuns(lengths, decided, answers, ended, started)


def _group(snapshot: GroupSnapshot) -> Group:
    assert snapshot.group is not None and snapshot.is_stable, "heartbeats change sessions only while a group is stable"
    return snapshot.group


class _Members:
    """The members of several groups, group by group, with their open sessions.

    Attributes:
        bounds: The index of the first member of each group, and the number of members.
        group: The group of each member.
        timeout: The session timeout of each member, in milliseconds.
        sessions: The open sessions, group by group.
        session: The index of each member's open session.
        have_sessions: For each group, whether each member has exactly one session under its id. Other groups are left
            out, and `session` of their members is 0.
    """

    def __init__(self, snapshots: Sequence[GroupSnapshot]) -> None:
        self.bounds: list[int] = [0]
        session: list[int] = []
        timeout: list[int] = []
        session_counts: list[int] = []
        have_sessions: list[bool] = []
        begin = 0
        for snapshot in snapshots:
            of_group = _current_sessions(snapshot)
            have_sessions.append(min(of_group, default=0) >= 0)
            session += [begin + index for index in of_group] if have_sessions[-1] else [0] * len(of_group)
            timeout += [member.session_timeout_ms for member in _group(snapshot).members.values()]
            self.bounds.append(len(session))
            session_counts.append(len(snapshot.sessions))
            begin += session_counts[-1]
        self.sessions = Frame.concat([SESSIONS.empty(), *(snapshot.sessions for snapshot in snapshots)])
        self.session = np.array(session, dtype=np.int64)
        self.timeout = np.array(timeout, dtype=np.int64)
        self.have_sessions = np.array(have_sessions, dtype=bool)
        numbers = np.arange(len(snapshots))
        self.group = np.repeat(numbers, np.diff(self.bounds))
        self._group_of_session = np.repeat(numbers, session_counts)

    def next_deadlines(self, snapshots: Sequence[GroupSnapshot], sender: Array, ms: Array) -> Array:
        """Return the earliest deadline in each group after all heartbeats, in epoch milliseconds.

        Args:
            snapshots: The groups.
            sender: The member of each heartbeat, in order of member and time.
            ms: The time of each of these heartbeats.
        """
        deadlines = np.array([snapshot.next_other_deadline_ms() for snapshot in snapshots], dtype=np.int64)
        if len(self.sessions):
            last = self.sessions.deadline[self.session]
            last[sender] = ms + self.timeout[sender]
            np.minimum.at(deadlines, self.group, last)
            others = np.ones(len(self.sessions), dtype=bool)
            others[self.session[self.have_sessions[self.group]]] = False
            np.minimum.at(deadlines, self._group_of_session[others], self.sessions.deadline[others])
        return deadlines

    def replace_sessions(self, snapshots: Sequence[GroupSnapshot], started: Frame) -> None:
        """Replace the sessions of the members that started new ones."""
        if not len(started):
            return
        unchanged = np.ones(len(self.sessions), dtype=bool)
        unchanged[self.session[started.owner + np.array(self.bounds)[started.group]]] = False
        group = np.concatenate([self._group_of_session[unchanged], started.group])
        order = np.argsort(group, kind="stable")
        sessions = Frame.concat([self.sessions.take(unchanged), started.select(SESSIONS.names)]).take(order)
        bounds = np.searchsorted(group[order], np.arange(len(snapshots) + 1)).tolist()
        for number in np.unique(started.group).tolist():
            snapshots[number].sessions = sessions.take(slice(bounds[number], bounds[number + 1]))


def _current_sessions(snapshot: GroupSnapshot) -> list[int]:
    """Return the index of each member's open session; negative unless it has exactly one session under its id."""
    ids = list(_group(snapshot).members)
    index = [-1] * len(ids)
    owners = zip(snapshot.sessions.owner.tolist(), snapshot.sessions.member_id.tolist(), strict=True)
    for number, (owner, member_id) in enumerate(owners):
        if 0 <= owner < len(ids) and ids[owner] == member_id:
            index[owner] = number if index[owner] == -1 else -2
    return index


def _senders(snapshots: Sequence[GroupSnapshot], members: _Members, rows: Frame, group: Array) -> tuple[Array, Array]:
    """Return the member that sent each row (-1 for none), and the answer as an index into `ERRORS`."""
    ids, bounds = rows.member_id.tolist(), np.searchsorted(group, np.arange(len(snapshots) + 1)).tolist()
    numbers: list[int] = []
    for snapshot, first, (begin, end) in zip(snapshots, members.bounds, pairwise(bounds), strict=False):
        index = {member_id: number for number, member_id in enumerate(_group(snapshot).members, first)}
        numbers += [index.get(member_id, -1) for member_id in ids[begin:end]]
    member = np.array(numbers, dtype=np.int64)
    answers = np.where(member < 0, ERROR_OF["UNKNOWN_MEMBER_ID"], 0)
    for row in np.flatnonzero(rows.static).tolist():
        error = _group(snapshots[group[row]]).validate_member(rows.member_id[row], rows.instance_id[row])
        answers[row] = ERROR_OF[error or NONE]
    generation = np.array([_group(snapshot).generation for snapshot in snapshots], dtype=np.int64)
    stale = (answers == 0) & (rows.generation != generation[group])
    return member, np.where(stale, ERROR_OF["ILLEGAL_GENERATION"], answers)


def _fires_ms(deadline: Array, broker: Array, pauses: Pauses) -> Array:
    """Return when timers with these deadlines fire at these brokers, in epoch milliseconds."""
    fires = deadline.copy()
    for pause in pauses:
        stopped = (broker == pause.broker) & (deadline > pause.paused_ms) & (deadline < pause.resumed_ms)
        fires[stopped] = pause.resumed_ms
    return fires


def _ended(members: _Members, rows: Frame, order: Array, sender: Array, first: Array, deadline: Array) -> Frame:
    """Return the sessions that the runs completed, as rows of `ENDED`, in the order of member and time.

    Each was open before the run, or was started by its member's previous heartbeat in the run.

    Args:
        members: The groups before the runs.
        rows: The heartbeats of the runs.
        order: The row of the heartbeat that completes each session.
        sender: The member that sent it.
        first: Whether that heartbeat is its member's first one in the run.
        deadline: The deadline of each session.
    """
    previous = np.concatenate([[0], order[:-1]])[: len(order)]
    old, session, count = members.sessions, members.session[sender], len(order)
    texts = {name: np.where(first, old.columns[name][session], rows.columns[name][previous]) for name in _TEXTS}
    return Frame(
        {
            "op": np.where(first, old.op[session], rows.seq[previous]),
            "kind": np.full(count, KIND_OF["heartbeat"], dtype=np.int64),
            "t": np.where(first, old.t[session], rows.t[previous]),
            "seq": np.where(first, old.seq[session], rows.seq[previous]),
            "sub": np.where(first, old.sub[session], 0),
            "end_t": rows.t[order],
            "end_seq": rows.seq[order],
            "end_sub": np.zeros(count, dtype=np.int64),
            "deadline": deadline,
            "expired": np.zeros(count, dtype=np.int64),
            "watched": np.ones(count, dtype=np.int64),
            "rule": rows.api[order],
            "triggered": np.ones(count, dtype=np.int64),
            **texts,
        }
    )


_TEXTS = ("member_id", "request_id", "client_id")


def _started(members: _Members, rows: Frame, order: Array, sender: Array) -> Frame:
    """Return the sessions that the last heartbeat of each member started, as rows of `SESSIONS` with `group`.

    They are in the order of their rows. For the arguments see `_ended`.
    """
    is_last = np.concatenate([sender[1:] != sender[:-1], [True]])[: len(order)]
    by_row = np.argsort(order[is_last])
    last, member = order[is_last][by_row], sender[is_last][by_row]
    group = members.group[member]
    return Frame(
        {
            "owner": member - np.array(members.bounds)[group],
            "op": rows.seq[last],
            "t": rows.t[last],
            "seq": rows.seq[last],
            "sub": np.zeros(len(last), dtype=np.int64),
            "deadline": rows.t[last] // 1000 + members.timeout[member],
            **{name: rows.columns[name][last] for name in _TEXTS},
            "group": group,
        }
    )
