"""The engine against Kafka's own classes on the same traces: operations per second, and differences in outcomes.

    python -m benchmarks.kafka_classes
    python -m benchmarks.kafka_classes small.trace.gz large.trace --json now.json --compare before.json

Kafka's side runs its published purgatory, operation, timer and wheel classes in the trace's own time, on a small model
of the log. After a warm-up, runs of both sides are interleaved, and their medians are compared. Reading the trace is
not measured. The engine has two figures: `loop` is one call of it, from records to ended operations, and `arrow` also
includes the conversion from a table of events and to tables of outcomes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa

from benchmarks.kafka_classes import trace, trace_generator
from benchmarks.kafka_classes.java import Kafka, UnavailableError, class_path
from purgatory_udf.backend.spark_workers import retain_freed_memory
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.rules.engine.loop.engine_state import Decisions, State, step
from purgatory_udf.rules.engine.outcome_tables import outcome_tables
from purgatory_udf.rules.engine.partition_engine import Engine

WARM_ROUNDS, WARM_SECONDS = 10, 3.0
TURN_SECONDS = 0.2


@dataclass
class Measured:
    """Operations per second on one trace, and ratios to Kafka's: of the engine's call, and from Arrow to Arrow."""

    trace: str
    operations: int
    loop_per_s: float
    arrow_per_s: float
    kafka_per_s: float
    ratio: float
    arrow_ratio: float
    differences: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all traces and print one line each."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.kafka_classes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "traces", nargs="*", type=Path, metavar="TRACE", help="traces to measure [default: six generated ones]"
    )
    options.add_argument(
        "--turns", type=int, default=5, help="runs of each program; medians are compared [default: %(default)s]"
    )
    options.add_argument("--json", type=Path, help="write one object per trace to this file")
    options.add_argument(
        "--compare", type=Path, metavar="SAVED", help="also print the ratios of an earlier --json file"
    )
    given = options.parse_args(arguments)
    saved = (
        {measurement["trace"]: measurement for measurement in json.loads(given.compare.read_text())}
        if given.compare
        else {}
    )
    try:
        kafka = Kafka(class_path())
    except UnavailableError as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return
    measurements: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in given.traces or _generate(Path(folder)):
            measurements.append(measure(trace.read(path), kafka, Path(folder), given.turns))
            print(_report(measurements[-1], saved.get(measurements[-1].trace)), flush=True)
    kafka.close()
    if given.json:
        given.json.write_text(
            json.dumps([asdict(measurement) for measurement in measurements], indent=1) + "\n", encoding="utf-8"
        )


def _generate(folder: Path) -> list[Path]:
    paths = [folder / f"{name}.trace" for name in trace_generator.SHAPES]
    for path, shape in zip(paths, trace_generator.SHAPES.values(), strict=True):
        with path.open("w", encoding="utf-8") as out:
            out.writelines(trace_generator.lines(shape))
    return paths


def measure(parsed: trace.Trace, kafka: Kafka, folder: Path, turns: int) -> Measured:
    """Measure both sides on one trace, and compare their outcomes.

    Args:
        parsed: The trace.
        kafka: Kafka's side.
        folder: Folder for the trace and the outcomes.
        turns: Number of interleaved turns of each side.
    """
    plain = folder / "measured"
    plain.write_text(parsed.text, encoding="utf-8")
    operations = kafka.load(plain)
    assert operations == parsed.operations, f"Kafka's side reads {operations} operations, expected {parsed.operations}"
    call, config = explode(parsed.events, Config()), Config()
    settings = Engine(config, trace_start_ms=int(call.events["t"].min(initial=0)) // 1000).settings

    def loop() -> Decisions:
        return step(State(), call, FOREVER, settings)

    def arrow() -> tuple[pa.Table, ...]:
        return outcome_tables(step(State(), explode(parsed.events, config), FOREVER, settings), parsed.name, None)

    retain_freed_memory()
    _warm(kafka)
    loop()
    kafka.write(folder / "outcomes")
    answers = (folder / "outcomes").read_text(encoding="utf-8").splitlines()
    completed, expired, _ = arrow()
    ours = trace.outcome_lines(completed, expired, parsed.partitions)
    differences = sum(expected != actual for expected, actual in zip_longest(answers, ours))

    seconds: list[list[float]] = [[], [], []]
    for _ in range(turns):
        for taken, run_round in zip(seconds, (kafka.seconds, lambda: _timed(loop), lambda: _timed(arrow)), strict=True):
            taken.append(_median_of_turn(run_round))
    theirs, mine, whole = (statistics.median(taken) for taken in seconds)
    return Measured(
        parsed.name,
        operations,
        round(operations / mine, 1),
        round(operations / whole, 1),
        round(operations / theirs, 1),
        round(theirs / mine, 3),
        round(theirs / whole, 3),
        differences,
    )


def _warm(kafka: Kafka) -> None:
    """Run at least 10 rounds and 3 s, until the JIT compiler has finished with a short trace as well."""
    rounds, began = 0, time.perf_counter()
    while rounds < WARM_ROUNDS or time.perf_counter() - began < WARM_SECONDS:
        kafka.seconds()
        rounds += 1


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median_of_turn(run_round: Callable[[], float]) -> float:
    """Run rounds for at least `TURN_SECONDS`, and return the median of the seconds that they took."""
    taken: list[float] = []
    while not taken or sum(taken) < TURN_SECONDS:
        taken.append(run_round())
    return statistics.median(taken)


def _report(rates: Measured, saved: dict[str, float] | None) -> str:
    line = (
        f"{rates.trace}: {rates.operations:,} operations; Kafka's classes {rates.kafka_per_s:,.0f}/s; engine "
        f"{rates.loop_per_s:,.0f}/s, ratio {rates.ratio:.2f}; Arrow to Arrow {rates.arrow_per_s:,.0f}/s, "
        f"ratio {rates.arrow_ratio:.2f}; differences: {rates.differences}"
    )
    if saved is None:
        return line
    return f"{line}; earlier ratios: {saved['ratio']:.2f} and {saved['arrow_ratio']:.2f}"


if __name__ == "__main__":
    main()
