"""Simulate a cluster whose clients answer back, or make a trace of any size; write the trace that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job

if TYPE_CHECKING:
    from purgatory_udf.simulation.open_loop.workload import Workload

# What each way of simulating is told by; the others would be ignored in silence.
CLOSED = {"scenario": None, "jsonl": None, "duration": None, "scale": 1.0, "check": False}
OPEN = {
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


def _workload(seed: int | None, options: dict[str, Any]) -> Workload:
    from purgatory_udf.simulation.open_loop.workload import Workload

    given = {name: options[name] for name in OPEN}
    return Workload(seed=1 if seed is None else seed, **given)


def _checks(open_loop: bool, seed: int | None, **options: Any) -> None:
    from purgatory_udf.simulation.scenario_file import load_scenario, scenario_names

    if open_loop and options["scenario"] is not None:
        raise UserError("give --scenario or --open-loop, not both")
    strange = next((name for name, usual in (CLOSED if open_loop else OPEN).items() if options[name] != usual), None)
    if strange is not None:
        option = f"--{strange.replace('_', '-')}"
        raise UserError(f"{option} goes with --scenario" if open_loop else f"{option} goes with --open-loop")
    scenario, jsonl = options["scenario"], options["jsonl"]
    if open_loop:
        _workload(seed, options)
    elif scenario is None:
        raise UserError(f"give --open-loop, or --scenario NAME or a file (names: {', '.join(scenario_names())})")
    else:
        load_scenario(str(scenario))
    if isinstance(jsonl, Path) and not jsonl.absolute().parent.is_dir():
        raise UserError(f"--jsonl {jsonl}: there is no folder {jsonl.absolute().parent}")


@job.job(checks=_checks)
def main(
    out: Annotated[str, typer.Option(help="Folder of the tables: events, and the truth about them.")],
    scenario: Annotated[
        str | None, typer.Option(help="A name of conf/scenarios, or a YAML file like those.", show_default=False)
    ] = None,
    jsonl: Annotated[
        Path | None, typer.Option(help="Write the events to this file, too, as JSON Lines.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Another run of chance.  [default: the scenario's, or 1]", show_default=False)
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Seconds of simulated time.  [default: the scenario's]", min=0.001, max=86_400, show_default=False
        ),
    ] = None,
    scale: Annotated[float, typer.Option(help="Times as many producers and consumers.", min=0.001, max=1000)] = 1.0,
    check: Annotated[
        bool, typer.Option("--check", help="Replay the trace and require that it says what the brokers did.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in the folder.")] = False,
    open_loop: Annotated[
        bool, typer.Option("--open-loop", help="A trace of any size instead, in which nobody reacts; made in parallel.")
    ] = False,
    events: Annotated[int, typer.Option(help="Open loop: how many events, as 100_000_000.", min=1)] = 1_000_000,
    partitions: Annotated[int, typer.Option(help="Open loop: how many partitions.", min=3, max=500_000)] = 1000,
    rate: Annotated[float, typer.Option(help="Open loop: requests a second.", min=0.001, max=1e9)] = 10_000.0,
    skew: Annotated[
        float, typer.Option(help="Open loop: 0, all partitions alike; 1, the n-th gets 1/n of the first's.", min=0)
    ] = 0.0,
    keys: Annotated[int, typer.Option(help="Open loop: partitions of a fetch.", min=1)] = 4,
    median_ms: Annotated[float, typer.Option(help="Open loop: a replication's median latency.", min=0.001)] = 20.0,
    p75_ms: Annotated[float, typer.Option(help="Open loop: its 75th percentile.", min=0.001)] = 60.0,
    timeout_ms: Annotated[
        int, typer.Option(help="Open loop: the time-out of a produce, and of an administrator's request.", min=0)
    ] = 1000,
    max_wait_ms: Annotated[int, typer.Option(help="Open loop: a fetch's longest wait.", min=0)] = 500,
    group_share: Annotated[
        float, typer.Option(help="Open loop: the share of members of groups in the requests.", min=0, max=0.95)
    ] = 0.4,
    members: Annotated[int, typer.Option(help="Open loop: members of a group, on average.", min=2, max=1000)] = 10,
    heartbeat_ms: Annotated[int, typer.Option(help="Open loop: between a member's heartbeats.", min=100)] = 3000,
    commit_ms: Annotated[int, typer.Option(help="Open loop: between a member's commits.", min=100)] = 5000,
    session_timeout_ms: Annotated[
        int, typer.Option(help="Open loop: until a member without a heartbeat is out.", min=6000, max=1_800_000)
    ] = 10_000,
    incident_s: Annotated[
        float, typer.Option(help="Open loop: how often one of a group's members goes, and comes back.", max=1e6)
    ] = 60.0,
    crash_share: Annotated[
        float, typer.Option(help="Open loop: how many of them crash; the others leave.", min=0, max=1)
    ] = 0.5,
    delete_share: Annotated[
        float, typer.Option(help="Open loop: the share of deletions of records in the requests.", min=0, max=0.95)
    ] = 0.001,
    create_share: Annotated[
        float, typer.Option(help="Open loop: the share of creations of topics in the requests.", min=0, max=0.95)
    ] = 0.0005,
    transaction_share: Annotated[
        float, typer.Option(help="Open loop: how many of the partitions have transactions.", min=0, max=1)
    ] = 0.0,
    transaction_ms: Annotated[int, typer.Option(help="Open loop: how long each lasts.", min=1, max=3_600_000)] = 1000,
) -> None:
    """Make a trace: a simulated cluster whose clients answer back, or any number of events."""
    from purgatory_udf.backend.phase_progress import Phases, running_tasks
    from purgatory_udf.launch.spark_session import build_session
    from purgatory_udf.simulation.output import Output
    from purgatory_udf.simulation.scenario_file import load_scenario
    from purgatory_udf.simulation.simulation_run import ScenarioRun, generate, simulate

    options: dict[str, Any] = {
        "scenario": scenario,
        "jsonl": jsonl,
        "duration": duration,
        "scale": scale,
        "check": check,
        "events": events,
        "partitions": partitions,
        "rate": rate,
        "skew": skew,
        "keys": keys,
        "median_ms": median_ms,
        "p75_ms": p75_ms,
        "timeout_ms": timeout_ms,
        "max_wait_ms": max_wait_ms,
        "group_share": group_share,
        "members": members,
        "heartbeat_ms": heartbeat_ms,
        "commit_ms": commit_ms,
        "session_timeout_ms": session_timeout_ms,
        "incident_s": incident_s,
        "crash_share": crash_share,
        "delete_share": delete_share,
        "create_share": create_share,
        "transaction_share": transaction_share,
        "transaction_ms": transaction_ms,
    }
    _checks(open_loop, seed, **options)
    spark = build_session("purgatory-simulate")
    with Phases(running_tasks(spark)) as phases:
        if open_loop:
            generate(spark, _workload(seed, options), out, overwrite, phases)
        else:
            assert scenario is not None
            played = ScenarioRun(load_scenario(scenario), seed, duration, scale)
            simulate(spark, played, Output(out, played.run_id, overwrite), phases, jsonl, check)


if __name__ == "__main__":
    main()
