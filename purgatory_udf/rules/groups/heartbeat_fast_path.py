"""Signs of life of a stable group, decided on columns.

While a group is stable, a heartbeat or an offset commit of a member changes nothing but that member's session: the sign
ends the open one and begins the next. So the sessions of a run of signs are the differences between consecutive times
of one member, with a session timeout of 10 s:

    member a    ●────4s────●─────6s─────●──────────12s──────────●       each sign ends the session before it, but
                                        └──────10s───────┤              the last one comes too late
    member b    ●──────7s──────●───────9s───────●────────┊──10s──
                                                         limit: a's session expires

A run reaches to the first moment at which anything else happens: the first session that no sign ends in time, or any
other timer of the group. What comes at that millisecond or later is not part of it. A sign from whoever is no member of
this generation changes nothing at all, and is only answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from purgatory_udf.rules.coordinator.group_metadata import Group
from purgatory_udf.rules.groups.frames import Array, Frame
from purgatory_udf.rules.groups.group_codes import ERROR_OF, FOREVER, KIND_OF, NONE
from purgatory_udf.rules.groups.group_state_store import SESSIONS, GroupSnapshot
from purgatory_udf.rules.groups.operation_timeline import ENDED


@dataclass(frozen=True)
class HeartbeatRun:
    """The first `length` rows, their answers (places in `ERRORS`), and the sessions that they ended."""

    length: int
    answers: Array
    ended: Frame


def apply_heartbeats(kept: GroupSnapshot, rows: Frame) -> HeartbeatRun:
    """Decide as many of these rows, all of them signs, as come before anything else happens in this stable group."""
    group = kept.group
    assert group is not None and kept.is_stable, "only a stable group's signs change nothing but sessions"
    session_of = _current_sessions(kept)
    if (session_of < 0).any():
        return HeartbeatRun(0, np.zeros(0, dtype=np.int64), ENDED.empty())
    member, answers = _senders(group, rows)
    timeout = np.array([member.session_timeout_ms for member in group.members.values()], dtype=np.int64)

    # Signs by member, in order of time; `first` of each member follows the session that was open before the run.
    valid = np.flatnonzero(answers == 0)
    order = valid[np.argsort(member[valid], kind="stable")]
    who, ms = member[order], rows.t[order] // 1000
    first = np.concatenate([[True], who[1:] != who[:-1]])[: len(who)]
    before = np.concatenate([[0], (ms + timeout[who])[:-1]])[: len(who)]
    before = np.where(first, kept.sessions.deadline[session_of[who]], before)

    limit = min(_other_timers(kept, session_of), _first_missed_deadline(kept, session_of, who, ms, timeout, before))
    length = int(np.searchsorted(rows.t, limit * 1000)) if limit < FOREVER else len(rows)
    inside = order < length
    order, first, before = order[inside], first[inside], before[inside]
    ended = _ended(kept, rows, order, first, before, session_of[member[order]])
    _renew(kept, rows, order, member, timeout, session_of)
    return HeartbeatRun(length, answers[:length], ended)


def _current_sessions(kept: GroupSnapshot) -> Array:
    """Of each member the place of its open session, -1 where it has not exactly one under its own id."""
    group, sessions = kept.group, kept.sessions
    assert group is not None
    ids = list(group.members)
    place = np.full(len(ids), -1, dtype=np.int64)
    for number, (owner, member_id) in enumerate(zip(sessions.owner.tolist(), sessions.member_id, strict=True)):
        if 0 <= owner < len(ids) and ids[owner] == member_id:
            place[owner] = number if place[owner] == -1 else -2
    return place


def _senders(group: Group, rows: Frame) -> tuple[Array, Array]:
    """Which member each row is from (-1: none), and what it is answered."""
    place = {member_id: number for number, member_id in enumerate(group.members)}
    member = np.fromiter((place.get(member_id, -1) for member_id in rows.member_id), dtype=np.int64, count=len(rows))
    answers = np.where(member < 0, ERROR_OF["UNKNOWN_MEMBER_ID"], 0)
    for row in np.flatnonzero(rows.static).tolist():
        answers[row] = ERROR_OF[group.refuses(rows.member_id[row], rows.instance_id[row]) or NONE]
    stale = (answers == 0) & (rows.generation != group.generation)
    return member, np.where(stale, ERROR_OF["ILLEGAL_GENERATION"], answers)


def _other_timers(kept: GroupSnapshot, session_of: Array) -> int:
    """The earliest deadline of anything but the members' own sessions."""
    others = np.ones(len(kept.sessions), dtype=bool)
    others[session_of] = False
    deadlines = [round_.deadline_ms for round_ in kept.rounds] + kept.sessions.deadline[others].tolist()
    return min(deadlines, default=FOREVER)


def _first_missed_deadline(
    kept: GroupSnapshot, session_of: Array, who: Array, ms: Array, timeout: Array, before: Array
) -> int:
    """The earliest deadline that no sign comes before: of a session in between, or of a member's last."""
    last = kept.sessions.deadline[session_of]
    last[who] = ms + timeout[who]
    late = before[ms >= before]
    return int(min(last.min(), late.min() if len(late) else FOREVER))


def _ended(kept: GroupSnapshot, rows: Frame, order: Array, first: Array, before: Array, session: Array) -> Frame:
    """Each sign ends the session before it: the one that was open, or the one that the member's last sign began."""
    previous = np.concatenate([[0], order[:-1]])[: len(order)]
    old, count = kept.sessions, len(order)
    words = {name: np.where(first, old.columns[name][session], rows.columns[name][previous]) for name in _NAMES}
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
            "deadline": before,
            "expired": np.zeros(count, dtype=np.int64),
            "watched": np.ones(count, dtype=np.int64),
            "rule": rows.api[order],
            "triggered": np.ones(count, dtype=np.int64),
            **words,
        }
    )


_NAMES = ("member_id", "request_id", "client_id")


def _renew(kept: GroupSnapshot, rows: Frame, order: Array, member: Array, timeout: Array, session_of: Array) -> None:
    """The last sign of each member begins the session that stays open; those of others stay as they are."""
    who = member[order]
    last = np.sort(order[np.concatenate([who[1:] != who[:-1], [True]])[: len(order)]])
    if not len(last):
        return
    stays = np.ones(len(kept.sessions), dtype=bool)
    stays[session_of[member[last]]] = False
    begun = Frame(
        {
            "owner": member[last],
            "op": rows.seq[last],
            "t": rows.t[last],
            "seq": rows.seq[last],
            "sub": np.zeros(len(last), dtype=np.int64),
            "deadline": rows.t[last] // 1000 + timeout[member[last]],
            **{name: rows.columns[name][last] for name in _NAMES},
        }
    )
    kept.sessions = Frame.concat([kept.sessions.take(stays), begun]).only(SESSIONS.names)
