"""What a user asks to have explained: an operation, a request, or a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.errors import UserError
from purgatory_udf.explain.evidence import Evidence, collect
from purgatory_udf.explain.group import changes_of, group_story
from purgatory_udf.explain.story import story
from purgatory_udf.query import functions as sf
from purgatory_udf.storage.run_tables import RunTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    tables = RunTables(spark, out)
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


def _ids(tables: RunTables, request_id: str, top: int) -> list[int]:
    asked = tables.ended().union(tables.cancelled()).where(sf.col("request_id") == request_id).select("operation_id")
    requests = tables.table("events").where(sf.col("request_id") == request_id).select(sf.col("seq"))
    return [row[0] for row in asked.union(requests).distinct().orderBy("operation_id").limit(top).collect()]


def _add_group(tables: RunTables, evidence: Evidence) -> None:
    """A group operation's story has its group's changes of state from its beginning to its end."""
    end = evidence.end
    if end is None or end.kind not in ("join", "initial_join", "sync", "heartbeat"):
        return
    group = evidence.request.group if evidence.request else None if end.kind == "heartbeat" else end["key"]
    if group:
        within = sf.col("at_us").between(end.started_us, end.ended_us)
        evidence.changes = changes_of(tables, group).where(within).orderBy("place").collect()
