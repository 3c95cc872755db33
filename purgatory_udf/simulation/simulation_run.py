"""The `simulate` command: simulates, writes the tables, prints a summary, and checks a replay of the trace."""

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

from purgatory_udf.backend.backend import Backend, Session, backend_of
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import CheckFailedError
from purgatory_udf.contract.tables import ENDS, TRUTH
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.open_loop.event_rows import events_of, write_events
from purgatory_udf.simulation.open_loop.workload import Workload
from purgatory_udf.simulation.output import Output, has_finished, prepare_output, write_jsonl, write_tables
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions, semantic_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


REPORT_INTERVAL_S = 2.0


class ProgressReporter:
    """Reports the progress of a simulation, at most every `REPORT_INTERVAL_S`, and at the end."""

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._started = self._last_report = clock()

    def __call__(self, events: int, now_us: int, share: float) -> None:
        now = self._clock()
        if now - self._last_report >= REPORT_INTERVAL_S or share == 1:
            self._last_report = now
            rate = events / max(now - self._started, 1e-9)
            moment = datetime.fromtimestamp(now_us // 1_000_000, UTC)
            self._report(
                f"simulate: {share:.0%} · {events:,} events · {rate:,.0f} events/s · simulated until {moment:%H:%M:%S}"
            )


def summary(simulated: SimulationResult, out: str) -> list[str]:
    """Return the lines of the summary: scenario, events, clients, and how the operations ended."""
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
        lines.append(f"produced  {delivered:,} records, {retried:,} retried, {lost:,} lost")
    if simulated.instances:
        consumed = sum(instance.records for instance in simulated.instances)
        lines.append(f"consumed  {consumed:,} records by {len(simulated.instances):,} consumers")
    ends: Counter[str] = Counter()
    for _, delivery in simulated.truth.deliveries:
        ends[delivery.ended_by] += delivery.last_offset + 1 - delivery.first_offset
    if ends:
        counts = ", ".join(f"{count:,} {end.replace('_', ' ')}" for end, count in sorted(ends.items()))
        lines.append(f"delivered {sum(ends.values()):,} records to share groups: {counts}")
    throttled = [exchange.throttle_ms for exchange in simulated.exchanges if exchange.throttle_ms]
    if throttled:
        lines.append(f"throttled {len(throttled):,} responses by quotas, {sum(throttled):,} ms in total")
    failures = Counter(run.failed for instance in simulated.instances for run in instance.runs if run.failed)
    lines += [f"consumers {count:,} {reason}" for reason, count in failures.items()]
    return lines


def _operations(simulated: SimulationResult) -> Table:
    kinds: Counter[tuple[str, str, str]] = Counter()
    for outcome in simulated.truth.outcomes:
        end = "expired" if outcome.expired else "completed" if outcome.watched else "completed on arrival"
        kinds[outcome.kind, end, outcome.completed_by] += 1
    rows = [(*key, count) for key, count in sorted(kinds.items())]
    return Table("What ended the operations", ("kind", "end", "by", "operations"), rows)


MAX_DIFFERENCES_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """An operation with different outcomes in replay and truth, or with an outcome in only one of them."""

    table: str
    operation_id: int
    columns: tuple[str, ...]
    truth: tuple[Any, ...] | None
    replayed: tuple[Any, ...] | None

    def line(self) -> str:
        """Return the difference as one line."""
        name = f"{self.table}: operation {self.operation_id}"
        if self.truth is None:
            return f"{name}: in the replay, but not in the simulation"
        if self.replayed is None:
            return f"{name}: in the simulation, but not in the replay"
        differing = [
            f"{column} is {replayed!r} in the replay, {expected!r} in the simulation"
            for column, expected, replayed in zip(self.columns, self.truth, self.replayed, strict=True)
            if replayed != expected
        ]
        return f"{name}: {'; '.join(differing)}"


@dataclass(frozen=True)
class CheckVerdict:
    """The result of comparing a replay with the truth: counts, and examples of differences."""

    operations: int
    different: int
    examples: Sequence[Difference]

    def lines(self) -> list[str]:
        if not self.different:
            return [f"check     the replay agrees on all {self.operations:,} operations"]
        return [
            f"check     {self.different:,} of {self.operations:,} operations differ, for example",
            *(f"          {difference.line()}" for difference in self.examples),
        ]

    def require_agreement(self) -> None:
        """Raise CheckFailedError if an operation differs."""
        if self.different:
            raise CheckFailedError(
                f"the replay differs from the simulated brokers in {self.different:,} of {self.operations:,} operations"
            )


def check_against_replay(session: Session, out: str, overwrite: bool) -> CheckVerdict:
    """Replay `events` into the same folder, and compare the outcomes with the truth tables.

    `overwrite` is whether an existing replay in the folder is replaced.
    """
    layout = Layout(out)
    # A simulation takes more memory than the replay of its trace.
    run_replay(session, ReplayOptions(layout.table("events"), out, Config(), overwrite=overwrite, any_size=True))
    return compare(session, out)


def compare(session: Session, out: str) -> CheckVerdict:
    """Compare the replay's tables in `out` with its truth tables."""
    backend, layout = backend_of(session), Layout(out)
    operations = different = 0
    examples: list[Difference] = []
    for name in ENDS:
        tables = {"truth": layout.table(f"truth_{name}"), "replayed": layout.table(name)}
        columns = tuple(field.name for field in TRUTH[f"truth_{name}"] if field.name != "run_id")
        (count,) = backend.query("SELECT count(*) AS operations FROM truth", tables).to_pylist()
        operations += count["operations"]
        wrong = [_only_in(backend, tables, columns, *pair) for pair in (("truth", "replayed"), ("replayed", "truth"))]
        ids = sorted({*wrong[0], *wrong[1]})
        different += len(ids)
        examples += [
            Difference(name, operation_id, columns, wrong[0].get(operation_id), wrong[1].get(operation_id))
            for operation_id in ids[:MAX_DIFFERENCES_SHOWN]
        ]
    return CheckVerdict(operations, different, examples)


def _only_in(
    backend: Backend, tables: dict[str, str], columns: tuple[str, ...], one: str, other: str
) -> dict[int, tuple[Any, ...]]:
    """Return the rows of table `one` that table `other` does not have, by operation id."""
    chosen = ", ".join(f"t.{name}" for name in columns)
    sql = f"SELECT {chosen} FROM {one} t EXCEPT ALL SELECT {chosen} FROM {other} t"
    return {row["operation_id"]: tuple(row.values()) for row in backend.query(sql, tables).to_pylist()}


ReportPhase = Callable[[str], None]


class ScenarioRun:
    """A scenario with its overrides. The same scenario with the same overrides gets the same `run_id`."""

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
    session: Session,
    scenario_run: ScenarioRun,
    output: Output,
    report: ReportPhase,
    jsonl: Path | None = None,
    check: bool = False,
) -> None:
    """Run a closed loop, write its tables, print the summary, and check the replay if requested.

    If a check was interrupted, the same call continues it, without simulating again.

    Args:
        session: Spark session or backend.
        scenario_run: The scenario with its overrides.
        output: The folder, and the id of the run.
        report: Called with a line of text at the start of each phase.
        jsonl: File to which the events are also written; None for none.
        check: Whether to replay the trace and compare the outcomes.
    """
    can_continue = check and not output.overwrite and (jsonl is None or jsonl.exists())
    if can_continue and has_finished(backend_of(session), output):
        report(f"run {output.run_id} has been simulated already; to repeat it, use --overwrite")
    else:
        simulated = simulate_and_write(session, scenario_run, output, report, jsonl)
        print("\n".join(summary(simulated, output.out)))
        del simulated
    if check:
        report("replaying the trace to check it")
        verdict = check_against_replay(session, output.out, output.overwrite)
        print("\n".join(["", *verdict.lines()]))
        verdict.require_agreement()


def simulate_and_write(
    session: Session, scenario_run: ScenarioRun, output: Output, report: ReportPhase, jsonl: Path | None = None
) -> SimulationResult:
    """Simulate the scenario; write the trace and the truth tables.

    Args:
        session: Spark session or backend.
        scenario_run: The scenario with its overrides.
        output: The folder, and the id of the run.
        report: Called with a line of text at the start of each phase.
        jsonl: File to which the events are also written; None for none.
    """
    run = Run(output.run_id, "simulate", {"shows": scenario_run.scenario.shows}, scenario_run.settings)
    prepare_output(backend_of(session), output, run)
    simulated = ClosedLoop(scenario_run.scenario, scenario_run.config).run(ProgressReporter(report))
    if jsonl is not None:
        write_jsonl(simulated.events, jsonl)
    report(f"writing {len(simulated.events):,} events")
    write_tables(backend_of(session), output, simulated, run)
    return simulated


def generate(spark: SparkSession, workload: Workload, out: str, overwrite: bool, report: ReportPhase) -> None:
    """Run an open loop: generate the trace, write it, and print the summary.

    Args:
        spark: The Spark session.
        workload: The settings of the trace.
        out: Output folder.
        overwrite: Whether to replace the tables in the folder.
        report: Called with a line of text at the start of each phase.
    """
    settings = asdict(workload)
    output = Output(out, _run_id("open-loop", settings), overwrite)
    run, started = Run(output.run_id, "simulate", {"open_loop": True}, settings), time.perf_counter()
    prepare_output(backend_of(spark), output, run)
    report(f"generating {workload.events:,} events in {workload.slices:,} slices of time")
    write_events(events_of(spark, workload, output.run_id), output.events)
    seconds = time.perf_counter() - started
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
