"""A group's story: its rebalances one after the other, who came and who went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.explain.story import moment
from purgatory_udf.metrics.rebalances import in_order, rebalances
from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from purgatory_udf.storage.run_tables import RunTables


def changes_of(tables: RunTables, group: str) -> DataFrame:
    """The group's transitions in the order in which it went through them, each with its `place` and `at_us`."""
    transitions = tables.table("group_transitions").where(sf.col("group") == group)
    return transitions.withColumns({"at_us": sf.unix_micros("at"), "place": sf.row_number().over(in_order())})


def group_story(tables: RunTables, group: str, most: int) -> list[str]:
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


def _longest(tables: RunTables, group: str) -> list[str]:
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
