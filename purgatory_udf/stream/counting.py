"""What a run came to, as `runs` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from purgatory_udf.groups.words import KINDS
from purgatory_udf.query import functions as sf
from purgatory_udf.storage import delta
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.near import asked
from purgatory_udf.stream.group_disagreements import counted
from purgatory_udf.stream.query import Query
from purgatory_udf.stream.survey import Survey
from purgatory_udf.tables import ENDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def written(queries: Sequence[Query]) -> Counter[str] | None:
    """How many rows each table was given, if this process has seen them all, and all of them are there."""
    rows = [query.sink.rows for query in queries if query.sink.drain]
    return sum((each for each in rows if each is not None), Counter()) if rows and None not in rows else None


def latest_us(queries: Sequence[Query]) -> int | None:
    """When the last operation ended, as far as this process has seen all."""
    ends = [query.sink.latest_us for query in queries]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def counts(
    spark: SparkSession, layout: Layout, survey: Survey, groups: dict[str, Any], given: Counter[str] | None
) -> dict[str, Any]:
    """`given`: how many rows the tables were given, if that is known without counting them."""

    def rows(name: str) -> int:
        if given is not None and name in ENDS:
            return given[name]
        path = layout.table(name)
        return asked(spark, path, lambda session: _count(session, path)) if delta.is_table(spark, path) else 0

    with ThreadPoolExecutor(len(ENDS) + 1) as pool:
        *ended, rejected = pool.map(rows, (*ENDS, "rejected_events"))
    # A session or a rebalance is an operation that no event names: the groups' own count says how many there were.
    operations = survey.operations + groups.get("operations", 0)
    return {
        "events": survey.events,
        "rejected": rejected,
        "lines": survey.events + rejected,
        "operations": operations,
        **dict(zip(ENDS, ended, strict=True)),
        "open": operations - sum(ended),
        **({"groups": groups} if groups else {}),
    }


def _count(spark: SparkSession, path: str) -> int:
    return spark.read.format("delta").load(path).count()


def group_counts(spark: SparkSession, layout: Layout, groups: Query) -> dict[str, Any]:
    given = written([groups])

    def rows(table: str) -> int:
        if given is not None:
            return given[table]

        def count(session: SparkSession) -> int:
            frame = session.read.format("delta").load(layout.table(table))
            return (frame if table == "group_transitions" else frame.where(sf.col("kind").isin(*KINDS))).count()

        return asked(spark, layout.table(table), count)

    still_open = 0
    if not groups.sink.drain:
        assert groups.sink.gauges is not None
        still_open = groups.sink.gauges.left_open()
    ended = {table: rows(table) for table in ENDS}
    return {
        "operations": sum(ended.values()) + still_open,
        **ended,
        "open": still_open,
        "transitions": rows("group_transitions"),
        "disagreements": asked(spark, layout.out, lambda session: counted(session, layout)),
    }
