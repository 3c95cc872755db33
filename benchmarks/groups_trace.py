"""A trace of many consumer groups with heartbeats and crashing members, generated as columns.

Each group has 3 to 50 members and takes the same steps, at random times:

    join, member id, join ── 3 s ──► generation 1, syncs ──► heartbeats every 3 s ──► some members crash (or all)
      ── 10 s without heartbeats ──► session expires: the others learn it from their next heartbeat, and rejoin
      ──► generation 2, syncs ──► heartbeats to the end

A group's events depend only on the seed and the group's number, so a trace of more groups contains one of fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import EVENTS

Array = npt.NDArray[np.int64]

START_US = 1_790_000_000_000_000
MS = 1000
SESSION_MS, REBALANCE_MS, INITIAL_DELAY_MS, BEAT_MS = 10_000, 60_000, 3_000, 3_000
# The groups start within the first 8 s; members crash between 16 s and 28 s.
BEGIN_MS, CRASH_MS = 8_000, (16_000, 28_000)

TYPES = ("join_group", "sync_group", "heartbeat")
JOIN, SYNC, HEARTBEAT = range(3)
_WITHOUT_ID, _WITH_ID, _REJOIN = range(3)  # kinds of joins


@dataclass(frozen=True)
class Trace:
    """Events in time order, with `seq` from 1 on, and the number of members."""

    events: pa.Table
    members: int


def groups_trace(groups: int, seconds: int, seed: int = 1) -> Trace:
    """Generate the events of `groups` consumer groups over `seconds` seconds, randomly but reproducibly by `seed`."""
    parts = [np.concatenate(list(_group_events(number, seconds * 1000, seed)), axis=1) for number in range(groups)]
    sizes = [int(part[_MEMBER].max()) + 1 for part in parts]
    number = np.repeat(np.arange(groups), [part.shape[1] for part in parts])
    columns = np.concatenate(parts, axis=1)
    order = np.lexsort((columns[_MEMBER], number, columns[_T]))
    return Trace(_table(columns[:, order], number[order], max(sizes)), sum(sizes))


# Columns of a group's events: time in µs since the start, member, type, generation, kind of join.
_T, _MEMBER, _TYPE, _GENERATION, _JOIN = range(5)


def _group_events(number: int, end_ms: int, seed: int) -> Iterator[Array]:
    """Yield the events of one group, as columns (`_T`, `_MEMBER`, …)."""
    random = np.random.default_rng((seed, number))
    size = int(random.integers(3, 51))
    member = np.arange(size)
    first_joins = random.integers(0, BEGIN_MS * MS) + random.integers(0, 2_000 * MS, size)
    joins = first_joins + random.integers(1 * MS, 20 * MS, size)
    yield _rows(first_joins, member, JOIN, -1, _WITHOUT_ID)
    yield _rows(joins, member, JOIN, -1, _WITH_ID)
    # Joins extend the initial rebalance delay; the rebalance completes after two delays at the latest.
    synced = joins.min() + 3 * INITIAL_DELAY_MS * MS + random.integers(1 * MS, 50 * MS, size)
    yield _rows(synced, member, SYNC, 1)
    crash = random.integers(CRASH_MS[0] * MS, CRASH_MS[1] * MS)
    draw = random.random()
    if draw < 0.5:
        yield from _heartbeats(synced, np.full(size, end_ms * MS), member, 1)
        return
    crashed = member >= (0 if draw > 0.95 else size - int(random.integers(1, max(2, size // 3))))
    ends = np.where(crashed, crash, end_ms * MS)
    if crashed.all():
        yield from _heartbeats(synced, ends, member, 1)
        return
    last = np.where(crashed, synced + np.maximum(0, (ends - 1 - synced) // (BEAT_MS * MS)) * BEAT_MS * MS, 0)
    expires = int(last[crashed].min() // MS * MS + SESSION_MS * MS)
    noticed = synced + -(-(expires - synced) // (BEAT_MS * MS)) * BEAT_MS * MS
    yield from _heartbeats(synced, np.where(crashed, ends, noticed + 1), member, 1)
    stay = ~crashed
    again = noticed[stay] + random.integers(1 * MS, 5 * MS, stay.sum())
    yield _rows(again, member[stay], JOIN, 1, _REJOIN)
    # The rebalance completes after the sessions of the crashed members have expired.
    completed = max(int(again.max()), int(last[crashed].max()) + SESSION_MS * MS)
    resynced = completed + random.integers(2 * MS, 50 * MS, stay.sum())
    yield _rows(resynced, member[stay], SYNC, 2)
    yield from _heartbeats(resynced, np.full(int(stay.sum()), end_ms * MS), member[stay], 2)


def _heartbeats(since: Array, until: Array, member: Array, generation: int) -> Iterator[Array]:
    """Yield heartbeats every 3 s after `since`, and before `until`."""
    count = np.maximum(0, -(-(until - since) // (BEAT_MS * MS)) - 1)
    who = np.repeat(np.arange(len(member)), count)
    nth = np.arange(len(who)) - np.repeat(np.cumsum(count) - count, count)
    yield _rows(since[who] + (nth + 1) * BEAT_MS * MS, member[who], HEARTBEAT, generation)


def _rows(t: Array, member: Array, kind: int, generation: int, join: int = -1) -> Array:
    rows = np.empty((5, len(t)), dtype=np.int64)
    rows[_T], rows[_MEMBER], rows[_TYPE], rows[_GENERATION], rows[_JOIN] = t, member, kind, generation, join
    return rows


def _table(rows: Array, number: Array, max_members: int) -> pa.Table:
    count = rows.shape[1]
    t, member, kind, generation, join = rows
    is_join = pa.array(kind == JOIN)
    names = [f"g{group}" for group in range(int(number.max()) + 1)]
    ids = [f"m{place}" for place in range(max_members)]
    member_id = pa.DictionaryArray.from_arrays(member.astype(np.int32), ids)
    without_id = pa.array(np.where(join == _WITHOUT_ID, 0, -1) == 0)
    columns = {
        "event_time": pa.array(START_US + t).cast(pa.timestamp("us", tz="UTC")),
        "time_us": pa.array(START_US + t),
        "seq": pa.array(np.arange(1, count + 1)),
        "broker": pa.array(np.zeros(count, dtype=np.int32)),
        "type": pa.DictionaryArray.from_arrays(kind.astype(np.int32), list(TYPES)),
        "client_id": member_id,
        "group": pa.DictionaryArray.from_arrays(number.astype(np.int32), names),
        "member_id": _where(without_id, pa.scalar(""), member_id),
        "assigned_member_id": _where(without_id, member_id, pa.scalar(None, pa.string())),
        "api_version": _where(is_join, pa.scalar(5, pa.int32()), pa.scalar(None, pa.int32())),
        "session_timeout_ms": _where(is_join, pa.scalar(SESSION_MS, pa.int64()), pa.scalar(None, pa.int64())),
        "rebalance_timeout_ms": _where(is_join, pa.scalar(REBALANCE_MS, pa.int64()), pa.scalar(None, pa.int64())),
        "protocols": _protocols(kind == JOIN),
        "generation": pa.array(generation.astype(np.int32), mask=kind == JOIN),
    }
    return pa.table(
        [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in EVENTS
        ],
        schema=EVENTS,
    )


def _where(condition: pa.Array, yes: pa.Array | pa.Scalar, no: pa.Array | pa.Scalar) -> pa.Array:
    texts = [side.cast(pa.string()) if isinstance(side, pa.DictionaryArray) else side for side in (yes, no)]
    return pc.if_else(condition, *texts)


def _protocols(joins: npt.NDArray[np.bool_]) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(joins)]).astype(np.int32)
    return pa.ListArray.from_arrays(ends, pa.array(["range"] * int(ends[-1])), mask=pa.array(~joins))
