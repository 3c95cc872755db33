"""A cost model of replays, and how well it predicts the times of other replays.

    python -m benchmarks.costs                          # on all cores
    python -m benchmarks.costs --master 'local[1]'      # on one core
    python -m benchmarks.costs --cluster --runs 1       # on a local standalone cluster: two executors, one core each
    python -m benchmarks.costs --json two.json

Traces that differ in one property each are replayed in one Spark session, in interleaved runs. Least squares over their
times estimate the cost of a run, a batch, a million events, a million rows of watches, a key in a batch, and a million
operations that stay open between batches. Then replays of other sizes are compared with the model's predictions.
"""

from __future__ import annotations

import argparse
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

from benchmarks import saved_figures
from benchmarks.partition_trace import Shape
from benchmarks.replay import local_spark_settings, timed_replay, write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
SINGLE_BATCH = 5_000_000
# More bytes than any trace has: such fetches wait until they expire.
NEVER = 1 << 30

# The costs of a replay, and the size of a unit of each.
COSTS = {
    "run": 1,
    "further batch": 1,
    "million events": 1_000_000,
    "million watches": 1_000_000,
    "thousand keys in a batch, each a group": 1_000,
    "million operations open between two batches": 1_000_000,
}


@dataclass(frozen=True)
class Case:
    """A replay: its trace, its grouping and the size of its batches."""

    shape: Shape
    grouping: str = "broker"
    batch_events: int = SINGLE_BATCH

    def __str__(self) -> str:
        shape, waits = self.shape, "" if self.shape.min_bytes < NEVER else ", all fetches wait 1 min"
        size = "" if self.batch_events == SINGLE_BATCH else f", batches of {self.batch_events:,} events"
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
PREDICTED = (
    Case(Shape(300_000, 1_000, keys_per_operation=2), batch_events=150_000),
    Case(Shape(150_000, 2_500), "partition", 100_000),
    Case(Shape(1_000_000, 5_000)),
)


@dataclass
class Measurement:
    """A case with its number of units of each cost, and the measured seconds."""

    case: Case
    counts: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases, fit the cost model and print the report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--master", default="local[*]")
    options.add_argument("--cluster", action="store_true", help="start a standalone cluster of two executors")
    options.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting")
    options.add_argument("--runs", type=int, default=3, help="runs of each case; medians are used [default: 3]")
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    from purgatory_udf.launch.spark_session import build_session

    settings = {"spark.master": given.master}
    if not given.cluster:
        settings |= local_spark_settings()
    cases = (*MEASURED, *PREDICTED)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        if given.cluster:
            settings |= started.enter_context(executor_cluster(Path(folder), 2))
        settings |= dict(each.split("=", 1) for each in given.conf)
        spark = build_session("benchmark-costs", settings)
        measurements = measure(spark, Path(folder), cases, given.runs)
        spark.stop()
    costs = fit_costs(measurements[: len(MEASURED)])
    for line in report(costs, measurements):
        print(line, flush=True)
    saved_figures.finish(dict(zip(COSTS, costs, strict=True)), given, tuple(COSTS))


@contextmanager
def executor_cluster(folder: Path, executors: int) -> Iterator[dict[str, str]]:
    """Start a cluster of executors with one core each; yield the settings of a Spark session on it.

    The executors use this source tree and this Python.
    """
    from tests.cluster.standalone import standalone

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with standalone(folder, executors, memory_mb=3 * 1024) as cluster:
        yield {
            "spark.master": cluster.master,
            "spark.driver.memory": "2g",
            "spark.executor.memory": "2g",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }


def measure(spark: SparkSession, folder: Path, cases: Sequence[Case], runs: int) -> list[Measurement]:
    """Replay all cases below `folder`, `runs` times each and interleaved, and return their times and units.

    Earlier runs of two cases, which start the JVM and Spark's workers, are not counted.
    """
    events: dict[Shape, str] = {}
    for case in cases:
        if case.shape not in events:
            (folder / f"trace-{len(events)}").mkdir()
            events[case.shape] = write_trace(spark, folder / f"trace-{len(events)}", case.shape)
    measurements = [Measurement(case) for case in cases]
    # The first runs start the JVM and Spark's workers; they are not counted.
    for turn in range(-1, runs):
        for number, each in enumerate(measurements):
            case = each.case
            if turn < 0 and case not in (MEASURED[1], MEASURED[5]):
                continue
            out = folder / f"out-{turn}-{number}"
            took = timed_replay(spark, out, events[case.shape], case.grouping, case.batch_events)
            if turn >= 0:
                each.seconds.append(took)
                each.counts = each.counts or count_units(case, events[case.shape], out)
                print(f"{case}: {took:.1f} s", flush=True)
    return measurements


def count_units(case: Case, events: str, out: Path) -> list[float]:
    """Return how many units of each cost a replay has caused, in the order of `COSTS`.

    `events` is the path of its events, `out` the folder of its tables.
    """
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


def fit_costs(measurements: Sequence[Measurement]) -> list[float]:
    """Return the seconds per unit of each cost.

    Least squares over relative errors: small replays count as much as large ones.
    """
    seconds = np.array([statistics.median(each.seconds) for each in measurements])
    table = np.array([each.counts for each in measurements])
    costs = np.zeros(table.shape[1])
    counted = np.ones(len(costs), dtype=bool)
    while True:
        relative = table[:, counted] / seconds[:, None]
        costs[counted], *_ = np.linalg.lstsq(relative, np.ones(len(measurements)), rcond=None)
        # Costs below the noise of the others come out negative; they are set to 0, and the rest is fitted again.
        if (costs >= 0).all():
            return [float(cost) for cost in costs]
        counted &= costs >= 0
        costs[~counted] = 0


def report(costs: Sequence[float], measurements: Sequence[Measurement]) -> list[str]:
    """Return the lines of the report: costs, then measured and predicted seconds of each case."""
    lines = ["", "seconds per unit"]
    lines += [f"  {name}: {cost:.2f}" for name, cost in zip(COSTS, costs, strict=True)]
    for title, some in (("measured", measurements[: len(MEASURED)]), ("predicted", measurements[len(MEASURED) :])):
        lines += ["", f"{title}: measured seconds, seconds by the model, ratio"]
        for each in some:
            predicted, took = float(np.dot(costs, each.counts)), statistics.median(each.seconds)
            lines.append(f"  {each.case}: {took:.1f}, {predicted:.1f}, {predicted / took:.2f}")
    return lines


if __name__ == "__main__":
    main()
