"""What a replay's time is made of, and what that says of a replay that was not measured.

    python -m benchmarks.costs                          # on as many cores as there are
    python -m benchmarks.costs --master 'local[1]'      # what one core alone takes
    python -m benchmarks.costs --cluster --runs 1       # on a standalone cluster here: two executors, a core each
    python -m benchmarks.costs --json two.json

Traces that differ in one thing at a time are replayed in turn in one Spark session; least squares make of their times
what a run, a batch, a million events, a million rows of watches, a touched key, and a million operations that stay
open from batch to batch cost. Then traces of other sizes are replayed, and their times are held against what these
costs foretell.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from deltalake import DeltaTable

from benchmarks.partition_trace import Shape
from benchmarks.replay import launched, made, replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
ALL_AT_ONCE = 5_000_000
# Beyond what ever comes: such fetches wait until their time is over.
NEVER = 1 << 30

# What a replay costs, and in what that is counted.
COSTS = {
    "a run": 1,
    "a batch more": 1,
    "a million events": 1_000_000,
    "a million watches": 1_000_000,
    "a thousand keys, each a group, of one batch": 1_000,
    "a million open operations, carried from a batch to the next": 1_000_000,
}


@dataclass(frozen=True)
class Case:
    """A replay: of which trace, in which way."""

    shape: Shape
    grouping: str = "broker"
    batch_events: int = ALL_AT_ONCE

    def __str__(self) -> str:
        shape, waits = self.shape, "" if self.shape.min_bytes < NEVER else ", all fetches wait a minute"
        size = "" if self.batch_events == ALL_AT_ONCE else f", batches of {self.batch_events:,} events"
        return (
            f"{shape.operations:,} operations of {shape.keys_per_operation} of {shape.keys:,} partitions by "
            f"{self.grouping}{size}{waits}"
        )


MEASURED = (
    Case(Shape(20_000, 1_000)),
    Case(Shape(100_000, 1_000)),
    Case(Shape(400_000, 1_000)),
    Case(Shape(100_000, 1_000, keys_per_operation=4)),
    Case(Shape(200_000, 1_000), batch_events=50_000),
    Case(Shape(100_000, 1_000), "partition"),
    Case(Shape(100_000, 4_000), "partition"),
    Case(Shape(200_000, 1_000, max_wait_ms=60_000, min_bytes=NEVER), batch_events=50_000),
)
FORETOLD = (
    Case(Shape(300_000, 1_000, keys_per_operation=2), batch_events=150_000),
    Case(Shape(150_000, 2_500), "partition", 100_000),
    Case(Shape(1_000_000, 5_000)),
)


@dataclass
class Measurement:
    """How often each cost is met with, and the seconds."""

    case: Case
    counts: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--master", default="local[*]")
    options.add_argument("--cluster", action="store_true", help="start a standalone cluster of two executors for it")
    options.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's")
    options.add_argument("--runs", type=int, default=3, help="of each; medians count")
    options.add_argument("--json", type=Path, help="write the costs to this file")
    asked = options.parse_args(arguments)
    from purgatory_udf.launch.spark_session import build_session

    settings = {"spark.master": asked.master}
    if not asked.cluster:
        settings |= launched()
    cases = (*MEASURED, *FORETOLD)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        if asked.cluster:
            settings |= started.enter_context(cluster_of_two(Path(folder)))
        settings |= dict(each.split("=", 1) for each in asked.conf)
        spark = build_session("benchmark-costs", settings)
        measurements = measured(spark, Path(folder), cases, asked.runs)
        spark.stop()
    costs = fitted(measurements[: len(MEASURED)])
    for line in report(costs, measurements):
        print(line, flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(dict(zip(COSTS, costs, strict=True)), indent=1) + "\n")


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[dict[str, str]]:
    """What a session on a cluster of two executors is made with; its workers find this tree, and this Python."""
    from tests.cluster.standalone import standalone

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with standalone(folder, memory_mb=3 * 1024) as cluster:
        yield {
            "spark.master": cluster.master,
            "spark.driver.memory": "2g",
            "spark.executor.memory": "2g",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }


def measured(spark: SparkSession, folder: Path, cases: Sequence[Case], runs: int) -> list[Measurement]:
    events: dict[Shape, str] = {}
    for case in cases:
        if case.shape not in events:
            (folder / f"trace-{len(events)}").mkdir()
            events[case.shape] = made(spark, folder / f"trace-{len(events)}", case.shape)
    measurements = [Measurement(case) for case in cases]
    # What runs first pays for Spark's and the JVM's beginning; it is not counted.
    for turn in range(-1, runs):
        for number, each in enumerate(measurements):
            case = each.case
            if turn < 0 and case not in (MEASURED[1], MEASURED[5]):
                continue
            out = folder / f"out-{turn}-{number}"
            took = replayed(spark, out, events[case.shape], case.grouping, case.batch_events)
            if turn >= 0:
                each.seconds.append(took)
                each.counts = each.counts or counts(case, events[case.shape], out)
                print(f"{case}: {took:.1f} s", flush=True)
    return measurements


def counts(case: Case, events: str, out: Path) -> list[float]:
    """How much of each cost there is in it."""
    table = DeltaTable(events).to_pyarrow_table(columns=["type"])
    total, kinds = len(table), table["type"]
    watches = DeltaTable(str(out / "watches")).to_pyarrow_dataset().count_rows()
    batches = -(-total // case.batch_events)
    keys = batches * case.shape.keys if case.grouping == "partition" else 0
    opened = 0
    if case.shape.min_bytes >= NEVER:
        fetches = np.cumsum(kinds.to_numpy() == "fetch")
        opened = sum(int(fetches[min(total, case.batch_events * batch) - 1]) for batch in range(1, batches))
    values = (1, batches - 1, total, watches, keys, opened)
    return [value / unit for value, unit in zip(values, COSTS.values(), strict=True)]


def fitted(measurements: Sequence[Measurement]) -> list[float]:
    """By relative errors, so that small replays count as much as large ones."""
    seconds = np.array([statistics.median(each.seconds) for each in measurements])
    table = np.array([each.counts for each in measurements])
    costs = np.zeros(table.shape[1])
    counted = np.ones(len(costs), dtype=bool)
    while True:
        some = table[:, counted] / seconds[:, None]
        costs[counted], *_ = np.linalg.lstsq(some, np.ones(len(measurements)), rcond=None)
        # Nothing gives time back: what is so little that the others' noise is more costs nothing.
        if (costs >= 0).all():
            return [float(cost) for cost in costs]
        counted &= costs >= 0
        costs[~counted] = 0


def report(costs: Sequence[float], measurements: Sequence[Measurement]) -> list[str]:
    lines = ["", "seconds for"]
    lines += [f"  {name}: {cost:.2f}" for name, cost in zip(COSTS, costs, strict=True)]
    for title, some in (("measured", measurements[: len(MEASURED)]), ("foretold", measurements[len(MEASURED) :])):
        lines += ["", f"{title}: seconds, those that the costs make, their ratio"]
        for each in some:
            said, took = float(np.dot(costs, each.counts)), statistics.median(each.seconds)
            lines.append(f"  {each.case}: {took:.1f}, {said:.1f}, {said / took:.2f}")
    return lines


if __name__ == "__main__":
    main()
