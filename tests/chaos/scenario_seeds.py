"""`python -m tests.chaos.scenario_seeds --seeds 20`: checks a replay of every bundled scenario with many random seeds.

Each run does what `simulate --scenario NAME --seed SEED --check` does, but all runs share one process without Spark. A
run prints the number of operations and of those that differ from the simulated brokers. The exit status is 1 if any
operation differs. Seeds start at `--first`, whose default is a number that no test uses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.simulation.output import Output
from purgatory_udf.simulation.scenario import load_scenario, scenario_names
from purgatory_udf.simulation.simulation_run import (
    CheckVerdict,
    ScenarioRun,
    check_against_replay,
    simulate_and_write,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.scenario_seeds", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds per scenario")
    parser.add_argument("--first", type=int, default=90_001, help="first seed; the others follow it")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of producers and consumers")
    parser.add_argument("--duration", type=float, help="simulated seconds [default: the scenario's]")
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="scenarios [default: all]")
    options = parser.parse_args()
    operations = different = 0
    for seed in range(options.first, options.first + options.seeds):
        for name in options.names or scenario_names():
            started = time.perf_counter()
            verdict = check(name, seed, options.duration, options.scale)
            operations, different = operations + verdict.operations, different + verdict.different
            seconds = time.perf_counter() - started
            print(f"{name:20}{seed:8}{verdict.operations:10,}{verdict.different:6,} differ{seconds:8.1f} s", flush=True)
            if verdict.different:
                print("\n".join(verdict.lines()[1:]), flush=True)
    print(f"{different:,} of {operations:,} operations differ")
    return 1 if different else 0


def check(name: str, seed: int, duration_s: float | None = None, scale: float = 1.0) -> CheckVerdict:
    """Simulate a scenario with a seed, replay its trace, and compare the outcomes."""
    scenario_run = ScenarioRun(load_scenario(name), seed, duration_s, scale)
    with tempfile.TemporaryDirectory(prefix="seeds-") as folder:
        output = Output(str(Path(folder) / "out"), scenario_run.run_id)
        backend = open_local()
        simulate_and_write(backend, scenario_run, output, lambda _: None)
        return check_against_replay(backend, output.out, overwrite=True)


if __name__ == "__main__":
    sys.exit(main())
