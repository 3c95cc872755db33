"""A cluster that another simulator made, fitted: nothing is shared there, and a replay's outcomes say what happened."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from purgatory_udf.fitted.fit import fit
from purgatory_udf.fitted.plans import fitted_of
from purgatory_udf.fitted.recording import recording
from purgatory_udf.fitted.run import checked_by_play
from purgatory_udf.simulate.closed_loop import ClosedLoop
from purgatory_udf.simulate.load import load
from purgatory_udf.simulate.truth import completion_rows, event_rows, expiration_rows


def _recorded(ended: pd.DataFrame, at: str, outcome: pd.Series[str] | str) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "operation_id": ended["operation_id"],
            "written_at": ended[at],
            "recorded_outcome": outcome,
            "recorded_remote_ms": ended["wait_ms"].astype(float),
            "recorded_local_ms": 0.0,
            "recorded_bytes": ended["bytes"],
        }
    )[ended["kind"].isin(["fetch", "produce"])]


def test_a_simulated_cluster_is_reproduced_and_shares_no_cores() -> None:
    simulated = ClosedLoop(load("steady").model_copy(update={"duration_s": 10.0})).run()
    completed = completion_rows(simulated.truth, "r").to_pandas()
    expired = expiration_rows(simulated.truth, simulated.events[-1]["time_us"], "r").to_pandas()
    ended = [
        _recorded(completed, "completed_at", completed["watched"].map({True: "completed", False: "at_once"})),
        _recorded(expired[~expired["after_end"]], "expired_at", "expired"),
    ]
    told = pa.Table.from_pandas(pd.concat(ended), preserve_index=False)
    scenario = fit(recording(event_rows(simulated.events, "r"), told))
    assert fitted_of(scenario).host.cores is None
    checked = checked_by_play(scenario, 1)
    assert set(checked.recorded) == {*(f"checkout-{n}" for n in (1, 2, 3, 4)), "till-1", "till-2", "follower"}
    assert (checked.judged, checked.reasons()) == (35, [])
