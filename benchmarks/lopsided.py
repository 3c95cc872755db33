"""Skewed traces through the engine, with its state serialized between batches.

    python -m benchmarks.lopsided

One partition has 99 % of the operations; each operation has 5,000 partitions; a million operations wait for one key at
the same time. Each trace is compared with an ordinary one with the same number of watches, and each operation must have
exactly one outcome.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import saved_figures
from benchmarks.partition_trace import Shape, partition_trace
from benchmarks.saved_figures import Figures
from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.rules.engine.loop.state_codec import encode_state
from purgatory_udf.rules.engine.partition_engine import Engine, Tables

BATCH = 500_000
_NEVER = 1 << 30


@dataclass(frozen=True)
class Measurement:
    """Measured figures of a trace.

    Attributes:
        seconds: CPU time of the replay.
        open: The largest number of open operations between two batches.
        state_bytes: Size of the serialized state at that time, in bytes.
        wrong: A description of wrong outcomes, or an empty string.
    """

    seconds: float
    open: int
    state_bytes: int
    wrong: str


def shapes(watches: int) -> dict[str, Shape]:
    """Return the traces, each with about this many watches."""
    # Half are fetches, at a rate at which most of them are at the high watermark, and wait.
    at_once = Shape(watches * 5 // 2, 1, operations_per_second=100, max_wait_ms=INT32_MAX, min_bytes=_NEVER)
    return {
        "one partition of 1,000 has 99 %": Shape(watches, 1_000, hot=0.99),
        "5,000 partitions an operation": Shape(max(1, watches // 5_000), 5_000, keys_per_operation=5_000),
        "all open at once on one key": at_once,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the traces and print one line each; return 1 if any outcome is wrong."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.lopsided")
    options.add_argument("--watches", type=int, default=1_000_000, help="watches of each trace [default: 1000000]")
    saved_figures.add_options(options)
    options.add_argument("--only", type=int, help="measure only this trace: 0, 1 or 2")
    given = options.parse_args(arguments)
    chosen = list(shapes(given.watches).items())
    figures: Figures = {}
    wrong = run(Shape(1_000, 10)).wrong  # Also loads the compiled code.
    for name, shape in chosen if given.only is None else [chosen[given.only]]:
        ordinary = run(Shape(shape.operations * shape.keys_per_operation, 1_000))
        uneven = run(shape)
        wrong = wrong or uneven.wrong or ordinary.wrong
        each = uneven.state_bytes / uneven.open if uneven.open else 0
        ratio = uneven.seconds / ordinary.seconds
        figures[name] = {"seconds": uneven.seconds, "ordinary_s": ordinary.seconds, "bytes": each, "ratio": ratio}
        print(
            f"{name}: {ratio:.1f} x an ordinary trace's time; {uneven.open:,} open at the "
            f"same time, {each:.0f} bytes each; {uneven.wrong or 'each operation ended once'}",
            flush=True,
        )
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    saved_figures.finish(figures, given)
    return 1 if wrong else 0


def run(shape: Shape) -> Measurement:
    """Replay batch by batch; the state is serialized between batches, as in Spark."""
    trace = partition_trace(shape)
    engine = Engine(Config(), serialize=True)
    decided, most_open, size = [], 0, 0
    began = time.process_time()
    for at in range(0, len(trace), BATCH):
        decided += engine.feed(trace.slice(at, BATCH))
        still_open = sum(len(state.operations) for state in engine.states.values())
        if still_open > most_open:
            most_open, size = still_open, sum(len(encode_state(state)) for state in engine.states.values())
    decided += engine.drain()
    seconds = time.process_time() - began
    tables = Tables.of(decided)
    return Measurement(
        seconds,
        most_open,
        size,
        _missing_or_duplicate(trace, [tables.completions, tables.expirations, tables.cancellations]),
    )


def _missing_or_duplicate(trace: pa.Table, ends: Sequence[pa.Table]) -> str:
    """Describe operations without an outcome or with several; return an empty string for a correct result."""
    requests = trace.filter(pc.is_in(trace["type"], pa.array(["produce", "fetch"])))["seq"].to_numpy()
    ended = np.concatenate([table["operation_id"].to_numpy() for table in ends])
    missing, twice = len(np.setdiff1d(requests, ended)), len(ended) - len(np.unique(ended))
    return f"{missing:,} operations missing, {twice:,} twice" if missing or twice or len(ended) != len(requests) else ""


if __name__ == "__main__":
    sys.exit(main())
