"""The check: a replay of the simulated trace has to say exactly what the simulated brokers did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.config import Config
from purgatory_udf.errors import LawBrokenError
from purgatory_udf.storage.layout import Layout
from purgatory_udf.stream.options import ReplayOptions
from purgatory_udf.stream.replay import run_replay
from purgatory_udf.tables import ENDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """An operation that the replay has otherwise than the truth, or only one of them has."""

    table: str
    operation_id: int
    columns: tuple[str, ...]
    truth: tuple[Any, ...] | None
    replayed: tuple[Any, ...] | None

    def line(self) -> str:
        name = f"{self.table}: operation {self.operation_id}"
        if self.truth is None:
            return f"{name}: the replay has it, the simulated broker did not"
        if self.replayed is None:
            return f"{name}: the simulated broker has it, the replay has not"
        differing = [
            f"{column} is {mine!r}, not {theirs!r}"
            for column, theirs, mine in zip(self.columns, self.truth, self.replayed, strict=True)
            if mine != theirs
        ]
        return f"{name}: {'; '.join(differing)}"


@dataclass(frozen=True)
class CheckVerdict:
    operations: int
    different: int
    shown: Sequence[Difference]

    def lines(self) -> list[str]:
        if not self.different:
            return [f"check     the replay agrees on all {self.operations:,} operations"]
        return [
            f"check     {self.different:,} of {self.operations:,} operations differ, for example",
            *(f"          {difference.line()}" for difference in self.shown),
        ]

    def require_agreement(self) -> None:
        if self.different:
            raise LawBrokenError(f"the replay differs from the truth in {self.different:,} operations")


def check(spark: SparkSession, out: str, overwrite: bool) -> CheckVerdict:
    """Replay `events` into the tables beside it, and hold these against the truth."""
    layout = Layout(out)
    run_replay(spark, ReplayOptions(layout.table("events"), out, Config(), overwrite=overwrite))
    return compare(spark, out)


def compare(spark: SparkSession, out: str) -> CheckVerdict:
    layout = Layout(out)
    operations = different = 0
    shown: list[Difference] = []
    for name in ENDS:
        truth = spark.read.format("delta").load(layout.table(f"truth_{name}")).drop("run_id")
        replayed = spark.read.format("delta").load(layout.table(name)).drop("run_id").select(*truth.columns)
        operations += truth.count()
        wrong = [_by_id(truth.exceptAll(replayed)), _by_id(replayed.exceptAll(truth))]
        ids = sorted({*wrong[0], *wrong[1]})
        different += len(ids)
        shown += [
            Difference(name, operation_id, tuple(truth.columns), wrong[0].get(operation_id), wrong[1].get(operation_id))
            for operation_id in ids[:SHOWN]
        ]
    return CheckVerdict(operations, different, shown)


def _by_id(rows: DataFrame) -> dict[int, tuple[Any, ...]]:
    return {row.operation_id: tuple(row) for row in rows.collect()}
