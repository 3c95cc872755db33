"""The operations that waited longest, each with its story."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory_udf.explain.evidence import collect
from purgatory_udf.explain.story import story
from purgatory_udf.query import Window
from purgatory_udf.query import functions as sf

if TYPE_CHECKING:
    from purgatory_udf.storage.run_tables import RunTables


@dataclass(frozen=True)
class SlowOperation:
    kind: str
    expired: bool
    title: str
    lines: tuple[str, ...]


def slowest(tables: RunTables, of_each: int) -> list[SlowOperation]:
    """So many completions and so many expirations of each kind, those first that waited longest."""
    longest = Window.partitionBy("kind", "expired").orderBy(sf.desc("wait_ms"), "ended_at", "operation_id")
    chosen = (
        tables.ended()
        .where("watched AND NOT after_end")
        .select("operation_id", "kind", "expired", "wait_ms", "ended_at", sf.row_number().over(longest).alias("place"))
        .where(sf.col("place") <= of_each)
        .orderBy("kind", sf.desc("expired"), "place")
    )
    ids = [row.operation_id for row in chosen.collect()]
    stories = []
    for evidence in collect(tables, ids):
        title, *lines = story(evidence)
        if evidence.end:
            stories.append(SlowOperation(evidence.end.kind, evidence.end.expired, title, tuple(lines)))
    return stories
