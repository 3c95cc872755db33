"""How fast `simulate` makes traces: its closed loop (SimPy), and its open loop (Spark).

    python -m benchmarks.loops
    python -m benchmarks.loops --events 2000000 --runs 3 steady leader-failover

The closed loop plays clients and brokers together; the brokers are the reference. So it is compared with the reference
alone on the events that came of it: what is left are the clients, the network and the controller. The open loop is
compared with Spark writing the very same rows, which it has in memory then; and with itself as one task, on one core.

Every line is measured in the same minute as the line that it is compared with; ratios are what counts.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.core import side_by_side
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.open_loop.event_rows import events_of, write_events
from purgatory_udf.simulation.open_loop.workload import Workload
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.scenario_file import load_scenario

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCENARIOS = ("steady", "rebalance-storm", "idle-consumers")


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=1_000_000, help="of the open loop; 0 leaves it out")
    options.add_argument("--seconds", type=float, help="length of each scenario, if not its own")
    options.add_argument("--runs", type=int, default=3, help="of each measurement; medians are compared")
    options.add_argument("scenarios", nargs="*", default=SCENARIOS, metavar="SCENARIO", help="of the closed loop")
    asked = options.parse_args(arguments)
    for name in asked.scenarios:
        scenario = load_scenario(name)
        length = {} if asked.seconds is None else {"duration_s": asked.seconds}
        _closed(name, scenario.model_copy(update=length), asked.runs)
    if asked.events:
        _open(Workload(asked.events), asked.runs)


def _closed(name: str, scenario: Scenario, runs: int) -> None:
    events = ClosedLoop(scenario).run().events
    loop, reference = side_by_side([lambda: ClosedLoop(scenario).run(), lambda: replay(events, Config())], runs)
    print(
        f"closed loop, {name}: {scenario.duration_s / loop:.1f} simulated seconds a second, "
        f"{len(events) / loop:,.0f} events/s; the reference alone {len(events) / reference:,.0f}: "
        f"{loop / reference:.1f} times its time ({len(events):,} events)",
        flush=True,
    )


def _open(workload: Workload, runs: int) -> None:
    from purgatory_udf.launch.spark_session import build_session

    spark = build_session("loops")
    cores = spark.sparkContext.defaultParallelism
    with tempfile.TemporaryDirectory() as folder:
        kept = events_of(spark, workload, "kept").persist()
        kept.count()
        # The first writes of a session also load its classes and start its Python workers.
        _written(events_of(spark, workload, "first"), Path(folder))
        _written(kept, Path(folder))
        whole, alone, bare = side_by_side(
            [
                lambda: _written(events_of(spark, workload, "all"), Path(folder)),
                lambda: _written(events_of(spark, workload, "one", tasks=1), Path(folder)),
                lambda: _written(kept, Path(folder)),
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


def _written(events: DataFrame, folder: Path) -> None:
    path = folder / "events"
    shutil.rmtree(path, ignore_errors=True)
    write_events(events, str(path))


if __name__ == "__main__":
    main()
