"""How far a what-if on recorded arrivals can be trusted: arrivals are held fixed, and some would have been others.

An operation's end is as sure as the replay is while nobody whom it depends on had been answered at another time than
in the baseline: its own client, whose next request is sent after an answer, and the followers of its broker, whose next
fetch moves high watermarks. From then on it supposes arrivals that would have been others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf.printing import Table
from purgatory_udf.whatif.pairs import SAME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from purgatory_udf.storage.run_tables import RunTables

# Why an operation's end is no surer.
SURE, CLIENT, FOLLOWER = "sure", "after its client was answered otherwise", "after a follower was answered otherwise"
_REASONS = (SURE, CLIENT, FOLLOWER)
TITLE = "{}: how far its ends can be trusted, arrivals being as recorded"


def trusted(paired: DataFrame, baseline: RunTables) -> list[Row]:
    """Of one variant, a row for each kind: how many operations are sure, and how many of those that differ."""
    ends = _ends(paired, baseline)
    clients = ends.groupBy("broker", "client").agg(sf.min("shifted_ms").alias("client_ms"))
    followers = ends.where("follows").groupBy("broker").agg(sf.min("shifted_ms").alias("follower_ms"))
    held = ends.join(clients, ["broker", "client"], "left").join(followers, "broker", "left")
    counts = [
        sf.count_if((sf.col("reason") == reason) & which).alias(f"{of}_{place}")
        for of, which in (("all", sf.lit(True)), ("differ", sf.col("differs")))
        for place, reason in enumerate(_REASONS)
    ]
    return held.withColumn("reason", _reason()).groupBy("kind").agg(*counts).orderBy("kind").collect()


def trust_table(variant: str, rows: list[Row]) -> Table:
    """Of each kind, all operations and those that end otherwise, by how sure that is."""
    columns = ("kind", "ends", *_REASONS)
    cells = [
        (row.kind, what, *(row[f"{of}_{place}"] for place in range(len(_REASONS))))
        for row in rows
        for of, what in (("all", "all"), ("differ", "otherwise"))
    ]
    return Table(TITLE.format(variant), columns, cells)


def _ends(paired: DataFrame, baseline: RunTables) -> DataFrame:
    """Each operation with its start, its earlier end of both, and that again where the two differ."""
    fetches = baseline.table("events").where((sf.col("type") == "fetch") & (sf.col("replica_id") >= 0))
    followers = fetches.select(sf.col("seq").alias("operation_id"), sf.lit(True).alias("by_follower"))
    started_ms = sf.unix_millis("started_at")
    earlier = sf.least("baseline_wait_ms", "variant_wait_ms")  # Of the one that is there, where there is only one.
    # One that only one side has ended at another time, too.
    shifted = sf.coalesce(sf.col("shift_ms") != 0, sf.lit(True))
    return paired.join(followers, "operation_id", "left").select(
        "kind",
        "broker",
        sf.coalesce("client_id", sf.lit("")).alias("client"),
        sf.coalesce("by_follower", sf.lit(False)).alias("follows"),
        (sf.col("change") != SAME).alias("differs"),
        started_ms.alias("started_ms"),
        (started_ms + earlier).alias("ended_ms"),
        sf.when(shifted, started_ms + earlier).alias("shifted_ms"),
    )


def _reason() -> Column:
    """A client's first other answer is sure itself: what it was asked by had arrived as recorded."""
    client = sf.col("started_ms") >= sf.col("client_ms")
    follower = ~sf.col("follows") & (sf.col("ended_ms") > sf.col("follower_ms"))
    return sf.when(client, CLIENT).when(follower, FOLLOWER).otherwise(SURE)
