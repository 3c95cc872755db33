"""Speed of the engine against the event-by-event reference, in one process without Spark, and how it scales.

    python -m benchmarks.engine_speed
    python -m benchmarks.engine_speed --json now.json --compare before.json

The runs that a line compares are interleaved, and their medians are compared.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from benchmarks import saved_figures
from benchmarks.partition_trace import Shape, partition_trace
from benchmarks.saved_figures import Figures
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine
from purgatory_udf.rules.engine.partition_engine import replay as by_loop
from purgatory_udf.rules.reference.reference_replay import replay as by_event

BATCH = 50_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all traces and print one line each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--operations", type=int, default=100_000, help="operations of the largest traces [default: 100000]"
    )
    options.add_argument("--runs", type=int, default=3, help="runs of each measurement [default: 3]")
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    many = given.operations
    by_reference = {
        "ordinary": Shape(many // 10, keys=200),
        "wide, 100 partitions": Shape(many // 100, keys=200, keys_per_operation=100),
        "long watcher lists": Shape(many // 20, 8, 3, max_wait_ms=30_000, min_bytes=1 << 19),
    }
    short_lists = Shape(many // 10, 8, 3, max_wait_ms=2_000, min_bytes=1 << 30)
    long_lists = Shape(many, 8, 3, operations_per_second=20_000, max_wait_ms=2_000, min_bytes=1 << 30)
    by_size = {
        "10 x the trace": (Shape(many // 10, keys=200), Shape(many, keys=200)),
        "10 x the watchers of a key": (short_lists, long_lists),
    }
    _run_engine(partition_trace(Shape(100, keys=2)))  # Loads the compiled code.
    figures = {name: _compare_with_reference(name, shape, given.runs) for name, shape in by_reference.items()}
    figures |= {name: _compare_sizes(name, *sizes, given.runs) for name, sizes in by_size.items()}
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    saved_figures.finish(figures, given)


def _compare_with_reference(name: str, shape: Shape, runs: int) -> Figures:
    """Print operations per second of the engine and of the reference on one trace; return the CPU seconds."""
    trace = partition_trace(shape)
    events = trace.to_pylist()
    engine, reference = interleaved_medians(
        [lambda: _run_engine(trace), lambda: by_event(events, Config())],
        runs,
    )
    rate, slow = shape.operations / engine, shape.operations / reference
    print(
        f"{name}: {rate:,.0f} operations/s, reference {slow:,.0f}: ratio {rate / slow:.1f} ({len(events):,} events)",
        flush=True,
    )
    return {"engine_s": engine, "reference_s": reference, "ratio": rate / slow}


def _compare_sizes(name: str, small: Shape, large: Shape, runs: int) -> Figures:
    """Print and return how the engine's time grows from a small trace to a large one."""
    traces = [partition_trace(shape) for shape in (small, large)]
    small_s, large_s = interleaved_medians([lambda: _run_engine(traces[0]), lambda: _run_engine(traces[1])], runs)
    each = (large_s / large.operations) / (small_s / small.operations)
    print(f"{name}: time x {large_s / small_s:.1f}, time per operation x {each:.2f}", flush=True)
    return {"small_s": small_s, "large_s": large_s, "ratio": each}


def _run_engine(trace: pa.Table) -> None:
    batches = [trace.slice(at, BATCH) for at in range(0, len(trace), BATCH)]
    by_loop(batches, Engine(Config()))


def interleaved_medians(
    measured: Sequence[Callable[[], object]], runs: int, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """Return the median seconds of each function.

    The runs are interleaved, so that other load on the machine affects every function equally.

    Args:
        measured: The functions.
        runs: Number of runs of each function.
        clock: Returns the time in seconds; by default, CPU time of this process.
    """
    seconds: list[list[float]] = [[] for _ in measured]
    for _ in range(runs):
        for taken, run in zip(seconds, measured, strict=True):
            began = clock()
            run()
            taken.append(clock() - began)
    return [statistics.median(taken) for taken in seconds]


if __name__ == "__main__":
    main()
