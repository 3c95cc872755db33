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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.rules.coordinator.group_metadata import Group
from purgatory_udf.rules.groups.column_frames import Array, Frame
from purgatory_udf.rules.groups.group_rows import ERROR_OF, FOREVER, KIND_OF, NONE
from purgatory_udf.rules.groups.group_state_store import SESSIONS, GroupSnapshot
from purgatory_udf.rules.groups.operation_timeline import ENDED
from purgatory_udf.rules.purgatory.clock import Pauses


@dataclass(frozen=True)
class HeartbeatRun:
    """A decided run: its length in rows, the answers as indices into `ERRORS`, and the sessions that it completed."""

    length: int
    answers: Array
    ended: Frame


def apply_heartbeats(snapshot: GroupSnapshot, rows: Frame, pauses: Pauses) -> HeartbeatRun:
    """Apply the rows up to the next timer of the group that fires. Updates the sessions of `snapshot`.

    Args:
        snapshot: A stable group.
        rows: Heartbeats and offset commits only, in order.
        pauses: The times at which the group's broker stood still.
    """
    group = snapshot.group
    assert group is not None and snapshot.is_stable, "heartbeats change sessions only while the group is stable"
    session_of = _current_sessions(snapshot)
    if (session_of < 0).any():
        return HeartbeatRun(0, np.zeros(0, dtype=np.int64), ENDED.empty())
    member, answers = _senders(group, rows)
    timeout = np.array([member.session_timeout_ms for member in group.members.values()], dtype=np.int64)

    # Heartbeats by member, in order of time, with the deadline of the session that each completes. The `first` of each
    # member completes a session from before the run.
    valid = np.flatnonzero(answers == 0)
    order = valid[np.argsort(member[valid], kind="stable")]
    sender, ms = member[order], rows.t[order] // 1000
    first = np.concatenate([[True], sender[1:] != sender[:-1]])[: len(sender)]
    deadline = np.concatenate([[0], (ms + timeout[sender])[:-1]])[: len(sender)]
    deadline = np.where(first, snapshot.sessions.deadline[session_of[sender]], deadline)

    limit = min(
        _other_timers(snapshot, session_of),
        _first_missed_deadline(snapshot, session_of, sender, ms, timeout, deadline, pauses),
    )
    limit = pauses.fires_ms(group.broker, limit)
    length = int(np.searchsorted(rows.t, limit * 1000)) if limit < FOREVER else len(rows)
    inside = order < length
    order, first, deadline = order[inside], first[inside], deadline[inside]
    ended = _ended(snapshot, rows, order, first, deadline, session_of[member[order]])
    _renew(snapshot, rows, order, member, timeout, session_of)
    return HeartbeatRun(length, answers[:length], ended)


def _current_sessions(snapshot: GroupSnapshot) -> Array:
    """Return the index of each member's open session; negative unless it has exactly one session under its id."""
    group, sessions = snapshot.group, snapshot.sessions
    assert group is not None
    ids = list(group.members)
    index = np.full(len(ids), -1, dtype=np.int64)
    for number, (owner, member_id) in enumerate(zip(sessions.owner.tolist(), sessions.member_id, strict=True)):
        if 0 <= owner < len(ids) and ids[owner] == member_id:
            index[owner] = number if index[owner] == -1 else -2
    return index


def _senders(group: Group, rows: Frame) -> tuple[Array, Array]:
    """Return the member that sent each row (-1 for none), and the answer as an index into `ERRORS`."""
    index = {member_id: number for number, member_id in enumerate(group.members)}
    member = np.fromiter((index.get(member_id, -1) for member_id in rows.member_id), dtype=np.int64, count=len(rows))
    answers = np.where(member < 0, ERROR_OF["UNKNOWN_MEMBER_ID"], 0)
    for row in np.flatnonzero(rows.static).tolist():
        answers[row] = ERROR_OF[group.validate_member(rows.member_id[row], rows.instance_id[row]) or NONE]
    stale = (answers == 0) & (rows.generation != group.generation)
    return member, np.where(stale, ERROR_OF["ILLEGAL_GENERATION"], answers)


def _other_timers(snapshot: GroupSnapshot, session_of: Array) -> int:
    """Return the earliest deadline of the group's timers other than members' current sessions, in epoch milliseconds.

    Without such timers it is `FOREVER`.
    """
    others = np.ones(len(snapshot.sessions), dtype=bool)
    others[session_of] = False
    deadlines = snapshot.sessions.deadline[others].tolist()
    deadlines += [operation.deadline_ms for operation in snapshot.rebalances]
    if snapshot.commit_ms is not None:
        deadlines.append(snapshot.commit_ms)
    return min(deadlines, default=FOREVER)


def _first_missed_deadline(
    snapshot: GroupSnapshot,
    session_of: Array,
    sender: Array,
    ms: Array,
    timeout: Array,
    deadline: Array,
    pauses: Pauses,
) -> int:
    """Return the earliest deadline of a session that no heartbeat completes in time, in milliseconds.

    Args:
        snapshot: The group before the run.
        session_of: The index of each member's open session.
        sender: The member of each heartbeat, in order of member and time.
        ms: The time of each of these heartbeats.
        timeout: The session timeout of each member.
        deadline: The deadline of the session that each of these heartbeats completes.
        pauses: The times at which the group's broker stood still.
    """
    assert snapshot.group is not None
    last = snapshot.sessions.deadline[session_of]
    last[sender] = ms + timeout[sender]
    fires = deadline.copy()
    for pause in pauses.of(snapshot.group.broker):
        fires[(deadline > pause.paused_ms) & (deadline < pause.resumed_ms)] = pause.resumed_ms
    late = deadline[ms >= fires]
    return int(min(last.min(), late.min() if len(late) else FOREVER))


def _ended(snapshot: GroupSnapshot, rows: Frame, order: Array, first: Array, deadline: Array, session: Array) -> Frame:
    """Return the sessions that the run completed, as rows of `ENDED`, in the order of member and time.

    Each was open before the run, or was started by its member's previous heartbeat in the run.

    Args:
        snapshot: The group before the run.
        rows: The heartbeats of the run.
        order: The row of the heartbeat that completes each session.
        first: Whether that heartbeat is its member's first one in the run.
        deadline: The deadline of each session.
        session: The index of the session in `snapshot`, if `first`.
    """
    previous = np.concatenate([[0], order[:-1]])[: len(order)]
    old, count = snapshot.sessions, len(order)
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


def _renew(
    snapshot: GroupSnapshot, rows: Frame, order: Array, member: Array, timeout: Array, session_of: Array
) -> None:
    """Replace the session of each member with heartbeats in the run by the one that its last heartbeat started.

    Args:
        snapshot: The group, whose sessions are replaced.
        rows: The heartbeats of the run.
        order: The rows of members' heartbeats, in the order of member and time.
        member: The member of each row.
        timeout: The session timeout of each member, in milliseconds.
        session_of: The index of each member's open session.
    """
    sender = member[order]
    last = np.sort(order[np.concatenate([sender[1:] != sender[:-1], [True]])[: len(order)]])
    if not len(last):
        return
    unchanged = np.ones(len(snapshot.sessions), dtype=bool)
    unchanged[session_of[member[last]]] = False
    started = Frame(
        {
            "owner": member[last],
            "op": rows.seq[last],
            "t": rows.t[last],
            "seq": rows.seq[last],
            "sub": np.zeros(len(last), dtype=np.int64),
            "deadline": rows.t[last] // 1000 + timeout[member[last]],
            **{name: rows.columns[name][last] for name in _TEXTS},
        }
    )
    snapshot.sessions = Frame.concat([snapshot.sessions.take(unchanged), started]).select(SESSIONS.names)
