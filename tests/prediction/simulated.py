"""A cluster of the closed-loop simulation, as the tables of an import or of a replay."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pyarrow as pa

from purgatory_udf.contract.tables import RECORDED
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.output import completion_rows, event_rows, expiration_rows
from purgatory_udf.simulation.scenario import load_scenario


@cache
def steady() -> SimulationResult:
    return ClosedLoop(load_scenario("steady").model_copy(update={"duration_s": 10.0})).run()


@cache
def replayed() -> dict[str, pa.Table]:
    return replayed_of(steady())


@cache
def recorded() -> pa.Table:
    return recorded_of(replayed())


def replayed_of(simulated: SimulationResult) -> dict[str, pa.Table]:
    """Return the tables of a replay that a fit reads."""
    return {
        "events": event_rows(simulated.events, "r"),
        "completions": completion_rows(simulated.truth, "r"),
        "expirations": expiration_rows(simulated.truth, simulated.events[-1]["time_us"], "r"),
    }


def recorded_of(replayed: dict[str, pa.Table]) -> pa.Table:
    """Return the table `recorded` of an import with the same outcomes."""
    completed, expired = (replayed[name].to_pandas() for name in ("completions", "expirations"))
    ended = [
        _recorded(completed, "completed_at", completed["watched"].map({True: "completed", False: "at_once"})),
        _recorded(expired[~expired["after_end"]], "expired_at", "expired"),
    ]
    rows = pd.concat(ended).reindex(columns=RECORDED.names)
    return pa.Table.from_pandas(rows, schema=RECORDED, preserve_index=False)


def _recorded(ended: pd.DataFrame, at: str, outcome: pd.Series[str] | str) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "operation_id": ended["operation_id"],
            "broker": ended["broker"],
            "kind": ended["kind"],
            "api": ended["kind"].str.upper(),
            "started_at": ended["started_at"],
            "written_at": ended[at],
            "recorded_outcome": outcome,
            "recorded_remote_ms": ended["wait_ms"].astype(float),
            "recorded_local_ms": 0.0,
            "recorded_bytes": ended["bytes"],
            "recorded_complete": True,
        }
    )[ended["kind"].isin(["fetch", "produce"])]
