"""The `simulate` command: generate a trace by a closed loop (a scenario) or an open loop (any size)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend

if TYPE_CHECKING:
    from purgatory_udf.simulation.open_loop.workload import Workload

# The options of one mode with their defaults; the other mode rejects them.
CLOSED_LOOP_DEFAULTS = {"scenario": None, "jsonl": None, "duration": None, "scale": 1.0, "check": False}
OPEN_LOOP_DEFAULTS = {
    "events": 1_000_000,
    "partitions": 1000,
    "rate": 10_000.0,
    "skew": 0.0,
    "keys": 4,
    "median_ms": 20.0,
    "p75_ms": 60.0,
    "timeout_ms": 1000,
    "max_wait_ms": 500,
    "group_share": 0.4,
    "members": 10,
    "heartbeat_ms": 3000,
    "commit_ms": 5000,
    "session_timeout_ms": 10_000,
    "incident_s": 60.0,
    "crash_share": 0.5,
    "delete_share": 0.001,
    "create_share": 0.0005,
    "transaction_share": 0.0,
    "transaction_ms": 1000,
}

_closed_loop = partial(typer.Option, rich_help_panel="Closed loop (--scenario)")
_open_loop = partial(typer.Option, rich_help_panel="Open loop (--open-loop)")
_requests = partial(typer.Option, rich_help_panel="Open loop: produces and fetches")
_groups = partial(typer.Option, rich_help_panel="Open loop: consumer groups")
_administration = partial(typer.Option, rich_help_panel="Open loop: administration and transactions")


def _workload(seed: int | None, options: dict[str, Any]) -> Workload:
    from purgatory_udf.simulation.open_loop.workload import Workload

    return Workload(seed=1 if seed is None else seed, **{name: options[name] for name in OPEN_LOOP_DEFAULTS})


def _checks(open_loop: bool, seed: int | None, **options: Any) -> None:
    from purgatory_udf.simulation.scenario import load_scenario, scenario_names

    if open_loop and options["scenario"] is not None:
        raise UserError("give --scenario or --open-loop, not both")
    foreign = CLOSED_LOOP_DEFAULTS if open_loop else OPEN_LOOP_DEFAULTS
    inapplicable = next((name for name, default in foreign.items() if options[name] != default), None)
    if inapplicable is not None:
        raise UserError(f"--{inapplicable.replace('_', '-')} needs {'--scenario' if open_loop else '--open-loop'}")
    scenario, jsonl = options["scenario"], options["jsonl"]
    if open_loop:
        _workload(seed, options)
    elif scenario is None:
        raise UserError(f"give --open-loop, or --scenario NAME or a file (names: {', '.join(scenario_names())})")
    else:
        load_scenario(str(scenario))
    if isinstance(jsonl, Path) and not jsonl.absolute().parent.is_dir():
        raise UserError(f"--jsonl {jsonl}: no such folder: {jsonl.absolute().parent}; create it")


def _needs_spark(open_loop: bool, **_: object) -> bool:
    return open_loop


@job.job(checks=_checks, writes=("out",), max_local_bytes=ANY_BYTES, needs_spark=_needs_spark)
def main(
    open_backend: OpenBackend,
    out: Annotated[
        str,
        typer.Option(
            help="Folder for the tables: events, and with --scenario the outcomes at the simulated brokers (truth)."
        ),
    ],
    scenario: Annotated[
        str | None,
        _closed_loop(help="Name of a scenario in conf/scenarios, or a YAML file of the same form.", show_default=False),
    ] = None,
    jsonl: Annotated[
        Path | None, _closed_loop(help="File for a copy of the events as JSON Lines.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed.  [default: the scenario's, or 1]", show_default=False)
    ] = None,
    duration: Annotated[
        float | None,
        _closed_loop(
            help="Simulated time, in seconds.  [default: the scenario's]", min=0.001, max=86_400, show_default=False
        ),
    ] = None,
    scale: Annotated[
        float, _closed_loop(help="Factor for the number of producers and consumers.", min=0.001, max=1000)
    ] = 1.0,
    check: Annotated[
        bool,
        _closed_loop("--check", help="Replay the trace and compare the outcomes with those of the simulated brokers."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the tables in the folder.")] = False,
    open_loop: Annotated[
        bool,
        _open_loop("--open-loop", help="Generate a trace of any size, in parallel; clients do not react to responses."),
    ] = False,
    events: Annotated[
        int, _open_loop(help="Number of events, for example 100_000_000.", min=1, max=10**12)
    ] = 1_000_000,
    partitions: Annotated[int, _open_loop(help="Number of partitions.", min=3, max=500_000)] = 1000,
    rate: Annotated[
        float, _open_loop(help="Number of requests per second, over all partitions.", min=0.001, max=1e9)
    ] = 10_000.0,
    skew: Annotated[
        float,
        _open_loop(
            help="Zipf exponent of the load: 0 is even; with 1, the n-th partition gets 1/n of the first one's load.",
            min=0,
            max=100,
        ),
    ] = 0.0,
    keys: Annotated[int, _requests(help="Number of partitions per fetch.", min=1, max=500_000)] = 4,
    median_ms: Annotated[
        float, _requests(help="Median replication latency, in milliseconds.", min=0.001, max=86_400_000)
    ] = 20.0,
    p75_ms: Annotated[
        float, _requests(help="75th percentile of the replication latency, in milliseconds.", min=0.001, max=86_400_000)
    ] = 60.0,
    timeout_ms: Annotated[
        int,
        _requests(help="Timeout of produces and of administrative requests, in milliseconds.", min=0, max=86_400_000),
    ] = 1000,
    max_wait_ms: Annotated[
        int, _requests(help="Maximum wait of a fetch, in milliseconds.", min=0, max=86_400_000)
    ] = 500,
    group_share: Annotated[float, _groups(help="Fraction of requests that group members send.", min=0, max=0.95)] = 0.4,
    members: Annotated[int, _groups(help="Average number of members per group.", min=2, max=1000)] = 10,
    heartbeat_ms: Annotated[int, _groups(help="Heartbeat interval, in milliseconds.", min=100, max=600_000)] = 3000,
    commit_ms: Annotated[
        int, _groups(help="Interval of a member's offset commits, in milliseconds.", min=100, max=3_600_000)
    ] = 5000,
    session_timeout_ms: Annotated[
        int, _groups(help="Session timeout, in milliseconds.", min=6000, max=1_800_000)
    ] = 10_000,
    incident_s: Annotated[
        float, _groups(help="Interval between departures of members in each group, in seconds.", min=0, max=1e6)
    ] = 60.0,
    crash_share: Annotated[
        float, _groups(help="Fraction of departing members that crash instead of leaving.", min=0, max=1)
    ] = 0.5,
    delete_share: Annotated[
        float, _administration(help="Fraction of requests that delete records.", min=0, max=0.95)
    ] = 0.001,
    create_share: Annotated[
        float, _administration(help="Fraction of requests that create topics.", min=0, max=0.95)
    ] = 0.0005,
    transaction_share: Annotated[
        float, _administration(help="Fraction of partitions with transactions.", min=0, max=1)
    ] = 0.0,
    transaction_ms: Annotated[
        int, _administration(help="Duration of each transaction, in milliseconds.", min=1, max=3_600_000)
    ] = 1000,
) -> None:
    """Generate a trace: a simulated cluster with clients that react, or a trace of any size.

    Give --scenario or --open-loop.
    """
    options = {name: value for name, value in locals().items() if name != "open_backend"}
    _checks(**options)

    from purgatory_udf.backend.backend import SparkBackend, running_tasks
    from purgatory_udf.common.console import Phases
    from purgatory_udf.simulation.output import Output
    from purgatory_udf.simulation.scenario import load_scenario
    from purgatory_udf.simulation.simulation_run import ScenarioRun, generate, simulate
    from purgatory_udf.storage.output_folder import output_lock

    with output_lock(out, "simulate"):
        backend = open_backend()
        with Phases(running_tasks(backend)) as phases:
            if open_loop:
                assert isinstance(backend, SparkBackend)
                generate(backend.spark, _workload(seed, options), out, overwrite, phases)
            else:
                assert scenario is not None
                scenario_run = ScenarioRun(load_scenario(scenario), seed, duration, scale)
                simulate(backend, scenario_run, Output(out, scenario_run.run_id, overwrite), phases, jsonl, check)


if __name__ == "__main__":
    main()
