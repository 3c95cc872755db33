"""Precision and recall of `diagnose` on simulated clusters with known incidents.

    python -m benchmarks.diagnosis
    python -m benchmarks.diagnosis --seeds 25 --json diagnosis.json follower_stalled calm

Each shape of incident is simulated once per seed, with a random cluster, victim, time and length. The trace is replayed
and diagnosed in this process. A finding is right if it has an allowed kind, names the culprit, and overlaps the
incident in time; a consequence of the incident, such as a lag after a crash, is neither right nor wrong. Every other
finding is false. `calm` has no incidents, so each finding in it is false.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from benchmarks import saved_figures
from benchmarks.combined_incidents import SHAPES, simulated_trace
from benchmarks.simulated_incidents import Injected
from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose
from purgatory_udf.answers.diagnosis.finding import Finding
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.output import event_rows
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions


@dataclass(frozen=True)
class Score:
    """The diagnosis of the traces of one shape: how many incidents it found, and how many of its findings are right."""

    shape: str
    traces: int
    incidents: int
    found: int
    right_findings: int
    false_findings: int
    errors: tuple[str, ...] = ()

    @property
    def recall(self) -> float:
        """The share of incidents that were found; 1 without incidents."""
        return self.found / self.incidents if self.incidents else 1.0

    @property
    def precision(self) -> float:
        """The share of findings that are right; 1 without findings."""
        findings = self.right_findings + self.false_findings
        return self.right_findings / findings if findings else 1.0

    @property
    def false_per_trace(self) -> float:
        """The number of false findings per trace."""
        return self.false_findings / self.traces


def added(shape: str, scores: Iterable[Score]) -> Score:
    """Return the sum of the scores of several traces as the score of `shape`."""
    every = list(scores)
    names = ("traces", "incidents", "found", "right_findings", "false_findings")
    sums = {name: sum(getattr(score, name) for score in every) for name in names}
    return Score(shape, **sums, errors=tuple(error for score in every for error in score.errors))


def score(shape: str, seed: int) -> Score:
    """Simulate, replay and diagnose one trace, and compare the findings with its incidents."""
    trace = simulated_trace(shape, seed)
    # A simulation creates many objects that live to its end: a third of its time would be garbage collection.
    gc.disable()
    try:
        findings = _findings(trace.scenario)
    finally:
        gc.enable()
    right = [finding for finding in findings if any(each.is_found_by(finding) for each in trace.injected)]
    false = [
        finding
        for finding in findings
        if finding not in right and not any(each.has_consequence(finding) for each in trace.injected)
    ]
    missed = [each for each in trace.injected if not any(each.is_found_by(finding) for finding in right)]
    errors = [f"{shape} {seed}: missed {_described(each)}" for each in missed]
    errors += [f"{shape} {seed}: false {finding.kind}: {finding.summary}" for finding in false]
    incidents = len(trace.injected)
    return Score(shape, 1, incidents, incidents - len(missed), len(right), len(false), tuple(errors))


def _described(incident: Injected) -> str:
    fields = {name: value for name, value in asdict(incident).items() if value not in (None, ())}
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def _findings(scenario: Scenario) -> tuple[Finding, ...]:
    with tempfile.TemporaryDirectory() as folder:
        events, out = str(Path(folder) / "events"), str(Path(folder) / "out")
        write_deltalake(events, event_rows(ClosedLoop(scenario).run().events, "simulated"))
        run_replay(LocalBackend(), ReplayOptions(events, out, Config()))
        return diagnose(LocalBackend(), out).findings


def scores(shapes: Sequence[str], seeds: range, processes: int) -> Iterator[Score]:
    """Yield the score of each shape over these seeds. A seed is a trace; it is decided in one of `processes`."""
    # Processes are spawned: Delta's threads do not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        submitted = {shape: [pool.submit(score, shape, seed) for seed in seeds] for shape in shapes}
        for shape, futures in submitted.items():
            yield added(shape, [future.result() for future in futures])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of precision and recall."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10, help="traces of each shape [default: 10]")
    options.add_argument("--first-seed", type=int, default=1, help="the first seed [default: 1]")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes [default: one per core]")
    saved_figures.add_options(options)
    options.add_argument("--errors", action="store_true", help="print each missed incident and each false finding")
    options.add_argument(
        "shapes", nargs="*", metavar="SHAPE", help=f"shapes of incidents [default: {', '.join(SHAPES)}]"
    )
    given = options.parse_args(arguments)
    shapes = given.shapes or list(SHAPES)
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        options.error(f"unknown shape {unknown[0]}; there are: {', '.join(SHAPES)}")
    started, every = time.perf_counter(), []
    print(f"{'shape':24}{'traces':>8}{'incidents':>11}{'found':>7}{'false/trace':>13}{'precision':>11}{'recall':>8}")
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for result in scores(shapes, seeds, given.processes):
        every.append(result)
        _print(result, given.errors)
    total = added("all", every)
    _print(total, False)
    print(f"{time.perf_counter() - started:,.0f} s in {given.processes} processes")
    figures = {result.shape: _as_json(result) for result in [*every, total]}
    saved_figures.finish({"seeds": [*seeds], "shapes": figures}, given, ("precision", "recall"))


def _print(result: Score, with_errors: bool) -> None:
    print(
        f"{result.shape:24}{result.traces:8}{result.incidents:11}{result.found:7}{result.false_per_trace:13.2f}"
        f"{result.precision:11.3f}{result.recall:8.3f}",
        *(result.errors if with_errors else ()),
        sep="\n  ",
        flush=True,
    )


def _as_json(result: Score) -> dict[str, Any]:
    figures = {name: getattr(result, name) for name in ("false_per_trace", "precision", "recall")}
    return asdict(result) | figures


if __name__ == "__main__":
    main()
