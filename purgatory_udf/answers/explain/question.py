"""What a user asks to have explained: an operation, a request, or a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.answers.explain.evidence import Evidence, collect
from purgatory_udf.answers.explain.story import moment, story
from purgatory_udf.answers.metrics.group_rebalances import in_order, rebalances
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.errors import UserError
from purgatory_udf.storage.run_tables import RunFrames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


# A group's story: its rebalances one after the other, who came and who went.


def changes_of(tables: RunFrames, group: str) -> DataFrame:
    """The group's transitions in the order in which it went through them, each with its `place` and `at_us`."""
    transitions = tables.table("group_transitions").where(sf.col("group") == group)
    return transitions.withColumns({"at_us": sf.unix_micros("at"), "place": sf.row_number().over(in_order())})


def group_story(tables: RunFrames, group: str, most: int) -> list[str]:
    """The lines of the group's story: a title at each broker, its changes of state, its rebalances summed up."""
    changes = changes_of(tables, group).orderBy("broker", "place").limit(most + 1).collect()
    lines: list[str] = []
    members: set[str] = set()
    broker = None
    for change in changes[:most]:
        if change.broker != broker:
            broker, members = change.broker, set()
            lines.append(f"group {group} at broker {broker}")
        now = set(change.members or [])
        lines.append(f"  {_changed(change, now - members, members - now)}")
        members = now
    if len(changes) > most:
        lines.append(f"  and more: --top shows more than {most}")
    return [*lines, *_longest(tables, group)]


def _changed(change: Row, came: set[str], went: set[str]) -> str:
    moves = "".join(f"; {word} {', '.join(sorted(who))}" for word, who in (("with", came), ("without", went)) if who)
    state = f"{change.to_state}, generation {change.generation}"
    return f"{moment(change.at_us)}  {state}: {change.reason}{moves} ({len(change.members or [])} members)"


def _longest(tables: RunFrames, group: str) -> list[str]:
    of_group = tables.table("group_transitions").where(sf.col("group") == group)
    finished = rebalances(of_group, tables.table("events").where(sf.col("group") == group)).where("NOT after_end")
    longest = finished.withColumn("started_us", sf.unix_micros("started_at")).orderBy(sf.desc("length_ms")).first()
    if longest is None or longest.length_ms is None:
        return []
    waited = f"; {longest.last_to_join} was the last to join" if longest.last_to_join else ""
    missing = f"; missing afterwards: {', '.join(longest.missing)}" if longest.missing else ""
    return [
        f"  longest rebalance: {longest.length_ms:,} ms from {moment(longest.started_us)} "
        f"({longest.reason}){waited}{missing}"
    ]


@dataclass(frozen=True)
class Question:
    """Exactly one of the three."""

    operation: int | None = None
    request_id: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if sum(asked is not None for asked in (self.operation, self.request_id, self.group)) != 1:
            raise UserError("give one of --operation ID, --request-id ID, --group ID")


def explain(spark: SparkSession, out: str, question: Question, top: int = 20) -> list[str]:
    """The story as lines; at most `top` operations of one request id, or changes of one group."""
    tables = RunFrames(spark, out)
    if question.group is not None:
        lines = group_story(tables, question.group, top)
        if not lines:
            raise UserError(f"{out}: no group {question.group} changed its state there")
        return lines
    ids = [question.operation] if question.operation is not None else _ids(tables, str(question.request_id), top)
    collected = collect(tables, ids)
    if not collected:
        what = f"operation {question.operation}" if question.request_id is None else f"request {question.request_id}"
        raise UserError(f"{out}: no {what} there")
    for evidence in collected:
        _add_group(tables, evidence)
    stories = [story(evidence) for evidence in collected]
    return [line for lines in stories for line in ["", *lines]][1:]


def _ids(tables: RunFrames, request_id: str, top: int) -> list[int]:
    asked = tables.ended().union(tables.cancelled()).where(sf.col("request_id") == request_id).select("operation_id")
    requests = tables.table("events").where(sf.col("request_id") == request_id).select(sf.col("seq"))
    return [row[0] for row in asked.union(requests).distinct().orderBy("operation_id").limit(top).collect()]


def _add_group(tables: RunFrames, evidence: Evidence) -> None:
    """A group operation's story has its group's changes of state from its beginning to its end."""
    end = evidence.end
    if end is None or end.kind not in ("join", "initial_join", "sync", "heartbeat"):
        return
    group = evidence.request.group if evidence.request else None if end.kind == "heartbeat" else end["key"]
    if group:
        within = sf.col("at_us").between(end.started_us, end.ended_us)
        evidence.changes = changes_of(tables, group).where(within).orderBy("place").collect()
