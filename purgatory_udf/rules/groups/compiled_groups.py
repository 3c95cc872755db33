"""Decides classic groups with the compiled coordinator: selects them, and converts their snapshots and requests.

    snapshots, requests ──► records ──► `compiled_coordinator` ──► records ──► snapshots, rows of the tables

Groups with anything that the compiled coordinator does not know are left to the `group_machine`, for the whole call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from purgatory_udf.common.configuration import GroupSettings as GroupConfig
from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.group_metadata import Group, GroupState, Member, derived_operation_id
from purgatory_udf.rules.coordinator.group_requests import (
    DEFAULT_API_VERSION,
    GroupRequest,
    JoinGroup,
    SyncGroup,
    member_timeouts,
)
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.groups.column_frames import Array, Frame
from purgatory_udf.rules.groups.compiled_coordinator import (
    DTYPES,
    GROUP,
    GROWING,
    MEMBER,
    NONE,
    NUMBER_OF_ORDERS,
    OPEN,
    OPERATION,
    REQUEST,
    RESTORED,
    Reason,
    decide_groups,
    make_arena,
)
from purgatory_udf.rules.groups.group_machine import ANSWERS
from purgatory_udf.rules.groups.group_rows import (
    API_OF,
    COORDINATORS,
    KIND_OF,
    KINDS,
    Api,
    GroupEvents,
    RequestBatch,
    decode_protocols,
    split_group_key,
)
from purgatory_udf.rules.groups.group_state_store import PENDING, SESSIONS, GroupSnapshot, RebalanceSnapshot
from purgatory_udf.rules.groups.group_step import DecidedGroups
from purgatory_udf.rules.groups.operation_timeline import ENDED, WALKS

_STATES = (GroupState.EMPTY, GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
_NUMBER_OF_STATE = {state: number for number, state in enumerate(_STATES)}
_HEARTBEAT, _INITIAL_JOIN = KIND_OF["heartbeat"], KIND_OF["initial_join"]
_NEW_COORDINATOR = COORDINATORS.index("new")

# First capacity of the tables with results, for each request, id and open operation.
_ROWS_PER_INPUT = 4
# Fields that a group and its record have in common.
_NUMBERS = ("generation", "derived_operations")
_FLAGS = ("leader_is_provisional", "new_member_added", "is_initial_rebalance")
# Fields of the records that are read after the call.
_GROUP_FIELDS = (
    *(*_NUMBERS, *_FLAGS, "exists", "state", "leader", "has_protocol", "assigned_by", "unsupported"),
    *("member_begin", "member_end", "pending", "unsynced"),
)
_MEMBER_FIELDS = (
    *("session_ms", "rebalance_ms", "awaiting_join", "awaiting_sync", "joined_by", "updated_by"),
    *("is_new", "is_pending", "is_unsynced"),
)
_CALLER = ("request_id", "client_id")

# The texts of transitions, with the members that they name.
_REASONS = {
    Reason.MEMBER_JOINED: "member {} joined",
    Reason.LEADER_REJOINED: "leader {} joined again",
    Reason.MEMBER_LEFT: "member {} left",
    Reason.SESSION_EXPIRED: "session of {} expired",
    Reason.DID_NOT_SYNC: "{} did not sync",
    Reason.NO_MEMBERS_LEFT: "no members left",
    Reason.ALL_JOINED: "all members joined",
    Reason.DID_NOT_REJOIN: "{} did not rejoin",
    Reason.INITIAL_DELAY_OVER: "initial delay over",
    Reason.DID_NOT_JOIN: "{} did not join",
    Reason.ASSIGNMENT: "leader's assignment",
    Reason.PENDING_LEFT: "pending member {} left",
}


class ClassicGroups:
    """Decides the classic groups of one call. `batch` has its requests, `config` the settings of groups."""

    def __init__(self, batch: RequestBatch, config: GroupConfig) -> None:
        self._batch, self._config = batch, config
        self._number = {key: number for number, key in enumerate(batch.keys)}
        self._bounds = np.searchsorted(batch.rows.group, np.arange(len(batch.keys) + 1)).tolist()
        self._protocols = self._protocols_by_group()

    def decide(self, snapshots: Mapping[str, GroupSnapshot], horizon_ms: int) -> DecidedGroups:
        """Decide those of the groups that the compiled coordinator knows. The others are not changed.

        Args:
            snapshots: Groups with requests or due timers.
            horizon_ms: Time up to which the requests are complete, in epoch milliseconds.
        """
        protocols = {key: self._known_protocols(key, snapshot) for key, snapshot in snapshots.items()}
        chosen = {key: snapshot for key, snapshot in snapshots.items() if protocols[key] is not None}
        for key, snapshot in chosen.items():
            snapshot.is_new = self.is_new(key, snapshot)
        slices = [self._rows_of(key) for key in chosen]
        of_chosen = [each for each in protocols.values() if each is not None]
        records = _GroupRecords(self._config, chosen, of_chosen, self._batch.rows, slices)
        records.decide(horizon_ms)
        return records.result()

    def is_new(self, key: str, snapshot: GroupSnapshot) -> bool:
        """Return whether the group belongs to the new coordinator, as `has_new_coordinator` does."""
        if snapshot.is_new is not None:
            return snapshot.is_new
        if self._config.coordinator is not None:
            return self._config.coordinator == "new"
        rows = self._rows_of(key)
        return rows.start < rows.stop and bool(self._batch.rows.coordinator[rows.start] == _NEW_COORDINATOR)

    def _rows_of(self, key: str) -> slice:
        number = self._number.get(key)
        return slice(0, 0) if number is None else slice(self._bounds[number], self._bounds[number + 1])

    def _protocols_by_group(self) -> list[tuple[str, ...] | None]:
        """Return the protocols in each group's joins, () without joins, or None if it has other requests than known."""
        rows, count = self._batch.rows, len(self._batch.keys)
        is_join = rows.api == Api.JOIN_GROUP
        unknown = (rows.static > 0) | (rows.api > Api.LEAVE_GROUP)
        unknown |= (rows.consumer != "") & ~is_join & (rows.api != Api.SYNC_GROUP)
        joins = np.flatnonzero(is_join)
        texts, group = pa.array(rows.protocols[joins], pa.string()).dictionary_encode(), rows.group[joins]
        text = texts.indices.to_numpy()
        first = np.full(count, NONE)
        first[group[::-1]] = text[::-1]
        is_known = np.ones(count, dtype=bool)
        is_known[rows.group[unknown]] = False
        is_known[group[text != first[group]]] = False
        lists = [decode_protocols(each) for each in texts.dictionary.to_pylist()]
        return [
            ((lists[number] or None) if number != NONE else ()) if known else None
            for number, known in zip(first.tolist(), is_known.tolist(), strict=True)
        ]

    def _known_protocols(self, key: str, snapshot: GroupSnapshot) -> tuple[str, ...] | None:
        """Return the protocols of the group's members, or None if the compiled coordinator cannot decide the group."""
        number, group = self._number.get(key), snapshot.group
        protocols = () if number is None else self._protocols[number]
        if protocols is None or key.endswith("/") or (self._config.commit_delay_ms and self.is_new(key, snapshot)):
            return None
        if snapshot.consumer is not None or snapshot.former or snapshot.commit_ms is not None:
            return None
        if group is None:
            is_empty = number is not None and not snapshot.rebalances and not len(snapshot.sessions)
            return protocols if is_empty else None
        if group.members and not protocols:
            protocols = next(iter(group.members.values())).protocols
        return protocols if _is_ordinary(group, protocols) and _has_ordinary_operations(snapshot, group) else None


def _is_ordinary(group: Group, protocols: tuple[str, ...]) -> bool:
    """Return whether the group has only dynamic members with these protocols."""
    return (
        group.state is not GroupState.DEAD
        and (group.leader in group.members if group.members else group.leader is None)
        and all(
            member.instance_id is None and member.liveness_signal is None and member.protocols == protocols
            for member in group.members.values()
        )
    )


def _has_ordinary_operations(snapshot: GroupSnapshot, group: Group) -> bool:
    """Return whether each id has at most one session, and the group at most one join or sync."""
    ids, sessions = list(group.members), snapshot.sessions
    session_ids = sessions.member_id.tolist()
    return (
        len(set(session_ids)) == len(session_ids)
        and all(
            owner == PENDING or ids[owner] == member_id
            for owner, member_id in zip(sessions.owner.tolist(), session_ids, strict=True)
        )
        and len(snapshot.rebalances) <= 1
        and not any(operation.dead or operation.member_id for operation in snapshot.rebalances)
    )


class _GroupRecords:
    """The records of several groups for one call of the compiled coordinator, and its results."""

    def __init__(
        self,
        config: GroupConfig,
        snapshots: dict[str, GroupSnapshot],
        protocols: list[tuple[str, ...]],
        rows: Frame,
        slices: Sequence[slice],
    ) -> None:
        self._config, self._snapshots, self._protocols = config, snapshots, protocols
        owners = [split_group_key(key) for key in snapshots]
        self._brokers, self._names = [broker for broker, _ in owners], [name for _, name in owners]
        counts = [each.stop - each.start for each in slices]
        self._row_bounds: list[int] = np.cumsum([0, *counts]).tolist()
        taken = [np.arange(each.start, each.stop) for each in slices]
        self._rows = rows.take(np.concatenate([np.zeros(0, np.int64), *taken]))
        self._sessions = Frame.concat([SESSIONS.empty(), *(snapshot.sessions for snapshot in snapshots.values())])
        self._rebalances = [each for snapshot in snapshots.values() for each in snapshot.rebalances]
        # The group of each request. Joins and syncs that wait since an earlier call follow after the rows.
        self._group_of: list[int] = np.repeat(np.arange(len(counts)), counts).tolist()
        self._waiting: list[JoinGroup | SyncGroup] = []
        # The ids of the groups. If two groups have the same id, it has a place for each.
        self._ids: list[str] = []
        self._tables: dict[str, Records] = {}
        self._add_groups()

    # Input.

    def _add_groups(self) -> None:
        rows, count = self._rows, len(self._rows)
        joins = np.flatnonzero(rows.api == Api.JOIN_GROUP)
        place_of_join = np.searchsorted(joins, self._row_bounds).tolist()
        texts = [rows.columns[name].tolist() for name in ("member_id", "assigned", "named_leader", "client_id", "seq")]
        sender_ids, assigned_ids, leader_ids, client_ids, seqs = texts
        join_rows = joins.tolist()
        senders: list[int] = []
        new_ids: list[tuple[int, int, int]] = []
        leaders: list[int] = []
        waiting: list[tuple[int, int]] = []
        members = _MemberLists()
        of_session: list[int] = []
        groups = self._groups = np.zeros(len(self._snapshots), GROUP)
        for g, (snapshot, (begin, end), (join_begin, join_end)) in enumerate(
            zip(self._snapshots.values(), pairwise(self._row_bounds), pairwise(place_of_join), strict=True)
        ):
            first, group = len(self._ids), snapshot.group
            # The places of this group's ids. The first text, "", is not an id.
            index = {"": int(NONE)}
            if group is not None:
                index |= zip(group.members, range(first, first + len(group.members)), strict=True)
            add, base = index.setdefault, first - 1
            if group is not None:
                requests = members.add(group, first, count + len(self._waiting))
                members.pending += [add(each, base + len(index)) for each in sorted(group.pending_members)]
                members.unsynced += [add(each, base + len(index)) for each in sorted(group.pending_syncs)]
            of_session += [add(each, base + len(index)) for each in snapshot.sessions.member_id.tolist()]
            senders += [add(each, base + len(index)) for each in sender_ids[begin:end]]
            for row in join_rows[join_begin:join_end]:
                if sender_ids[row] == "":
                    assigned = add(assigned_ids[row], base + len(index))
                    derived = add(f"{client_ids[row] or 'consumer'}-{seqs[row]}", base + len(index))
                    new_ids.append((row, assigned, derived))
            leaders += [index.get(leader_ids[row], int(NONE)) for row in join_rows[join_begin:join_end]]
            if group is not None:
                for request in requests:
                    named = request.leader_member_id if isinstance(request, JoinGroup) else None
                    waiting.append((add(request.member_id, base + len(index)), index.get(named or "", int(NONE))))
                self._waiting += requests
                self._group_of += [g] * len(requests)
            del index[""]
            self._ids += index
            groups[g] = self._group_record(snapshot, first)
        groups["request_begin"], groups["request_end"] = self._row_bounds[:-1], self._row_bounds[1:]
        bounds = np.cumsum([0, *(len(snapshot.sessions) for snapshot in self._snapshots.values())])
        groups["session_begin"], groups["session_end"] = bounds[:-1], bounds[1:]
        rebalance = np.cumsum([0, *(len(snapshot.rebalances) for snapshot in self._snapshots.values())])
        groups["restored_rebalance"] = np.where(np.diff(rebalance) > 0, len(self._sessions) + rebalance[:-1], NONE)
        self._members = members.records(len(self._ids))
        self._requests = self._request_records(joins, senders, leaders, new_ids, waiting)
        self._restored = self._restored_records(of_session)

    def _group_record(self, snapshot: GroupSnapshot, first: int) -> Records:
        """Return the record of a group. `first` is the place of its first id."""
        record = np.zeros(1, GROUP)
        for name in ("first_member", "last_member", "leader", "assigned_by", "has_protocol"):
            record[name] = NONE
        record["member_begin"], record["member_end"] = first, len(self._ids)
        record["unsupported"] = len(self._ids) - first > self._config.max_size
        record["is_new"] = snapshot.is_new
        group = snapshot.group
        if group is None:
            return record[0]
        record["exists"], record["state"] = True, _NUMBER_OF_STATE[group.state]
        record["count"], record["pending"] = len(group.members), len(group.pending_members)
        record["unsynced"] = len(group.pending_syncs)
        record["waiting"] = sum(member.awaiting_join is not None for member in group.members.values())
        for name in (*_NUMBERS, *_FLAGS):
            record[name] = getattr(group, name)
        if group.members:
            record["first_member"], record["last_member"] = first, first + len(group.members) - 1
            record["leader"] = first + list(group.members).index(group.leader or "")
        return record[0]

    def _request_records(
        self,
        joins: Array,
        senders: list[int],
        leaders: list[int],
        new_ids: list[tuple[int, int, int]],
        waiting: list[tuple[int, int]],
    ) -> Records:
        rows, count = self._rows, len(self._rows)
        requests = np.zeros(count + len(waiting), REQUEST)
        for name in ("t", "seq", "generation", "api"):
            requests[name][:count] = rows.columns[name]
        for name in ("assigned", "derived", "named_leader"):
            requests[name] = NONE
        requests["member"][:count], requests["named_leader"][joins] = senders, leaders
        if new_ids:
            row, assigned, derived = np.array(new_ids, np.int64).T
            requests["assigned"][row], requests["derived"][row] = assigned, derived
        version = rows.api_version[joins]
        requests["needs_id"][joins] = np.where(version < 0, DEFAULT_API_VERSION, version) >= 4
        requests["session_ms"][joins], requests["rebalance_ms"][joins] = self._timeouts(joins)
        for at, (request, (sender, leader)) in enumerate(zip(self._waiting, waiting, strict=True), count):
            record = requests[at]
            record["t"], record["seq"], record["generation"] = request.time_us, request.seq, request.generation
            record["api"], record["member"], record["named_leader"] = API_OF[request.api], sender, leader
        return requests

    def _timeouts(self, joins: Array) -> tuple[Array, Array]:
        """Return the session and rebalance timeouts of joins, with what-if settings applied."""
        rows = self._rows.take(joins)
        session_ms = rows.session_ms
        rebalance_ms = np.where(rows.rebalance_ms < 0, session_ms, rows.rebalance_ms)
        if self._config.keeps_member_timeouts or not len(joins):
            return session_ms, rebalance_ms
        clients, groups = rows.client_id.tolist(), [self._group_of[row] for row in joins.tolist()]
        timeouts = zip(session_ms.tolist(), rebalance_ms.tolist(), clients, groups, strict=True)
        changed = [
            member_timeouts(session, rebalance, client or None, self._brokers[g], self._names[g], self._config)
            for session, rebalance, client, g in timeouts
        ]
        session_ms, rebalance_ms = np.array(changed, np.int64).T
        return session_ms, rebalance_ms

    def _restored_records(self, of_session: list[int]) -> Records:
        sessions, rebalances, count = self._sessions, self._rebalances, len(self._sessions)
        restored = np.zeros(count + len(rebalances), OPERATION)
        for name in ("op", "t", "seq", "sub", "deadline"):
            restored[name][:count] = sessions.columns[name]
        restored["kind"][:count], restored["member"][:count] = _HEARTBEAT, of_session
        restored["is_pending"][:count] = sessions.owner == PENDING
        if rebalances:
            columns = {
                "op": [each.operation_id for each in rebalances],
                "t": [each.started_us for each in rebalances],
                "seq": [each.seq for each in rebalances],
                "sub": [each.sub for each in rebalances],
                "deadline": [each.deadline_ms for each in rebalances],
                "remaining": [each.remaining_ms for each in rebalances],
                "kind": [KIND_OF[each.kind] for each in rebalances],
                "member": [int(NONE)] * len(rebalances),
            }
            for name, values in columns.items():
                restored[name][count:] = values
        started_ms = restored["t"] // 1000
        restored["delay"] = restored["deadline"] - started_ms
        restored["rule"], restored["is_watched"] = OPEN, True
        restored["request"] = RESTORED - np.arange(len(restored))
        return restored

    # The call.

    def decide(self, horizon_ms: int) -> None:
        """Call the compiled coordinator. If its tables are too small, call it again with larger ones."""
        inputs = len(self._requests) + len(self._ids) + len(self._restored)
        config, rows = self._config, _ROWS_PER_INPUT * inputs + 1
        while True:
            tables = self._tables = {
                "groups": self._groups.copy(),
                "members": self._members.copy(),
                "requests": self._requests,
                "restored": self._restored,
                "orders": np.zeros(NUMBER_OF_ORDERS, DTYPES["orders"]),
                **{name: np.zeros(rows, DTYPES[name]) for name in GROWING},
            }
            arena = make_arena(
                tables,
                initial_delay_ms=config.initial_rebalance_delay_ms,
                min_session_ms=config.min_session_timeout_ms,
                max_session_ms=config.max_session_timeout_ms,
                new_member_ms=config.new_member_timeout_ms,
                uses_session_timeout=config.rebalance_timeout == "session",
            )
            if decide_groups(arena, horizon_ms):
                break
            rows *= 2
        tables.update((name, tables[name][: int(arena[name][0])]) for name in GROWING)

    # Output.

    def result(self) -> DecidedGroups:
        """Return the new snapshots, and the rows of the tables."""
        groups, operations = self._tables["groups"], self._tables["operations"]
        decided = groups["unsupported"] == 0
        number = np.where(decided, np.cumsum(decided) - 1, NONE)
        operations_of: Array = groups["operation_end"] - groups["operation_begin"]
        group = np.repeat(np.arange(len(groups)), operations_of)
        orders = self._member_orders()
        frame = self._operations_frame(group, orders).with_columns(group=number[group])
        is_open, is_decided = operations["rule"] == OPEN, decided[group]
        still_open = np.flatnonzero(is_open & is_decided)
        return DecidedGroups(
            self._new_snapshots(frame.take(still_open), group[still_open], orders),
            frame.take(~is_open & is_decided).select((*ENDED.names, "group")),
            frame.take(is_open & is_decided & (operations["request"] > RESTORED)),
            self._answers(number),
            self._walks(number),
            self._transitions(number.tolist()),
        )

    def _member_orders(self) -> list[list[int]]:
        """Return the members of each group in the order in which they joined."""
        following: list[int] = self._tables["members"]["next_member"].tolist()
        orders = []
        for first in self._tables["groups"]["first_member"].tolist():
            order, member = [], first
            while member != NONE:
                order.append(member)
                member = following[member]
            orders.append(order)
        return orders

    def _operations_frame(self, group: Array, orders: list[list[int]]) -> Frame:
        """Return all operations, with the columns of `ENDED` and `SESSIONS`. `group` has the group of each."""
        operations = self._tables["operations"]
        names = ("kind", "t", "seq", "sub", "end_t", "end_seq", "end_sub", "deadline", "rule", "remaining", "member")
        columns = {name: operations[name].astype(np.int64) for name in names}
        flags = {name: operations[f"is_{name}"].astype(np.int64) for name in ("expired", "watched", "triggered")}
        place = np.full(len(self._ids) + 1, PENDING)
        for order in orders:
            place[order] = np.arange(len(order))
        at = operations["request"].astype(np.int64)
        # Texts: of rows and waiting requests, then of restored operations; the last text is empty.
        at = np.where(at <= RESTORED, len(self._requests) + RESTORED - at, at)
        texts = {name: self._texts(name, name, self._sessions.columns[name]).take(at) for name in _CALLER}
        texts["member_id"] = self._id_texts().take(columns["member"])
        owner = np.where(operations["is_pending"], PENDING, place[columns["member"]])
        return Frame({"op": self._operation_ids(group), "owner": owner, **columns, **flags, **texts})

    def _operation_ids(self, group: Array) -> Array:
        operations = self._tables["operations"]
        ids = operations["op"].copy()
        derived = np.flatnonzero(operations["is_derived"])
        pairs = zip(group[derived].tolist(), ids[derived].tolist(), strict=True)
        ids[derived] = [derived_operation_id(self._brokers[g], self._names[g], number) for g, number in pairs]
        return ids

    def _texts(self, column: str, field: str, of_sessions: Array | None = None) -> Array:
        """Return a text of each row, of each waiting request (its attribute `field`), and of restored operations."""
        parts = [self._rows.columns[column], _objects([getattr(each, field, None) or "" for each in self._waiting])]
        if of_sessions is not None:
            parts += [of_sessions, _objects([getattr(each, field) or "" for each in self._rebalances])]
        return np.concatenate([*parts, _objects([""])])

    def _id_texts(self) -> Array:
        """Return the text of each id; the last one, which `NONE` selects, is empty."""
        return _objects([*self._ids, ""])

    def _answers(self, number: Array) -> Frame:
        answers: Array = self._tables["answers"]
        group: Array = number[np.array(self._group_of, np.int64)]
        group = group[answers["request"]]
        is_decided = group != NONE
        answers, group = answers[is_decided], group[is_decided]
        at, ids = answers["request"].astype(np.int64), self._id_texts()
        asked = self._requests[at]
        nothing = np.full(len(at), "", dtype=object)
        is_join = asked["api"] == Api.JOIN_GROUP
        return Frame(
            {
                "seq": asked["seq"].copy(),
                "t": asked["t"].copy(),
                "at": answers["at"].copy(),
                "api": asked["api"].astype(np.int64),
                "error": answers["error"].astype(np.int64),
                "request_generation": asked["generation"].copy(),
                "generation": answers["generation"].copy(),
                "recorded_epoch": np.full(len(at), -1),
                "request_id": self._texts("request_id", "request_id").take(at),
                "member_id": self._texts("member_id", "member_id").take(at),
                "given": ids.take(answers["member"]),
                "leader": ids.take(answers["leader"]),
                "assigned": np.where(is_join, self._texts("assigned", "assigned_member_id").take(at), nothing),
                "named_leader": np.where(is_join, self._texts("named_leader", "leader_member_id").take(at), nothing),
                "assignment": nothing,
                "recorded_assignment": nothing,
                "group": group,
            }
        ).select((*ANSWERS.names, "group"))

    def _walks(self, number: Array) -> Frame:
        walks: Array = self._tables["walks"]
        group: Array = number[walks["group"]]
        is_decided = group != NONE
        walks, group = walks[is_decided], group[is_decided]
        columns = {name: walks[name].astype(np.int64) for name in ("list", "t", "seq", "sub")}
        columns |= {"member_id": self._id_texts().take(walks["member"]), "group": group}
        return Frame(columns).select((*WALKS.names, "group"))

    def _transitions(self, number: list[int]) -> list[tuple[int, Transition]]:
        table = self._tables["transitions"]
        ids = self._id_texts().take(self._tables["ids"]["member"]).tolist()
        names = ("group", "t", "generation", "from_state", "to_state", "reason")
        columns = [table[name].tolist() for name in (*names, "named_begin", "members_begin", "members_end")]
        return [
            (
                number[g],
                Transition(
                    group=self._names[g],
                    broker=self._brokers[g],
                    at_us=t,
                    from_state=_STATES[from_state].value,
                    to_state=_STATES[to_state].value,
                    reason=_REASONS[reason].format(", ".join(sorted(ids[named:begin]))),
                    generation=generation,
                    members=tuple(sorted(ids[begin:end])),
                ),
            )
            for g, t, generation, from_state, to_state, reason, named, begin, end in zip(*columns, strict=True)
            if number[g] != NONE
        ]

    # Snapshots.

    def _new_snapshots(self, still_open: Frame, group: Array, orders: list[list[int]]) -> dict[str, GroupSnapshot]:
        """Return the groups after the call, given the open operations and the group of each."""
        is_session = still_open.kind == _HEARTBEAT
        sessions = still_open.take(is_session).select(SESSIONS.names)
        bounds = np.searchsorted(group[is_session], np.arange(len(self._names) + 1)).tolist()
        operations = zip(group[~is_session].tolist(), _rebalances(still_open.take(~is_session)), strict=True)
        rebalances = {g: [operation] for g, operation in operations}
        requests, self._clients = self._new_requests(), self._rows.client_id.tolist()
        self._group_columns = _lists(self._tables["groups"], _GROUP_FIELDS)
        self._member_columns = _lists(self._tables["members"], _MEMBER_FIELDS)
        return {
            key: GroupSnapshot(
                self._group_after(g, key, snapshot.group, orders[g], requests),
                sessions.take(slice(bounds[g], bounds[g + 1])),
                rebalances.get(g, []),
                is_new=snapshot.is_new,
            )
            for g, (key, snapshot) in enumerate(self._snapshots.items())
            if not self._group_columns["unsupported"][g]
        }

    def _new_requests(self) -> dict[int, GroupRequest]:
        """Return the requests that wait after the call, and those with fields that only consumer groups use."""
        members, count = self._tables["members"], len(self._rows)
        last = np.concatenate([members["updated_by"], self._tables["groups"]["assigned_by"]])
        last = last[last != NONE]
        at = np.concatenate([members["awaiting_join"], members["awaiting_sync"], last[self._rows.consumer[last] != ""]])
        rows = np.unique(at[(at != NONE) & (at < count)]).astype(np.int64)
        bounds, frame = np.searchsorted(rows, self._row_bounds).tolist(), self._rows.take(rows)
        requests: dict[int, GroupRequest] = dict(enumerate(self._waiting, count))
        places = rows.tolist()
        for key, (begin, end) in zip(self._snapshots, pairwise(bounds), strict=True):
            if begin < end:
                events = GroupEvents(frame.take(slice(begin, end)), key)
                requests |= {places[row]: events.request(row - begin, self._config) for row in range(begin, end)}
        return requests

    def _group_after(
        self, g: int, key: str, group: Group | None, order: list[int], requests: dict[int, GroupRequest]
    ) -> Group | None:
        """Return the group after the call, which is the same object if it existed before."""
        groups, members, ids = self._group_columns, self._member_columns, self._ids
        if not groups["exists"][g]:
            return None
        if group is None:
            group = Group(*split_group_key(key))
        for name in _NUMBERS:
            setattr(group, name, groups[name][g])
        for name in _FLAGS:
            setattr(group, name, groups[name][g] != 0)
        leader, has_protocol, sync = groups["leader"][g], groups["has_protocol"][g], groups["assigned_by"][g]
        group.state = _STATES[groups["state"][g]]
        group.leader = ids[leader] if leader != NONE else None
        protocols = self._protocols[g]
        group.members = {ids[m]: self._member_after(m, group.members.get(ids[m]), protocols, requests) for m in order}
        if has_protocol != NONE:
            group.protocol = protocols[0] if has_protocol else None
        mine = range(groups["member_begin"][g], groups["member_end"][g])
        group.pending_members = {ids[m] for m in mine if members["is_pending"][m]} if groups["pending"][g] else set()
        group.pending_syncs = {ids[m] for m in mine if members["is_unsynced"][m]} if groups["unsynced"][g] else set()
        if sync != NONE:
            leaders_sync = requests.get(sync)
            group.assignments = leaders_sync.assignments if isinstance(leaders_sync, SyncGroup) else ()
        return group

    def _member_after(
        self, m: int, member: Member | None, protocols: tuple[str, ...], requests: dict[int, GroupRequest]
    ) -> Member:
        members = self._member_columns
        joined_by, updated_by = members["joined_by"][m], members["updated_by"][m]
        if member is None or joined_by != NONE:
            client_id = self._clients[joined_by] or None
            member = Member(self._ids[m], client_id=client_id, protocols=protocols)
        if updated_by != NONE:
            member.session_timeout_ms = members["session_ms"][m]
            member.rebalance_timeout_ms = members["rebalance_ms"][m]
            update = requests.get(updated_by)
            member.topics = update.topics if isinstance(update, JoinGroup) else None
        join, sync = requests.get(members["awaiting_join"][m]), requests.get(members["awaiting_sync"][m])
        member.awaiting_join = join if isinstance(join, JoinGroup) else None
        member.awaiting_sync = sync if isinstance(sync, SyncGroup) else None
        member.is_new = members["is_new"][m] != 0
        return member


class _MemberLists:
    """The members of several groups, and the state of further ids, by their places."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.unsynced: list[int] = []
        self._members: list[Member] = []
        self._places: list[int] = []
        self._last: list[int] = []
        self._first: list[int] = []
        self._waiting: dict[str, list[tuple[int, int]]] = {"awaiting_join": [], "awaiting_sync": []}

    def add(self, group: Group, first: int, next_request: int) -> list[JoinGroup | SyncGroup]:
        """Add the members of a group, with places from `first` on. Return their waiting requests, in order.

        These get the numbers from `next_request` on.
        """
        members, requests = list(group.members.values()), list[JoinGroup | SyncGroup]()
        if not members:
            return requests
        self._members += members
        self._places += range(first, first + len(members))
        self._first.append(first)
        self._last.append(first + len(members) - 1)
        for place, member in enumerate(members, first):
            for name, request in (("awaiting_join", member.awaiting_join), ("awaiting_sync", member.awaiting_sync)):
                if request is not None:
                    self._waiting[name].append((place, next_request + len(requests)))
                    requests.append(request)
        return requests

    def records(self, count: int) -> Records:
        """Return the records of `count` ids."""
        members, places = np.zeros(count, MEMBER), np.array(self._places, np.int64)
        for name in ("awaiting_join", "awaiting_sync", "session", "joined_by", "updated_by"):
            members[name] = NONE
        members["next_member"] = members["previous_member"] = NONE
        members["next_member"][places], members["previous_member"][places] = places + 1, places - 1
        members["next_member"][self._last] = members["previous_member"][self._first] = NONE
        members["is_member"][places] = True
        members["session_ms"][places] = [member.session_timeout_ms for member in self._members]
        members["rebalance_ms"][places] = [member.rebalance_timeout_ms for member in self._members]
        members["is_new"][places] = [member.is_new for member in self._members]
        for name, waiting in self._waiting.items():
            if waiting:
                place, request = np.array(waiting, np.int64).T
                members[name][place] = request
        for name, values in (("is_pending", self.pending), ("is_unsynced", self.unsynced)):
            members[name][values] = True
        return members


def _rebalances(operations: Frame) -> Iterator[RebalanceSnapshot]:
    """Yield open joins and syncs as snapshots."""
    names = ("kind", "op", "t", "seq", "sub", "deadline", "request_id", "client_id", "remaining")
    columns = (operations.columns[name].tolist() for name in names)
    for kind, op, t, seq, sub, deadline, request_id, client_id, remaining in zip(*columns, strict=True):
        remaining_ms = remaining if kind == _INITIAL_JOIN else 0
        yield RebalanceSnapshot(
            KINDS[kind], op, t, seq, sub, deadline, request_id or None, client_id or None, remaining_ms
        )


def _lists(records: Records, names: Sequence[str]) -> dict[str, list[int]]:
    """Return columns of records as lists."""
    return {name: records[name].tolist() for name in names}


def _objects(texts: list[str]) -> Array:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array
