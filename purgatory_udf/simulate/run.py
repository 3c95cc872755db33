"""A simulation as a command runs it: play, write, say; and check if asked to."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory_udf.config import Config
from purgatory_udf.simulate.check import check as check_replay
from purgatory_udf.simulate.closed_loop import ClosedLoop, Simulated
from purgatory_udf.simulate.jsonl import write_jsonl
from purgatory_udf.simulate.open_loop.workload import Workload
from purgatory_udf.simulate.open_loop.write import events_of, write_events
from purgatory_udf.simulate.output import Output, make_room, write
from purgatory_udf.simulate.report import Teller, summary
from purgatory_udf.simulate.scenario import Scenario
from purgatory_udf.storage import runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.runs import Run
from purgatory_udf.stream.options import semantic_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


class ScenarioRun:
    """A scenario with another seed, length, or number of clients, on brokers of a configuration; the same asked again
    has the same name."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int | None = None,
        duration_s: float | None = None,
        scale: float = 1.0,
        config: Config | None = None,
    ) -> None:
        self.config = config or Config()
        changes = {"seed": seed, "duration_s": duration_s}
        given = {key: value for key, value in changes.items() if value is not None}
        self.scenario = scenario.scaled(scale).model_copy(update=given)
        self.settings: dict[str, Any] = self.scenario.model_dump(mode="json")
        if semantic_settings(self.config) != semantic_settings(Config()):
            self.settings["config"] = semantic_settings(self.config)
        self.run_id = _name("simulate", self.settings)


def simulate(
    spark: SparkSession, played: ScenarioRun, output: Output, say: Say, jsonl: Path | None = None, check: bool = False
) -> None:
    """The closed loop."""
    simulated = play_and_write(spark, played, output, say, jsonl)
    print("\n".join(summary(simulated, output.out)))
    if check:
        say("replaying the trace")
        verdict = check_replay(spark, output.out, output.overwrite)
        print("\n".join(["", *verdict.lines()]))
        verdict.require_agreement()


def play_and_write(
    spark: SparkSession, played: ScenarioRun, output: Output, say: Say, jsonl: Path | None = None
) -> Simulated:
    """Play the scenario, and write its trace and the truth about it."""
    make_room(spark, output)
    simulated = ClosedLoop(played.scenario, played.config).run(Teller(say))
    if jsonl is not None:
        write_jsonl(simulated.events, jsonl)
    say(f"writing {len(simulated.events):,} events")
    write(spark, output, simulated, played.settings)
    return simulated


def generate(spark: SparkSession, workload: Workload, out: str, overwrite: bool, say: Say) -> None:
    """The open loop."""
    settings = asdict(workload)
    output = Output(out, _name("open-loop", settings), overwrite)
    make_room(spark, output)
    run, began = Run(output.run_id, "simulate", {"open_loop": True}, settings), time.perf_counter()
    say(f"making {workload.events:,} events in {workload.slices:,} slices of time")
    write_events(events_of(spark, workload, output.run_id), output.events)
    seconds = time.perf_counter() - began
    runs.save(spark, Layout(out).table("runs"), run.finished({"events": workload.events}))
    plan = workload.plan
    lines = [
        f"events    {workload.events:,}  {out.removeprefix('file://')}/events",
        f"requests  {workload.produces:,} produces, {workload.fetches:,} fetches of {workload.keys} partitions each",
        f"groups    {plan.groups:,} of about {plan.members} members, {workload.group_events:,} requests",
        f"admin     {workload.deletes:,} deletions of records, {workload.creations:,} creations of topics",
        f"time      {workload.length_us / 1e6:,.1f} s of the trace in {seconds:.1f} s "
        f"({workload.events / seconds:,.0f} events/s)",
    ]
    print("\n".join(lines))


def _name(job: str, settings: dict[str, Any]) -> str:
    return f"{job}-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]}"
