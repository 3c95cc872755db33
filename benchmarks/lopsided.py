"""`python -m benchmarks.lopsided`: traces that are all in one place, through the loop and the bytes of its state.

One partition has 99 % of the operations; each operation is on 5,000 partitions; a million operations wait at once on
one key. Each is held against an ordinary trace with as many watches, measured in the same minute. No operation may be
missing in the end, and none may be there twice.
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

from benchmarks.partition_trace import Shape, partition_trace
from purgatory_udf.common.configuration import INT32_MAX, Config
from purgatory_udf.rules.engine.loop.state_codec import state_bytes
from purgatory_udf.rules.engine.partition_engine import Engine, Tables

BATCH = 500_000
_NEVER = 1 << 30


@dataclass(frozen=True)
class Measurement:
    """What a trace came to: seconds, the most operations that were open between two batches, and their bytes."""

    seconds: float
    open: int
    state_bytes: int
    wrong: str


def shapes(watches: int) -> dict[str, Shape]:
    """Each with about so many watches."""
    # Half are fetches; few enough come at a time to be behind the high watermark, so that most of them wait.
    at_once = Shape(watches * 5 // 2, 1, operations_per_second=100, max_wait_ms=INT32_MAX, min_bytes=_NEVER)
    return {
        "one partition of 1,000 has 99 %": Shape(watches, 1_000, hot=0.99),
        "5,000 partitions an operation": Shape(max(1, watches // 5_000), 5_000, keys_per_operation=5_000),
        "all open at once on one key": at_once,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.lopsided")
    options.add_argument("--watches", type=int, default=1_000_000)
    options.add_argument("--only", type=int, help="one of the three, from 0")
    asked = options.parse_args(arguments)
    chosen = list(shapes(asked.watches).items())
    wrong = run(Shape(1_000, 10)).wrong  # What is compiled is loaded.
    for name, shape in chosen if asked.only is None else [chosen[asked.only]]:
        ordinary = run(Shape(shape.operations * shape.keys_per_operation, 1_000))
        uneven = run(shape)
        wrong = wrong or uneven.wrong or ordinary.wrong
        each = uneven.state_bytes / uneven.open if uneven.open else 0
        print(
            f"{name}: {uneven.seconds / ordinary.seconds:.1f} times an ordinary trace's time; {uneven.open:,} open at "
            f"once, {each:.0f} bytes each; {uneven.wrong or 'each operation ended once'}",
            flush=True,
        )
    print(f"memory at its highest: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    return 1 if wrong else 0


def run(shape: Shape) -> Measurement:
    """Batch by batch, each group's state packed and unpacked between two, as Spark keeps it."""
    trace = partition_trace(shape)
    engine = Engine(Config(), through_bytes=True)
    ended, most, size = [], 0, 0
    began = time.process_time()
    for at in range(0, len(trace), BATCH):
        ended += engine.feed(trace.slice(at, BATCH))
        still = sum(len(state.operations) for state in engine.states.values())
        if still > most:
            most, size = still, sum(len(state_bytes(state)) for state in engine.states.values())
    ended += engine.drain()
    seconds = time.process_time() - began
    tables = Tables.of(ended)
    return Measurement(
        seconds, most, size, _wrong(trace, [tables.completions, tables.expirations, tables.cancellations])
    )


def _wrong(trace: pa.Table, ends: Sequence[pa.Table]) -> str:
    asked = trace.filter(pc.is_in(trace["type"], pa.array(["produce", "fetch"])))["seq"].to_numpy()
    ended = np.concatenate([table["operation_id"].to_numpy() for table in ends])
    lost, twice = len(np.setdiff1d(asked, ended)), len(ended) - len(np.unique(ended))
    return f"{lost:,} operations lost, {twice:,} twice" if lost or twice or len(ended) != len(asked) else ""


if __name__ == "__main__":
    sys.exit(main())
