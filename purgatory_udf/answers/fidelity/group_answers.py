"""The answers of groups, recorded and replayed, as rows of the same table as all other operations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.contract.tables import FIDELITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What a replayed group would have answered its members, held against what they were answered.
#
# The replay tells a group's states and generations; from them follows each answer:
#
#     heartbeat   REBALANCE_IN_PROGRESS while joins are awaited, else NONE
#     join        MEMBER_ID_REQUIRED without an id (version 4+), else the generation that begins when the round is over
#     sync        NONE when the leader's assignment has come, REBALANCE_IN_PROGRESS if another round comes before it


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"
NO_ERROR = "NONE"


@dataclass(frozen=True, slots=True)
class GroupChange:
    at_us: int
    to_state: str
    generation: int
    members: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """`recorded` is the error it was answered with; `generation` what it names, `granted` what a join was given, and
    `assigned` the member id that it was given."""

    operation_id: int
    at_us: int
    type: str
    member_id: str
    generation: int
    leader: bool
    recorded: str
    recorded_ms: float
    granted: int | None = None
    api_version: int = 5
    instance: str | None = None
    assigned: str | None = None


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """`replayed_ms` is None where the replay was told when the answer came (a leader's sync)."""

    operation_id: int
    recorded: str
    replayed: str
    recorded_ms: float
    replayed_ms: float | None


def answers(changes: Sequence[GroupChange], requests: Iterable[ComparedRequest]) -> Iterator[ComparedAnswer]:
    """Of one group at one broker; both in the order of time. Leaves and commits are not compared."""
    group = _Group(changes)
    for request in requests:
        answer = {"heartbeat": group.heartbeat, "join_group": group.join, "sync_group": group.sync}.get(request.type)
        if answer is None:
            continue
        replayed, wait_us = answer(request)
        recorded = request.recorded
        if request.type == "join_group" and recorded == NO_ERROR:
            recorded = _granted(request.granted)
        wait_ms = None if wait_us is None else wait_us / 1000
        yield ComparedAnswer(request.operation_id, recorded, replayed, request.recorded_ms, wait_ms)


def _granted(generation: int | None) -> str:
    return f"generation {generation}"


class _Group:
    """The group's state at any time."""

    def __init__(self, changes: Sequence[GroupChange]) -> None:
        self._changes = changes
        self._moments = [change.at_us for change in changes]
        self._joined: dict[str, int] = {}

    def _knows(self, request: ComparedRequest, now: GroupChange) -> bool:
        """Whether the member was there at the last change, or has joined since."""
        return request.member_id in now.members or self._joined.get(request.member_id, -1) >= now.at_us

    def _before(self, at_us: int) -> GroupChange:
        place = bisect_left(self._moments, at_us)
        return self._changes[place - 1] if place else GroupChange(0, EMPTY, 0)

    def _after(self, at_us: int) -> tuple[int, GroupChange]:
        """The state that a request of this moment has led to, and where it stands among the changes."""
        place = bisect_right(self._moments, at_us)
        return place, self._changes[place - 1] if place else GroupChange(0, EMPTY, 0)

    def heartbeat(self, request: ComparedRequest) -> tuple[str, int | None]:
        now = self._before(request.at_us)
        if now.to_state in (EMPTY, DEAD) or not self._knows(request, now):
            return "UNKNOWN_MEMBER_ID", 0
        if request.generation != now.generation:
            return "ILLEGAL_GENERATION", 0
        return ("REBALANCE_IN_PROGRESS" if now.to_state == PREPARING else NO_ERROR), 0

    def join(self, request: ComparedRequest) -> tuple[str, int | None]:
        if not request.member_id and not request.instance and request.api_version >= 4:
            return "MEMBER_ID_REQUIRED", 0
        self._joined[request.assigned or request.member_id] = request.at_us
        place, now = self._after(request.at_us)
        if now.to_state != PREPARING:
            return _granted(now.generation), 0
        for change in self._changes[place:]:
            if change.to_state == COMPLETING:
                return _granted(change.generation), change.at_us - request.at_us
            if change.to_state in (EMPTY, DEAD):
                break
        return "UNKNOWN_MEMBER_ID", 0

    def sync(self, request: ComparedRequest) -> tuple[str, int | None]:
        now = self._before(request.at_us)
        if now.to_state in (EMPTY, DEAD) or not self._knows(request, now):
            return "UNKNOWN_MEMBER_ID", 0
        if request.generation != now.generation:
            return "ILLEGAL_GENERATION", 0
        if now.to_state == PREPARING:
            return "REBALANCE_IN_PROGRESS", 0
        if now.to_state == STABLE:
            return NO_ERROR, 0
        if request.leader:
            return NO_ERROR, None
        place, _ = self._after(request.at_us)
        following = self._changes[place] if place < len(self._changes) else now
        wait = following.at_us - request.at_us if following is not now else None
        return (NO_ERROR if following.to_state == STABLE else "REBALANCE_IN_PROGRESS"), wait


TYPES = ("join_group", "sync_group", "heartbeat")

_ROWS = pa.schema([column for column in FIDELITY if column.name != "run_id"])
_EVENT = (
    "seq",
    "broker",
    "group",
    "time_us",
    "type",
    "member_id",
    "generation",
    "leader",
    "api_version",
    "group_instance_id",
    "assigned_member_id",
)


def compared_groups(spark: SparkSession, out: str, run_id: str, classic: bool) -> DataFrame:
    """FIDELITY rows of joins, syncs and heartbeats. `classic`: the recorded coordinator is the one that is replayed."""
    folder = out.rstrip("/")
    events = spark.read.format("delta").load(f"{folder}/events").where(sf.col("type").isin(*TYPES)).select(*_EVENT)
    recorded = spark.read.format("delta").load(f"{folder}/recorded").drop("broker")
    requests = events.join(recorded, events.seq == recorded.operation_id).drop("seq")
    changes = spark.read.format("delta").load(f"{folder}/group_transitions")
    histories = changes.groupBy("broker", "group").agg(
        sf.sort_array(
            sf.collect_list(sf.struct(sf.unix_micros("at").alias("at"), "to_state", "generation", "members"))
        ).alias("changes")
    )
    asked = requests.groupBy("broker", "group").agg(
        sf.sort_array(
            sf.collect_list(
                sf.struct("time_us", "operation_id", *(name for name in requests.columns if name not in _SORTED))
            )
        ).alias("requests")
    )
    together = asked.join(histories, ["broker", "group"], "left")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [answer for row in batch.to_pylist() for answer in _answers(row, classic)]
            yield pa.RecordBatch.from_pylist(rows, schema=_ROWS)

    answered = together.mapInArrow(work, from_arrow_schema(_ROWS)).withColumn("run_id", sf.lit(run_id))
    return answered.select(*FIDELITY.names)


_SORTED = ("time_us", "operation_id", "broker", "group")


def _answers(row: dict[str, Any], classic: bool) -> Iterator[dict[str, Any]]:
    changes = [
        GroupChange(change["at"], change["to_state"], change["generation"], frozenset(change["members"] or ()))
        for change in row["changes"] or ()
    ]
    by_id = {request["operation_id"]: request for request in row["requests"]}
    for answer in answers(changes, map(_request, row["requests"])):
        request = by_id[answer.operation_id]
        agrees = answer.recorded == answer.replayed
        replayed_ms = answer.replayed_ms if agrees and classic else None
        yield {
            "operation_id": answer.operation_id,
            "broker": row["broker"],
            "kind": request["kind"],
            "request_id": request["request_id"],
            "started_at": request["started_at"],
            "recorded_outcome": answer.recorded,
            "replayed_outcome": answer.replayed,
            "recorded_ms": answer.recorded_ms,
            "replayed_ms": replayed_ms,
            "difference_ms": None if replayed_ms is None else answer.recorded_ms - replayed_ms,
            "agrees": agrees,
            "cause": None if agrees else "group_state" if classic else "other_coordinator",
        }


def _request(row: dict[str, Any]) -> ComparedRequest:
    return ComparedRequest(
        operation_id=row["operation_id"],
        at_us=row["time_us"],
        type=row["type"],
        member_id=row["member_id"] or "",
        generation=-1 if row["generation"] is None else row["generation"],
        leader=bool(row["leader"]),
        recorded=row["recorded_error"],
        recorded_ms=row["recorded_remote_ms"],
        granted=row["recorded_generation"],
        api_version=5 if row["api_version"] is None else row["api_version"],
        instance=row["group_instance_id"],
        assigned=row["assigned_member_id"],
    )
