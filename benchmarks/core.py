"""The loop in one process, without Spark, against the event-by-event reference; and how both grow.

    python -m benchmarks.core

Every line is measured in the same minute as the line that it is compared with; ratios are what counts.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from benchmarks.partition_trace import Shape, partition_trace
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine
from purgatory_udf.rules.engine.partition_engine import replay as by_loop
from purgatory_udf.rules.reference.reference_replay import replay as by_event

BATCH = 50_000


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--operations", type=int, default=100_000, help="of the larger traces")
    options.add_argument("--runs", type=int, default=3, help="of each measurement; medians are compared")
    asked = options.parse_args(arguments)
    many = asked.operations
    _against_reference("ordinary", Shape(many // 10, keys=200), asked.runs)
    _against_reference("wide, 100 partitions", Shape(many // 100, keys=200, keys_per_operation=100), asked.runs)
    _against_reference("long watcher lists", Shape(many // 20, 8, 3, max_wait_ms=30_000, min_bytes=1 << 19), asked.runs)
    _growth("10 x the trace", Shape(many // 10, keys=200), Shape(many, keys=200), asked.runs)
    few = Shape(many // 10, 8, 3, max_wait_ms=2_000, min_bytes=1 << 30)
    lists = Shape(many, 8, 3, operations_per_second=20_000, max_wait_ms=2_000, min_bytes=1 << 30)
    _growth("10 x the watchers of a key", few, lists, asked.runs)
    print(f"memory at its highest: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


def _against_reference(name: str, shape: Shape, runs: int) -> None:
    trace = partition_trace(shape)
    events = trace.to_pylist()
    core, reference = side_by_side(
        [lambda: _core(trace), lambda: by_event(events, Config())],
        runs,
    )
    rate, slow = shape.operations / core, shape.operations / reference
    print(
        f"{name}: {rate:,.0f} operations/s, reference {slow:,.0f}: {rate / slow:.1f} times ({len(events):,} events)",
        flush=True,
    )


def _growth(name: str, small: Shape, large: Shape, runs: int) -> None:
    traces = [partition_trace(shape) for shape in (small, large)]
    small_s, large_s = side_by_side([lambda: _core(traces[0]), lambda: _core(traces[1])], runs)
    each = (large_s / large.operations) / (small_s / small.operations)
    print(f"{name}: {large_s / small_s:.1f} times the time, {each:.2f} times per operation", flush=True)


def _core(trace: pa.Table) -> None:
    batches = [trace.slice(at, BATCH) for at in range(0, len(trace), BATCH)]
    by_loop(batches, Engine(Config()))


def side_by_side(
    measured: Sequence[Callable[[], object]], runs: int, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """Medians of seconds; the runs of all take turns, so that what else the machine does falls on all alike."""
    seconds: list[list[float]] = [[] for _ in measured]
    for _ in range(runs):
        for taken, run in zip(seconds, measured, strict=True):
            began = clock()
            run()
            taken.append(clock() - began)
    return [statistics.median(taken) for taken in seconds]


if __name__ == "__main__":
    main()
