"""Speed of `simulate`: its closed loop in SimPy, and its open loop in Spark.

    python -m benchmarks.simulation_speed
    python -m benchmarks.simulation_speed --events 2000000 --runs 3 steady leader-failover

The closed loop simulates clients and brokers, and its brokers are the reference. It is compared with the reference
alone on the resulting events; the difference is the cost of clients, network and controller. The open loop is compared
with Spark writing the same rows from memory, and with itself as one task on one core.

The runs that a line compares are interleaved, and their medians are compared.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import saved_figures
from benchmarks.engine_speed import interleaved_medians
from benchmarks.saved_figures import Figures
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.open_loop.event_rows import events_of, write_events
from purgatory_udf.simulation.open_loop.workload import Workload
from purgatory_udf.simulation.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCENARIOS = ("steady", "rebalance-storm", "idle-consumers")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the loops and print one line each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--events", type=int, default=1_000_000, help="events of the open loop, 0 to skip it [default: 1000000]"
    )
    options.add_argument("--seconds", type=float, help="length of each scenario, in seconds [default: its own]")
    options.add_argument("--runs", type=int, default=3, help="runs of each measurement [default: 3]")
    options.add_argument(
        "scenarios", nargs="*", default=SCENARIOS, metavar="SCENARIO", help="scenarios of the closed loop"
    )
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    figures: Figures = {}
    for name in given.scenarios:
        scenario = load_scenario(name)
        length = {} if given.seconds is None else {"duration_s": given.seconds}
        figures[name] = _measure_closed_loop(name, scenario.model_copy(update=length), given.runs)
    if given.events:
        figures["open loop"] = _measure_open_loop(Workload(given.events), given.runs)
    saved_figures.finish(figures, given)


def _measure_closed_loop(name: str, scenario: Scenario, runs: int) -> Figures:
    """Print and return the speed of the closed loop on one scenario."""
    events = ClosedLoop(scenario).run().events
    loop, reference = interleaved_medians([lambda: ClosedLoop(scenario).run(), lambda: replay(events, Config())], runs)
    print(
        f"closed loop, {name}: {scenario.duration_s / loop:.1f} simulated seconds per second, "
        f"{len(events) / loop:,.0f} events/s; the reference alone {len(events) / reference:,.0f}: "
        f"{loop / reference:.1f} times its time ({len(events):,} events)",
        flush=True,
    )
    return {"seconds": loop, "reference_s": reference, "ratio": loop / reference}


def _measure_open_loop(workload: Workload, runs: int) -> Figures:
    """Print and return the time of the open loop: on all cores, as one task, and of the same rows from memory."""
    from purgatory_udf.launch.spark_session import build_session

    spark = build_session("loops")
    cores = spark.sparkContext.defaultParallelism
    with tempfile.TemporaryDirectory() as folder:
        cached = events_of(spark, workload, "cached").persist()
        cached.count()
        # Warm-up: the first writes of a session load classes and start Python workers.
        _write(events_of(spark, workload, "first"), Path(folder))
        _write(cached, Path(folder))
        whole, alone, bare = interleaved_medians(
            [
                lambda: _write(events_of(spark, workload, "all"), Path(folder)),
                lambda: _write(events_of(spark, workload, "one", tasks=1), Path(folder)),
                lambda: _write(cached, Path(folder)),
            ],
            runs,
            clock=time.perf_counter,
        )
    rates = [f"{workload.events / seconds:,.0f}" for seconds in (whole, bare, alone)]
    print(
        f"open loop: {rates[0]} events/s on {cores} cores, written from memory {rates[1]}: {whole / bare:.1f} times "
        f"its time; as one task {rates[2]}: {alone / whole:.1f} times as long ({workload.events:,} events, "
        f"{workload.slices} slices)",
        flush=True,
    )
    spark.stop()
    return {"seconds": whole, "one_task_s": alone, "write_s": bare, "ratio": whole / bare}


def _write(events: DataFrame, folder: Path) -> None:
    path = folder / "events"
    shutil.rmtree(path, ignore_errors=True)
    write_events(events, str(path))


if __name__ == "__main__":
    main()
