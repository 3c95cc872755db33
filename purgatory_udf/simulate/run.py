"""A simulation as a command runs it: play, write, say; and check if asked to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory_udf.simulate.check import check
from purgatory_udf.simulate.closed_loop import ClosedLoop
from purgatory_udf.simulate.jsonl import write_jsonl
from purgatory_udf.simulate.output import Output, make_room, write
from purgatory_udf.simulate.report import Teller, summary
from purgatory_udf.simulate.scenario import Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Request:
    """A scenario as it is to be played, and where its tables go."""

    scenario: Scenario
    out: str
    jsonl: Path | None = None
    check: bool = False
    overwrite: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return self.scenario.model_dump(mode="json")

    @property
    def run_id(self) -> str:
        return f"simulate-{hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:12]}"


def varied(scenario: Scenario, seed: int | None, duration_s: float | None, scale: float) -> Scenario:
    """The scenario with another seed, length, or number of clients."""
    changes: dict[str, Any] = {"seed": seed, "duration_s": duration_s}
    kept = {key: value for key, value in changes.items() if value is not None}
    return scenario.scaled(scale).model_copy(update=kept)


def simulate(spark: SparkSession, request: Request, say: Callable[[str], None]) -> None:
    output = Output(request.out, request.run_id, request.overwrite)
    make_room(spark, output)
    simulated = ClosedLoop(request.scenario).run(Teller(say))
    if request.jsonl is not None:
        write_jsonl(simulated.events, request.jsonl)
    say(f"writing {len(simulated.events):,} events")
    write(spark, output, simulated, request.settings)
    print("\n".join(summary(simulated, request.out)))
    if request.check:
        say("replaying the trace")
        verdict = check(spark, request.out, request.overwrite)
        print("\n".join(["", *verdict.lines()]))
        verdict.require_agreement()
