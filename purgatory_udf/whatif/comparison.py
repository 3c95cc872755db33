"""What the variants change, counted: by variant and kind, and purgatory by purgatory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf.printing import Table
from purgatory_udf.whatif import BASELINE
from purgatory_udf.whatif.pairs import APPEARS, CHANGES, ONLY_ONE, OTHERWISE, VANISHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from purgatory_udf.storage.run_tables import RunTables


def counted(paired: DataFrame) -> list[Row]:
    """Of one variant, a row for each kind; quantiles are of those that had to wait."""
    # Equal pairs first: what is left to sort is small, and the quantiles are exact.
    sides = ("baseline", "variant")
    keys = [f"{side}_{what}" for side in sides for what in ("expired", "wait_ms", "watched")]
    alike = paired.groupBy("kind", "change", *keys).agg(sf.count("*").alias("n"))
    n = sf.col("n")
    changes = [
        sf.sum(sf.when(sf.col("change") == change, n).otherwise(0)).alias(f"change_{place}")
        for place, change in enumerate(CHANGES)
    ]
    waits = []
    for side in sides:
        waited = sf.when(sf.col(f"{side}_watched"), n).otherwise(0)
        waits += [
            sf.sum(sf.when(sf.col(f"{side}_expired"), n).otherwise(0)).alias(f"{side}_expired"),
            *(
                sf.percentile(f"{side}_wait_ms", share, waited).alias(f"{side}_p{int(100 * share)}")
                for share in (0.5, 0.99)
            ),
        ]
    shift = sf.sum((sf.col("variant_wait_ms") - sf.col("baseline_wait_ms")) * n).alias("shift_ms")
    return alike.groupBy("kind").agg(sf.sum(n).alias("operations"), *changes, *waits, shift).orderBy("kind").collect()


def ends_table(variant: str, rows: list[Row]) -> Table:
    """Baseline and variant beside each other; one line says so where nothing differs."""
    changed = sum(_changed(row) for row in rows)
    operations = sum(row.operations for row in rows)
    title = (
        f"{variant}: {changed:,} of {operations:,} operations end otherwise"
        if changed
        else (f"{variant}: no difference in any of {operations:,} operations")
    )
    columns = ("kind", "operations", "differ", "expired", "would expire", "appear", "vanish", "other end", "one only")
    waits = ("p50 ms", "would be", "p99 ms", "would be", "wait in all, s")
    cells = [
        (
            row.kind,
            row.operations,
            _changed(row),
            row.baseline_expired,
            row.variant_expired,
            *(row[f"change_{CHANGES.index(change)}"] for change in (APPEARS, VANISHES, OTHERWISE, ONLY_ONE)),
            *(_rounded(row[name]) for name in ("baseline_p50", "variant_p50", "baseline_p99", "variant_p99")),
            f"{(row.shift_ms or 0) / 1000:+,.1f}",
        )
        for row in rows
    ]
    return Table(title, (*columns, *waits), cells if changed else [])


def purgatories_table(runs: dict[str, RunTables]) -> Table:
    """The most that each gauge read, under each configuration."""
    sizes = []
    for name, tables in runs.items():
        gauges = tables.table("purgatory_gauges")
        most = gauges.groupBy("purgatory", "broker").agg(
            sf.max("watched").alias("size"), sf.max("delayed").alias("delayed"), sf.sum("purged").alias("purged")
        )
        sizes.append(most.withColumn("variant", sf.lit(name)))
    every = sizes[0]
    for more in sizes[1:]:
        every = every.unionByName(more)
    first = sf.col("variant") != BASELINE
    rows = [
        (row.purgatory, row.broker, row.variant, row.size, row.delayed, row.purged)
        for row in every.orderBy("purgatory", "broker", first, "variant").collect()
    ]
    columns = ("purgatory", "broker", "variant", "PurgatorySize, most", "NumDelayedOperations, most", "purged")
    return Table("Purgatories", columns, rows)


def _changed(row: Row) -> int:
    return sum(row[f"change_{place}"] for place in range(len(CHANGES)))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
