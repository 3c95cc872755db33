"""A simulation as a command runs it: play, write, say; and check if asked to."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import LawBrokenError
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.open_loop.event_rows import events_of, write_events
from purgatory_udf.simulation.open_loop.workload import Workload
from purgatory_udf.simulation.output import Output, prepare_output, write_jsonl, write_tables
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.replay_options import ReplayOptions, semantic_settings
from purgatory_udf.streaming.replay_run import run_replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What a simulation says of itself: while it runs, and when it is over.


REPORT_INTERVAL_S = 2.0


class ProgressReporter:
    """Tells how far the simulation has come, at most every two seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._began = self._said = clock()

    def __call__(self, events: int, now_us: int, share: float) -> None:
        now = self._clock()
        if now - self._said >= REPORT_INTERVAL_S or share == 1:
            self._said = now
            rate = events / max(now - self._began, 1e-9)
            moment = datetime.fromtimestamp(now_us // 1_000_000, UTC)
            self._say(f"simulate: {share:.0%} · {events:,} events · {rate:,.0f} events/s · {moment:%H:%M:%S}")


def summary(simulated: SimulationResult, out: str) -> list[str]:
    """What was played, what became of the operations, and what the clients say."""
    rate = len(simulated.events) / max(simulated.seconds, 1e-9)
    scenario = simulated.scenario
    lines = [
        f"shows     {scenario.shows}",
        f"events    {len(simulated.events):,}  {out.removeprefix('file://')}/events",
        f"time      {scenario.duration_s:g} s simulated in {simulated.seconds:.1f} s ({rate:,.0f} events/s)",
    ]
    lines += _clients(simulated)
    return [*lines, "", *_operations(simulated).lines()]


def _clients(simulated: SimulationResult) -> list[str]:
    deliveries = [producer.delivery for producer in simulated.producers]
    lines = []
    if deliveries:
        delivered, lost = (
            sum(delivery.delivered for delivery in deliveries),
            sum(delivery.lost for delivery in deliveries),
        )
        retried = sum(delivery.retried for delivery in deliveries)
        lines.append(f"produced  {delivered:,} records, {retried:,} sent again, {lost:,} lost")
    if simulated.instances:
        consumed = sum(instance.records for instance in simulated.instances)
        lines.append(f"consumed  {consumed:,} records by {len(simulated.instances):,} consumers")
    throttled = [exchange.throttle_ms for exchange in simulated.exchanges if exchange.throttle_ms]
    if throttled:
        lines.append(f"throttled {len(throttled):,} answers by quotas, {sum(throttled):,} ms in all")
    failures = Counter(life.failed for instance in simulated.instances for life in instance.lives if life.failed)
    lines += [f"consumers {count:,} {why}" for why, count in failures.items()]
    return lines


def _operations(simulated: SimulationResult) -> Table:
    kinds: Counter[tuple[str, str, str]] = Counter()
    for outcome in simulated.truth.outcomes:
        end = "expired" if outcome.expired else "completed" if outcome.watched else "completed on arrival"
        kinds[outcome.kind, end, outcome.completed_by] += 1
    rows = [(*key, count) for key, count in sorted(kinds.items())]
    return Table("What ended the operations", ("kind", "end", "by", "operations"), rows)


# The check: a replay of the simulated trace has to say exactly what the simulated brokers did.


MAX_DIFFERENCES_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """An operation that the replay has otherwise than the truth, or only one of them has."""

    table: str
    operation_id: int
    columns: tuple[str, ...]
    truth: tuple[Any, ...] | None
    replayed: tuple[Any, ...] | None

    def line(self) -> str:
        name = f"{self.table}: operation {self.operation_id}"
        if self.truth is None:
            return f"{name}: the replay has it, the simulated broker did not"
        if self.replayed is None:
            return f"{name}: the simulated broker has it, the replay has not"
        differing = [
            f"{column} is {mine!r}, not {theirs!r}"
            for column, theirs, mine in zip(self.columns, self.truth, self.replayed, strict=True)
            if mine != theirs
        ]
        return f"{name}: {'; '.join(differing)}"


@dataclass(frozen=True)
class CheckVerdict:
    operations: int
    different: int
    shown: Sequence[Difference]

    def lines(self) -> list[str]:
        if not self.different:
            return [f"check     the replay agrees on all {self.operations:,} operations"]
        return [
            f"check     {self.different:,} of {self.operations:,} operations differ, for example",
            *(f"          {difference.line()}" for difference in self.shown),
        ]

    def require_agreement(self) -> None:
        if self.different:
            raise LawBrokenError(f"the replay differs from the truth in {self.different:,} operations")


def check_against_replay(spark: SparkSession, out: str, overwrite: bool) -> CheckVerdict:
    """Replay `events` into the tables beside it, and hold these against the truth."""
    layout = Layout(out)
    run_replay(spark, ReplayOptions(layout.table("events"), out, Config(), overwrite=overwrite))
    return compare(spark, out)


def compare(spark: SparkSession, out: str) -> CheckVerdict:
    layout = Layout(out)
    operations = different = 0
    shown: list[Difference] = []
    for name in ENDS:
        truth = spark.read.format("delta").load(layout.table(f"truth_{name}")).drop("run_id")
        replayed = spark.read.format("delta").load(layout.table(name)).drop("run_id").select(*truth.columns)
        operations += truth.count()
        wrong = [_by_id(truth.exceptAll(replayed)), _by_id(replayed.exceptAll(truth))]
        ids = sorted({*wrong[0], *wrong[1]})
        different += len(ids)
        shown += [
            Difference(name, operation_id, tuple(truth.columns), wrong[0].get(operation_id), wrong[1].get(operation_id))
            for operation_id in ids[:MAX_DIFFERENCES_SHOWN]
        ]
    return CheckVerdict(operations, different, shown)


def _by_id(rows: DataFrame) -> dict[int, tuple[Any, ...]]:
    return {row.operation_id: tuple(row) for row in rows.collect()}


ReportPhase = Callable[[str], None]


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
        self.run_id = _run_id("simulate", self.settings)


def simulate(
    spark: SparkSession,
    played: ScenarioRun,
    output: Output,
    say: ReportPhase,
    jsonl: Path | None = None,
    check: bool = False,
) -> None:
    """The closed loop."""
    simulated = simulate_and_write(spark, played, output, say, jsonl)
    print("\n".join(summary(simulated, output.out)))
    if check:
        say("replaying the trace")
        verdict = check_against_replay(spark, output.out, output.overwrite)
        print("\n".join(["", *verdict.lines()]))
        verdict.require_agreement()


def simulate_and_write(
    spark: SparkSession, played: ScenarioRun, output: Output, say: ReportPhase, jsonl: Path | None = None
) -> SimulationResult:
    """Play the scenario, and write its trace and the truth about it."""
    prepare_output(spark, output)
    simulated = ClosedLoop(played.scenario, played.config).run(ProgressReporter(say))
    if jsonl is not None:
        write_jsonl(simulated.events, jsonl)
    say(f"writing {len(simulated.events):,} events")
    write_tables(spark, output, simulated, played.settings)
    return simulated


def generate(spark: SparkSession, workload: Workload, out: str, overwrite: bool, say: ReportPhase) -> None:
    """The open loop."""
    settings = asdict(workload)
    output = Output(out, _run_id("open-loop", settings), overwrite)
    prepare_output(spark, output)
    run, began = Run(output.run_id, "simulate", {"open_loop": True}, settings), time.perf_counter()
    say(f"making {workload.events:,} events in {workload.slices:,} slices of time")
    write_events(events_of(spark, workload, output.run_id), output.events)
    seconds = time.perf_counter() - began
    run_records.save(spark, Layout(out).table("runs"), run.finished({"events": workload.events}))
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


def _run_id(job: str, settings: dict[str, Any]) -> str:
    return f"{job}-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]}"
