"""The coordinator of classic groups as compiled code: the rules of `coordinator.group_coordinator`, on records.

It decides groups of dynamic members that all name the same protocols: no static members, no moves between brokers, no
pauses, no limit of the number of members, and at the new coordinator (Kafka 4.0) no wait for commits. `compiled_groups`
selects these groups, and fills and reads the tables. All other groups are decided by the `group_machine`.

| table | rows |
|---|---|
| `groups` | the groups, and the range of their rows in `requests` and `members` |
| `members` | every id that a group may know: of members, pending and assigned ids, and of unknown senders |
| `requests` | requests by group and time; after them, joins and syncs that wait since an earlier call |
| `restored` | operations that are open since an earlier call |
| `operations` | the operations of the call, restored ones included, by group and in the order of their start |
| `answers`, `walks`, `transitions` | what the call decided; a walk is a check that completed no operation |
| `ids` | the lists of members that transitions name |

Members of a group form a list in the order in which they joined (`next_member`), and its open sessions one in the order
in which they started (`next_session`). A group has at most one open operation of the Rebalance purgatory, because a
sync is over when the next join starts.
"""

from __future__ import annotations

from functools import partial

from purgatory_udf.rules.engine.jit import Int64Enum, records
from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import floor_div, helper, int64
from purgatory_udf.rules.engine.jit.records import Arena, Records, arena_dtype, record, record_copier
from purgatory_udf.rules.groups.group_rows import ERROR_OF, FOREVER, KIND_OF, RULE_OF, Api
from purgatory_udf.rules.groups.operation_timeline import WatcherList
from purgatory_udf.rules.purgatory.timing_wheel import WHEEL_SIZE

# The timing wheel of the new coordinator.
_WHEEL_SIZE = int64(WHEEL_SIZE)
# The index for "none", as of a member or request.
NONE = int64(-1)
# `request` of the first restored operation.
RESTORED = -2
# The rule of an operation that has not ended.
OPEN = -1
# `operation_timeline.BY_CLOCK`: the `seq` of what a timer causes.
_BY_CLOCK = int64(-1)
_FOREVER = int64(FOREVER)


class _State(Int64Enum):
    """The states of a group (`GroupState`), without Dead."""

    EMPTY = 0
    PREPARING = 1
    COMPLETING = 2
    STABLE = 3


class Reason(Int64Enum):
    """Why a group changed its state. Most reasons name a member, or a list of them."""

    MEMBER_JOINED = 0
    LEADER_REJOINED = 1
    MEMBER_LEFT = 2
    SESSION_EXPIRED = 3
    DID_NOT_SYNC = 4
    NO_MEMBERS_LEFT = 5
    ALL_JOINED = 6
    DID_NOT_REJOIN = 7
    INITIAL_DELAY_OVER = 8
    DID_NOT_JOIN = 9
    ASSIGNMENT = 10
    PENDING_LEFT = 11


class _Kind(Int64Enum):
    """Kinds of operations, as in `KINDS`."""

    HEARTBEAT = KIND_OF["heartbeat"]
    SYNC = KIND_OF["sync"]
    JOIN = KIND_OF["join"]
    INITIAL_JOIN = KIND_OF["initial_join"]


class _List(Int64Enum):
    """Kinds of watcher lists, as in `WatcherList`."""

    SESSIONS = int(WatcherList.SESSIONS)
    JOINS = int(WatcherList.JOINS)
    SYNCS = int(WatcherList.SYNCS)


class _Rule(Int64Enum):
    """Rules that end operations, as in `RULES`. The API of a request is also a rule."""

    OPEN = OPEN
    TIMEOUT = RULE_OF["timeout"]
    ALL_JOINED = RULE_OF["all_joined"]
    NO_MEMBERS = RULE_OF["no_members"]
    ALL_SYNCED = RULE_OF["all_synced"]
    REBALANCE = RULE_OF["rebalance"]
    NEW_GENERATION = RULE_OF["new_generation"]
    ASSIGNMENT = RULE_OF["assignment"]
    AWAITING_JOIN = RULE_OF["awaiting_join"]
    AWAITING_SYNC = RULE_OF["awaiting_sync"]
    REMOVED = RULE_OF["removed"]


class _Error(Int64Enum):
    """Errors, as in `ERRORS`."""

    NONE = ERROR_OF["NONE"]
    UNKNOWN_MEMBER_ID = ERROR_OF["UNKNOWN_MEMBER_ID"]
    ILLEGAL_GENERATION = ERROR_OF["ILLEGAL_GENERATION"]
    REBALANCE_IN_PROGRESS = ERROR_OF["REBALANCE_IN_PROGRESS"]
    MEMBER_ID_REQUIRED = ERROR_OF["MEMBER_ID_REQUIRED"]
    INVALID_SESSION_TIMEOUT = ERROR_OF["INVALID_SESSION_TIMEOUT"]


class _Api(Int64Enum):
    """The requests, as in `Api`."""

    HEARTBEAT = int(Api.HEARTBEAT)
    OFFSET_COMMIT = int(Api.OFFSET_COMMIT)
    JOIN_GROUP = int(Api.JOIN_GROUP)
    SYNC_GROUP = int(Api.SYNC_GROUP)
    LEAVE_GROUP = int(Api.LEAVE_GROUP)


# A group.
#   next_session_ms    no session is due before this time
#   first_member, first_session, leader, rebalance   a member, session, member and operation, or `NONE`
#   count, waiting, pending, unsynced number of members, of those with a waiting join, of pending ids, and of members
#                      that have not synced
#   request_begin, …   the ranges of its requests, ids, restored sessions and, set by the call, operations
#   restored_rebalance the restored join or sync, or `NONE`
#   is_new             it belongs to the new coordinator
#   exists             0 until a request creates the group
#   has_protocol       whether its protocol was selected in this call (1), or it ended without one (0); else -1
#   unsupported        the call met a case that only the `group_machine` decides
GROUP = record(
    i8="generation derived_operations next_session_ms",
    i4="first_member last_member first_session last_session leader rebalance count waiting pending unsynced "
    "assigned_by request_begin request_end member_begin member_end session_begin session_end restored_rebalance "
    "operation_begin operation_end",
    i1="state exists is_new leader_is_provisional new_member_added is_initial_rebalance has_protocol unsupported",
)
# An id of a group.
#   awaiting_join, awaiting_sync, session   a waiting request of the member, and its open session
#   joined_by, updated_by   the joins of this call with which it became a member, and that it sent last, or `NONE`
MEMBER = record(
    i8="session_ms rebalance_ms",
    i4="awaiting_join awaiting_sync session next_member previous_member joined_by updated_by",
    i1="is_member is_pending is_unsynced is_new",
)
# A request.
#   member             the sender; `NONE` without an id
#   assigned, derived  of a join without an id: the recorded id, and the id if none is recorded or it is in use
#   named_leader       the leader in the recorded answer
#   needs_id           a member without an id has to join again with the id that it is assigned
REQUEST = record(
    i8="t seq generation session_ms rebalance_ms", i4="member assigned derived named_leader", i1="api needs_id"
)
# An operation. `op` is its id, or the number of a derived id. `request` is the request of which it has the ids of
# request and client; of restored operations, their index in `restored`, from -2 downwards.
OPERATION = record(
    i8="op t seq end_t end_seq deadline delay remaining",
    i4="sub end_sub member request next_session previous_session",
    i1="kind rule is_derived is_pending is_watched is_triggered is_expired",
)
ANSWER = record(i8="at generation", i4="request member leader", i1="error")
WALK = record(i8="t seq", i4="sub group member", i1="list")
# A transition. The reason names the `ids` from `named_begin` on; the members after it are from `members_begin` on.
TRANSITION = record(
    i8="t generation", i4="group named_begin members_begin members_end", i1="from_state to_state reason"
)
ID = record(i4="member")
# `coordinator_timer.wheel_order` of two tasks: when they enter their buckets.
ORDER = record(i8="entered_ms other_ms")
# More buckets than a task can pass through.
NUMBER_OF_ORDERS = 16

DTYPES = {
    "groups": GROUP,
    "members": MEMBER,
    "requests": REQUEST,
    "restored": OPERATION,
    "operations": OPERATION,
    "answers": ANSWER,
    "walks": WALK,
    "transitions": TRANSITION,
    "ids": ID,
    "orders": ORDER,
}
# The tables to which the call appends rows.
GROWING = ("operations", "answers", "walks", "transitions", "ids")
# `operations`, …: the number of rows in the tables that grow. `t`, `seq`, `sub`: the moment of the current step.
# `event_t`, `event_seq`: the last request. `group`: the current group.
_ARENA = arena_dtype(
    DTYPES,
    *GROWING,
    *("group", "t", "seq", "sub", "event_t", "event_seq"),
    *("initial_delay_ms", "min_session_ms", "max_session_ms", "new_member_ms", "uses_session_timeout"),
)
make_arena = partial(records.make_arena, dtypes=DTYPES, arena=_ARENA)
_accessor = partial(records.accessor, dtypes=DTYPES, arena=_ARENA)
_group_at = _accessor("groups")
_member_at = _accessor("members")
_request_at = _accessor("requests")
_restored_at = _accessor("restored")
_operation_at = _accessor("operations")
_answer_at = _accessor("answers")
_walk_at = _accessor("walks")
_transition_at = _accessor("transitions")
_id_at = _accessor("ids")
_order_at = _accessor("orders")
_copy_operation = record_copier(OPERATION, OPERATION)


@entry_point
def decide_groups(arenas: Records, horizon_ms: int) -> int:
    """Decide the requests of the groups, and run their timers up to the horizon.

    Returns 1, or 0 if a table is full. The call must then be repeated with the original groups, and larger tables.
    """
    arena = arenas[0]
    for g in range(arena.groups_capacity):
        if not _decide_group(arena, g, horizon_ms):
            return 0
    return 1


@helper
def _decide_group(arena: Arena, g: int, horizon_ms: int) -> bool:
    group = _group_at(arena, g)
    arena.group, arena.event_t, arena.event_seq = g, _BY_CLOCK, _BY_CLOCK
    if not _has_room(arena, g):
        return False
    group.operation_begin = arena.operations
    _restore_operations(arena, g)
    done = True
    at = group.request_begin
    while done and at < group.request_end and not group.unsupported:
        request = _request_at(arena, at)
        done = _advance(arena, g, floor_div(request.t, 1000)) and _has_room(arena, g)
        if done:
            arena.t, arena.seq, arena.sub = request.t, request.seq, 0
            _handle(arena, g, at)
            arena.event_t, arena.event_seq = request.t, request.seq
        at += 1
    done = done and _advance(arena, g, horizon_ms)
    group.operation_end = arena.operations
    return done


@helper
def _has_room(arena: Arena, g: int) -> bool:
    """Return whether the tables have room for what one step, or restoring the operations, can add."""
    group = _group_at(arena, g)
    most = 4 * (group.count + group.pending) + group.session_end - group.session_begin + 16
    return bool(
        arena.operations + most <= arena.operations_capacity
        and arena.answers + most <= arena.answers_capacity
        and arena.walks + most <= arena.walks_capacity
        and arena.transitions + 8 <= arena.transitions_capacity
        and arena.ids + 2 * most <= arena.ids_capacity
    )


@helper
def _restore_operations(arena: Arena, g: int) -> None:
    group = _group_at(arena, g)
    group.next_session_ms = _FOREVER
    group.first_session = group.last_session = NONE
    for at in range(group.session_begin, group.session_end):
        o = _restore(arena, at)
        session = _operation_at(arena, o)
        _open_session(arena, g, session.member, o)
    group.rebalance = NONE
    if group.restored_rebalance != NONE:
        group.rebalance = _restore(arena, group.restored_rebalance)


@helper
def _restore(arena: Arena, at: int) -> int:
    o = arena.operations
    arena.operations += 1
    _copy_operation(_operation_at(arena, o), _restored_at(arena, at))
    return int64(o)


# Timers.


@helper
def _advance(arena: Arena, g: int, now_ms: int) -> bool:
    """Run all timers up to `now_ms`, one millisecond and one purgatory at a time. Return False if a table is full."""
    group = _group_at(arena, g)
    last_ms, turn = int64(-1), int64(0)
    while not group.unsupported:
        if group.next_session_ms <= now_ms:
            _find_next_session(arena, g)
        sessions_ms, rebalance_ms = group.next_session_ms, _FOREVER
        if group.rebalance != NONE:
            rebalance_ms = _operation_at(arena, group.rebalance).deadline
        due_ms = min(sessions_ms, rebalance_ms)
        if due_ms > now_ms or due_ms >= _FOREVER:
            return True
        if not _has_room(arena, g):
            return False
        place = int64(0) if sessions_ms <= rebalance_ms else int64(1)
        if group.is_new:
            # Both kinds of operations have one timer.
            place = int64(0)
        turn = place if due_ms != last_ms else turn + int64(turn % 2 != place)
        last_ms = due_ms
        if due_ms * 1000 <= arena.event_t:
            arena.t, arena.seq, arena.sub = arena.event_t, arena.event_seq, 1 + turn
        else:
            arena.t, arena.seq, arena.sub = due_ms * 1000, _BY_CLOCK, turn
        if group.is_new:
            if not _run_timer(arena, g, due_ms):
                return False
        elif place == 0:
            _expire_sessions(arena, g, due_ms)
        else:
            while group.rebalance != NONE and _operation_at(arena, group.rebalance).deadline <= due_ms:
                _expire_rebalance(arena, g)
    return True


@helper
def _find_next_session(arena: Arena, g: int) -> None:
    group = _group_at(arena, g)
    earliest = _FOREVER
    o = group.first_session
    while o != NONE:
        session = _operation_at(arena, o)
        earliest = min(earliest, session.deadline)
        o = session.next_session
    group.next_session_ms = earliest


@helper
def _expire_sessions(arena: Arena, g: int, due_ms: int) -> None:
    """End the sessions that are due, in the order in which they started, without sessions that start in this step."""
    group = _group_at(arena, g)
    end = arena.operations
    while not group.unsupported:
        o = group.first_session
        while o != NONE and _operation_at(arena, o).deadline > due_ms:
            o = _operation_at(arena, o).next_session
        if o == NONE or o >= end:
            return
        _expire_session(arena, g, o, due_ms * 1000)


@helper
def _run_timer(arena: Arena, g: int, due_ms: int) -> bool:
    """Run the timer of the new coordinator up to `due_ms`. Return False if a table is full."""
    group = _group_at(arena, g)
    while not group.unsupported:
        if not _has_room(arena, g):
            return False
        following = group.rebalance
        if following != NONE and _operation_at(arena, following).deadline > due_ms:
            following = NONE
        o = group.first_session
        while o != NONE:
            session = _operation_at(arena, o)
            if session.deadline <= due_ms and (following == NONE or _precedes(arena, o, following)):
                following = o
            o = session.next_session
        if following == NONE:
            return True
        if _operation_at(arena, following).kind == _Kind.HEARTBEAT:
            _expire_session(arena, g, following, _operation_at(arena, following).deadline * 1000)
        else:
            _expire_rebalance(arena, g)
    return True


@helper
def _precedes(arena: Arena, left: int, right: int) -> bool:
    """Return whether a task runs before another: by deadline, bucket of the wheel, and start."""
    deadline = _operation_at(arena, left).deadline
    if deadline != _operation_at(arena, right).deadline:
        return bool(deadline < _operation_at(arena, right).deadline)
    count = _enter_buckets(arena, left, True)
    other_count = _enter_buckets(arena, right, False)
    for n in range(min(count, other_count)):
        mine = _order_at(arena, count - 1 - n).entered_ms
        others = _order_at(arena, other_count - 1 - n).other_ms
        if mine != others:
            return bool(mine < others)
    return left < right


@helper
def _enter_buckets(arena: Arena, o: int, is_left: bool) -> int:
    """Note when a task enters its buckets, coarsest wheel first, as `wheel_order` does. Return their number."""
    operation = _operation_at(arena, o)
    at_ms, entered = floor_div(operation.t, 1000), 2 * floor_div(operation.t, 1000) + 1
    count = int64(0)
    while True:
        if is_left:
            _order_at(arena, count).entered_ms = entered
        else:
            _order_at(arena, count).other_ms = entered
        count += 1
        tick_ms = int64(1)
        while operation.deadline >= at_ms - at_ms % tick_ms + tick_ms * _WHEEL_SIZE:
            tick_ms *= _WHEEL_SIZE
        if tick_ms == 1:
            return count
        at_ms = operation.deadline - operation.deadline % tick_ms
        entered = 2 * at_ms


@helper
def _expire_session(arena: Arena, g: int, o: int, now_us: int) -> None:
    """End a session at its deadline: without effect if no heartbeat is due, or else its member has failed."""
    session = _operation_at(arena, o)
    m = session.member
    member = _member_at(arena, m)
    _close_session(arena, g, m)
    if session.is_pending:
        if not member.is_pending:
            _end(arena, o, _Api.JOIN_GROUP if member.is_member else _Rule.REMOVED, now_us, False)
            return
    elif not member.is_member:
        _end(arena, o, _Rule.REMOVED, now_us, False)
        return
    else:
        rule = _satisfied_by(arena, m)
        if rule != _Rule.OPEN:
            _end(arena, o, rule, now_us, False)
            return
    _end(arena, o, _Rule.TIMEOUT, now_us, False)
    session.is_expired = True
    failed_us = max(now_us, session.t)
    if session.is_pending:
        _remove_pending(arena, g, m, failed_us, NONE)
    else:
        _remove_member(arena, g, m, Reason.SESSION_EXPIRED, failed_us, NONE)


@helper
def _expire_rebalance(arena: Arena, g: int) -> None:
    """Expire the open join or sync."""
    group = _group_at(arena, g)
    o = group.rebalance
    operation = _operation_at(arena, o)
    group.rebalance = NONE
    _end(arena, o, _Rule.TIMEOUT, operation.deadline * 1000, False)
    operation.is_expired = True
    now_us = max(operation.deadline * 1000, operation.t)
    if operation.kind == _Kind.SYNC:
        _remove_unsynced(arena, g, now_us)
    elif operation.kind == _Kind.INITIAL_JOIN and group.new_member_added and operation.remaining > 0:
        group.new_member_added = False
        delay = min(arena.initial_delay_ms, operation.remaining)
        remaining = max(operation.remaining - operation.delay, 0)
        _watch_join(arena, g, _Kind.INITIAL_JOIN, now_us, NONE, delay, remaining)
    else:
        _complete_join(arena, g, operation.kind == _Kind.INITIAL_JOIN, False, now_us)


# Requests.


@helper
def _handle(arena: Arena, g: int, at: int) -> None:
    group, request = _group_at(arena, g), _request_at(arena, at)
    if request.api == _Api.JOIN_GROUP:
        if not arena.min_session_ms <= request.session_ms <= arena.max_session_ms:
            _answer(arena, at, _Error.INVALID_SESSION_TIMEOUT, request.t)
            return
        if not group.exists and request.member == NONE:
            group.exists = True
        if not group.exists:
            _answer(arena, at, _Error.UNKNOWN_MEMBER_ID, request.t)
        else:
            _join(arena, g, at)
    elif request.api == _Api.LEAVE_GROUP:
        _leave(arena, g, at)
    elif request.api == _Api.OFFSET_COMMIT and request.generation < 0 and not group.exists:
        group.exists = True
    elif request.api == _Api.OFFSET_COMMIT and request.generation < 0 and group.state == _State.EMPTY:
        # The sender assigns its partitions itself, and only stores offsets.
        return
    elif request.api == _Api.OFFSET_COMMIT and not group.exists:
        _answer(arena, at, _Error.ILLEGAL_GENERATION, request.t)
    elif not _is_member(arena, g, request.member):
        _answer(arena, at, _Error.UNKNOWN_MEMBER_ID, request.t)
    elif request.generation != group.generation:
        _answer(arena, at, _Error.ILLEGAL_GENERATION, request.t)
    elif request.api == _Api.SYNC_GROUP:
        _sync(arena, g, at)
    elif request.api == _Api.OFFSET_COMMIT and group.state == _State.COMPLETING:
        _answer(arena, at, _Error.REBALANCE_IN_PROGRESS, request.t)
    else:
        _renew(arena, g, request.member, at)
        if request.api == _Api.HEARTBEAT and group.state == _State.PREPARING:
            _answer(arena, at, _Error.REBALANCE_IN_PROGRESS, request.t)


@helper
def _is_member(arena: Arena, g: int, m: int) -> bool:
    return bool(m != NONE and _member_at(arena, m).is_member)


@helper
def _join(arena: Arena, g: int, at: int) -> None:
    group, request = _group_at(arena, g), _request_at(arena, at)
    m = request.member
    if m == NONE:
        new_id = request.assigned
        if new_id == NONE or _member_at(arena, new_id).is_member or _member_at(arena, new_id).is_pending:
            new_id = request.derived
        if request.needs_id:
            _set_pending(arena, g, new_id, True)
            _start_session(arena, g, new_id, request.seq, False, request.t, at, request.session_ms, True)
            _answer_with(arena, at, _Error.MEMBER_ID_REQUIRED, request.t, new_id, NONE, NONE)
        else:
            _add_member(arena, g, new_id, at)
    elif _member_at(arena, m).is_pending:
        _add_member(arena, g, m, at)
    elif not _member_at(arena, m).is_member:
        _answer(arena, at, _Error.UNKNOWN_MEMBER_ID, request.t)
    elif group.state == _State.PREPARING:
        _update_member(arena, g, m, at)
    elif group.state == _State.STABLE and group.leader == m:
        _update_member(arena, g, m, at)
        named = _note_id(arena, m)
        _prepare_rebalance(arena, g, Reason.LEADER_REJOINED, named, request.t, at)
    else:
        _answer_with(arena, at, _Error.NONE, request.t, m, group.generation, group.leader)
    if group.state == _State.PREPARING:
        _check_join(arena, g, request.t, False)


@helper
def _set_pending(arena: Arena, g: int, m: int, is_pending: bool) -> None:
    member = _member_at(arena, m)
    _group_at(arena, g).pending += int64(is_pending) - int64(member.is_pending)
    member.is_pending = is_pending


@helper
def _update_member(arena: Arena, g: int, m: int, at: int) -> None:
    """Apply a join and let it wait. It replaces a join that already waits."""
    member, request = _member_at(arena, m), _request_at(arena, at)
    member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
    _group_at(arena, g).waiting += int64(member.awaiting_join == NONE)
    member.awaiting_join = member.updated_by = at


@helper
def _add_member(arena: Arena, g: int, m: int, at: int) -> None:
    group, member, request = _group_at(arena, g), _member_at(arena, m), _request_at(arena, at)
    is_first = group.is_initial_rebalance != 0 if group.is_new else group.generation == 0
    if group.state == _State.PREPARING and is_first:
        group.new_member_added = True
    if group.leader == NONE:
        group.leader, group.leader_is_provisional = m, False
    member.is_member, member.is_new, member.is_unsynced = True, True, False
    member.awaiting_join, member.awaiting_sync = NONE, NONE
    member.joined_by = at
    member.previous_member, member.next_member = group.last_member, NONE
    if group.last_member == NONE:
        group.first_member = m
    else:
        _member_at(arena, group.last_member).next_member = m
    group.last_member = m
    group.count += 1
    _update_member(arena, g, m, at)
    _set_pending(arena, g, m, False)
    group.derived_operations += 1
    _schedule_next(arena, g, m, _Api.JOIN_GROUP, group.derived_operations, True, request.t, at, arena.new_member_ms)
    if group.state != _State.PREPARING:
        named = _note_id(arena, m)
        _prepare_rebalance(arena, g, Reason.MEMBER_JOINED, named, request.t, at)


@helper
def _sync(arena: Arena, g: int, at: int) -> None:
    group, request = _group_at(arena, g), _request_at(arena, at)
    m = request.member
    member = _member_at(arena, m)
    if group.state == _State.PREPARING:
        _answer(arena, at, _Error.REBALANCE_IN_PROGRESS, request.t)
        return
    if group.state == _State.COMPLETING:
        member.awaiting_sync = at
    _set_unsynced(arena, g, m, False)
    _check_sync(arena, g, request.t)
    if group.state == _State.STABLE:
        _answer(arena, at, _Error.NONE, request.t)
        if not group.is_new:
            _renew(arena, g, m, at)
    elif group.leader == m:
        _answer_syncs(arena, g, _Error.NONE, _Rule.ASSIGNMENT, request.t, at)
        group.assigned_by = at
        named = arena.ids
        _change_state(arena, g, _State.STABLE, Reason.ASSIGNMENT, named, request.t)


@helper
def _leave(arena: Arena, g: int, at: int) -> None:
    group, request = _group_at(arena, g), _request_at(arena, at)
    m = request.member
    if not group.exists or m == NONE:
        _answer(arena, at, _Error.UNKNOWN_MEMBER_ID, request.t)
    elif _member_at(arena, m).is_pending:
        _remove_pending(arena, g, m, request.t, at)
        _answer(arena, at, _Error.NONE, request.t)
    elif _member_at(arena, m).is_member:
        _remove_member(arena, g, m, Reason.MEMBER_LEFT, request.t, at)
        _check_session(arena, g, m, _Api.LEAVE_GROUP, request.t)
        _answer(arena, at, _Error.NONE, request.t)
    else:
        _answer(arena, at, _Error.UNKNOWN_MEMBER_ID, request.t)


# Rebalances.


@helper
def _prepare_rebalance(arena: Arena, g: int, reason: int, named: int, now_us: int, request: int) -> None:
    """Start a rebalance. The reason names the `ids` from `named` on."""
    group = _group_at(arena, g)
    if group.state == _State.COMPLETING:
        _answer_syncs(arena, g, _Error.REBALANCE_IN_PROGRESS, _Rule.REBALANCE, now_us, NONE)
    from_empty = group.state == _State.EMPTY
    m = group.first_member
    while m != NONE:
        _member_at(arena, m).is_unsynced = False
        m = _member_at(arena, m).next_member
    group.unsynced = 0
    _change_state(arena, g, _State.PREPARING, reason, named, now_us)
    _check_sync(arena, g, now_us)
    timeout_ms = _rebalance_timeout_ms(arena, g)
    if from_empty:
        delay = arena.initial_delay_ms
        _watch_join(arena, g, _Kind.INITIAL_JOIN, now_us, request, delay, max(timeout_ms - delay, 0))
    else:
        _watch_join(arena, g, _Kind.JOIN, now_us, request, timeout_ms, 0)


@helper
def _rebalance_timeout_ms(arena: Arena, g: int) -> int:
    longest = int64(0)
    m = _group_at(arena, g).first_member
    if m != NONE:
        longest = _timeout_of(arena, m)
        m = _member_at(arena, m).next_member
    while m != NONE:
        longest = max(longest, _timeout_of(arena, m))
        m = _member_at(arena, m).next_member
    return longest


@helper
def _timeout_of(arena: Arena, m: int) -> int:
    member = _member_at(arena, m)
    return int64(member.session_ms if arena.uses_session_timeout else member.rebalance_ms)


@helper
def _watch_join(arena: Arena, g: int, kind: int, now_us: int, request: int, delay: int, remaining: int) -> None:
    """Start an initial join or join. A join completes at once if all members wait for it."""
    group = _group_at(arena, g)
    o = _add_rebalance_operation(arena, g, kind, now_us, request, delay)
    _operation_at(arena, o).remaining = remaining
    if kind == _Kind.JOIN and _all_joined(arena, g):
        _end(arena, o, _Rule.ALL_JOINED if group.count else _Rule.NO_MEMBERS, now_us, False)
        _complete_join(arena, g, False, True, now_us)
    else:
        _operation_at(arena, o).is_watched = True
        group.rebalance = o


@helper
def _add_rebalance_operation(arena: Arena, g: int, kind: int, now_us: int, request: int, delay: int) -> int:
    """Add an operation of the Rebalance purgatory. It has the id of its request, or else a derived one."""
    group = _group_at(arena, g)
    o = _add_operation(arena, kind, now_us, delay, NONE, request)
    operation = _operation_at(arena, o)
    operation.is_derived = request == NONE
    if request == NONE:
        group.derived_operations += 1
        operation.op = group.derived_operations
    else:
        operation.op = _request_at(arena, request).seq
    return o


@helper
def _all_joined(arena: Arena, g: int) -> bool:
    group = _group_at(arena, g)
    return bool(group.pending == 0 and group.waiting == group.count)


@helper
def _check_join(arena: Arena, g: int, now_us: int, is_removing: bool) -> None:
    """Complete the join if all members wait for it; an initial one only at the new coordinator if a member failed."""
    group = _group_at(arena, g)
    o = group.rebalance
    is_join = o != NONE and _operation_at(arena, o).kind != _Kind.SYNC
    if is_join and _operation_at(arena, o).kind == _Kind.INITIAL_JOIN:
        is_join = bool(group.is_new and is_removing)
    if not is_join or not _all_joined(arena, g):
        _walk(arena, _List.JOINS, NONE)
        return
    group.rebalance = NONE
    _end(arena, o, _Rule.ALL_JOINED if group.count else _Rule.NO_MEMBERS, now_us, True)
    _complete_join(arena, g, False, True, max(now_us, _operation_at(arena, o).t))


@helper
def _check_sync(arena: Arena, g: int, now_us: int) -> None:
    group = _group_at(arena, g)
    o = group.rebalance
    if o == NONE or _operation_at(arena, o).kind != _Kind.SYNC:
        _walk(arena, _List.SYNCS, NONE)
    elif group.state == _State.PREPARING or group.unsynced == 0:
        group.rebalance = NONE
        _end(arena, o, _Rule.REBALANCE if group.state == _State.PREPARING else _Rule.ALL_SYNCED, now_us, True)
    else:
        _walk(arena, _List.SYNCS, NONE)


@helper
def _complete_join(arena: Arena, g: int, is_initial: bool, is_complete: bool, now_us: int) -> None:
    """Remove the members that did not rejoin, and start the next generation with the others.

    `is_complete`: the join did not expire.
    """
    group = _group_at(arena, g)
    named = arena.ids
    if group.count == 0:
        reason = Reason.NO_MEMBERS_LEFT
    elif is_complete:
        reason = Reason.ALL_JOINED
    elif group.waiting < group.count:
        reason = Reason.DID_NOT_REJOIN
    elif is_initial:
        reason = Reason.INITIAL_DELAY_OVER
    else:
        reason = Reason.DID_NOT_JOIN
        o = group.first_session
        while o != NONE:
            session = _operation_at(arena, o)
            if _member_at(arena, session.member).is_pending:
                _note_id(arena, session.member)
            o = session.next_session
    m = group.first_member
    while m != NONE:
        following = _member_at(arena, m).next_member
        if _member_at(arena, m).awaiting_join == NONE:
            _note_id(arena, m)
            _unlink_member(arena, g, m)
            _check_session(arena, g, m, _Rule.REMOVED, now_us)
        m = following
    if group.count:
        _elect_leader(arena, g)
    group.generation += 1
    group.has_protocol = int64(group.count > 0)
    _change_state(arena, g, _State.COMPLETING if group.count else _State.EMPTY, reason, named, now_us)
    if group.count:
        _start_generation(arena, g, now_us)


@helper
def _elect_leader(arena: Arena, g: int) -> None:
    """Elect a leader among the members, which all wait for the answer to their join, unless the leader is one."""
    group = _group_at(arena, g)
    if not group.leader_is_provisional and _member_at(arena, group.leader).is_member:
        return
    m = group.first_member
    elected = m
    while m != NONE:
        named = _request_at(arena, _member_at(arena, m).awaiting_join).named_leader
        if named != NONE and _member_at(arena, named).is_member:
            elected = named
            break
        m = _member_at(arena, m).next_member
    group.leader, group.leader_is_provisional = elected, False


@helper
def _start_generation(arena: Arena, g: int, now_us: int) -> None:
    group = _group_at(arena, g)
    m = group.first_member
    while m != NONE:
        member = _member_at(arena, m)
        request = member.awaiting_join
        if request != NONE:
            member.awaiting_join = NONE
            group.waiting -= 1
            _answer_with(arena, request, _Error.NONE, now_us, m, group.generation, group.leader)
        _restart(arena, g, m, _Rule.NEW_GENERATION, now_us, request)
        member.is_new = False
        _set_unsynced(arena, g, m, True)
        m = member.next_member
    o = _add_rebalance_operation(arena, g, _Kind.SYNC, now_us, NONE, _rebalance_timeout_ms(arena, g))
    _operation_at(arena, o).is_watched = True
    group.rebalance = o


@helper
def _set_unsynced(arena: Arena, g: int, m: int, is_unsynced: bool) -> None:
    member = _member_at(arena, m)
    _group_at(arena, g).unsynced += int64(is_unsynced) - int64(member.is_unsynced)
    member.is_unsynced = is_unsynced


@helper
def _answer_syncs(arena: Arena, g: int, error: int, rule: int, now_us: int, leaders: int) -> None:
    """Answer the waiting syncs, and start new sessions for their members. `leaders` is the leader's sync, or `NONE`."""
    m = _group_at(arena, g).first_member
    while m != NONE:
        member = _member_at(arena, m)
        request = member.awaiting_sync
        if request != NONE:
            member.awaiting_sync = NONE
            _answer(arena, request, error, now_us)
            if request == leaders:
                _renew(arena, g, m, request)
            else:
                _restart(arena, g, m, rule, now_us, request)
        m = member.next_member


@helper
def _remove_unsynced(arena: Arena, g: int, now_us: int) -> None:
    """Remove the members that have not synced, and start another rebalance."""
    group = _group_at(arena, g)
    named = arena.ids
    m = group.first_member
    while m != NONE:
        following = _member_at(arena, m).next_member
        if _member_at(arena, m).is_unsynced:
            _note_id(arena, m)
            _unlink_member(arena, g, m)
            _check_session(arena, g, m, _Rule.REMOVED, now_us)
        m = following
    _prepare_rebalance(arena, g, Reason.DID_NOT_SYNC, named, now_us, NONE)


# Removal of members.


@helper
def _remove_member(arena: Arena, g: int, m: int, reason: int, now_us: int, request: int) -> None:
    group, member = _group_at(arena, g), _member_at(arena, m)
    if member.awaiting_join != NONE:
        _answer_with(arena, member.awaiting_join, _Error.UNKNOWN_MEMBER_ID, now_us, NONE, NONE, NONE)
    _unlink_member(arena, g, m)
    if group.state == _State.PREPARING:
        _check_join(arena, g, now_us, request == NONE)
    else:
        named = _note_id(arena, m)
        _prepare_rebalance(arena, g, reason, named, now_us, request)


@helper
def _remove_pending(arena: Arena, g: int, m: int, now_us: int, request: int) -> None:
    """Drop a pending id. At the new coordinator, its leave (`request`) starts a rebalance."""
    group = _group_at(arena, g)
    _set_pending(arena, g, m, False)
    if group.state == _State.PREPARING:
        _check_join(arena, g, now_us, request == NONE)
    elif group.is_new and request != NONE and group.count:
        named = _note_id(arena, m)
        _prepare_rebalance(arena, g, Reason.PENDING_LEFT, named, now_us, request)


@helper
def _unlink_member(arena: Arena, g: int, m: int) -> None:
    """Remove a member from its group. The first of the others replaces a leader until the next election."""
    group, member = _group_at(arena, g), _member_at(arena, m)
    if member.previous_member == NONE:
        group.first_member = member.next_member
    else:
        _member_at(arena, member.previous_member).next_member = member.next_member
    if member.next_member == NONE:
        group.last_member = member.previous_member
    else:
        _member_at(arena, member.next_member).previous_member = member.previous_member
    group.count -= 1
    group.waiting -= int64(member.awaiting_join != NONE)
    _set_unsynced(arena, g, m, False)
    member.is_member = False
    member.awaiting_join, member.awaiting_sync = NONE, NONE
    if group.leader == m:
        group.leader = group.first_member
        group.leader_is_provisional = group.leader != NONE


# Sessions.


@helper
def _renew(arena: Arena, g: int, m: int, at: int) -> None:
    """Complete the member's session and start the next one: the request proves the member alive."""
    request = _request_at(arena, at)
    timeout_ms = _member_at(arena, m).session_ms
    _schedule_next(arena, g, m, int64(request.api), request.seq, False, request.t, at, timeout_ms)


@helper
def _restart(arena: Arena, g: int, m: int, rule: int, now_us: int, answered: int) -> None:
    """Complete the member's session by `rule` and start the next one, with the answer to its waiting request."""
    group = _group_at(arena, g)
    group.derived_operations += 1
    timeout_ms = _member_at(arena, m).session_ms
    _schedule_next(arena, g, m, rule, group.derived_operations, True, now_us, answered, timeout_ms)


@helper
def _schedule_next(
    arena: Arena, g: int, m: int, rule: int, op: int, is_derived: bool, t: int, request: int, timeout_ms: int
) -> None:
    _check_session(arena, g, m, rule, t)
    _start_session(arena, g, m, op, is_derived, t, request, timeout_ms, False)


@helper
def _check_session(arena: Arena, g: int, m: int, rule: int, now_us: int) -> None:
    """Complete the open session of an id that is not pending: by `rule`, or the one from the time when it was."""
    member = _member_at(arena, m)
    o = member.session
    if o == NONE:
        _walk(arena, _List.SESSIONS, m)
        return
    if _operation_at(arena, o).is_pending:
        rule = int64(_Api.JOIN_GROUP) if member.is_member else int64(_Rule.REMOVED)
    _close_session(arena, g, m)
    _end(arena, o, rule, now_us, True)


@helper
def _start_session(
    arena: Arena,
    g: int,
    m: int,
    op: int,
    is_derived: bool,
    t: int,
    request: int,
    timeout_ms: int,
    is_pending: bool,
) -> None:
    """Start a session. It completes at once if its member waits for an answer."""
    group, member = _group_at(arena, g), _member_at(arena, m)
    o = _add_operation(arena, _Kind.HEARTBEAT, t, timeout_ms, m, request)
    session = _operation_at(arena, o)
    session.op, session.is_derived, session.is_pending = op, is_derived, is_pending
    rule = int64(_Rule.OPEN) if is_pending else _satisfied_by(arena, m)
    if rule != _Rule.OPEN:
        _end(arena, o, rule, t, False)
        return
    if member.session != NONE:
        # An id that was assigned twice has two sessions.
        group.unsupported = True
        return
    session.is_watched = True
    _open_session(arena, g, m, o)


@helper
def _open_session(arena: Arena, g: int, m: int, o: int) -> None:
    """Append a session to the open ones of its group."""
    group, session = _group_at(arena, g), _operation_at(arena, o)
    _member_at(arena, m).session = o
    session.previous_session, session.next_session = group.last_session, NONE
    if group.last_session == NONE:
        group.first_session = o
    else:
        _operation_at(arena, group.last_session).next_session = o
    group.last_session = o
    group.next_session_ms = min(group.next_session_ms, session.deadline)


@helper
def _close_session(arena: Arena, g: int, m: int) -> None:
    """Remove the session of an id from the open ones of its group."""
    group, member = _group_at(arena, g), _member_at(arena, m)
    session = _operation_at(arena, member.session)
    if session.previous_session == NONE:
        group.first_session = session.next_session
    else:
        _operation_at(arena, session.previous_session).next_session = session.next_session
    if session.next_session == NONE:
        group.last_session = session.previous_session
    else:
        _operation_at(arena, session.next_session).previous_session = session.previous_session
    member.session = NONE


@helper
def _satisfied_by(arena: Arena, m: int) -> int:
    """Return why no heartbeat of the member is due (`Member.heartbeat_satisfied_by`), or `OPEN`."""
    member = _member_at(arena, m)
    if not member.is_new:
        if member.awaiting_join != NONE:
            return int64(_Rule.AWAITING_JOIN)
        if member.awaiting_sync != NONE:
            return int64(_Rule.AWAITING_SYNC)
    return int64(_Rule.OPEN)


# Rows of the result.


@helper
def _add_operation(arena: Arena, kind: int, t: int, delay: int, m: int, request: int) -> int:
    o = arena.operations
    arena.operations += 1
    operation = _operation_at(arena, o)
    operation.t, operation.seq, operation.sub = t, arena.seq, arena.sub
    operation.delay = delay
    operation.deadline = floor_div(t, 1000) + max(delay, 0)
    operation.remaining = 0
    operation.kind, operation.rule = kind, _Rule.OPEN
    operation.member, operation.request = m, request
    operation.is_derived = operation.is_pending = operation.is_watched = False
    operation.is_triggered = operation.is_expired = False
    return int64(o)


@helper
def _end(arena: Arena, o: int, rule: int, now_us: int, is_triggered: bool) -> None:
    operation = _operation_at(arena, o)
    operation.rule, operation.is_triggered = rule, is_triggered
    operation.end_t, operation.end_seq, operation.end_sub = now_us, arena.seq, arena.sub


@helper
def _walk(arena: Arena, kind: int, m: int) -> None:
    walk = _walk_at(arena, arena.walks)
    arena.walks += 1
    walk.t, walk.seq, walk.sub, walk.group = arena.t, arena.seq, arena.sub, arena.group
    walk.list, walk.member = kind, m


@helper
def _answer(arena: Arena, request: int, error: int, now_us: int) -> None:
    _answer_with(arena, request, error, now_us, _request_at(arena, request).member, NONE, NONE)


@helper
def _answer_with(arena: Arena, request: int, error: int, now_us: int, m: int, generation: int, leader: int) -> None:
    answer = _answer_at(arena, arena.answers)
    arena.answers += 1
    answer.request, answer.error, answer.at = request, error, now_us
    answer.member, answer.generation, answer.leader = m, generation, leader


@helper
def _note_id(arena: Arena, m: int) -> int:
    """Append an id for the next transition, and return its place."""
    place = arena.ids
    _id_at(arena, place).member = m
    arena.ids += 1
    return int64(place)


@helper
def _change_state(arena: Arena, g: int, state: int, reason: int, named: int, now_us: int) -> None:
    group = _group_at(arena, g)
    transition = _transition_at(arena, arena.transitions)
    arena.transitions += 1
    transition.group, transition.from_state, transition.to_state = g, group.state, state
    transition.t, transition.generation, transition.reason = now_us, group.generation, reason
    transition.named_begin, transition.members_begin = named, arena.ids
    m = group.first_member
    while m != NONE:
        _note_id(arena, m)
        m = _member_at(arena, m).next_member
    transition.members_end = arena.ids
    group.is_initial_rebalance = group.state == _State.EMPTY
    group.state = state
